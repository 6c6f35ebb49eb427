//! The formats of a file, through the command.

mod common;

use std::fs::File;
use std::path::Path;
use std::process::{Output, Stdio};

use common::text;
use serde_json::Value;

fn run(arguments: &[&str], input: Option<&str>) -> Output {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples");
    let input =
        input.map_or_else(Stdio::null, |file| File::open(examples.join(file)).expect("a file").into());
    common::process("plan", arguments).stdin(input).output().expect("the command runs")
}

fn json(arguments: &[&str], input: Option<&str>) -> Value {
    let output = run(&[arguments, &["--json"]].concat(), input);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("one JSON document")
}

fn refused(arguments: &[&str]) -> String {
    common::refused("plan", arguments)
}

const RUN: [&str; 11] = [
    "--gpus",
    "16",
    "--pipeline-model-parallel-size",
    "2",
    "--num-virtual-stages-per-pipeline-rank",
    "2",
    "--expert-model-parallel-size",
    "8",
    "--use-distributed-optimizer",
    "--global-batch-size",
    "256",
];

#[test]
fn a_config_and_flags_are_the_preset() {
    let preset = json(&["--model", "qwen3-30b-a3b"], None);
    let config = json(&[&["configs/qwen3-30b-a3b.json"], &RUN[..]].concat(), None);
    assert_eq!(config["ranks"], preset["ranks"]);
    assert_eq!(config["source"], "configs/qwen3-30b-a3b.json");
    let from_input = json(&[&["-"], &RUN[..]].concat(), Some("configs/qwen3-30b-a3b.json"));
    assert_eq!(from_input["ranks"], preset["ranks"]);
    let by_id = json(&["--model", "Qwen/Qwen3-30B-A3B-Instruct-2507"], None);
    assert_eq!(by_id["ranks"], preset["ranks"]);
}

#[test]
fn a_recipe_and_its_preset_have_the_same_plan() {
    let preset = json(&["--model", "mixtral-8x7b"], None);
    let script = json(&["launchers/recipe.sh"], None);
    assert_eq!(script["ranks"], preset["ranks"]);
}

#[test]
fn what_a_file_is_not_is_one_error() {
    let error = refused(&["configs/qwen3-30b-a3b.json"]);
    assert!(error.contains("configs/qwen3-30b-a3b.json") && error.contains("give --gpus N"), "{error}");
    let error = refused(&["configs/qwen3-30b-a3b.json", "--gpus", "8", "--arg", "x"]);
    assert!(error.contains("--arg") && error.contains("no launch script"), "{error}");
    let error = refused(&["launchers/ms-swift.yaml", "--gpus", "8", "--format", "hf"]);
    assert!(error.contains("not a JSON object"), "{error}");
    let error = refused(&["launchers/flags.txt", "--gpus", "8", "--format", "yaml"]);
    assert!(error.contains("line 22: not YAML"), "{error}");
    let output = run(&["launchers/flags.txt", "--format", "toml"], None);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(2) && error.contains("possible values: script, hf"), "{error}");
}
