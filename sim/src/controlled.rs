//! Replays a rank under the core's controller.
//!
//! This is the executor's half of the protocol in [`bagualu_core::controller`]: it runs what is admitted,
//! waits for copies where it is told to, and reports what has ended.

use core::ops::Range;
use std::collections::BTreeSet;

use bagualu_core::budget::Unit;
use bagualu_core::controller::{Controller, ControllerError, Gate as CoreGate, LayerRecord, Settings};
use bagualu_core::cost::LayerStorage;
use bagualu_core::fingerprint::Fingerprint;
use bagualu_core::group::{GroupRows, RowThreshold};
use bagualu_core::layer::{Collectives, LayerPlan};
use bagualu_core::ledger::Admission;
use bagualu_core::mitigate::evaluate;
use bagualu_core::provision::{Aim, Provision};
use bagualu_core::schedule::Event;
use bagualu_core::set::Set;
use bagualu_core::stage::{Recompute, StageModel};
use bagualu_model::{Buffers, Memory};
use rayon::prelude::*;

use crate::checker::{Checker, Verdict};
use crate::executor::{Decision, Executor, Recovery};
use crate::job::Job;
use crate::load::{Gate, Load};
use crate::log::Place;
use crate::replay::{Curve, DeviceId, Outcome, Progress, devices, rows_at};

mod error;

pub use error::{ControlError, Reason};

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
        curve = rank.executor.log().take_curve();
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
        let checker = Checker::new(stage.types, stage.device_bytes, stage.host_bytes);
        let mut rank = Rank {
            job,
            stage,
            load,
            device,
            early: setup.early,
            rule: RowThreshold::new(provision),
            controller,
            storage: Box::default(),
            executor: Executor::new(stage, Recovery::Layer, checker),
            rows: vec![0; job.shape().ranks() as usize],
            iteration: 0,
            counts: Counts::default(),
            first_refusal: None,
            refused_iterations: Vec::new(),
        };
        for iteration in iterations {
            rank.iterate(iteration, keep_curve);
            after(&mut rank);
        }
        Ok(())
    })
}

/// One device under way.
struct Rank<'j, 'c> {
    job: &'j Job<'j>,
    stage: &'c StageModel<'c>,
    load: &'j dyn Load,
    device: DeviceId,
    early: Early,
    rule: RowThreshold,
    controller: Controller<'c>,
    storage: Box<LayerStorage>,
    executor: Executor<'c, Checker<'c>>,
    rows: Vec<u32>,
    iteration: u32,
    counts: Counts,
    first_refusal: Option<Refusal>,
    refused_iterations: Vec<u32>,
}

/// Where a rank stands when it is refused.
struct Stuck {
    layer: u16,
    reason: Reason,
}

impl Stuck {
    fn at<E: Into<Reason>>(layer: u16) -> impl Fn(E) -> Self {
        move |error| Self { layer, reason: error.into() }
    }
}

impl Rank<'_, '_> {
    fn iterate(&mut self, iteration: u32, keep_curve: bool) {
        self.iteration = iteration;
        self.controller.abandon();
        self.executor.begin();
        self.executor.log().begin(iteration);
        if keep_curve {
            self.executor.log().keep_curve();
        }
        let job = self.job;
        let events = &job.rank(self.device.stage).events;
        for (at, &event) in events.iter().enumerate() {
            let (unit, result) = match event {
                Event::Forward(unit) => (unit, self.forward(unit, next_backward(&events[at..]))),
                Event::Backward(unit) => (unit, self.backward(unit)),
            };
            if let Err(stuck) = result {
                self.refuse(unit, stuck);
                break;
            }
        }
        self.counts.ns = self.counts.ns.saturating_add(self.executor.now());
    }

    /// A refused iteration ends here: what is on the device is dropped.
    fn refuse(&mut self, unit: u32, stuck: Stuck) {
        let Stuck { layer, reason } = stuck;
        self.first_refusal.get_or_insert(Refusal { iteration: self.iteration, unit, layer, reason });
        self.refused_iterations.push(self.iteration);
        self.executor.abandon();
        self.executor.log().abandon();
    }

    fn report(&mut self, outcome: &mut Controlled) {
        outcome.verdict.clone_from(self.executor.log().verdict());
        outcome.counts = self.counts;
        outcome.fingerprint = self.controller.fingerprint();
        outcome.first_refusal = self.first_refusal;
        outcome.refused_iterations.clone_from(&self.refused_iterations);
    }

    fn forward(&mut self, unit: u32, backward: Option<u32>) -> Result<(), Stuck> {
        self.recover_early(backward).map_err(Stuck::at(0))?;
        self.controller.handle_forward(unit).map_err(Stuck::at(0))?;
        let (micro_batch, layers) = self.job.unit(self.device.stage, unit);
        for (index, &layer) in layers.iter().enumerate() {
            let here = index as u16;
            let place = Place { unit, layer: here };
            let gate = Gate { iteration: self.iteration, micro_batch, layer: 0 };
            rows_at(self.job, self.load, layer, gate, &mut self.rows);
            let rows = self.rows[self.device.ep_rank];
            self.admit(|controller| controller.poll_to_gate()).map_err(Stuck::at(here))?;
            self.executor.forward_to_gate(place, layer.layer_type as u16, rows, Set::EMPTY);
            self.gate(place, layer.layer_type as u16, rows).map_err(Stuck::at(here))?;
        }
        self.controller.handle_forward_done(None).map_err(Stuck::at(layers.len() as u16))
    }

