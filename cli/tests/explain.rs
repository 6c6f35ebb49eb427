//! The `bagualu explain` process: what it says is what the layer holds and costs.

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::process::Output;

use common::{list, text};
use serde_json::Value;

fn run(arguments: &[&str]) -> Output {
    common::run("explain", arguments)
}

fn json(arguments: &[&str]) -> Value {
    common::json("explain", arguments, &[0])
}

const GLM: [&str; 2] = ["--model", "glm-423b-a30b"];

fn glm(arguments: &[&str]) -> Value {
    json(&[&GLM[..], arguments].concat())
}

fn number(value: &Value, field: &str) -> i64 {
    value[field].as_i64().unwrap_or_else(|| panic!("no {field} in {value}"))
}

fn word<'v>(value: &'v Value, field: &str) -> &'v str {
    value[field].as_str().unwrap_or_else(|| panic!("no {field} in {value}"))
}

fn words<'v>(value: &'v Value, field: &str) -> BTreeSet<&'v str> {
    list(value, field).iter().map(|name| name.as_str().expect("a name")).collect()
}

fn tensor<'v>(group: &'v Value, name: &str) -> &'v Value {
    list(group, "tensors").iter().find(|t| t["name"] == name).expect("the tensor")
}

/// What a layer holds on the device and on the host, and what that adds, counted from the JSON alone.
fn evaluate(group: &Value, strategies: &BTreeMap<&str, &str>) -> [i64; 3] {
    let (mut held, mut host, mut ns) = (0, 0, 0);
    let (mut present, mut missing) = (BTreeSet::new(), Vec::new());
    for tensor in list(group, "tensors") {
        let name = word(tensor, "name");
        match strategies[name] {
            "recompute" => {
                missing.push(name);
                continue;
            }
            "keep" => held += number(tensor, "bytes"),
            "offload" => {
                host += number(tensor, "bytes");
                ns += number(tensor, "copy_out_ns") + number(tensor, "copy_in_ns");
            }
            "quantize" => {
                held += number(tensor, "quantized_bytes");
                ns += number(tensor, "cast_ns") + number(tensor, "uncast_ns");
            }
            other => panic!("{other}"),
        }
        present.insert(name);
    }
    let mut ran = BTreeSet::new();
    while let Some(name) = missing.pop() {
        let op = list(group, "ops").iter().find(|op| words(op, "makes").contains(name)).expect("a producer");
        if ran.insert(word(op, "name")) {
            ns += number(op, "forward_ns");
            missing.extend(words(op, "reads").difference(&present));
        }
    }
    [held, host, ns]
}

/// The strategies of a group, by tensor.
fn chosen(group: &Value) -> BTreeMap<&str, &str> {
    list(group, "tensors").iter().map(|t| (word(t, "name"), word(t, "strategy"))).collect()
}

/// Checks every number of a group against [`evaluate`]; returns how many alternatives it has.
fn check(group: &Value) -> usize {
    let mut strategies = chosen(group);
    let now = evaluate(group, &strategies);
    assert_eq!(now, ["held_bytes", "offloaded_bytes", "added_ns"].map(|field| number(group, field)));
    let full: i64 = list(group, "tensors").iter().map(|t| number(t, "bytes")).sum();
    assert_eq!(full, number(group, "full_bytes"));
    let held: i64 = list(group, "tensors").iter().map(|t| number(t, "held_bytes")).sum();
    assert_eq!(held, number(group, "held_bytes"));
    let mut count = 0;
    for tensor in list(group, "tensors") {
        let (name, own) = (word(tensor, "name"), word(tensor, "strategy"));
        let alternatives = list(tensor, "alternatives");
        for alternative in alternatives {
            strategies.insert(name, word(alternative, "strategy"));
            let other = evaluate(group, &strategies);
            let delta = ["bytes_delta", "host_bytes_delta", "added_ns_delta"];
            let delta = delta.map(|field| number(alternative, field));
            assert_eq!([0, 1, 2].map(|i| other[i] - now[i]), delta, "{name}: {alternative}");
            count += 1;
        }
        strategies.insert(name, own);
        let others = alternatives.iter().map(|a| word(a, "strategy"));
        let forbidden = list(tensor, "forbidden").iter().map(|f| word(f, "strategy"));
        let all: BTreeSet<_> = others.chain(forbidden).chain([own]).collect();
        assert_eq!(all.len(), 4, "{name} leaves a strategy out");
    }
    count
}

