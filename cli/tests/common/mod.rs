//! The `bagualu` process, started in the folder of the examples, and what it answers.

#![allow(dead_code, reason = "each file of tests takes what it needs")]

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

/// The process that runs `command`.
pub fn process(command: &str, arguments: &[&str]) -> Command {
    let mut process = Command::new(env!("CARGO_BIN_EXE_bagualu"));
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples");
    process.arg(command).args(arguments).current_dir(examples);
    process
}

pub fn run(command: &str, arguments: &[&str]) -> Output {
    process(command, arguments).output().expect("the command runs")
}

pub fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("UTF-8")
}

/// The answer as JSON; the status is one of those given.
pub fn json(command: &str, arguments: &[&str], statuses: &[i32]) -> Value {
    let output = run(command, &[arguments, &["--json"]].concat());
    let status = output.status.code().expect("no signal");
    assert!(statuses.contains(&status), "{arguments:?}: {status}: {}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("one JSON document")
}

/// One line on standard error, which is returned, nothing on standard output, status 2.
pub fn refused(command: &str, arguments: &[&str]) -> String {
    let output = run(command, arguments);
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(2), ""), "{arguments:?}");
    let message = text(&output.stderr).to_owned();
    assert_eq!(message.lines().count(), 1, "{message}");
    message
}

/// The list `field` of `value`.
pub fn list<'v>(value: &'v Value, field: &str) -> &'v [Value] {
    value[field].as_array().unwrap_or_else(|| panic!("no {field} in {value}"))
}
