//! The answer of `bagualu plan` for people.

use std::collections::BTreeMap;
use std::fmt::Write;

use bagualu_core::provision::Provision;
use bagualu_model::{LayerRef, Precision, StaticBytes};

use super::configured;
use super::iteration::Carried;
use super::load::LoadFactor;
use super::rank::{LoadPlan, RankPlan};
use super::{Plan, Verdict};
use crate::Error;
use crate::output::{bytes, name, ns, table, wrapped};
use crate::spike;

/// The whole answer.
pub fn describe(plan: &Plan) -> Result<String, Error> {
    let mut text = heading(plan)?;
    text += &statics(plan);
    text += &loads(plan);
    text += &configured::describe(plan);
    text += &strategies(plan);
    text += &notes(plan);
    Ok(text)
}

fn heading(plan: &Plan) -> Result<String, Error> {
    let loaded = &plan.loaded;
    let (model, parallelism) = (&loaded.model, &loaded.model.parallelism);
    let count =
        model.config.parameters().map_err(|error| Error::bad_input(&loaded.source, error.to_string(), ""))?;
    let mut text = format!(
        "{}: {} parameters, {} active, on {} × {} ({} less {} margin)\n",
        loaded.source,
        parameters(count.total),
        parameters(count.active),
        parallelism.gpus,
        model.device.name,
        bytes(model.device.memory_bytes),
        bytes(model.device.margin_bytes),
    );
    let sequence = if parallelism.sequence_parallel { " with sequence parallel" } else { "" };
    let precision = match parallelism.precision {
        _ if parallelism.fp8.is_some() => "FP8 linear layers",
        Precision::Bf16 if parallelism.fp16 => "FP16",
        Precision::Bf16 => "BF16",
        Precision::Fp32 => "FP32",
    };
    let _ = writeln!(
        text,
        "TP {}{sequence}, PP {}, V {}, EP {}, expert TP {}, DP {}, expert DP {}, {precision}",
        parallelism.tp,
        parallelism.pp,
        parallelism.chunks,
        parallelism.ep,
        parallelism.etp,
        parallelism.dp(),
        parallelism.expert_dp(),
    );
    let _ = writeln!(
        text,
        "{} micro-batches of {} × {} tokens; a rank routes {} tokens to {} rows when balanced (load 1)\n",
        model.micro_batches, parallelism.micro_batch, model.config.seq, model.tokens, model.balanced_rows,
    );
    Ok(text)
}

/// A number of parameters, rounded to one decimal.
fn parameters(n: u64) -> String {
    // What rounds to 1000.0 million is 1.0 billion.
    let (one, unit) = if n >= 999_950_000 { (1_000_000_000, "billion") } else { (1_000_000, "million") };
    let tenths = (u128::from(n) * 10 + one / 2) / one;
    format!("{}.{} {unit}", tenths / 10, tenths % 10)
}

fn statics(plan: &Plan) -> String {
    let header = [
        "rank",
        "layers",
        "weights",
        "gradients",
        "optimizer",
        "buffers",
        "left",
        "in flight",
        "floor",
        "work at most",
        "for load",
    ];
    let mut rows = table(header);
    for rank in &plan.ranks {
        let parts = rank.static_bytes;
        rows.add_row([
            rank.rank.to_string(),
            layers(plan, rank),
            bytes(parts.weights.saturating_add(parts.fp8_weights)),
            bytes(parts.gradients.saturating_add(parts.placeholders)),
            bytes(parts.optimizer),
            bytes(parts.buffers.saturating_add(parts.workspaces)),
            bytes(rank.device_bytes),
            rank.in_flight.to_string(),
            bytes(rank.floor_bytes),
            provisioned(rank, |provision| bytes(provision.work_bytes)),
            provisioned(rank, |provision| spike::reach(&plan.loaded.model, provision)),
        ]);
    }
    let reserve = format!(
        "work at most: W reserves so much for the work of operators, for rows up to the load behind it; aimed at is \
         load {} (--spike), more where everything could be kept, less where there is no room",
        LoadFactor(plan.aim.spike)
    );
    format!("{rows}\n{}{}\n", wrapped(&reserve, "  "), beside(plan))
}

