//! The answer for programs (docs/formats.md): version 1.

use bagualu_sim::checker::Moment;
use bagualu_sim::controlled::{Controlled, Counts, fingerprint, outcomes, refused_iterations};
use bagualu_sim::load_summary::LoadSummary;
use bagualu_sim::policy::Static;
use bagualu_sim::replay::{DeviceId, Outcome, excess_iterations, first_excess, tightest};
use serde::Serialize;

use super::Answer;
use super::source::Source;

/// The whole answer.
#[derive(Serialize)]
pub struct Report {
    version: u32,
    pipeline: Pipeline,
    trace: Trace,
    controller: Controller,
    #[serde(rename = "static")]
    statics: Vec<Policy>,
}

#[derive(Serialize)]
struct Pipeline {
    model: String,
    device: String,
    pipeline_ranks: usize,
    expert_parallel_ranks: u32,
    model_chunks: u32,
    layers: u32,
    experts: u32,
    micro_batches: u32,
    balanced_rows: u32,
    /// D of each pipeline rank.
    available_bytes: Vec<u64>,
}

#[derive(Serialize)]
struct Trace {
    source: String,
    iterations: u32,
    /// Thousandths of the balanced rows.
    largest_load_permille: u64,
    iterations_above_1200_permille: usize,
    load: LoadPermille,
}

/// In thousandths of the balanced rows.
#[derive(Serialize)]
struct LoadPermille {
    average: u64,
    worst: u64,
    in_flight_worst: u64,
}

impl From<LoadSummary> for LoadPermille {
    fn from(load: LoadSummary) -> Self {
        Self {
            average: load.average_permille,
            worst: load.worst_permille,
            in_flight_worst: load.in_flight_permille,
        }
    }
}

#[derive(Serialize)]
struct Controller {
    /// The load that is provided for, in thousandths of the balanced rows.
    spike_permille: u32,
    refused_iterations: usize,
    first_refusal: Option<Refusal>,
    memory: Memory,
    decisions: Decisions,
    /// Of every decision on every device, in order of pipeline rank and expert-parallel rank.
    fingerprint: String,
}

#[derive(Serialize)]
struct Refusal {
    place: Place,
    reason: String,
}

#[derive(Serialize)]
struct Policy {
    policy: &'static str,
    memory: Memory,
}

/// What the checker found.
#[derive(Serialize)]
struct Memory {
    out_of_memory_iterations: usize,
    first_out_of_memory: Option<Excess>,
    /// On the device that came closest to its capacity, or passed it the most.
    tightest: Tightest,
    host_peak_bytes: u64,
    /// Faults that the checker found: always 0.
    faults: u64,
}

#[derive(Serialize)]
struct Excess {
    #[serde(flatten)]
    place: Place,
    needed_bytes: u64,
    available_bytes: u64,
}

#[derive(Serialize)]
struct Tightest {
    #[serde(flatten)]
    place: Place,
    peak_bytes: u64,
    available_bytes: u64,
    unused_bytes: u64,
}

/// Where something happened.
#[derive(Serialize)]
pub struct Place {
    pub pipeline_rank: usize,
    pub expert_parallel_rank: usize,
    pub iteration: u32,
    pub micro_batch: u32,
    pub chunk: u32,
    /// Transformer layer, from 0; none for embedding and output.
    pub layer: Option<u32>,
    pub layer_type: String,
}

#[derive(Serialize)]
struct Decisions {
    gates: u64,
    replanned: u64,
    whole_moe_recomputed: u64,
    dispatch_split: u64,
    experts_in_row_chunks: u64,
    waits: u64,
    early_recoveries: u64,
    offloaded_bytes: u64,
    recomputed_tensors: u64,
    offloaded_tensors: u64,
    quantized_tensors: u64,
    added_ns: u64,
}

