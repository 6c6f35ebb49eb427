//! Replays a pipeline under the core's controller: this is the executor's half of the protocol in
//! [`bagualu_core::controller`].

use core::ops::Range;
use std::collections::BTreeSet;

use bagualu_core::budget::Unit;
use bagualu_core::controller::{Controller, Settings};
use bagualu_core::cost::LayerStorage;
use bagualu_core::fingerprint::Fingerprint;
use bagualu_core::provision::{Aim, Provision};
use bagualu_core::stage::StageModel;
use bagualu_model::{Buffers, Memory};
use rayon::prelude::*;

use crate::checker::Verdict;
use crate::job::Job;
use crate::load::Load;
use crate::replay::{Curve, DeviceId, Outcome, Progress, devices};

mod error;
mod rank;

pub use error::{ControlError, Reason};
use rank::Rank;

/// One of these for each device of the pipeline, so smaller than a rank's own.
const MEMORY: Memory = Memory { fronts: 64, points: 512, plans: 256 };

/// What the controller did on one device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Controlled {
    /// The device.
    pub device: DeviceId,
    /// What the checker found.
    pub verdict: Verdict,
    /// What the controller decided.
    pub counts: Counts,
    /// A fingerprint of every decision.
    pub fingerprint: u64,
    /// The first refusal.
    pub first_refusal: Option<Refusal>,
    /// The iterations that were refused: nothing fits.
    pub refused_iterations: Vec<u32>,
}

/// Decisions of one device over all its iterations.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Layers with a router whose forward ran.
    pub gates: u64,
    /// Gates whose rows changed the plan made before the forward.
    pub replanned: u64,
    /// Gates at which the group recomputed the whole MoE module.
    pub whole_moe: u64,
    /// Gates at which the group split the dispatch.
    pub split: u64,
    /// Gates at which the rank ran its experts in row chunks.
    pub expert_chunks: u64,
    /// Waits for copies before a layer could start.
    pub waits: u64,
    /// Early recoveries admitted.
    pub early: u64,
    /// Nanoseconds of all iterations on the device's own clock.
    pub ns: u64,
    /// Bytes offloaded.
    pub offloaded_bytes: u64,
    /// Tensors that a rank recomputed of its own choice, the group's whole-MoE recomputes not counted.
    pub recomputed: u64,
    /// Tensors offloaded.
    pub offloaded: u64,
    /// Tensors kept quantised.
    pub quantized: u64,
    /// Nanoseconds that the strategies add if nothing hides them, whole-MoE recomputes included.
    pub added_ns: u64,
}

impl Counts {
    /// The sum of two devices'.
    pub const fn plus(&self, other: &Self) -> Self {
        Self {
            gates: self.gates + other.gates,
            replanned: self.replanned + other.replanned,
            whole_moe: self.whole_moe + other.whole_moe,
            split: self.split + other.split,
            expert_chunks: self.expert_chunks + other.expert_chunks,
            waits: self.waits + other.waits,
            early: self.early + other.early,
            ns: self.ns.saturating_add(other.ns),
            offloaded_bytes: self.offloaded_bytes.saturating_add(other.offloaded_bytes),
            recomputed: self.recomputed.saturating_add(other.recomputed),
            offloaded: self.offloaded.saturating_add(other.offloaded),
            quantized: self.quantized.saturating_add(other.quantized),
            added_ns: self.added_ns.saturating_add(other.added_ns),
        }
    }
}

/// What the checker found on each device, as for a static policy.
pub fn outcomes(devices: &[Controlled]) -> Vec<Outcome> {
    devices.iter().map(|c| Outcome { device: c.device, verdict: c.verdict.clone() }).collect()
}

/// A fingerprint of every decision on every device.
pub fn fingerprint(devices: &[Controlled]) -> u64 {
    Fingerprint::new().with_all(devices.iter().map(|device| device.fingerprint)).value()
}

/// Iterations that any device refused.
pub fn refused_iterations(devices: &[Controlled]) -> usize {
    let all: BTreeSet<u32> = devices.iter().flat_map(|d| d.refused_iterations.iter().copied()).collect();
    all.len()
}

/// A micro-batch that the controller refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Refusal {
    /// Iteration.
    pub iteration: u32,
    /// Unit.
    pub unit: u32,
    /// Layer within the unit's chunk, 0 where the unit could not start.
    pub layer: u16,
    /// Why.
    pub reason: Reason,
}

