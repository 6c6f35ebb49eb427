//! The layer tables against bytes that real Megatron-core modules save, counted by
//! `scripts/saved-bytes/measure.py`. The table is in `docs/saved-bytes.md`; to see it again:
//!
//! ```text
//! cargo test -p bagualu-model --test saved_bytes -- --nocapture
//! ```

use std::fmt::Write;

use bagualu_core::set::Set;
use bagualu_model::settings::Configured;
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

/// Bytes that the case's layer, or its whole model, keeps at `rows` under the settings that its flags give.
fn predict(case: &Case, rows: u32) -> u64 {
    let words: Vec<String> = case.flags.split_whitespace().map(str::to_owned).collect();
    let launch = script::from_flags(&words, case.ranks.len() as u64).expect("flags");
    let device = Device::named("h100-80g").expect("a preset");
    let model = Model::new(&launch.config, &launch.parallelism, &device)
        .unwrap_or_else(|error| panic!("{}: {error}", case.name));
    // Without pipeline parallel one micro-batch is in flight.
    let held = Configured::new(&launch.settings, &model, &model.stages[0], rows)
        .unwrap_or_else(|error| panic!("{}: {error}", case.name))
        .held_bytes;
    match case.part.as_deref() {
        Some("model") => held,
        _ => held - model.types.iter().filter(|layer| !is_transformer(layer)).map(all_saved).sum::<u64>(),
    }
}

fn is_transformer(layer: &LayerType) -> bool {
    layer.op("core_attention").is_some()
}

fn all_saved(layer: &LayerType) -> u64 {
    let saved = layer.ops.iter().fold(Set::EMPTY, |set, op| set | op.saves);
    let tensors = layer.tensors.iter().enumerate();
    tensors.filter(|(index, t)| t.block_input || saved.contains(*index)).map(|(_, t)| t.bytes.fixed).sum()
}
