//! The `bagualu solve` process: exit statuses, streams and messages.

use std::io::{Read, Write};
use std::process::{Command, Output, Stdio};

const BUDGET: &str = r#"{"capacity_bytes": 100, "events": [{"forward": "a", "floor_bytes": 10}]}"#;

fn bagualu(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bagualu"));
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn run(arguments: &[&str], input: &[u8]) -> Output {
    let mut child = bagualu(arguments).spawn().expect("the command starts");
    // A command that refuses its options never reads.
    let _ = child.stdin.take().expect("a pipe").write_all(input);
    child.wait_with_output().expect("the command ends")
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("UTF-8")
}

#[test]
fn an_answer_is_on_standard_output_alone() {
    for arguments in [&["solve", "budget", "--json"][..], &["solve", "budget", "-", "--json"]] {
        let output = run(arguments, BUDGET.as_bytes());
        assert_eq!(output.status.code(), Some(0));
        assert_eq!(
            text(&output.stdout),
            "{\"forwards\":[{\"id\":\"a\",\"free_bytes\":100,\"quota_bytes\":100,\"limit_bytes\":100,\
             \"held_bytes\":100}],\"peak_bytes\":100}\n"
        );
        assert_eq!(text(&output.stderr), "");
    }
}

#[test]
fn without_json_it_is_a_table() {
    let output = run(&["solve", "budget"], BUDGET.as_bytes());
    assert_eq!(output.status.code(), Some(0));
    assert!(text(&output.stdout).contains("forward") && text(&output.stdout).contains("peak 100 B"));
}

#[test]
fn infeasible_is_status_3_and_an_object() {
    let json = BUDGET.replace("100", "7");
    let output = run(&["solve", "budget", "--json"], json.as_bytes());
    assert_eq!(output.status.code(), Some(3));
    assert_eq!(text(&output.stdout), "{\"infeasible\":{\"needed_bytes\":10,\"available_bytes\":7}}\n");
    let output = run(&["solve", "budget"], json.as_bytes());
    assert_eq!(output.status.code(), Some(3));
    assert_eq!(text(&output.stdout), "");
    assert_eq!(
        text(&output.stderr),
        "error: infeasible: the floors alone hold 10 bytes, 7 are available: 3 too few\n"
    );
}

#[test]
fn bad_input_is_status_2_and_one_message() {
    for json in ["", "{}", "[]", "nonsense", "{\"capacity_bytes\": -1, \"events\": []}", "\u{0}"] {
        let output = run(&["solve", "budget", "--json"], json.as_bytes());
        assert_eq!(output.status.code(), Some(2), "{json:?}");
        assert_eq!(text(&output.stdout), "");
        assert_eq!(text(&output.stderr).lines().count(), 1, "{}", text(&output.stderr));
    }
    let output = run(&["solve", "budget", "no/such/file.json"], b"");
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).starts_with("error: no/such/file.json: cannot be read"));
    let output = run(&["solve", "budget", "--method", "guess"], BUDGET.as_bytes());
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn a_reader_that_leaves_is_no_error() {
    // More than a pipe holds, so that the write meets the closed end.
    let events: Vec<String> =
        (0..3000).map(|i| format!(r#"{{"forward": "{i}", "floor_bytes": 0}}"#)).collect();
    let json = format!(r#"{{"capacity_bytes": 100, "events": [{}]}}"#, events.join(","));
    let mut child = bagualu(&["solve", "budget", "--json"]).spawn().expect("the command starts");
    drop(child.stdout.take());
    child.stdin.take().expect("a pipe").write_all(json.as_bytes()).expect("it reads");
    let mut said = String::new();
    child.stderr.take().expect("a pipe").read_to_string(&mut said).expect("UTF-8");
    assert_eq!(said, "");
    assert_eq!(child.wait().expect("it ends").code(), Some(0));
}
