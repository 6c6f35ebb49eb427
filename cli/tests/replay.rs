//! The `bagualu replay` process: exit statuses, streams, JSON and picture.

use std::path::Path;
use std::process::{Command, Output};

fn bagualu(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bagualu"));
    command.arg("replay").args(arguments).output().expect("the command runs")
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("UTF-8")
}

const SMALL: [&str; 14] = [
    "--model",
    "mixtral-8x7b",
    "--device",
    "h100-80g",
    "--num-layers",
    "8",
    "--seq-length",
    "1024",
    "--global-batch-size",
    "64",
    "--iterations",
    "2",
    "--seed",
    "7",
];

#[test]
fn the_command_reports_what_the_library_finds() {
    let svg = Path::new(env!("CARGO_TARGET_TMPDIR")).join("replay.svg");
    let svg = svg.to_str().expect("UTF-8");
    let arguments =
        [&SMALL[..], &["--trace", "w2", "--static", "none", "--static", "full", "--json", "--svg", svg]]
            .concat();
    let output = bagualu(&arguments);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(report["version"], 1);
    assert_eq!(report["trace"]["largest_load_permille"], 2_600);
    assert_eq!(report["controller"]["refused_iterations"], 0);
    assert_eq!(report["controller"]["memory"]["out_of_memory_iterations"], 0);
    assert_eq!(report["static"][0]["policy"], "none");
    assert_eq!(report["static"].as_array().map(Vec::len), Some(2));
    let picture = std::fs::read_to_string(svg).expect("the picture");
    for part in ["<svg", "GiB", "bagualu", "static full", "available"] {
        assert!(picture.contains(part), "{part}");
    }
    let again = bagualu(&[&arguments[..], &["--threads", "1"]].concat());
    assert_eq!(text(&output.stdout), text(&again.stdout));
}

#[test]
fn bad_input_is_status_2_and_names_field_and_fix() {
    for (arguments, message) in [
        (
            &["--trace", "w9"][..],
            "--trace w9: No such file or directory (os error 2), and \"w9\" is no workload; there are w0 to w7 and spike",
        ),
        (
            &["--trace", "w2", "--trace-groups", "8"],
            "--trace-groups: w2 is generated; it is for trace files; leave it out",
        ),
        (&["--trace", "Cargo.toml"], "line 1, column 1"),
        (
            &["--trace", "w2", "--static", "partial"],
            "\"partial\" is no static policy; there are none, selective and full",
        ),
        (&["--trace", "w2", "--peak", "0.5"], "\"0.5\" is no load; give a number from 1"),
    ] {
        let output = bagualu(&[&SMALL[..], arguments].concat());
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{stderr}");
        assert!(stderr.contains(message), "{stderr}");
        assert_eq!(text(&output.stdout), "");
    }
}

#[test]
fn what_cannot_run_is_status_3_with_its_bytes() {
    let output = bagualu(&[&SMALL[..], &["--trace", "w0", "--memory", "8", "--json"]].concat());
    assert_eq!(output.status.code(), Some(3), "{}", text(&output.stderr));
    let answer: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let bytes = |field: &str| answer["infeasible"][field].as_u64().expect("bytes");
    assert!(bytes("needed_bytes") > bytes("available_bytes"));
}
