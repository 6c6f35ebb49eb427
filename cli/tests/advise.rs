//! `bagualu plan --advise`: what is advised fits, as `bagualu plan` itself finds with the advised flags.

mod common;

use std::io::Write;
use std::process::{Output, Stdio};

use serde_json::Value;

fn run(arguments: &[&str]) -> Output {
    common::run("plan", arguments)
}

/// The answer, whatever the verdict.
fn plan(arguments: &[&str]) -> Value {
    common::json("plan", arguments, &[0, 3])
}

fn advice(arguments: &[&str]) -> Value {
    plan(&[arguments, &["--advise"]].concat())["advice"].take()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().expect("a list")
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no number"))
}

fn flags(candidate: &Value) -> Vec<&str> {
    list(&candidate["flags"]).iter().map(|flag| flag.as_str().expect("a flag")).collect()
}

/// Plans the run with each candidate's flags, which must say what was advised; and candidates are in order.
fn round_trip(arguments: &[&str], advice: &Value) {
    let order = |c: &Value| {
        let numbers = ["gpus", "changes", "iteration_ns"].map(|field| number(&c[field]));
        (c["verdict"].as_str().map(str::to_owned), numbers)
    };
    assert!(list(&advice["candidates"]).iter().map(order).is_sorted());
    for candidate in list(&advice["candidates"]) {
        let again = plan(&[arguments, &flags(candidate)].concat());
        let ranks = list(&again["ranks"]);
        let order = ["fits", "needs_strategies", "infeasible"];
        let of = |rank: &Value| order.iter().position(|verdict| rank["verdict"] == *verdict);
        let worst = ranks.iter().map(of).max().flatten().expect("a verdict");
        assert_eq!(candidate["verdict"], order[worst], "{candidate}");
        assert_eq!(candidate["gpus"], again["parallelism"]["gpus"]);
        let rank = &ranks[number(&candidate["rank"]) as usize];
        let parts = rank["static_bytes"].as_object().expect("parts");
        assert_eq!(number(&candidate["static_bytes"]), parts.values().map(number).sum::<u64>());
        assert_eq!(candidate["floor_bytes"], rank["floor_bytes"]);
        assert_eq!(candidate["device_bytes"], rank["device_bytes"]);
        let peaks = list(&rank["loads"]).iter().map(|load| number(&load["peak_bytes"]));
        assert_eq!(Some(number(&candidate["peak_bytes"])), peaks.max());
        assert!(number(&candidate["peak_bytes"]) <= number(&candidate["device_bytes"]));
    }
}

/// The global batch, and so what is trained, is that of the run as given.
fn same_batch(arguments: &[&str], advice: &Value) {
    let sequences = |plan: &Value| {
        let parallelism = &plan["parallelism"];
        ["data", "micro_batch_size", "micro_batches"]
            .map(|field| number(&parallelism[field]))
            .iter()
            .product::<u64>()
    };
    let given = sequences(&plan(arguments));
    for candidate in list(&advice["candidates"]) {
        assert_eq!(sequences(&plan(&[arguments, &flags(candidate)].concat())), given, "{candidate}");
    }
}

/// A dense model of 6.7 billion parameters on 8 devices of 80 GB.
const DENSE: [&str; 21] = [
    "--device",
    "h100-80g",
    "--gpus",
    "8",
    "--load",
    "1",
    "--num-layers",
    "32",
    "--hidden-size",
    "4096",
    "--num-attention-heads",
    "32",
    "--seq-length",
    "4096",
    "--vocab-size",
    "32000",
    "--global-batch-size",
    "64",
    "--bf16",
    "--micro-batch-size",
    "1",
];

#[test]
fn a_run_that_fits_needs_nothing() {
    let arguments = ["--model", "glm-423b-a30b", "--load", "1", "--advise"];
    let output = run(&arguments);
    assert_eq!(output.status.code(), Some(0));
    assert!(String::from_utf8_lossy(&output.stdout).contains("Advice: nothing to change"));
    let advice = advice(&arguments[..4]);
    assert_eq!((&advice["given"]["verdict"], list(&advice["candidates"]).len()), (&"fits".into(), 0));
}

#[test]
fn no_more_is_advised_than_is_needed() {
    // Within a few GiB of fitting: a quarter of the optimizer's state on the host is enough.
    let one_chunk = ["--model", "mixtral-8x7b", "--num-virtual-stages-per-pipeline-rank", "1"];
    let advice = advice(&[&one_chunk[..], &["--memory", "30", "--load", "1"]].concat());
    assert_eq!(advice["given"]["verdict"], "infeasible");
    let candidates: Vec<_> = list(&advice["candidates"]).iter().map(flags).collect();
    let quarter = |flags: &Vec<&str>| flags.ends_with(&["--optimizer-offload-fraction", "0.25"]);
    assert!(candidates.iter().any(quarter), "{candidates:?}");
}