/// The report of an answer.
pub fn report(answer: &Answer<'_>) -> Report {
    let job = answer.job;
    let (model, shape) = (job.model(), job.shape());
    let loads = answer.source.loads(job, answer.iterations);
    Report {
        version: 1,
        pipeline: Pipeline {
            model: answer.model.to_owned(),
            device: model.device.name.to_string(),
            pipeline_ranks: job.stages(),
            expert_parallel_ranks: shape.ranks(),
            model_chunks: model.parallelism.chunks,
            layers: shape.layers(),
            experts: shape.experts(),
            micro_batches: shape.micro_batches(),
            balanced_rows: shape.balanced_rows(),
            available_bytes: (0..job.stages()).map(|stage| job.device_bytes(stage)).collect(),
        },
        trace: Trace {
            source: Source::describe(answer.source),
            iterations: answer.iterations,
            largest_load_permille: loads.iter().copied().max().unwrap_or(0),
            iterations_above_1200_permille: loads.iter().filter(|&&load| load > 1_200).count(),
            load: LoadSummary::new(job, answer.source.load(), answer.iterations).into(),
        },
        controller: controller(answer),
        statics: answer
            .statics
            .iter()
            .map(|(policy, outcomes)| Policy {
                policy: Static::name(*policy),
                memory: memory(answer, outcomes),
            })
            .collect(),
    }
}

fn controller(answer: &Answer<'_>) -> Controller {
    let outcomes = outcomes(&answer.controlled);
    let counts = total(&answer.controlled);
    let refusals =
        answer.controlled.iter().filter_map(|c| c.first_refusal.map(|refusal| (c.device, refusal)));
    let first = refusals.min_by_key(|(device, refusal)| (refusal.iteration, *device));
    Controller {
        spike_permille: answer.aim.spike,
        refused_iterations: refused_iterations(&answer.controlled),
        first_refusal: first.map(|(device, refusal)| Refusal {
            place: place(answer, device, refusal.iteration, refusal.unit, refusal.layer),
            reason: refusal.reason.to_string(),
        }),
        memory: memory(answer, &outcomes),
        decisions: Decisions {
            gates: counts.gates,
            replanned: counts.replanned,
            whole_moe_recomputed: counts.whole_moe,
            dispatch_split: counts.split,
            experts_in_row_chunks: counts.expert_chunks,
            waits: counts.waits,
            early_recoveries: counts.early,
            offloaded_bytes: counts.offloaded_bytes,
            recomputed_tensors: counts.recomputed,
            offloaded_tensors: counts.offloaded,
            quantized_tensors: counts.quantized,
            added_ns: counts.added_ns,
        },
        fingerprint: format!("{:016x}", fingerprint(&answer.controlled)),
    }
}

/// Decisions of all devices.
pub fn total(controlled: &[Controlled]) -> Counts {
    controlled.iter().fold(Counts::default(), |sum, c| sum.plus(&c.counts))
}

fn memory(answer: &Answer<'_>, outcomes: &[Outcome]) -> Memory {
    let verdicts = || outcomes.iter().map(|o| &o.verdict);
    let (device, peak) = tightest(answer.job, outcomes)
        .map_or((DeviceId { stage: 0, ep_rank: 0 }, Moment::default()), |o| (o.device, o.verdict.peak));
    let available = answer.job.device_bytes(device.stage);
    Memory {
        out_of_memory_iterations: excess_iterations(outcomes),
        first_out_of_memory: first_excess(outcomes).map(|(device, moment)| Excess {
            place: at(answer, device, &moment),
            needed_bytes: moment.bytes,
            available_bytes: answer.job.device_bytes(device.stage),
        }),
        tightest: Tightest {
            place: at(answer, device, &peak),
            peak_bytes: peak.bytes,
            available_bytes: available,
            unused_bytes: available.saturating_sub(peak.bytes),
        },
        host_peak_bytes: verdicts().map(|v| v.host_peak).max().unwrap_or(0),
        faults: verdicts().map(|v| v.faults).sum(),
    }
}

/// Where a moment was.
pub fn at(answer: &Answer<'_>, device: DeviceId, moment: &Moment) -> Place {
    place(answer, device, moment.iteration, moment.unit, moment.layer)
}

fn place(answer: &Answer<'_>, device: DeviceId, iteration: u32, unit: u32, layer: u16) -> Place {
    let (micro_batch, chunk, layer) = answer.job.locate(device.stage, unit, layer);
    let types = &answer.job.model().types;
    Place {
        pipeline_rank: device.stage,
        expert_parallel_rank: device.ep_rank,
        iteration,
        micro_batch,
        chunk,
        layer: layer.and_then(|layer| layer.number),
        layer_type: layer.map_or("", |layer| types[layer.layer_type].name).to_owned(),
    }
}