/// How the controller is set up.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// Loads that R* and S* aim at.
    pub aim: Aim,
    /// Quotas, selector, granule and slack.
    pub settings: Settings,
    /// Bytes that the controller believes the device has beyond what it has; the negative tests' premise.
    pub(crate) overstated_bytes: u64,
    pub(crate) early: Early,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            aim: Aim::default(),
            settings: Settings::default(),
            overstated_bytes: 0,
            early: Early::Admitted,
        }
    }
}

impl Setup {
    /// The usual one, with R* and S* aimed at other loads.
    pub fn aiming_at(aim: Aim) -> Self {
        Self { aim, ..Self::default() }
    }
}

/// Whether tensors come back before their backward.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Early {
    /// Those of the next backward, where the controller admits it.
    Admitted,
    /// All that can, without asking: what the growth rule of design §6 forbids. For the negative test.
    #[cfg(test)]
    Unasked,
}

/// Replays `iterations` under the controller on every device, in order of stage and rank.
pub fn replay_controlled(
    job: &Job<'_>,
    load: &dyn Load,
    setup: &Setup,
    iterations: u32,
    progress: Progress<'_>,
) -> Result<Vec<Controlled>, ControlError> {
    let provisions = (0..job.stages()).map(|stage| provision(job, stage, setup));
    let provisions = provisions.collect::<Result<Vec<_>, _>>()?;
    let device = |device: DeviceId| {
        let mut outcome = Controlled {
            device,
            verdict: Verdict::default(),
            counts: Counts::default(),
            fingerprint: 0,
            first_refusal: None,
            refused_iterations: Vec::new(),
        };
        run(job, load, setup, &provisions[device.stage], device, 0..iterations, false, |rank| {
            rank.report(&mut outcome);
            progress();
        })?;
        Ok(outcome)
    };
    devices(job).into_par_iter().map(device).collect()
}

/// The curve of one device in one iteration under the controller.
pub fn curve_controlled(
    job: &Job<'_>,
    load: &dyn Load,
    setup: &Setup,
    device: DeviceId,
    iteration: u32,
) -> Result<Curve, ControlError> {
    let provision = provision(job, device.stage, setup)?;
    let mut curve = Curve::new();
    run(job, load, setup, &provision, device, iteration..iteration + 1, true, |rank| {
        curve = rank.take_curve();
    })?;
    Ok(curve)
}

/// What is decided for a pipeline rank before training; the same on all its expert-parallel ranks.
pub fn provision(job: &Job<'_>, stage: usize, setup: &Setup) -> Result<Provision, ControlError> {
    let rank = job.rank(stage);
    job.with_stage(stage, |model| {
        let model = setup.believed(model);
        let mut units = vec![Unit::default(); rank.events.len() / 2];
        let mut storage = LayerStorage::new();
        Provision::solve(&model, &rank.pipeline, &rank.events, setup.aim, &mut units, &mut storage)
            .map_err(|error| ControlError::Provision { stage, error })
    })
}

impl Setup {
    /// The stage as the controller believes it to be.
    fn believed<'a>(&self, stage: &StageModel<'a>) -> StageModel<'a> {
        StageModel { device_bytes: stage.device_bytes.saturating_add(self.overstated_bytes), ..*stage }
    }
}

#[expect(clippy::too_many_arguments, reason = "the two entry points above name each of them")]
fn run(
    job: &Job<'_>,
    load: &dyn Load,
    setup: &Setup,
    provision: &Provision,
    device: DeviceId,
    iterations: Range<u32>,
    keep_curve: bool,
    mut after: impl FnMut(&mut Rank<'_, '_>),
) -> Result<(), ControlError> {
    job.with_stage(device.stage, |stage| {
        let mut buffers = Buffers::remembering(stage, job.rank(device.stage).events.len() / 2, MEMORY);
        let believed = setup.believed(stage);
        let parts = job.rank(device.stage);
        let controller = Controller::new(
            believed,
            parts.pipeline,
            &parts.events,
            *provision,
            setup.settings,
            buffers.storage(),
        )
        .map_err(|error| ControlError::Controller { stage: device.stage, error })?;
        let mut rank = Rank::new(job, load, device, setup, stage, provision, controller);
        for iteration in iterations {
            rank.iterate(iteration, keep_curve);
            after(&mut rank);
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests;