#[test]
fn the_size_of_micro_batch_groups_is_not_advised_without_virtual_stages() {
    let group = "--microbatch-group-size-per-virtual-pipeline-stage";
    let advice =
        advice(&[&DENSE[..], &["--use-distributed-optimizer", "--memory", "50", group, "1"]].concat());
    let candidates: Vec<_> = list(&advice["candidates"]).iter().map(flags).collect();
    assert!(candidates.contains(&vec!["--pipeline-model-parallel-size", "2"]), "{candidates:?}");
    assert!(!candidates.iter().flatten().any(|flag| *flag == group), "{candidates:?}");
}

#[test]
fn state_that_does_not_fit_is_divided() {
    // Without the distributed optimizer each rank keeps 18 bytes a parameter.
    let advice = advice(&DENSE);
    assert_eq!(advice["given"]["infeasible"]["part"], "optimizer");
    let candidates: Vec<_> = list(&advice["candidates"]).iter().map(flags).collect();
    assert!(candidates.contains(&vec!["--use-distributed-optimizer"]), "{candidates:?}");
    let pipeline = |flags: &&Vec<&str>| flags.starts_with(&["--pipeline-model-parallel-size", "2"]);
    assert!(candidates.iter().any(|flags| pipeline(&flags)), "{candidates:?}");
    // No activation setting helps here.
    assert!(!candidates.iter().flatten().any(|flag| *flag == "--micro-batch-size"), "{candidates:?}");
    assert!(list(&advice["candidates"]).iter().all(|candidate| candidate["changes"] == 1));
    round_trip(&DENSE, &advice);
    same_batch(&DENSE, &advice);
}

#[test]
fn optimizer_state_that_does_not_fit_is_narrowed_or_leaves_the_device() {
    let arguments = [&DENSE[..], &["--gpus", "2", "--memory", "76", "--use-distributed-optimizer"]].concat();
    let advice = advice(&arguments);
    assert_eq!(advice["given"]["infeasible"]["part"], "optimizer");
    let candidates: Vec<_> = list(&advice["candidates"]).iter().map(flags).collect();
    let with = |flag: &str| candidates.iter().find(|flags| flags.contains(&flag));
    assert!(
        with("--optimizer-cpu-offload")
            .is_some_and(|flags| flags.contains(&"--use-precision-aware-optimizer"))
    );
    assert!(with("--exp-avg-dtype").is_some_and(|flags| !flags.contains(&"--main-params-dtype")));
    assert!(with("--grad-reduce-in-bf16").is_some());
    round_trip(&arguments, &advice);
    same_batch(&arguments, &advice);
}

#[test]
fn activations_that_do_not_fit_take_smaller_micro_batches_or_more_tensor_parallel() {
    let arguments =
        [&DENSE[..], &["--use-distributed-optimizer", "--micro-batch-size", "8", "--memory", "60"]].concat();
    let advice = advice(&arguments);
    let part = advice["given"]["infeasible"]["part"].as_str().expect("a part");
    assert!(["floor", "work"].contains(&part), "{part}");
    let candidates: Vec<_> = list(&advice["candidates"]).iter().map(flags).collect();
    assert!(candidates.iter().any(|flags| flags[0] == "--micro-batch-size"), "{candidates:?}");
    assert!(candidates.iter().any(|flags| flags[0] == "--tensor-model-parallel-size"), "{candidates:?}");
    round_trip(&arguments, &advice);
    same_batch(&arguments, &advice);
}

#[test]
fn strategies_may_be_enough() {
    let arguments = ["qwen3-30b-a3b.sh", "--device", "h100-80g", "--micro-batch-size", "4", "--load", "1"];
    let advice = advice(&arguments);
    assert_eq!(advice["strategies_are_enough"], true);
    assert!(number(&advice["given"]["added_ns"]) > 0);
    assert!(!list(&advice["candidates"]).is_empty());
    assert!(list(&advice["candidates"]).iter().any(|candidate| candidate["verdict"] == "fits"));
    round_trip(&arguments, &advice);
    let output = run(&[&arguments[..], &["--advise"]].concat());
    assert!(String::from_utf8_lossy(&output.stdout).contains("own strategies are enough"));
}

