//! The `bagualu plan` process: answers, exit statuses, and the input it shares with other commands.

mod common;

use std::process::Output;

use common::text;
use serde_json::Value;

fn run(arguments: &[&str]) -> Output {
    common::run("plan", arguments)
}

fn json(arguments: &[&str], status: i32) -> Value {
    common::json("plan", arguments, &[status])
}

fn refused(arguments: &[&str]) -> String {
    common::refused("plan", arguments)
}

#[test]
fn work_is_reserved_for_the_spike_that_is_asked_for() {
    let qwen = |spike: &str| {
        let room = ["--model", "qwen3-30b-a3b", "--device", "h100-80g", "--memory", "70.5", "--load", "1"];
        json(&[&room[..], &["--spike", spike]].concat(), 0)
    };
    let (wide, narrow) = (qwen("2.6"), qwen("1"));
    assert_eq!((&wide["spike"], &narrow["spike"]), (&2.6.into(), &1.0.into()));
    let work = |plan: &Value| plan["ranks"][0]["thresholds"]["work_bytes"].as_u64().expect("bytes");
    assert!(work(&narrow) < work(&wide));
    assert_eq!(wide["ranks"][0]["verdict"], "needs_strategies");
    assert_eq!(narrow["ranks"][0]["verdict"], "fits");
    // 2.6 is the default.
    let default = json(&["--model", "glm-423b-a30b"], 0);
    assert_eq!(default["ranks"], json(&["--model", "glm-423b-a30b", "--spike", "2.6"], 0)["ranks"]);
    let text_of = |arguments: &[&str]| text(&run(arguments).stdout).replace("\n  ", " ");
    let shown = text_of(&["--model", "qwen3-30b-a3b", "--device", "h100-80g", "--spike", "1.3"]);
    for words in ["work at most", "for load", "aimed at is load 1.3 (--spike)"] {
        assert!(shown.contains(words), "{words}: {shown}");
    }
    for (bad, fix) in [("0.9", "give 1, which is balanced, or more"), ("9", "give at most 8.0")] {
        let message = refused(&["--model", "qwen3-30b-a3b", "--spike", bad]);
        assert!(message.contains("--spike") && message.contains(fix), "{message}");
    }
}

/// The ledger counts a layer's work beside all that the layer keeps, which is never in use together.
#[test]
fn where_everything_is_kept_the_peak_is_that_of_everything_kept() {
    for model in ["glm-423b-a30b", "qwen3-30b-a3b", "mixtral-8x7b"] {
        let plan = json(&["--model", model, "--memory", "200", "--load", "1,1.2"], 0);
        let loads = plan["ranks"].as_array().expect("ranks").iter().flat_map(|rank| rank["loads"].as_array());
        for load in loads.flatten().filter(|load| load["verdict"] == "fits") {
            assert!(load["peak_bytes"].as_u64() <= load["unmitigated_bytes"].as_u64(), "{model}: {load}");
        }
    }
}

/// Flags of a small dense model, and more.
fn tiny<'a>(more: &[&'a str]) -> Vec<&'a str> {
    let sizes = "--hidden-size 64 --num-attention-heads 4 --seq-length 32 --vocab-size 100 --micro-batch-size 1 \
                 --gpus 1 --load 1";
    [&sizes.split_whitespace().collect::<Vec<_>>()[..], more].concat()
}

#[test]
fn fp16_is_called_so() {
    let flags = |precision| {
        let output = run(&tiny(&["--num-layers", "2", precision]));
        text(&output.stdout).lines().nth(1).expect("a second line").to_owned()
    };
    assert!(flags("--fp16").ends_with(", FP16"), "{}", flags("--fp16"));
    assert!(flags("--bf16").ends_with(", BF16"), "{}", flags("--bf16"));
}

#[test]
fn more_layers_than_a_chunk_takes_are_told_what_helps() {
    let message = refused(&tiny(&["--num-layers", "200"]));
    for words in ["layers; this build takes 128", "(PP)", "(V)", "BAGUALU_MAX_LAYERS=20"] {
        assert!(message.contains(words), "{words}: {message}");
    }
    json(&tiny(&["--num-layers", "100"]), 0);
}