#[test]
fn bytes_and_alternatives_are_what_the_layer_s_own_table_says() {
    for arguments in [
        &["--load", "2.6"][..],
        &["--load", "1"],
        &["--load", "5"],
        &["--load", "1", "--memory", "30"],
        &["--load", "2.6", "--rank", "7", "--chunk", "1", "--micro-batch", "40"],
    ] {
        check_all(&glm(arguments));
    }
    for model in ["deepseek-v3", "qwen3-30b-a3b", "gpt-oss-120b"] {
        check_all(&json(&["--model", model, "--load", "2.6"]));
    }
}

/// Checks every group of an answer, and the totals.
fn check_all(answer: &Value) {
    let groups = list(answer, "groups");
    let alternatives: usize = groups.iter().map(check).sum();
    assert!(alternatives > 20, "{alternatives}");
    for field in ["held_bytes", "full_bytes", "offloaded_bytes", "added_ns"] {
        let sum: i64 = groups.iter().map(|g| number(g, field) * list(g, "layers").len() as i64).sum();
        assert_eq!(sum, number(answer, field), "{field}");
    }
    assert!(number(answer, "held_bytes") <= number(&answer["bounds"], "limit_bytes"));
    assert!(number(answer, "fullest_bytes") <= number(answer, "device_bytes"));
}

#[test]
fn a_reason_follows_from_its_numbers() {
    let mut met = BTreeSet::new();
    for arguments in [
        &["--load", "2.6"][..],
        &["--load", "2.6", "--memory", "36"],
        &["--load", "2.6", "--memory", "40"],
        &["--load", "5"],
        &["--load", "1", "--memory", "28", "--host", "1"],
        &["--load", "0.5", "--memory", "34"],
    ] {
        let answer = glm(arguments);
        for group in list(&answer, "groups") {
            let room = |field: &str| number(&group["room"], field).max(0);
            for tensor in list(group, "tensors") {
                for alternative in list(tensor, "alternatives") {
                    let [bytes, ns] = ["bytes_delta", "added_ns_delta"].map(|f| number(alternative, f));
                    let reason = word(alternative, "reason");
                    let over = || number(alternative, "over_bytes");
                    match reason {
                        "slower" => assert!(ns > 0),
                        "larger" => assert!(ns == 0 && bytes > 0),
                        "over_limit" => assert_eq!(over(), bytes - room("limit_bytes")),
                        "over_quota" => {
                            assert_eq!(over(), bytes - room("quota_bytes"));
                            assert_eq!(group["replanned"], false);
                        }
                        "group_decision" => assert_eq!(group["recompute"], "whole_moe"),
                        "static_setting" => assert_eq!(group["recompute"], "full"),
                        "expected_more_rows" => {
                            assert!(ns < 0 && number(group, "rows") < 12_288 && bytes <= room("limit_bytes"));
                        }
                        "planned_in_steps" => assert!(ns < 0 && bytes <= room("limit_bytes")),
                        other => panic!("{other} is not expected here"),
                    }
                    if matches!(reason, "over_limit" | "over_quota") {
                        assert!(over() > 0 && ns < 0);
                    }
                    met.insert(reason.to_owned());
                }
            }
        }
    }
    for reason in [
        "slower",
        "larger",
        "over_limit",
        "over_quota",
        "group_decision",
        "static_setting",
        "expected_more_rows",
        "planned_in_steps",
    ] {
        assert!(met.contains(reason), "{reason} was not met: {met:?}");
    }
}

