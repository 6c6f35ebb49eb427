//! The answer for people.

use std::fmt::Write;

use bagualu_sim::controlled::{outcomes, refused_iterations};
use bagualu_sim::load_summary::LoadSummary;
use bagualu_sim::replay::{Outcome, excess_iterations, first_excess, tightest};

use super::Answer;
use super::json::{Place, at, total};
use crate::output;
use crate::plan::load::LoadFactor;

/// A table of the policies and what the controller did.
pub fn describe(answer: &Answer<'_>) -> String {
    let loads = answer.source.loads(answer.job, answer.iterations);
    let spiked = loads.iter().filter(|&&load| load > 1_200).count();
    let most = loads.iter().copied().max().unwrap_or(0);
    let (job, shape) = (answer.job, answer.job.shape());
    let mut text = format!(
        "{} iterations of {}: largest load {}.{:03}, above 1.2 in {spiked}\n\
         {}: {} pipeline × {} expert-parallel ranks of {}, {} micro-batches\n\n",
        answer.iterations,
        answer.source.describe(),
        most / 1_000,
        most % 1_000,
        answer.model,
        job.stages(),
        shape.ranks(),
        job.model().device.name,
        shape.micro_batches(),
    );
    let load = LoadSummary::new(job, answer.source.load(), answer.iterations);
    let _ = writeln!(
        text,
        "load of a gate's fullest rank: {} on average, {} at most; of all layers in flight on a device: {} at most\n",
        decimal(load.average_permille),
        decimal(load.worst_permille),
        decimal(load.in_flight_permille),
    );
    let _ = writeln!(
        text,
        "bagualu sets memory for the work of operators aside for loads up to {} (--spike)\n",
        LoadFactor(answer.aim.spike)
    );
    text += &policies(answer);
    text += &decisions(answer);
    for (policy, outcomes) in &answer.statics {
        text += &out_of_memory(answer, policy.name(), outcomes);
    }
    text += &out_of_memory(answer, "bagualu", &outcomes(&answer.controlled));
    text
}

/// Thousandths as a decimal number.
fn decimal(permille: u64) -> String {
    format!("{}.{:03}", permille / 1_000, permille % 1_000)
}

fn policies(answer: &Answer<'_>) -> String {
    let header = ["policy", "out of memory", "peak", "available", "unused", "host", "faults"];
    let mut table = output::table(header);
    let ours = outcomes(&answer.controlled);
    let rows = answer.statics.iter().map(|(policy, outcomes)| (policy.name(), outcomes));
    for (name, outcomes) in rows.chain([("bagualu", &ours)]) {
        let Some(tight) = tightest(answer.job, outcomes) else { continue };
        let available = answer.job.device_bytes(tight.device.stage);
        let peak = tight.verdict.peak.bytes;
        let host = outcomes.iter().map(|o| o.verdict.host_peak).max().unwrap_or(0);
        table.add_row([
            name.to_owned(),
            format!("{} of {}", excess_iterations(outcomes), answer.iterations),
            output::bytes(peak),
            output::bytes(available),
            available.checked_sub(peak).map_or_else(|| "none".to_owned(), output::bytes),
            output::bytes(host),
            outcomes.iter().map(|o| o.verdict.faults).sum::<u64>().to_string(),
        ]);
    }
    format!(
        "{table}\n\npeak: of the device that came closest to what is available to it, or passed it most\n"
    )
}

fn decisions(answer: &Answer<'_>) -> String {
    let counts = total(&answer.controlled);
    format!(
        "bagualu: {} gates, {} replanned, {} whole-MoE recomputes, {} split dispatches, {} with experts in row \
         chunks, {} waits for copies, {} early recoveries, {} iterations refused\n\
         strategies: {} tensors recomputed locally, {} offloaded ({}), {} quantised; they add {} if nothing hides \
         it, over all devices\n",
        counts.gates,
        counts.replanned,
        counts.whole_moe,
        counts.split,
        counts.expert_chunks,
        counts.waits,
        counts.early,
        refused_iterations(&answer.controlled),
        counts.recomputed,
        counts.offloaded,
        output::bytes(counts.offloaded_bytes),
        counts.quantized,
        output::ns(counts.added_ns),
    )
}

fn out_of_memory(answer: &Answer<'_>, name: &str, outcomes: &[Outcome]) -> String {
    let Some((device, moment)) = first_excess(outcomes) else { return String::new() };
    let available = answer.job.device_bytes(device.stage);
    let over = moment.bytes.saturating_sub(available);
    format!(
        "{name}: first out of memory {}, {} too few\n",
        here(&at(answer, device, &moment)),
        output::bytes(over)
    )
}

fn here(place: &Place) -> String {
    let layer = match place.layer {
        Some(number) => format!("layer {number}"),
        None => format!("the {} layer", place.layer_type),
    };
    format!(
        "in iteration {}, micro-batch {}, {layer}, pipeline rank {}, expert-parallel rank {}",
        place.iteration, place.micro_batch, place.pipeline_rank, place.expert_parallel_rank
    )
}
