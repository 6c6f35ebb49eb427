//! The `bagualu plan --diff` process: the settings that differ, and what they change.

mod common;

use std::path::PathBuf;
use std::process::Output;

use common::{list, text};
use serde_json::{Value, json};

fn plan(arguments: &[&str]) -> Output {
    common::run("plan", arguments)
}

/// The answer, whatever the verdict.
fn answer(arguments: &[&str]) -> Value {
    common::json("plan", arguments, &[0, 3])
}

fn diff(a: &str, b: &str, more: &[&str]) -> Value {
    let arguments = [&["--diff", a, b], more].concat();
    assert_eq!(plan(&arguments).status.code(), Some(0), "{arguments:?}");
    answer(&arguments)
}

/// Launch scripts in a directory that goes with them.
struct Scripts(PathBuf);

impl Scripts {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("bagualu-diff-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a directory");
        Self(path)
    }

    /// A script that starts a small MoE model with `flags` besides its own.
    fn write(&self, name: &str, flags: &str) -> String {
        let path = self.0.join(name);
        let own = "--num-layers 8 --hidden-size 1024 --ffn-hidden-size 4096 --num-attention-heads 16 \
                   --kv-channels 64 --seq-length 1024 --max-position-embeddings 1024 --vocab-size 32000 \
                   --micro-batch-size 1 --global-batch-size 64 --bf16 --num-experts 8 \
                   --moe-ffn-hidden-size 2048 --moe-token-dispatcher-type alltoall \
                   --tensor-model-parallel-size 2 --sequence-parallel \
                   --expert-tensor-parallel-size 1 --expert-model-parallel-size 4 \
                   --pipeline-model-parallel-size 2";
        let script = format!("torchrun --nproc_per_node 8 --nnodes 2 pretrain_gpt.py {own} {flags}\n");
        std::fs::write(&path, script).expect("a script");
        path.to_str().expect("UTF-8").to_owned()
    }
}