#[test]
fn ranks_without_room_are_named_beside_what_is_configured() {
    let recompute = ["--recompute-granularity", "selective", "--recompute-modules", "core_attn"];
    let tight = ["--model", "glm-423b-a30b", "--memory", "24", "--load", "1"];
    let output = run(&[&tight[..], &recompute].concat());
    let shown = text(&output.stdout);
    assert_eq!(output.status.code(), Some(3));
    assert!(
        shown.contains("rank 7 is left out: nothing fits there whatever its settings (optimizer)"),
        "{shown}"
    );
}

#[test]
fn sizes_in_gib_take_decimals_and_say_what_they_take() {
    let device = |option, value| {
        json(&["--model", "mixtral-8x7b", "--device", "h200-141g", option, value, "--load", "1"], 0)["device"]
            .take()
    };
    for (option, field) in
        [("--memory", "memory_bytes"), ("--margin", "margin_bytes"), ("--host", "host_bytes")]
    {
        let value = if option == "--memory" { "140.5" } else { "0.5" };
        let bytes = if option == "--memory" { 281u64 << 29 } else { 1 << 29 };
        assert_eq!(device(option, value)[field], bytes);
        for bad in ["NaN", "-1", "1.2345", "1048577", "80 GiB"] {
            let message = refused(&["--model", "mixtral-8x7b", option, bad]);
            let words = [option, bad, "is no number of GiB", "give a number from 0 to 1048576", "62.5"];
            assert!(words.iter().all(|word| message.contains(word)), "{message}");
        }
    }
}

#[test]
fn a_script_and_its_preset_have_the_same_plan() {
    let from_script = json(&["glm-423b.sh"], 0);
    let from_preset = json(&["--model", "glm-423b-a30b"], 0);
    assert_eq!(from_script["ranks"], from_preset["ranks"]);
    assert_eq!(from_script["source"], "glm-423b.sh");
    assert!(from_script["ignored_flags"].as_array().is_some_and(|flags| !flags.is_empty()));
}

#[test]
fn every_rank_keeps_within_its_device_and_loads_cost_more() {
    let plan = json(&["--model", "glm-423b-a30b"], 0);
    let ranks = plan["ranks"].as_array().expect("ranks");
    let in_flight: Vec<_> = ranks.iter().map(|rank| rank["in_flight"].as_u64().expect("a count")).collect();
    assert_eq!(in_flight, [23, 21, 19, 17, 15, 13, 11, 9]);
    let number = |value: &Value, field: &str| value[field].as_u64().expect("a whole number");
    for rank in ranks {
        let room = number(rank, "device_bytes");
        let parts = rank["static_bytes"].as_object().expect("parts");
        let fixed: u64 = parts.values().filter_map(Value::as_u64).sum();
        let memory = number(&plan["device"], "memory_bytes") - number(&plan["device"], "margin_bytes");
        assert_eq!(room + fixed, memory);
        let mut last = 0;
        for load in rank["loads"].as_array().expect("loads") {
            assert!(number(load, "peak_bytes") <= room);
            assert!(number(load, "held_bytes") <= number(load, "peak_bytes"));
            assert!(number(load, "held_bytes") <= number(load, "unmitigated_bytes"));
            assert!(number(load, "added_ns") >= last);
            last = number(load, "added_ns");
            let strategies = load["strategies"].as_array().expect("strategies");
            let fits = number(load, "unmitigated_bytes") <= number(&rank["thresholds"], "capacity_bytes");
            if fits {
                assert_eq!((load["verdict"].as_str(), strategies.len()), (Some("fits"), 0));
            }
            assert_eq!(load["verdict"] == "needs_strategies", !strategies.is_empty());
        }
    }
    // The paper's premise: balanced it fits, at the largest spike it would not.
    let first = ranks[0]["loads"].as_array().expect("loads");
    assert!(number(&first[0], "unmitigated_bytes") <= number(&ranks[0], "device_bytes"));
    assert!(number(&first[2], "unmitigated_bytes") > number(&ranks[0], "device_bytes"));
    assert_eq!(first[2]["verdict"], "needs_strategies");
}

