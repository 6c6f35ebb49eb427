//! The layer tables against bytes that real Megatron-core modules save, counted by
//! `scripts/saved-bytes/measure.py`. The table is in `docs/saved-bytes.md`; to see it again:
//!
//! ```text
//! cargo test -p bagualu-model --test saved_bytes -- --nocapture
//! ```

use std::fmt::Write;

use bagualu_core::cost::OpModel;
use bagualu_core::set::Set;
use bagualu_model::{Device, LayerType, Model, script};
use serde::Deserialize;

/// Largest error of one case, and of all on average, in thousandths of a per cent.
const WORST: u64 = 2_000;
const MEAN: u64 = 500;

#[derive(Deserialize)]
struct Measured {
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    name: String,
    flags: String,
    /// `model` where embedding, final norm, output layer and loss were measured too.
    part: Option<String>,
    ranks: Vec<Rank>,
}

#[derive(Deserialize)]
struct Rank {
    rows: u32,
    bytes: u64,
}

#[test]
fn the_tables_are_what_megatron_saves() {
    let measured: Measured = serde_json::from_str(include_str!("data/saved-bytes.json")).expect("JSON");
    let mut table = String::from("| case | rank | rows N | measured, bytes | predicted, bytes | error |\n");
    table.push_str("| --- | --- | --- | --- | --- | --- |\n");
    let mut errors = Vec::new();
    for case in &measured.cases {
        for (rank, Rank { rows, bytes }) in case.ranks.iter().enumerate() {
            let predicted = predict(case, *rows);
            let error = predicted.abs_diff(*bytes) * 100_000 / bytes;
            let sign = if predicted < *bytes { '-' } else { '+' };
            let name = &case.name;
            let (whole, part) = (error / 1_000, error % 1_000);
            writeln!(
                table,
                "| {name} | {rank} | {rows} | {bytes} | {predicted} | {sign}{whole}.{part:03} % |"
            )
            .expect("a string");
            errors.push((error, name));
        }
    }
    println!("{table}");
    let (worst, name) = errors.iter().max().expect("cases");
    let mean = errors.iter().map(|(error, _)| error).sum::<u64>() / errors.len() as u64;
    println!("mean 0.{mean:03} %, worst {}.{:03} % ({name})", worst / 1_000, worst % 1_000);
    assert!(*worst <= WORST, "{name} is off by {worst} thousandths of a per cent");
    assert!(mean <= MEAN, "the mean error is {mean} thousandths of a per cent");
    let page = include_str!("../../docs/saved-bytes.md");
    assert!(page.contains(&table), "docs/saved-bytes.md has another table than the one above");
}

/// Bytes that the case's layer, or its whole model, keeps at `rows`.
fn predict(case: &Case, rows: u32) -> u64 {
    let words: Vec<String> = case.flags.split_whitespace().map(str::to_owned).collect();
    let launch = script::from_flags(&words, case.ranks.len() as u64).expect("flags");
    let model =
        Model::new(&launch.config, &launch.parallelism, &Device::named("h100-80g").expect("a preset"))
            .unwrap_or_else(|error| panic!("{}: {error}", case.name));
    let whole = case.part.as_deref() == Some("model");
    let types = model.types.iter().filter(|layer| whole || matches!(layer.name, "dense" | "moe"));
    types
        .map(|layer| kept(layer, &modules(layer, &words)).iter().map(|t| bytes(layer, t, rows)).sum::<u64>())
        .sum()
}

fn bytes(layer: &LayerType, tensor: usize, rows: u32) -> u64 {
    layer.tensors[tensor].bytes.at(rows).expect("fits")
}

/// A part of a layer that Megatron runs again in backward.
struct Module {
    ops: Set,
    /// Whether its outputs are dropped too, though others save them (`CheckpointWithoutOutput`).
    discards: bool,
}

/// The modules that the flags say to recompute.
fn modules(layer: &LayerType, words: &[String]) -> Vec<Module> {
    let after = |flag: &'static str| words.iter().skip_while(move |word| *word != flag).skip(1);
    match after("--recompute-granularity").next().map(String::as_str) {
        Some("full") => vec![Module { ops: Set::first(layer.ops.len()), discards: false }],
        Some("selective") => after("--recompute-modules")
            .take_while(|word| !word.starts_with("--"))
            .map(|name| module(layer, name))
            .collect(),
        _ => Vec::new(),
    }
}

fn module(layer: &LayerType, name: &str) -> Module {
    let ops = |holds: &dyn Fn(&str) -> bool| -> Set {
        (0..layer.ops.len()).filter(|&op| holds(layer.op_names[op])).collect()
    };
    let place = |name| layer.op(name).expect("an operator");
    let ops = match name {
        "core_attn" => ops(&|op| op.contains("attention") || op == "expand_groups"),
        "layernorm" => ops(&|op| ["ln1", "ln2"].contains(&op)),
        // All between the second norm and the residual.
        "mlp" | "moe" => (place("ln2") + 1..place("mlp_add")).collect(),
        "shared_experts" => ops(&|op| op.starts_with("shared_")),
        "mla_up_proj" => ops(&|op| ["q_proj", "q_up", "kv_up"].contains(&op)),
        other => panic!("no module {other}"),
    };
    Module { ops, discards: matches!(name, "layernorm" | "mla_up_proj") }
}

/// What stays: the layer's inputs, what operators outside all modules save, and what a module reads of
/// others.
fn kept(layer: &LayerType, modules: &[Module]) -> Set {
    let all = |ops: Set, set: fn(&OpModel) -> Set| {
        ops.iter().fold(Set::EMPTY, |union, op| union | set(&layer.ops[op]))
    };
    let again = modules.iter().fold(Set::EMPTY, |union, module| union | module.ops);
    let mut kept = block_inputs(layer) - all(again, |op| op.makes);
    kept |= all(Set::first(layer.ops.len()) - again, |op| op.saves);
    for module in modules {
        kept |= all(module.ops, |op| op.reads) - all(module.ops, |op| op.makes);
    }
    for module in modules.iter().filter(|module| module.discards) {
        kept = kept - all(module.ops, |op| op.makes);
    }
    kept
}

fn block_inputs(layer: &LayerType) -> Set {
    (0..layer.tensors.len()).filter(|&tensor| layer.tensors[tensor].block_input).collect()
}
