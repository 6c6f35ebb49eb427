//! Replays every rank of a job, each on its own and in parallel.
//!
//! A rank's memory depends on its own decisions and the rows alone, and group decisions on the rows of
//! all, which every rank knows. So ranks need nothing from each other, and the number of threads changes
//! nothing.

use core::ops::Range;
use std::collections::BTreeSet;

use bagualu_core::layer::LayerPlan;
use bagualu_core::schedule::Event;
use bagualu_model::LayerRef;
use rayon::prelude::*;
use rayon::{ThreadPoolBuildError, ThreadPoolBuilder};

use crate::checker::{Checker, Moment, Verdict};
use crate::executor::{Decision, Executor};
use crate::job::Job;
use crate::load::{Gate, Load};
use crate::log::Place;
use crate::policy::Static;

/// One device of the pipeline's expert-parallel group.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct DeviceId {
    /// Pipeline rank.
    pub stage: usize,
    /// Expert-parallel rank.
    pub ep_rank: usize,
}

/// What a policy did on one device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Outcome {
    /// The device.
    pub device: DeviceId,
    /// What the checker found.
    pub verdict: Verdict,
}

/// Device bytes over an iteration: (ns, bytes) at each change.
pub type Curve = Vec<(u64, u64)>;

/// Called after each iteration of each device; may be called from several threads.
pub type Progress<'a> = &'a (dyn Fn() + Sync);

/// Replays `iterations` under a static policy on every device, in order of stage and rank.
pub fn replay_static(
    job: &Job<'_>,
    load: &dyn Load,
    policy: Static,
    iterations: u32,
    progress: Progress<'_>,
) -> Vec<Outcome> {
    let device = |device| {
        let mut verdict = Verdict::default();
        run_static(job, load, policy, device, 0..iterations, false, |checker| {
            verdict.clone_from(checker.verdict());
            progress();
        });
        Outcome { device, verdict }
    };
    devices(job).into_par_iter().map(device).collect()
}

/// The curve of one device in one iteration under a static policy.
pub fn curve_static(
    job: &Job<'_>,
    load: &dyn Load,
    policy: Static,
    device: DeviceId,
    iteration: u32,
) -> Curve {
    let mut curve = Curve::new();
    run_static(job, load, policy, device, iteration..iteration + 1, true, |checker| {
        curve = checker.take_curve();
    });
    curve
}

/// Runs `body`, and what it replays, on this many threads; 0 for one per processor.
pub fn on_threads<T: Send>(
    threads: usize,
    body: impl FnOnce() -> T + Send,
) -> Result<T, ThreadPoolBuildError> {
    Ok(ThreadPoolBuilder::new().num_threads(threads).build()?.install(body))
}

/// All devices of a job.
pub(crate) fn devices(job: &Job<'_>) -> Vec<DeviceId> {
    let ranks = job.shape().ranks() as usize;
    (0..job.stages()).flat_map(|stage| (0..ranks).map(move |ep_rank| DeviceId { stage, ep_rank })).collect()
}

/// The rows of `layer`'s gate on all ranks, in the iteration and micro-batch of `gate`; all 0 for a layer
/// without router.
pub(crate) fn rows_at(job: &Job<'_>, load: &dyn Load, layer: LayerRef, gate: Gate, rows: &mut [u32]) {
    match layer.number {
        Some(number) if job.types()[layer.layer_type].routed => {
            load.rows(Gate { layer: number, ..gate }, rows);
            rows.iter_mut().for_each(|received| *received = job.model().padded(*received));
        }
        _ => rows.fill(0),
    }
}

fn run_static(
    job: &Job<'_>,
    load: &dyn Load,
    policy: Static,
    device: DeviceId,
    iterations: Range<u32>,
    keep_curve: bool,
    mut after: impl FnMut(&mut Checker<'_>),
) {
    let rank = job.rank(device.stage);
    let plans =
        job.model().types.iter().map(|t| [false, true].map(|transformer| policy.plan(t, transformer)));
    let plans: Vec<[LayerPlan; 2]> = plans.collect();
    let mut rows = vec![0; job.shape().ranks() as usize];
    job.with_stage(device.stage, |stage| {
        let checker = Checker::new(stage.types, stage.device_bytes, stage.host_bytes);
        let mut executor = Executor::new(stage, policy.recovery(), checker);
        for iteration in iterations {
            executor.begin();
            executor.log().begin(iteration);
            if keep_curve {
                executor.log().keep_curve();
            }
            for event in &rank.events {
                let (Event::Forward(unit) | Event::Backward(unit)) = *event;
                let (micro_batch, layers) = job.unit(device.stage, unit);
                let place = |index: usize| Place { unit, layer: index as u16 };
                if let Event::Backward(_) = event {
                    (0..layers.len()).rev().for_each(|index| executor.backward(place(index)));
                    executor.leave(unit);
                    continue;
                }
                for (index, &layer) in layers.iter().enumerate() {
                    let plan = plans[layer.layer_type][usize::from(layer.number.is_some())];
                    rows_at(job, load, layer, Gate { iteration, micro_batch, layer: 0 }, &mut rows);
                    let kind = layer.layer_type as u16;
                    executor.forward_to_gate(place(index), kind, rows[device.ep_rank], plan.recompute);
                    executor.forward_from_gate(place(index), Decision::new(plan));
                }
            }
            after(executor.log());
        }
    });
}

/// Iterations in which any device ran out of memory.
pub fn excess_iterations(outcomes: &[Outcome]) -> usize {
    let all: BTreeSet<u32> =
        outcomes.iter().flat_map(|o| o.verdict.excess_iterations.iter().copied()).collect();
    all.len()
}

/// The first time that a policy ran out of memory on any device: in the earliest iteration, on the
/// earliest pipeline rank and the lowest expert-parallel rank.
pub fn first_excess(outcomes: &[Outcome]) -> Option<(DeviceId, Moment)> {
    let moments = outcomes.iter().filter_map(|o| o.verdict.first_excess.map(|moment| (o.device, moment)));
    moments.min_by_key(|(device, moment)| (moment.iteration, *device))
}

/// The device that came closest to its capacity, or passed it the most.
pub fn tightest<'o>(job: &Job<'_>, outcomes: &'o [Outcome]) -> Option<&'o Outcome> {
    let left = |o: &Outcome| i128::from(job.device_bytes(o.device.stage)) - i128::from(o.verdict.peak.bytes);
    outcomes.iter().min_by_key(|o| (left(o), o.device))
}

#[cfg(test)]
#[path = "replay_tests.rs"]
mod tests;
