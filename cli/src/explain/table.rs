//! The answer of `bagualu explain` for people, at most 100 columns wide.

use std::fmt::Write;

use bagualu_core::layer::Group;
use bagualu_core::stage::Recompute;

use super::answer::{Answer, LayerGroup};
use super::tensor::{Alternative, Because, Reason, Tensor};
use crate::output::{bytes, name, ns, table, wrapped};

/// The whole answer.
pub fn describe(answer: &Answer<'_>) -> String {
    let mut text = heading(answer);
    for group in &answer.groups {
        text += &group_heading(answer, group);
        text += &overview(group);
        for tensor in &group.tensors {
            text += &details(tensor);
        }
    }
    text
}

fn heading(answer: &Answer<'_>) -> String {
    let mut text = format!(
        "{} on {}: pipeline rank {}, chunk {}, micro-batch {} at load {}",
        answer.source, answer.device, answer.rank, answer.chunk, answer.micro_batch, answer.load,
    );
    if answer.rows > 0 {
        let _ = write!(text, " ({} rows)", answer.rows);
    }
    text.push('\n');
    let pass = if answer.fullest_in_forward { "forward" } else { "backward" };
    let (full, device) = (bytes(answer.fullest_bytes), bytes(answer.device_bytes));
    text += &match answer.at_peak {
        true => format!(
            "It is the one that meets the chunk's peak: in its {pass} {full} of {device} are in use.\n"
        ),
        false => format!("While its operators run, {full} of {device} are in use at most, in its {pass}.\n"),
    };
    let (held, whole) = (bytes(answer.totals.held_bytes), bytes(answer.totals.full_bytes));
    if answer.keeps_all {
        let _ = writeln!(text, "Everything fits: keep. It holds {held}.");
    } else {
        let _ = writeln!(
            text,
            "It holds {held} of the {whole} it would hold kept whole, and adds {} if nothing hides it.",
            ns(answer.totals.added_ns)
        );
    }
    if answer.totals.offloaded_bytes > 0 {
        let (out, most) = (bytes(answer.totals.offloaded_bytes), bytes(answer.bounds.host_limit_bytes));
        let _ = writeln!(text, "On the host: {out} of at most {most}.");
    }
    let (quota, limit) = (bytes(answer.bounds.quota_bytes), bytes(answer.bounds.limit_bytes));
    let _ =
        writeln!(text, "Planned to its share, {quota}, before the gates; after them it may grow to {limit}.");
    let _ = writeln!(text, "{}", answer.reserve);
    text.lines().map(|line| wrapped(line, "  ")).collect()
}

fn group_heading(answer: &Answer<'_>, group: &LayerGroup<'_>) -> String {
    let mut text = format!("\n{}", layers(group));
    if group.rows > 0 {
        let _ = write!(text, ", {} rows", group.rows);
    }
    let totals = &group.totals;
    let each = if group.layers.len() > 1 { " each" } else { "" };
    let _ = write!(text, ": {} held of {}{each}", bytes(totals.held_bytes), bytes(totals.full_bytes));
    if totals.added_ns > 0 {
        let _ = write!(text, ", {} added", ns(totals.added_ns));
    }
    text += if group.replanned { "; planned afresh at the gate" } else { "; as planned before the forward" };
    text += &match group.recompute {
        Recompute::Local => String::new(),
        Recompute::WholeMoe => {
            format!("; the group recomputes the whole MoE module (R* is {} rows)", answer.row_threshold)
        }
        Recompute::Full => {
            "; what needs collectives is recomputed, a static setting: local strategies alone do not carry the \
             schedule"
                .to_owned()
        },
    };
    for (chunks, what) in [(group.dispatch_chunks, "dispatch"), (group.expert_chunks, "experts")] {
        if chunks > 1 {
            let _ = write!(text, "; {what} in {chunks} parts");
        }
    }
    wrapped(&text, "  ")
}

/// `layers 3-6 (moe)`.
fn layers(group: &LayerGroup<'_>) -> String {
    let numbers: Vec<u32> = group.layers.iter().flatten().copied().collect();
    match (numbers.first(), numbers.last()) {
        (Some(first), Some(last)) if first == last => format!("layer {first} ({})", group.layer_type),
        (Some(first), Some(last)) => format!("layers {first}-{last} ({})", group.layer_type),
        _ => group.layer_type.to_owned(),
    }
}

