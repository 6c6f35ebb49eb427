//! One device under way: it runs what the controller admits, waits for copies where it is told to, and reports
//! what has ended.

use bagualu_core::controller::{Controller, ControllerError, Gate as CoreGate, LayerRecord};
use bagualu_core::cost::LayerStorage;
use bagualu_core::group::{GroupRows, RowThreshold};
use bagualu_core::layer::{Collectives, LayerPlan};
use bagualu_core::ledger::Admission;
use bagualu_core::mitigate::evaluate;
use bagualu_core::provision::Provision;
use bagualu_core::schedule::Event;
use bagualu_core::set::Set;
use bagualu_core::stage::{Recompute, StageModel};

use super::{Controlled, Counts, Early, Reason, Refusal, Setup};
use crate::checker::Checker;
use crate::executor::{Decision, Executor, Recovery};
use crate::job::Job;
use crate::load::{Gate, Load};
use crate::log::Place;
use crate::replay::{Curve, DeviceId, rows_at};

/// One device under way.
pub(super) struct Rank<'j, 'c> {
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

impl<'j, 'c> Rank<'j, 'c> {
    /// A device before its first iteration.
    pub fn new(
        job: &'j Job<'j>,
        load: &'j dyn Load,
        device: DeviceId,
        setup: &Setup,
        stage: &'c StageModel<'c>,
        provision: &Provision,
        controller: Controller<'c>,
    ) -> Self {
        let checker = Checker::new(stage.types, stage.device_bytes, stage.host_bytes);
        Self {
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
        }
    }
}

impl Rank<'_, '_> {
    /// Runs one iteration, to its end or to a refusal.
    pub fn iterate(&mut self, iteration: u32, keep_curve: bool) {
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

    /// The curve of the iteration that ran last, if it was kept.
    pub fn take_curve(&mut self) -> Curve {
        self.executor.log().take_curve()
    }

    /// What has happened so far.
    pub fn report(&mut self, outcome: &mut Controlled) {
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