#[test]
fn people_get_tables() {
    let output = run(&["--model", "glm-423b-a30b"]);
    let answer = text(&output.stdout);
    for words in
        ["422.9 billion parameters", "in flight", "BF16", "needs strategies", "rank 0 at 2.6: offload"]
    {
        assert!(answer.contains(words), "{answer} lacks {words:?}");
    }
    assert_eq!(text(&output.stderr), "");
}

#[test]
fn what_does_not_fit_is_named_with_its_bytes() {
    for (gib, part) in [("4", "weights"), ("10", "gradients"), ("20", "optimizer"), ("25", "floor")] {
        let plan = json(&["--model", "glm-423b-a30b", "--memory", gib], 3);
        let shortage = &plan["infeasible"];
        let bytes = |field: &str| shortage[field].as_u64().expect("bytes");
        let named = shortage["part"].as_str().expect("a part");
        assert!(named == part || (part == "floor" && named == "work"), "{gib} GiB: {named}");
        assert!(bytes("needed_bytes") > bytes("available_bytes"));
    }
    let output = run(&["--model", "glm-423b-a30b", "--memory", "20"]);
    assert_eq!(output.status.code(), Some(3));
    assert!(text(&output.stdout).contains("infeasible: optimizer"));
    assert!(text(&output.stderr).contains("the optimizer does not fit) need 21755748352 bytes"));
    // One GiB less than full recomputation needs is infeasible, what it needs is not.
    let memory = |gib: u64| run(&["--model", "glm-423b-a30b", "--memory", &gib.to_string()]).status.code();
    let least = (20..64).find(|&gib| memory(gib) == Some(0)).expect("64 GiB are enough");
    assert_eq!(memory(least - 1), Some(3));
}

#[test]
fn flags_are_megatron_s_and_override() {
    let base = json(&["qwen3-30b-a3b.sh", "--load", "1"], 0);
    let double = json(&["qwen3-30b-a3b.sh", "--load", "1", "--micro-batch-size", "2"], 0);
    assert_eq!(double["parallelism"]["balanced_rows"], 65_536);
    assert_eq!(base["parallelism"]["balanced_rows"], 32_768);
    // Of a repeated flag the last counts, as in Megatron.
    let last =
        json(&["qwen3-30b-a3b.sh", "--load", "1", "--micro-batch-size", "4", "--micro-batch-size", "2"], 0);
    assert_eq!(last["parallelism"], double["parallelism"]);
    assert_eq!(base["replaced_flags"][0], "--recompute-granularity");
    let preset = json(&["--model", "qwen3-30b-a3b", "--load", "1", "--seq-length", "2048"], 0);
    assert_eq!(preset["parallelism"]["tokens"], 2_048);
    let direct = json(
        &[
            "--gpus",
            "8",
            "--num-layers",
            "4",
            "--hidden-size",
            "1024",
            "--num-attention-heads",
            "16",
            "--seq-length",
            "1024",
            "--vocab-size",
            "32000",
            "--micro-batch-size",
            "1",
            "--bf16",
            "--num-experts",
            "8",
            "--expert-model-parallel-size",
            "8",
        ],
        0,
    );
    assert_eq!((&direct["source"], &direct["parallelism"]["data"]), (&"flags".into(), &8.into()));
    let sized = json(&["moe-by-size.sh", "--arg", "tiny", "--load", "1"], 0);
    assert_eq!(sized["model"]["layers"], 4);
    let nodes = json(&["glm-423b.sh", "--env", "NNODES=128", "--load", "1"], 0);
    assert_eq!(nodes["parallelism"]["gpus"], 1_024);
}