fn overview(group: &LayerGroup<'_>) -> String {
    let mut rows = table(["tensor", "bytes", "strategy", "next cheaper", "next smaller"]);
    for tensor in &group.tensors {
        let none = || "-".to_owned();
        let cheaper = tensor.alternative(tensor.cheaper);
        let smaller = tensor.alternative(tensor.smaller);
        rows.add_row([
            tensor.name.to_owned(),
            bytes(tensor.bytes),
            if tensor.block_input { "always kept".to_owned() } else { name(tensor.strategy).to_owned() },
            cheaper.map_or_else(none, |a| format!("{} for {}", name(a.strategy), size(a.bytes_delta))),
            smaller.map_or_else(none, |a| format!("{} for {}", name(a.strategy), time(a.added_ns_delta))),
        ]);
    }
    format!("{rows}\n")
}

fn details(tensor: &Tensor<'_>) -> String {
    let strategy = if tensor.block_input { "always kept" } else { name(tensor.strategy) };
    let mut text = format!("\n{}, {}: {strategy}\n", tensor.name, bytes(tensor.bytes));
    let list = |names: &[&str]| if names.is_empty() { "nobody".to_owned() } else { names.join(", ") };
    let mut origin = match tensor.producer {
        Some(op) => format!("made by {op}"),
        None => "made before the layer".to_owned(),
    };
    let _ = write!(origin, "; saved by {}; read by {}", list(&tensor.saved_by), list(&tensor.read_by));
    if let Some(source) = tensor.source {
        let _ = write!(origin, "; a cast copy of {source}");
    }
    let mut lines = vec![origin];
    lines.extend(tensor.megatron.map(|place| format!("Megatron: {place}")));
    if !tensor.block_input {
        for other in &tensor.forbidden {
            lines.push(format!("no {}: {}", name(other.strategy), because(&other.because)));
        }
    }
    lines.extend(tensor.alternatives.iter().map(alternative));
    for line in lines {
        text += &wrapped(&format!("  {line}"), "    ");
    }
    text
}

fn because(because: &Because<'_>) -> String {
    match because {
        Because::BlockInput => "a block input".to_owned(),
        Because::Collective { op, group } => {
            format!("it would run {op}, a collective of {}, which no rank may do alone", group_name(*group))
        }
        Because::NoProducer => "nothing makes it again".to_owned(),
        Because::Exact => "statistics, indices, masks and FP32 copies are not narrowed".to_owned(),
        Because::NoCopies => "the device has no copies to the host".to_owned(),
    }
}

/// `keep: holds 1.20 GiB more, adds 3.10 ms less: 412.00 MiB over the limit`.
fn alternative(alternative: &Alternative) -> String {
    let Alternative { strategy, bytes_delta, added_ns_delta, reason, .. } = alternative;
    let change = |verb: &str, delta: i128, text: String| match delta {
        0 => None,
        more if more > 0 => Some(format!("{verb} {text} more")),
        _ => Some(format!("{verb} {text} less")),
    };
    let changes: Vec<_> = [
        change("holds", *bytes_delta, size(*bytes_delta)),
        change("costs", *added_ns_delta, time(*added_ns_delta)),
    ]
    .into_iter()
    .flatten()
    .collect();
    let changes = if changes.is_empty() { "no difference".to_owned() } else { changes.join(", ") };
    format!("{}: {changes}{}", name(*strategy), why(reason))
}

fn why(reason: &Reason) -> String {
    match reason {
        // The change says it already.
        Reason::Slower => String::new(),
        Reason::Larger => " and saves no time".to_owned(),
        Reason::OverLimit { over_bytes } => format!(": {} over the limit", bytes(*over_bytes)),
        Reason::OverQuota { over_bytes } => format!(": {} over its share", bytes(*over_bytes)),
        Reason::OverHostLimit { over_bytes } => format!(": {} over its host limit", bytes(*over_bytes)),
        Reason::NotNeeded => ": not needed".to_owned(),
        Reason::GroupDecision => ": the group decides, its rows are above R*".to_owned(),
        Reason::StaticSetting => ": a static setting".to_owned(),
        Reason::ExpectedMoreRows => ": would fit; planned before the gate, for more rows".to_owned(),
        Reason::PlannedInSteps => {
            ": would fit; plans go in steps and are close to the least time, not at it".to_owned()
        }
    }
}

fn group_name(group: Group) -> &'static str {
    match group {
        Group::Ep => "EP",
        Group::Tp => "TP",
        Group::Cp => "CP",
        Group::Pp => "PP",
    }
}

/// A change in bytes, without its sign.
fn size(delta: i128) -> String {
    bytes(u64::try_from(delta.unsigned_abs()).unwrap_or(u64::MAX))
}

/// A change in time, without its sign.
fn time(delta: i128) -> String {
    ns(u64::try_from(delta.unsigned_abs()).unwrap_or(u64::MAX))
}