#[test]
fn the_next_cheaper_and_the_next_smaller_choice_are_the_best_of_their_kind() {
    let answer = glm(&["--load", "2.6"]);
    let (mut cheaper, mut smaller) = (0, 0);
    for tensor in list(&answer, "groups").iter().flat_map(|group| list(group, "tensors")) {
        for (field, by, found) in
            [("cheaper", "added_ns_delta", &mut cheaper), ("smaller", "bytes_delta", &mut smaller)]
        {
            let among = || list(tensor, "alternatives").iter().filter(|a| number(a, by) < 0);
            let best = among().map(|a| number(a, "added_ns_delta")).min();
            let named = tensor[field].as_str().map(|name| {
                let named = among().find(|a| a["strategy"] == name).expect("one of its kind");
                number(named, "added_ns_delta")
            });
            assert_eq!(named, best, "{tensor}");
            *found += usize::from(best.is_some());
        }
    }
    assert!(cheaper > 5 && smaller > 5, "{cheaper} {smaller}");
}

#[test]
fn memory_changes_the_answer() {
    let roomy = glm(&["--load", "2.6", "--memory", "200"]);
    assert_eq!((&roomy["keeps_all"], number(&roomy, "added_ns")), (&true.into(), 0));
    assert_eq!(roomy["held_bytes"], roomy["full_bytes"]);
    let tight = glm(&["--load", "2.6", "--memory", "36"]);
    assert_eq!(tight["keeps_all"], false);
    assert!(number(&tight, "held_bytes") < number(&roomy, "held_bytes"));
    assert_ne!(tight["groups"][1]["tensors"], roomy["groups"][1]["tensors"]);
    let output = run(&[&GLM[..], &["--load", "2.6", "--memory", "200"]].concat());
    assert!(text(&output.stdout).contains("Everything fits: keep."));
}

#[test]
fn what_is_reserved_for_work_is_said() {
    let shown = |spike: &[&str]| {
        let output = run(&[&GLM[..], &["--load", "1"], spike].concat());
        String::from_utf8(output.stdout).expect("UTF-8").replace("\n  ", " ")
    };
    let default = shown(&[]);
    assert!(default.contains("for rows up to load 2.6 (--spike)."), "{default}");
    assert!(shown(&["--spike", "1.5"]).contains("(--spike)."));
    assert_ne!(shown(&["--spike", "1.5"]), default);
    let answer = glm(&["--spike", "1.5"]);
    assert_eq!(answer["spike"], 1.5);
    assert!(answer["work_bytes"].as_u64() > Some(0));
}

#[test]
fn the_micro_batch_of_the_peak_meets_the_plan_s_peak() {
    // Without interleaving the rank has one chunk, so its peak is the rank's.
    let arguments = [&GLM[..], &["--num-virtual-stages-per-pipeline-rank", "1", "--load", "1.2"]].concat();
    let answer = json(&arguments);
    let plan = common::json("plan", &arguments, &[0, 3]);
    assert_eq!(answer["fullest_bytes"], plan["ranks"][0]["loads"][0]["peak_bytes"]);
    assert_eq!(answer["at_peak"], true);
    // The same unit, asked for.
    let micro_batch = answer["micro_batch"].to_string();
    let asked = json(&[&arguments[..], &["--micro-batch", &micro_batch]].concat());
    assert_eq!((&asked["groups"], &asked["at_peak"]), (&answer["groups"], &false.into()));
}

