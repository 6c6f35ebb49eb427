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
    // The legend is below the plot, whose lowest text is the time axis.
    let height = |words: &str| -> u32 {
        let tag = &picture[..picture.find(words).expect(words)];
        let y = &tag[tag.rfind(" y=\"").expect("a place") + 4..];
        y[..y.find('"').expect("an end")].parse().expect("pixels")
    };
    assert!(height("static full\n") > height("time on the device"), "{picture}");
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
        (
            &["--trace", "w2", "--peak", "9"],
            "--peak: 9 is no load of this group; give at most 8: one rank then receives every row",
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
    let needed = bytes("needed_bytes");
    assert!(needed > bytes("available_bytes"));
    let stderr = text(&output.stderr);
    assert_eq!(stderr.matches(" bytes").count(), 1, "{stderr}");
}

#[test]
fn a_picture_that_cannot_be_written_is_refused_before_the_run() {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let inside = directory.join("absent/a.svg");
    for (path, problem) in [
        (inside.to_str().expect("UTF-8"), "cannot be written"),
        ("-", "standard output"),
        (env!("CARGO_TARGET_TMPDIR"), "no regular file"),
        ("/dev/null", "no regular file"),
    ] {
        // So many iterations never end in a test.
        let output = bagualu(
            &[&SMALL[..10], &["--iterations", "4000000000", "--trace", "w2", "--svg", path]].concat(),
        );
        let stderr = text(&output.stderr);
        assert_eq!((output.status.code(), text(&output.stdout)), (Some(2), ""), "{stderr}");
        assert!(stderr.starts_with(&format!("error: --svg: {path}: {problem}")), "{stderr}");
        assert!(stderr.contains("; give "), "{stderr}");
    }
}

#[test]
fn a_picture_replaces_an_older_one_and_leaves_nothing_beside_it() {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("picture");
    std::fs::create_dir_all(&directory).expect("a directory");
    let svg = directory.join("a.svg");
    std::fs::write(&svg, "old").expect("a file");
    let path = svg.to_str().expect("UTF-8");
    let output = bagualu(&[&SMALL[..], &["--trace", "w0", "--svg", path]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(std::fs::read_to_string(&svg).expect("the picture").starts_with("<svg"));
    assert_eq!(std::fs::read_dir(&directory).expect("the directory").count(), 1);
}

#[test]
fn what_a_trace_holds_reaches_the_terminal_short_and_escaped() {
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("bad.csv");
    let path = file.to_str().expect("UTF-8");
    let zeros = "\0".repeat(2_000_000);
    for content in [&zeros, "microbatch,layer,e0\n0,0,\u{1b}[2J\n", &format!("{{\"{zeros}\": 1}}")] {
        std::fs::write(&file, content).expect("a file");
        let output = bagualu(&[&SMALL[..], &["--trace", path]].concat());
        let stderr = text(&output.stderr).trim_end();
        assert_eq!(output.status.code(), Some(2), "{stderr}");
        assert!(stderr.len() < 2_000 && !stderr.contains(char::is_control), "{stderr:?}");
    }
    let output = bagualu(&[&SMALL[..], &["--trace", "/dev/zero"]].concat());
    assert!(text(&output.stderr).contains("--trace /dev/zero: more than 268435456 bytes"));
}

#[test]
fn stages_without_layers_run_without_faults() {
    let layout = ["--pipeline-model-parallel-layout", "E|tttt|tttt|||(|)*2L"];
    let output = bagualu(&[&SMALL[..], &layout, &["--trace", "w2", "--json"]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(report["controller"]["memory"]["faults"], 0);
    assert_eq!(report["controller"]["refused_iterations"], 0);
}