    fn gate(&mut self, place: Place, kind: u16, rows: u32) -> Result<(), Reason> {
        let routed = self.job.types()[kind as usize].routed;
        let gate = if routed {
            let group = self.rule.decide(&GroupRows::new(&self.rows).map_err(Reason::Group)?);
            CoreGate { rows, group, granted: None }
        } else {
            CoreGate::DENSE
        };
        let layer = usize::from(place.layer);
        let decision = self.controller.handle_layer(layer, gate)?;
        self.admit(|controller| controller.poll_layer())?;
        let record = *self.controller.decided(place.unit, layer)?;
        self.executor.forward_from_gate(
            place,
            Decision {
                plan: record.plan,
                dispatch_chunks: record.dispatch_chunks,
                expert_chunks: record.expert_chunks,
            },
        );
        let offloaded = self.controller.handle_layer_done()?;
        self.count_strategies(kind, &record)?;
        let counts = &mut self.counts;
        counts.gates += u64::from(routed);
        counts.replanned += u64::from(routed && decision.replanned);
        counts.whole_moe += u64::from(record.recompute == Recompute::WholeMoe);
        counts.split += u64::from(record.dispatch_chunks > 1);
        counts.expert_chunks += u64::from(record.expert_chunks > 1);
        counts.offloaded_bytes = counts.offloaded_bytes.saturating_add(offloaded);
        Ok(self.report_copies()?)
    }

    /// After the decision, of its record alone: nothing here is fed back.
    fn count_strategies(&mut self, kind: u16, record: &LayerRecord) -> Result<(), Reason> {
        let plan = record.plan;
        if plan == LayerPlan::KEEP {
            return Ok(());
        }
        let added_ns = self.added_ns(kind, record)?;
        let forced = self.stage.forced(kind, record.recompute, &mut self.storage).map_err(Reason::Stage)?;
        let counts = &mut self.counts;
        let tensors = |set: Set| set.len() as u64;
        counts.recomputed = counts.recomputed.saturating_add(tensors(plan.recompute - forced));
        counts.offloaded = counts.offloaded.saturating_add(tensors(plan.offload));
        counts.quantized = counts.quantized.saturating_add(tensors(plan.quantize));
        counts.added_ns = counts.added_ns.saturating_add(added_ns);
        Ok(())
    }

    fn added_ns(&mut self, kind: u16, record: &LayerRecord) -> Result<u64, Reason> {
        let layer = self.stage.layer(kind, record.rows, Recompute::Local, &mut self.storage);
        let layer = layer.map_err(Reason::Stage)?;
        Ok(evaluate(&layer, &record.plan, Collectives::ALL).map_err(Reason::Plan)?.added_ns)
    }

    fn backward(&mut self, unit: u32) -> Result<(), Stuck> {
        self.controller.handle_backward(unit).map_err(Stuck::at(0))?;
        let (_, layers) = self.job.unit(self.device.stage, unit);
        for layer in (0..layers.len()).rev() {
            let here = layer as u16;
            self.admit(|controller| controller.poll_recovery(layer)).map_err(Stuck::at(here))?;
            self.executor.backward(Place { unit, layer: here });
            self.report_copies().map_err(Stuck::at(here))?;
            self.controller.handle_recovery_done().map_err(Stuck::at(here))?;
        }
        self.executor.leave(unit);
        self.controller.handle_backward_done().map_err(Stuck::at(0))
    }

    /// Waits for copies to the host until the controller lets the next step run.
    fn admit(
        &mut self,
        mut poll: impl FnMut(&mut Controller<'_>) -> Result<Admission, ControllerError>,
    ) -> Result<(), Reason> {
        self.report_copies()?;
        while let Admission::Wait { .. } = poll(&mut self.controller)? {
            self.counts.waits += 1;
            if !self.executor.wait() {
                return Err(Reason::EndlessWait);
            }
            self.report_copies()?;
        }
        Ok(())
    }

    fn report_copies(&mut self) -> Result<(), ControllerError> {
        for copy in self.executor.take_copied_out() {
            self.controller.handle_copied_out(copy.item.place.unit, copy.bytes)?;
        }
        Ok(())
    }

    /// Tries to bring back the unit whose backward is next while this forward runs.
    fn recover_early(&mut self, next: Option<u32>) -> Result<(), ControllerError> {
        match self.early {
            Early::Admitted => {
                if let Some(unit) = next.filter(|&unit| self.can_come_back(unit))
                    && self.controller.recover_early(unit)?
                {
                    self.counts.early += 1;
                    self.executor.recover_early(unit);
                }
            }
            #[cfg(test)]
            Early::Unasked => {
                for unit in self.executor.in_flight() {
                    if self.can_come_back(unit) {
                        self.executor.recover_early(unit);
                    }
                }
            }
        }
        Ok(())
    }

    /// Whether a unit has something in the host pool, all of it there.
    fn can_come_back(&self, unit: u32) -> bool {
        self.executor.has_offloaded(unit) && !self.executor.is_copying_out(unit)
    }
}

/// The unit of the next backward, if its forward came before.
fn next_backward(events: &[Event]) -> Option<u32> {
    let mut started = Vec::new();
    for event in events {
        match *event {
            Event::Forward(unit) => started.push(unit),
            Event::Backward(unit) => return Some(unit).filter(|unit| !started.contains(unit)),
        }
    }
    None
}

#[cfg(test)]
mod tests;