#[test]
fn what_is_not_permitted_has_its_reason() {
    let answer = glm(&["--load", "2.6"]);
    let group = list(&answer, "groups").iter().find(|g| g["layer_type"] == "moe").expect("a MoE layer");
    let because = |name: &str, strategy: &str| {
        let forbidden = list(tensor(group, name), "forbidden");
        forbidden.iter().find(|f| f["strategy"] == strategy).cloned().unwrap_or_default()
    };
    let dispatch = because("expert_input", "recompute");
    assert_eq!(
        (&dispatch["because"], &dispatch["op"], &dispatch["group"]),
        (&"collective".into(), &"dispatch".into(), &"ep".into())
    );
    assert_eq!(because("qkv", "recompute")["group"], "tp");
    assert_eq!(because("permute_indices", "quantize")["because"], "exact");
    assert_eq!(because("input", "offload")["because"], "block_input");
    assert_eq!(because("fc1_out", "recompute"), Value::Null, "the experts' own operators are local");
    let shared = tensor(group, "ln2_out");
    assert_eq!(words(shared, "saved_by"), BTreeSet::from(["router", "shared_fc1"]));
    assert_eq!(words(shared, "read_by"), BTreeSet::from(["permute", "router", "shared_fc1"]));
    assert_eq!(shared["producer"], "ln2");
    assert_eq!(shared["megatron"], "core/transformer/moe/router.py: gating");
}

#[test]
fn groups_can_be_chosen_and_fold_equal_layers() {
    const ROOMY: [&str; 4] = ["--model", "qwen3-30b-a3b", "--memory", "200"];
    let answer = json(&ROOMY);
    let groups = list(&answer, "groups");
    assert_eq!(groups.len(), 2, "the embedding and twelve equal layers");
    assert_eq!(list(&groups[1], "layers").len(), 12);
    let one = json(&[&ROOMY[..], &["--layer", "3"]].concat());
    assert_eq!(one["groups"], Value::from(vec![groups[1].clone()]));
    let embedding = json(&[&ROOMY[..], &["--layer-type", "embedding"]].concat());
    assert_eq!(embedding["groups"], Value::from(vec![groups[0].clone()]));
    assert_eq!(embedding["held_bytes"], answer["held_bytes"], "totals stay the chunk's");
}

#[test]
fn people_get_every_tensor_within_a_hundred_columns() {
    let output = run(&["glm-423b.sh", "--load", "2.6"]);
    let answer = text(&output.stdout);
    for words in [
        "meets the chunk's peak",
        "next cheaper",
        "layer 0 (moe), 31949 rows",
        "expert_input, 499.20 MiB: ",
        "made by sort; saved by fc1; read by fc1",
        "Megatron: core/transformer/moe/experts.py: linear_fc1",
        "no recompute: it would run dispatch, a collective of EP",
        "over the limit",
    ] {
        assert!(answer.contains(words), "{answer} lacks {words:?}");
    }
    for model in ["glm-423b-a30b", "mixtral-8x22b", "deepseek-v3", "kimi-k2"] {
        let output = run(&["--model", model, "--load", "1.2"]);
        let wide = text(&output.stdout).lines().find(|line| line.chars().count() > 100);
        assert_eq!(wide, None, "{model}");
    }
}

#[test]
fn bad_input_is_one_line_with_field_value_and_fix() {
    for (arguments, words) in [
        (&["--rank", "8"][..], ["--rank: there is no 8", "give 0 to 7"]),
        (&["--chunk", "2"], ["--chunk: there is no 2", "give 0 to 1"]),
        (&["--micro-batch", "64"], ["--micro-batch: there is no 64", "give 0 to 63"]),
        (&["--layer", "9"], ["--layer: there is no layer 9", "from 0 to 1"]),
        (&["--layer-type", "dense"], ["--layer-type: \"dense\"", "embedding, moe"]),
        (
            &[
                "--num-virtual-stages-per-pipeline-rank",
                "1",
                "--pipeline-model-parallel-layout",
                "Et*8|t*8||t*4|t*4|t*4||t*4L",
                "--rank",
                "2",
            ],
            ["--chunk: chunk 0 of rank 2 has no layers", "give another"],
        ),
        (&["--load", "65"], ["--load: 65.0 is no load", "at most 64.0"]),
    ] {
        let message = common::refused("explain", &[&GLM[..], arguments].concat());
        assert!(words.iter().all(|word| message.contains(word)), "{message:?} lacks {words:?}");
    }
    let answer = common::json("explain", &[&GLM[..], &["--memory", "20"]].concat(), &[3]);
    assert_eq!(number(&answer["infeasible"], "needed_bytes"), 21_755_748_352);
}