#[test]
fn the_script_s_own_settings_are_shown_beside_the_plan() {
    let loads = |arguments: &[&str]| {
        let plan = json(&[&["qwen3-30b-a3b.sh", "--load", "1"], arguments].concat(), 0);
        plan["ranks"][0]["loads"][0].clone()
    };
    let bytes =
        |load: &Value, field: &str| load[field].as_u64().unwrap_or_else(|| panic!("no {field}: {load}"));
    let attention = loads(&[]);
    let kept = bytes(&attention, "unmitigated_bytes");
    let saved = kept - bytes(&attention, "configured_bytes");
    assert!(saved * 50 < kept, "core attention with a flash kernel holds little: {saved} of {kept}");
    assert!(bytes(&attention, "configured_added_ns") > 0);
    let full =
        ["--recompute-granularity", "full", "--recompute-method", "uniform", "--recompute-num-layers", "1"];
    let moe = ["--recompute-modules", "core_attn,moe"];
    let [full, moe] = [&full[..], &moe].map(loads);
    assert!(bytes(&full, "configured_bytes") < bytes(&moe, "configured_bytes"));
    assert!(bytes(&moe, "configured_bytes") * 2 < kept);
    assert!(bytes(&full, "configured_held_bytes") < bytes(&full, "configured_bytes"));

    let output = run(&["qwen3-30b-a3b.sh", "--load", "1"]);
    let answer = text(&output.stdout);
    assert!(answer.contains("As configured instead: selective recomputation of core_attn"), "{answer}");
    let preset = json(&["--model", "qwen3-30b-a3b", "--load", "1"], 0);
    assert!(preset["configured"].is_null() && preset["ranks"][0]["loads"][0]["configured_bytes"].is_null());
}

#[test]
fn as_configured_needs_the_host_too() {
    let offload = ["--fine-grained-activation-offloading", "--offload-modules", "moe_act", "--load", "1"];
    let with = |host: &str| {
        let arguments = [&["qwen3-30b-a3b.sh", "--host", host], &offload[..]].concat();
        let rank = json(&arguments, 0)["ranks"][0].take();
        let load = &rank["loads"][0];
        let number = |value: &Value| value.as_u64().expect("a whole number");
        assert!(number(&load["configured_bytes"]) <= number(&rank["device_bytes"]), "the device has room");
        let answer = text(&run(&arguments).stdout).to_owned();
        let (_, table) = answer.split_once("As configured instead").expect("a table");
        let words = table.contains("out of host memory");
        (number(&load["configured_host_bytes"]), load["configured_verdict"].clone(), words)
    };
    let (needed, verdict, words) = with("0");
    assert!(needed > 0);
    assert_eq!((verdict, words), ("out_of_host_memory".into(), true));
    assert_eq!(with("1024"), (needed, "fits".into(), false));
}

#[test]
fn a_dense_model_has_a_plan_too() {
    let plan = json(
        &[
            "--gpus",
            "2",
            "--num-layers",
            "4",
            "--hidden-size",
            "1024",
            "--num-attention-heads",
            "16",
            "--seq-length",
            "1024",
            "--vocab-size",
            "32000",
            "--micro-batch-size",
            "1",
            "--bf16",
            "--pipeline-model-parallel-size",
            "2",
            "--global-batch-size",
            "8",
        ],
        0,
    );
    assert_eq!(plan["model"]["experts"], 0);
    assert_eq!(plan["ranks"][0]["in_flight"], 2);
    assert_eq!(plan["ranks"][0]["verdict"], "fits");
}