/// Of the rank's static decisions; `-` where there are none.
fn provisioned(rank: &RankPlan, what: impl Fn(&Provision) -> String) -> String {
    rank.provision.as_ref().map_or("-".to_owned(), what)
}

/// What the columns do not show: FP8 weights, gradients that nobody reads, workspaces, and what the optimizer keeps on
/// the host.
fn beside(plan: &Plan) -> String {
    let most = |part: fn(&StaticBytes) -> u64| plan.ranks.iter().map(|rank| part(&rank.static_bytes)).max();
    let mut text = String::new();
    for (what, most) in [
        ("FP8 weights, among the weights", most(|parts| parts.fp8_weights)),
        ("Placeholders, among the gradients", most(|parts| parts.placeholders)),
        ("Library workspaces, among the buffers", most(|parts| parts.workspaces)),
        ("Optimizer on the host", most(|parts| parts.optimizer_host)),
    ] {
        if let Some(most @ 1..) = most {
            let _ = writeln!(text, "{what}: up to {} a device", bytes(most));
        }
    }
    text
}

/// `0-1 16-17`, with `emb`, `mtp` and `out` for embedding, multi-token prediction and output layer; `-` for a
/// chunk without layers.
fn layers(plan: &Plan, rank: &RankPlan) -> String {
    let model = &plan.loaded.model;
    let named = |layer: &LayerRef, names: &[&str]| names.contains(&model.types[layer.layer_type].name);
    let chunk = |layers: &Vec<LayerRef>| {
        let has = |names: &[&str]| layers.iter().any(|layer| named(layer, names));
        let numbers: Vec<u32> =
            layers.iter().filter_map(|layer| layer.number).filter(|&n| n < model.config.layers).collect();
        let mut parts = Vec::new();
        if layers.first().is_some_and(|layer| named(layer, &["embedding"])) {
            parts.push("emb".to_owned());
        }
        match (numbers.first(), numbers.last()) {
            (Some(first), Some(last)) if first == last => parts.push(first.to_string()),
            (Some(first), Some(last)) => parts.push(format!("{first}-{last}")),
            _ => {}
        }
        if has(&["mtp"]) {
            parts.push("mtp".to_owned());
        }
        if has(&["output", "head"]) {
            parts.push("out".to_owned());
        }
        if parts.is_empty() { "-".to_owned() } else { parts.join("+") }
    };
    let stage = model.stages.iter().find(|stage| stage.rank == rank.rank);
    stage.map_or_else(String::new, |stage| stage.chunks.iter().map(chunk).collect::<Vec<_>>().join(" "))
}

fn loads(plan: &Plan) -> String {
    let mut rows = table(["rank", "load", "kept whole", "held", "peak", "of", "added time", "verdict"]);
    for rank in &plan.ranks {
        for load in &rank.loads {
            let [held, peak, added] = match &load.outcome {
                Ok(carried) => [bytes(carried.held_bytes), bytes(carried.peak_bytes), added(carried)],
                Err(_) => ["-", "-", "-"].map(str::to_owned),
            };
            rows.add_row([
                rank.rank.to_string(),
                load.load.to_string(),
                bytes(load.unmitigated_bytes),
                held,
                peak,
                bytes(rank.device_bytes),
                added,
                verdict(load),
            ]);
        }
        if let Err(shortage) = &rank.provision {
            let dash = || "-".to_owned();
            let verdict = format!("infeasible: {}", shortage.part);
            let left = bytes(rank.device_bytes);
            rows.add_row([rank.rank.to_string(), dash(), dash(), dash(), dash(), left, dash(), verdict]);
        }
    }
    format!("{rows}\n")
}

fn verdict(load: &LoadPlan) -> String {
    match (&load.outcome, load.verdict()) {
        (Err(shortage), _) => format!("infeasible: {}", shortage.part),
        (Ok(_), Verdict::Fits) => "fits".to_owned(),
        (Ok(_), _) => "needs strategies".to_owned(),
    }
}

/// Added time, and its share of the operators' own.
fn added(carried: &Carried) -> String {
    share_of(carried.added_ns, carried.compute_ns)
}

/// A time, and its share of another.
pub fn share_of(time: u64, of: u64) -> String {
    let permille = u128::from(time) * 1_000 / u128::from(of.max(1));
    format!("{} ({}.{} %)", ns(time), permille / 10, permille % 10)
}