impl Drop for Scripts {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_run_does_not_differ_from_itself() {
    for (a, b) in [("glm-423b.sh", "glm-423b.sh"), ("glm-423b-a30b", "glm-423b.sh")] {
        let same = diff(a, b, &[]);
        assert_eq!((&same["settings"], &same["differences"]), (&json!([]), &json!([])), "{a} {b}");
        assert_eq!(same["a"]["ranks"], same["b"]["ranks"]);
    }
    let output = plan(&["--diff", "glm-423b.sh", "glm-423b.sh"]);
    let answer = text(&output.stdout);
    assert!(answer.contains("No setting differs.") && answer.contains("No quantity differs."), "{answer}");
}

#[test]
fn a_changed_flag_is_the_only_setting_that_differs() {
    let scripts = Scripts::new("flags");
    let base = scripts.write("a.sh", "");
    for (flag, value, before, after) in [
        ("--num-layers", "16", json!("8"), json!("16")),
        ("--micro-batch-size", "2", json!("1"), json!("2")),
        ("--global-batch-size", "128", json!("64"), json!("128")),
        ("--vocab-size", "64000", json!("32000"), json!("64000")),
        ("--moe-router-topk", "4", json!("2"), json!("4")),
        ("--num-experts", "16", json!("8"), json!("16")),
        ("--moe-layer-freq", "([0]*2+[1]*6)", json!(null), json!("([0]*2+[1]*6)")),
        ("--normalization", "RMSNorm", json!("LayerNorm"), json!("RMSNorm")),
        ("--use-distributed-optimizer", "", json!(null), json!(true)),
        ("--grad-reduce-in-bf16", "", json!(null), json!(true)),
        ("--untie-embeddings-and-output-weights", "", json!(null), json!(true)),
    ] {
        let quoted = if value.contains('(') { format!("'{value}'") } else { value.to_owned() };
        let changed = scripts.write("b.sh", &format!("{flag} {quoted}"));
        let found = diff(&base, &changed, &["--load", "1"]);
        assert_eq!(found["settings"], json!([{"flag": flag, "a": before, "b": after}]), "{flag}");
        assert_ne!(found["differences"], json!([]), "{flag} changes something");
        let back = diff(&changed, &base, &["--load", "1"]);
        assert_eq!(back["settings"], json!([{"flag": flag, "a": after, "b": before}]), "{flag}");
    }
}

#[test]
fn megatron_s_own_activation_settings_are_compared() {
    let scripts = Scripts::new("activations");
    let base = scripts.write("a.sh", "--moe-grouped-gemm --recompute-granularity selective");
    let more = "--recompute-modules core_attn moe_act";
    let changed =
        scripts.write("b.sh", &format!("--moe-grouped-gemm --recompute-granularity selective {more}"));
    let found = diff(&base, &changed, &["--load", "1"]);
    let setting = json!({"flag": "--recompute-modules", "a": "core_attn", "b": "core_attn moe_act"});
    assert_eq!(found["settings"], json!([setting]));
    // It changes what the script's own settings hold, and nothing of the plan that replaces them.
    let quantities = list(&found, "differences").iter().map(|d| d["quantity"].as_str().expect("a name"));
    let quantities: std::collections::BTreeSet<_> = quantities.collect();
    assert!(quantities.contains("configured_held_bytes"), "{quantities:?}");
    assert!(quantities.iter().all(|name| name.starts_with("configured_")), "{quantities:?}");
    let offload = "--fine-grained-activation-offloading --offload-modules core_attn attn_proj \
                   --activation-offload-fraction 0.5";
    let found = diff(&scripts.write("a.sh", ""), &scripts.write("b.sh", offload), &["--load", "1"]);
    let flags = [
        json!({"flag": "--offload-modules", "a": null, "b": "core_attn attn_proj"}),
        json!({"flag": "--activation-offload-fraction", "a": null, "b": "0.5"}),
        json!({"flag": "--fine-grained-activation-offloading", "a": null, "b": true}),
    ];
    assert_eq!(list(&found, "settings"), flags);
    let found = diff(
        &scripts.write(
            "a.sh",
            "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1",
        ),
        &scripts
            .write("b.sh", "--recompute-granularity full --recompute-method block --recompute-num-layers 1"),
        &["--load", "1"],
    );
    let setting = json!({"flag": "--recompute-method", "a": "uniform", "b": "block"});
    assert_eq!(found["settings"], json!([setting]));
}

/// What `plan` answers for a quantity.
fn planned(report: &Value, difference: &Value) -> Value {
    let field = difference["quantity"].as_str().expect("a quantity");
    let rank = &report["ranks"][difference["rank"].as_u64().expect("a rank") as usize];
    let place = match &difference["load"] {
        Value::Null => rank,
        load => list(rank, "loads").iter().find(|l| l["load"] == *load).expect("the load"),
    };
    match (field, &place[field]) {
        ("static_bytes", parts) => parts
            .as_object()
            .expect("parts")
            .values()
            .map(|part| part.as_u64().expect("bytes"))
            .sum::<u64>()
            .into(),
        (_, value) => value.clone(),
    }
}

#[test]
fn quantities_are_those_of_two_plans() {
    let (a, b) = ("glm-423b-a30b", "glm-629b-a30b");
    let found = diff(a, b, &["--load", "1,2.6"]);
    let [a, b] = [a, b].map(|name| answer(&["--model", name, "--load", "1,2.6"]));
    assert_eq!((&found["a"], &found["b"]), (&a, &b));
    let of_ranks: Vec<_> = list(&found, "differences").iter().filter(|d| d["of"] == "rank").collect();
    for difference in &of_ranks {
        let [before, after] = [planned(&a, difference), planned(&b, difference)];
        assert_ne!(before, after, "{difference}");
        assert_eq!((&difference["a"], &difference["b"]), (&before, &after), "{difference}");
        if let (Some(before), Some(after)) = (before.as_i64(), after.as_i64()) {
            assert_eq!(difference["difference"], after - before);
        }
    }
    // None is left out.
    let mut expected = 0;
    for (one, other) in list(&a, "ranks").iter().zip(list(&b, "ranks")) {
        let count = |one: &Value, other: &Value, fields: &[&str]| {
            fields.iter().filter(|&&field| one[field] != other[field]).count()
        };
        expected += count(one, other, &["static_bytes", "device_bytes", "in_flight", "floor_bytes"]);
        for (one, other) in list(one, "loads").iter().zip(list(other, "loads")) {
            // The presets have no settings of their own, so nothing is `configured_…`.
            let fields =
                ["unmitigated_bytes", "held_bytes", "peak_bytes", "compute_ns", "added_ns", "verdict"];
            expected += count(one, other, &fields);
        }
    }
    assert_eq!(of_ranks.len(), expected);
    let run: Vec<_> = list(&found, "differences").iter().filter(|d| d["of"] == "run").collect();
    let parameters = run.iter().find(|d| d["quantity"] == "parameters").expect("another size");
    assert_eq!((&parameters["a"], &parameters["b"]), (&a["model"]["parameters"], &b["model"]["parameters"]));
    for compute in run.iter().filter(|d| d["quantity"] == "compute_ns") {
        let slowest = |report: &Value| {
            let loads = list(report, "ranks").iter().flat_map(|rank| list(rank, "loads"));
            let at = loads.filter(|load| load["load"] == compute["load"]);
            at.map(|load| load["compute_ns"].as_u64().expect("a time")).max()
        };
        assert_eq!((compute["a"].as_u64(), compute["b"].as_u64()), (slowest(&a), slowest(&b)));
    }
}

#[test]
fn pipelines_of_different_length_are_compared_at_their_worst_ranks() {
    let found = diff("qwen3-30b-a3b", "mixtral-8x7b", &["--load", "1.2"]);
    for which in ["a", "b"] {
        let left = |rank: &Value| {
            let number = |value: &Value, field: &str| value[field].as_i64().expect("bytes");
            number(rank, "device_bytes") - number(&rank["loads"][0], "peak_bytes")
        };
        let ranks = list(&found[which], "ranks");
        let least = ranks.iter().map(left).min().expect("ranks");
        let worst = found["worst_ranks"][which].as_u64().expect("a rank") as usize;
        assert_eq!(left(&ranks[worst]), least, "{which}");
        let held = list(&found, "differences").iter().find(|d| d["quantity"] == "held_bytes");
        assert_eq!(held.expect("they differ")[which], ranks[worst]["loads"][0]["held_bytes"]);
    }
    let output = plan(&["--diff", "qwen3-30b-a3b", "mixtral-8x7b"]);
    assert!(text(&output.stdout).contains("The pipelines differ in length"));
}

#[test]
fn other_options_apply_to_both() {
    let scripts = Scripts::new("both");
    let (a, b) = (scripts.write("a.sh", ""), scripts.write("b.sh", "--micro-batch-size 2"));
    let found = diff(&a, &b, &["--micro-batch-size", "2", "--memory", "100", "--load", "1"]);
    assert_eq!((&found["settings"], &found["differences"]), (&json!([]), &json!([])));
    for which in ["a", "b"] {
        assert_eq!(found[which]["device"]["memory_bytes"], 100u64 << 30);
        assert_eq!(found[which]["parallelism"]["micro_batch_size"], 2);
    }
}

#[test]
fn a_config_is_compared_under_the_flags_given() {
    let flags = "--gpus 16 --expert-model-parallel-size 8 --pipeline-model-parallel-size 2 --micro-batch-size 1 \
                 --global-batch-size 64 --bf16 --seq-length 4096 --use-distributed-optimizer --load 1";
    let flags: Vec<&str> = flags.split(' ').collect();
    let (a, b) = ("configs/qwen3-30b-a3b.json", "configs/mixtral-8x7b.json");
    let found = diff(a, b, &flags);
    assert_eq!((&found["a"]["source"], &found["b"]["source"]), (&json!(a), &json!(b)));
    let experts = list(&found, "settings").iter().find(|s| s["flag"] == "--num-experts");
    assert_eq!(experts, Some(&json!({"flag": "--num-experts", "a": "128", "b": "8"})));
    let same =
        diff(a, "qwen3-30b-a3b", &[&flags[..], &["--num-virtual-stages-per-pipeline-rank", "1"]].concat());
    assert_eq!((&same["settings"], &same["differences"]), (&json!([]), &json!([])), "the preset is the same");
}

#[test]
fn what_does_not_fit_is_a_difference_like_any_other() {
    let scripts = Scripts::new("fits");
    let (a, b) = (scripts.write("a.sh", ""), scripts.write("b.sh", "--use-distributed-optimizer"));
    let first = |name: &str| answer(&[name, "--memory", "5", "--load", "1"])["ranks"][0]["verdict"].clone();
    assert_eq!((first(&a), first(&b)), (json!("infeasible"), json!("fits")));
    let found = diff(&a, &b, &["--memory", "5", "--load", "1"]);
    let verdict = list(&found, "differences").iter().find(|d| d["quantity"] == "verdict");
    let verdict = verdict.expect("they differ");
    assert_eq!((&verdict["a"], &verdict["b"]), (&json!("infeasible"), &json!("fits")));
    assert_eq!(verdict["difference"], Value::Null);
    let output = plan(&["--diff", &a, &b, "--memory", "5", "--load", "1"]);
    let table = text(&output.stdout);
    for words in ["--use-distributed-optimizer", "infeasible", "static", "B-A", "Equal values are left out."]
    {
        assert!(table.contains(words), "{table} lacks {words:?}");
    }
    assert_eq!(table.lines().find(|line| line.chars().count() > 100), None);
}

#[test]
fn an_error_names_which_of_the_two() {
    for (a, b, words) in [
        ("absent.sh", "glm-423b.sh", ["--diff A (absent.sh)", "there is no such file"]),
        ("glm-423b.sh", "glm-9", ["--diff B (glm-9)", "or a preset: glm-188b-a20b"]),
        ("glm-423b.sh", "../examples", ["--diff B (../examples)", "cannot be read"]),
    ] {
        let message = common::refused("plan", &["--diff", a, b]);
        assert!(words.iter().all(|word| message.contains(word)), "{message:?} lacks {words:?}");
    }
    for arguments in
        [&["--diff", "glm-423b.sh"][..], &["glm-423b.sh", "--diff", "glm-423b.sh", "glm-423b.sh"]]
    {
        assert_eq!(plan(arguments).status.code(), Some(2), "{arguments:?}");
    }
}