#[test]
fn bad_input_is_one_line_with_field_value_and_fix() {
    for (arguments, words) in [
        (&[][..], ["no model", "--model NAME"]),
        (&["--model", "glm-9"], ["\"glm-9\"", "glm-423b-a30b"]),
        (&["--model", "glm-423b-a30b", "--device", "tpu"], ["--device", "h100-80g"]),
        (&["--model", "glm-423b-a30b", "--gpus", "100"], ["gpus is 100", "tp·cp·pp = 16"]),
        (&["--model", "glm-423b-a30b", "--num-layers", "30"], ["layers is 30", "pp·chunks = 16"]),
        (&["--model", "glm-423b-a30b", "--num-experts", "x"], ["--num-experts is \"x\"", "a whole number"]),
        (
            &["--model", "glm-423b-a30b", "--context-parallel-size", "2", "--attention-backend", "unfused"],
            ["cp is 2", "no context parallel"],
        ),
        (
            &["--model", "glm-423b-a30b", "--recompute-granularity", "full"],
            ["--recompute-method is missing", "add it"],
        ),
        (
            &["qwen3-30b-a3b.sh", "--recompute-modules", "mla_up_proj"],
            ["recompute_modules is mla_up_proj", "multi-latent attention"],
        ),
        (
            &["qwen3-30b-a3b.sh", "--fine-grained-activation-offloading", "--offload-modules", "attn_proj"],
            ["offload_modules is attn_proj", "add core_attn"],
        ),
        (&["qwen3-30b-a3b.sh", "--recompute-modules", "gdn_norm_out"], ["\"gdn_norm_out\"", "not modelled"]),
        (&["--num-layers", "4"], ["--gpus", "number of devices"]),
        (&["--model", "glm-423b-a30b", "--load", "1,65"], ["--load: 65.0 is no load", "at most 64.0"]),
        (&["absent.sh"], ["absent.sh", "cannot be read"]),
        (&["glm-423b.sh", "--env", "NNODES"], ["--env", "NAME=VALUE"]),
        (&["--model", "glm-423b-a30b", "--env", "A=1"], ["--env: \"A=1\"", "without a script"]),
        (&["--model", "glm-423b-a30b", "--arg", "foo"], ["--arg: \"foo\"", "without a script"]),
        (&["--arg", "foo"], ["--arg: \"foo\"", "give a launch script"]),
        (&["--model", "glm-423b-a30b", "--num-layers", "0"], ["--num-layers is \"0\"", "1 or more"]),
        (&["glm-423b.sh", "--memory", "99999999"], ["--memory", "at most"]),
    ] {
        let message = refused(arguments);
        assert!(words.iter().all(|word| message.contains(word)), "{message:?} lacks {words:?}");
    }
}

#[test]
fn a_device_of_one_s_own() {
    let own = json(&["--model", "glm-423b-a30b", "--load", "1", "--device", "devices/my-cluster.toml"], 0);
    assert_eq!(
        (&own["device"]["name"], &own["device"]["memory_bytes"]),
        (&"my-cluster".into(), &(80u64 << 30).into())
    );
    // An option still overrides the file.
    let less = json(
        &[
            "--model",
            "glm-423b-a30b",
            "--load",
            "1",
            "--device",
            "./devices/my-cluster.toml",
            "--memory",
            "70",
        ],
        0,
    );
    assert_eq!(less["device"]["memory_bytes"], 70u64 << 30);
    for (file, text, words) in [
        ("absent.toml", None, ["absent.toml", "cannot be read"]),
        (
            "wrong.toml",
            Some("copy_out = \"0 GB/s\""),
            ["wrong.toml: copy_out is \"0 GB/s\"", "as \"52 GB/s\""],
        ),
    ] {
        let path = std::env::temp_dir().join(format!("bagualu-{}-{file}", std::process::id()));
        if let Some(text) = text {
            std::fs::write(&path, text).expect("a file");
        }
        let message = refused(&["--model", "glm-423b-a30b", "--device", path.to_str().expect("UTF-8")]);
        let _ = std::fs::remove_file(&path);
        assert!(words.iter().all(|word| message.contains(word)), "{message:?} lacks {words:?}");
    }
}

#[test]
fn a_script_above_the_limit_is_not_read_whole() {
    let path = std::env::temp_dir().join(format!("bagualu-long-{}.sh", std::process::id()));
    std::fs::write(&path, "#".repeat(2 << 20)).expect("a file");
    let message = refused(&[path.to_str().expect("UTF-8")]);
    std::fs::remove_file(&path).expect("the file");
    assert!(message.contains("more than 262144 bytes"), "{message}");
}

#[test]
fn a_command_line_that_is_wrong_is_answered_by_the_option_parser() {
    for arguments in [
        &["glm-423b.sh", "--load", "much"][..],
        &["glm-423b.sh", "--model", "glm-423b-a30b"],
        &["glm-423b.sh", "--no-such-flag"],
    ] {
        let output = run(arguments);
        assert_eq!((output.status.code(), text(&output.stdout)), (Some(2), ""), "{arguments:?}");
    }
}