/// One line for each different choice, with the ranks and loads that make it.
fn strategies(plan: &Plan) -> String {
    let mut choices: Vec<(String, Vec<String>)> = Vec::new();
    for rank in &plan.ranks {
        for load in &rank.loads {
            let Ok(carried) = &load.outcome else { continue };
            if carried.keeps_all() {
                continue;
            }
            let (choice, place) = (choice(plan, carried), format!("rank {} at {}", rank.rank, load.load));
            match choices.iter_mut().find(|(other, _)| *other == choice) {
                Some((_, places)) => places.push(place),
                None => choices.push((choice, vec![place])),
            }
        }
    }
    if choices.is_empty() {
        return String::new();
    }
    let lines: Vec<_> =
        choices.iter().map(|(choice, places)| format!("{}: {choice}", places.join(", "))).collect();
    format!("\nStrategies, with the share of the layers of each rank that use them:\n{}\n", lines.join("\n"))
}

fn choice(plan: &Plan, carried: &Carried) -> String {
    let mut parts: Vec<_> = by_strategy(plan, carried)
        .into_iter()
        .map(|(strategy, tensors)| format!("{strategy} {}", tensors.join(" ")))
        .collect();
    for (count, what) in [(carried.whole_moe, "whole MoE recomputed"), (carried.split, "dispatch split")] {
        if count > 0 {
            parts.push(format!("{what} {}", share(count, carried.layers)));
        }
    }
    parts.join("; ")
}

/// Tensors by strategy, each with the share of the layers that have it.
fn by_strategy(plan: &Plan, carried: &Carried) -> BTreeMap<&'static str, Vec<String>> {
    let mut all: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for (&(kind, tensor, strategy), &count) in &carried.strategies {
        let layer = &plan.loaded.model.types[kind];
        let of = carried.by_kind.get(&kind).copied().unwrap_or(0);
        let tensor = match layer.name {
            "moe" => layer.tensor_names[tensor].to_owned(),
            other => format!("{other}.{}", layer.tensor_names[tensor]),
        };
        all.entry(name(strategy)).or_default().push(format!("{tensor} {}", share(count, of)));
    }
    all
}

fn share(count: u64, of: u64) -> String {
    match u128::from(count) * 100 / u128::from(of.max(1)) {
        0 => "<1 %".to_owned(),
        percent => format!("{percent} %"),
    }
}

fn notes(plan: &Plan) -> String {
    let loaded = &plan.loaded;
    let mut text = String::new();
    let most = loaded.model.most_rows;
    if plan.ranks.iter().flat_map(|rank| &rank.loads).any(|load| load.rows == most && most > 0) {
        let _ = match loaded.model.expert_capacity {
            Some(rows) => {
                writeln!(
                    text,
                    "\nNo load exceeds {most} rows: an expert's capacity is {rows}, the rest is dropped."
                )
            }
            None => {
                let ep = loaded.model.parallelism.ep;
                let padded = if loaded.model.padding_rows > 0 { " with padding" } else { "" };
                writeln!(text, "\nNo load exceeds EP = {ep}: that is every row of the group, {most}{padded}.")
            }
        };
    }
    if let Some((rank, shortage)) = plan.shortage() {
        let _ = writeln!(
            text,
            "\nInfeasible: on rank {} {} {}, {} are available.",
            rank.rank,
            shortage.needs(),
            bytes(shortage.needed),
            bytes(shortage.available),
        );
    }
    for (title, names) in
        [("Replaced by this plan", &loaded.replaced), ("Without effect on memory", &loaded.ignored)]
    {
        if !names.is_empty() {
            let _ = writeln!(text, "\n{title}: {}", names.join(" "));
        }
    }
    for warning in &loaded.warnings {
        let _ = writeln!(text, "warning: {warning}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_rounded() {
        assert_eq!(parameters(12_879_925_248), "12.9 billion");
        assert_eq!(parameters(422_887_038_976), "422.9 billion");
        assert_eq!(parameters(18_049_999), "18.0 million");
        assert_eq!(parameters(999_949_999), "999.9 million");
        assert_eq!(parameters(999_950_000), "1.0 billion");
        assert_eq!(parameters(u64::MAX), "18446744073.7 billion");
    }
}