#[test]
fn two_settings_where_one_is_not_enough() {
    // The script gives virtual stages by their layers, the preset by their number.
    for input in [&["glm-423b.sh"][..], &["--model", "glm-423b-a30b"]] {
        let arguments = [input, &["--load", "1", "--memory", "17", "--host", "0"]].concat();
        let advice = advice(&arguments);
        assert_eq!(advice["changes_tried"], 2);
        let candidates = list(&advice["candidates"]);
        assert!(candidates.iter().any(|candidate| candidate["changes"] == 2 && candidate["gpus"] == 512));
        // The same devices come before more.
        let gpus: Vec<_> =
            candidates.iter().filter(|c| c["verdict"] != "fits").map(|c| number(&c["gpus"])).collect();
        assert!(gpus.is_sorted(), "{gpus:?}");
        round_trip(&arguments, &advice);
        same_batch(&arguments, &advice);
    }
}

#[test]
fn tensor_parallel_above_the_query_groups_is_tried() {
    let arguments = ["--model", "glm-423b-a30b", "--load", "1", "--memory", "20", "--host", "0"];
    let advice = advice(&arguments);
    assert_eq!(advice["changes_tried"], 1);
    let candidates: Vec<_> = list(&advice["candidates"]).iter().map(flags).collect();
    assert!(
        candidates.iter().any(|flags| flags[..2] == ["--tensor-model-parallel-size", "16"]),
        "{candidates:?}"
    );
    round_trip(&arguments, &advice);
}

#[test]
fn the_memory_that_would_do_is_the_least() {
    let arguments = ["--model", "glm-423b-a30b", "--load", "1", "--memory", "20"];
    let gib = number(&advice(&arguments)["memory_gib"]);
    let status = |gib: u64| run(&[&arguments[..5], &[&gib.to_string()]].concat()).status.code();
    assert_eq!((status(gib - 1), status(gib)), (Some(3), Some(0)));
}

#[test]
fn where_nothing_is_found_it_is_said() {
    let arguments = ["--model", "glm-423b-a30b", "--load", "1", "--memory", "5", "--advise"];
    let output = run(&arguments);
    assert_eq!(output.status.code(), Some(3));
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("Advice: nothing found makes it fit") && text.contains("too few"), "{text}");
    let advice = advice(&arguments[..6]);
    assert_eq!(list(&advice["candidates"]).len(), 0);
    assert_eq!(advice["closest"]["verdict"], "infeasible");
}

#[test]
fn a_script_on_standard_input_is_advised_on_like_a_file() {
    let arguments = ["--load", "1", "--memory", "20", "--advise", "--json"];
    let script = include_bytes!("../../examples/glm-423b.sh");
    let mut child = common::process("plan", &[&["-"], &arguments[..]].concat())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("the command runs");
    child.stdin.take().expect("a pipe").write_all(script).expect("the script is read");
    let output = child.wait_with_output().expect("an answer");
    let piped: Value = serde_json::from_slice(&output.stdout).expect("one JSON document");
    assert_eq!(piped["advice"], advice(&["glm-423b.sh", "--load", "1", "--memory", "20"]));
}

#[test]
fn a_run_that_strategies_carry_is_told_what_would_halve_them() {
    let arguments = ["qwen3-30b-a3b.sh", "--device", "a100-80g", "--memory", "46"];
    let advice = advice(&arguments);
    assert_eq!(advice["given"]["verdict"], "needs_strategies");
    let candidates = list(&advice["candidates"]);
    let halved: Vec<_> = candidates.iter().filter(|c| c["verdict"] == "needs_strategies").collect();
    assert!(!halved.is_empty(), "{advice}");
    // What strategies add at each load, on the rank where that is most.
    let most = |plan: &Value| -> Vec<u64> {
        let of = |rank: &Value| list(&rank["loads"]).iter().map(|load| number(&load["added_ns"])).collect();
        let ranks: Vec<Vec<u64>> = list(&plan["ranks"]).iter().map(of).collect();
        (0..ranks[0].len()).map(|load| ranks.iter().map(|rank| rank[load]).max().expect("ranks")).collect()
    };
    let given = most(&plan(&arguments));
    for candidate in halved {
        let changed = most(&plan(&[&arguments[..], &flags(candidate)].concat()));
        let pairs = || changed.iter().zip(&given);
        assert!(pairs().all(|(changed, given)| changed <= given), "{candidate}");
        assert!(pairs().any(|(changed, given)| *changed <= given / 2), "{candidate}");
        assert!(number(&candidate["iteration_permille"]) <= 1_000, "{candidate}");
    }
    round_trip(&arguments, &advice);
}
