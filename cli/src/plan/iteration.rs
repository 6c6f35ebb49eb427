//! One iteration of a rank at a constant load, under the core's controller.
//!
//! The clock is the rank's own: operators run one after another, copies to the host beside them at the
//! device's bandwidth. Nothing waits for other ranks, which on a machine gives copies more time.

use std::collections::{BTreeMap, VecDeque};

use bagualu_core::budget::{Allowance, BudgetError};
use bagualu_core::controller::{Controller, ControllerError, Gate, LayerRecord, Settings};
use bagualu_core::cost::LayerStorage;
use bagualu_core::group::{GroupRows, RowThreshold};
use bagualu_core::layer::{Collectives, LayerPlan, Strategy};
use bagualu_core::ledger::{Admission, LedgerError};
use bagualu_core::mitigate::evaluate;
use bagualu_core::provision::Provision;
use bagualu_core::schedule::Event;
use bagualu_core::stage::Recompute;
use bagualu_model::Buffers;

use super::rank::{Rank, Shortage};

/// What the controller made of an iteration.
#[derive(Clone, Debug, Default)]
pub struct Carried {
    /// Σ held at its highest.
    pub held_bytes: u64,
    /// The most bytes on the device: work, pending copies and recovery included.
    pub peak_bytes: u64,
    /// Time of operators in forward and backward, ns.
    pub compute_ns: u64,
    /// Time that the strategies add if nothing hides it, ns.
    pub added_ns: u64,
    /// Layers of micro-batches that ran.
    pub layers: u64,
    /// Of these, those of each layer type.
    pub by_kind: BTreeMap<usize, u64>,
    /// Of these, those whose whole MoE module the group recomputes.
    pub whole_moe: u64,
    /// Those whose dispatch the group splits.
    pub split: u64,
    /// How often each strategy was chosen for (layer type, tensor).
    pub strategies: BTreeMap<(usize, usize, Strategy), u64>,
}

impl Carried {
    /// Whether everything is kept.
    pub fn keeps_all(&self) -> bool {
        self.strategies.is_empty() && self.whole_moe == 0 && self.split == 0
    }
}

/// A layer of a unit runs: what an observer of the iteration is told.
pub struct Step<'s> {
    /// The unit.
    pub unit: u32,
    /// Bytes on the device while it runs: work, pending copies and recovery included.
    pub device_bytes: u64,
    /// What was decided for it, in forward; `None` in backward.
    pub decided: Option<&'s Decided>,
}

/// What the controller decided for a layer, and within which bounds.
#[derive(Clone, Copy, Debug)]
pub struct Decided {
    /// The decision.
    pub record: LayerRecord,
    /// Whether the real rows changed the plan made before the forward: then to the limit, not the quota.
    pub replanned: bool,
    /// Device bytes that the unit may hold.
    pub device: Allowance,
    /// Host bytes that it may hold.
    pub host: Allowance,
    /// What the unit was to hold at its end when this layer was decided.
    pub promised_bytes: u64,
}

/// Who observes an iteration.
pub type Watch<'w> = dyn FnMut(&Step<'_>) + 'w;

/// Runs the iteration; what does not fit is an answer, anything else an error.
pub fn carry(rank: &Rank<'_>, provision: &Provision, rows: u32) -> Result<Result<Carried, Shortage>, String> {
    carry_watched(rank, provision, rows, None)
}

/// Runs the iteration as [`carry`] does, under the eyes of an observer.
pub fn carry_watched(
    rank: &Rank<'_>,
    provision: &Provision,
    rows: u32,
    watch: Option<&mut Watch<'_>>,
) -> Result<Result<Carried, Shortage>, String> {
    let mut buffers = Buffers::new(&rank.stage, rank.events.len() / 2);
    let controller = Controller::new(
        rank.stage,
        rank.pipeline,
        rank.events,
        *provision,
        Settings::default(),
        buffers.storage(),
    );
    let controller = controller.map_err(|error| error.to_string())?;
    let rule = RowThreshold::new(provision);
    let mut run = Run {
        rank,
        controller,
        rule,
        rows,
        copies: Copies::default(),
        costs: BTreeMap::new(),
        storage: Box::default(),
        carried: Carried::default(),
        watch,
    };
    match run.iterate() {
        Ok(()) => {
            run.carried.held_bytes = run.controller.budget().peak();
            run.carried.peak_bytes = run.controller.ledger().peak();
            Ok(Ok(run.carried))
        }
        Err(Stuck::Short(shortage)) => Ok(Err(shortage)),
        Err(Stuck::Refused(problem)) => Err(problem),
    }
}

/// Why an iteration ends early.
enum Stuck {
    Short(Shortage),
    Refused(String),
}

impl From<ControllerError> for Stuck {
    fn from(error: ControllerError) -> Self {
        match error {
            ControllerError::Ledger(LedgerError::Starved { needed, available }) => {
                Self::Short(Shortage { part: "work", needed, available })
            }
            ControllerError::Budget(BudgetError::Infeasible { needed, capacity, .. }) => {
                Self::Short(Shortage { part: "schedule", needed, available: capacity })
            }
            other => Self::Refused(other.to_string()),
        }
    }
}

/// What a layer costs under a plan: forward, backward and added ns.
type LayerTimes = (u64, u64, u64);

struct Run<'r, 'c, 'w, 'o> {
    rank: &'r Rank<'c>,
    controller: Controller<'c>,
    rule: RowThreshold,
    rows: u32,
    copies: Copies,
    costs: BTreeMap<(u16, u32, [u64; 3]), LayerTimes>,
    storage: Box<LayerStorage>,
    carried: Carried,
    watch: Option<&'w mut Watch<'o>>,
}

impl<'r> Run<'r, '_, '_, '_> {
    fn iterate(&mut self) -> Result<(), Stuck> {
        let rank = self.rank;
        for &event in rank.events {
            match event {
                Event::Forward(unit) => self.forward(unit)?,
                Event::Backward(unit) => self.backward(unit)?,
            }
        }
        Ok(())
    }

    fn forward(&mut self, unit: u32) -> Result<(), Stuck> {
        let device = self.controller.handle_forward(unit)?;
        let kinds = self.rank.kinds(unit);
        for (layer, &kind) in kinds.iter().enumerate() {
            let decision = self.controller.handle_layer(layer, self.gate(kind)?)?;
            self.wait(|controller| controller.poll_layer())?;
            let record = *self.controller.decided(unit, layer)?;
            self.show_forward(unit, layer, device, decision.replanned)?;
            let (forward, backward, added) = self.times(kind, &record)?;
            self.copies.now = self.copies.now.saturating_add(forward);
            let offloaded = self.controller.handle_layer_done()?;
            self.copies.start(unit, offloaded, self.rank.stage.rooflines.copy_out.ns(offloaded));
            self.count(kind, &record);
            let carried = &mut self.carried;
            carried.compute_ns = carried.compute_ns.saturating_add(forward).saturating_add(backward);
            carried.added_ns = carried.added_ns.saturating_add(added);
            carried.split += u64::from(decision.dispatch_chunks > 1);
        }
        Ok(self.controller.handle_forward_done(None)?)
    }

    fn backward(&mut self, unit: u32) -> Result<(), Stuck> {
        self.controller.handle_backward(unit)?;
        let kinds = self.rank.kinds(unit);
        for (layer, &kind) in kinds.iter().enumerate().rev() {
            self.wait(|controller| controller.poll_recovery(layer))?;
            let record = *self.controller.decided(unit, layer)?;
            self.show(unit, record.growth_bytes.saturating_add(record.backward_work_bytes), None);
            let (_, backward, added) = self.times(kind, &record)?;
            self.copies.now = self.copies.now.saturating_add(backward).saturating_add(added);
            self.controller.handle_recovery_done()?;
        }
        Ok(self.controller.handle_backward_done()?)
    }

    /// Shows an observer the layer that has been decided and runs.
    fn show_forward(
        &mut self,
        unit: u32,
        layer: usize,
        device: Allowance,
        replanned: bool,
    ) -> Result<(), Stuck> {
        if self.watch.is_none() {
            return Ok(());
        }
        let record = *self.controller.decided(unit, layer)?;
        let host = self.controller.host_budget().forward().map_err(ControllerError::from)?;
        let promised_bytes = self.controller.promised()?;
        let decided = Decided { record, replanned, device, host, promised_bytes };
        self.show(unit, record.forward_work_bytes, Some(&decided));
        Ok(())
    }

    fn show(&mut self, unit: u32, work: u64, decided: Option<&Decided>) {
        if let Some(watch) = &mut self.watch {
            let device_bytes = self.controller.ledger().current().saturating_add(work);
            watch(&Step { unit, device_bytes, decided });
        }
    }

    /// Polls until the step may run, letting copies end.
    fn wait(
        &mut self,
        mut poll: impl FnMut(&mut Controller<'_>) -> Result<Admission, ControllerError>,
    ) -> Result<(), Stuck> {
        loop {
            for (unit, bytes) in self.copies.ended() {
                self.controller.handle_copied_out(unit, bytes)?;
            }
            let Admission::Wait { bytes } = poll(&mut self.controller)? else { return Ok(()) };
            if !self.copies.wait() {
                let problem = format!("a layer waits for {bytes} bytes of copies and none is under way");
                return Err(Stuck::Refused(problem));
            }
        }
    }

    fn gate(&self, kind: u16) -> Result<Gate, Stuck> {
        if !self.rank.stage.types[kind as usize].routed {
            return Ok(Gate::DENSE);
        }
        let rows = GroupRows::new(&[self.rows]).map_err(|error| Stuck::Refused(error.to_string()))?;
        Ok(Gate { rows: self.rows, group: self.rule.decide(&rows), granted: None })
    }

    fn times(&mut self, kind: u16, record: &LayerRecord) -> Result<LayerTimes, Stuck> {
        let LayerPlan { recompute, offload, quantize } = record.plan;
        let key = (kind, record.rows, [recompute, offload, quantize].map(|set| set.bits()));
        if let Some(&times) = self.costs.get(&key) {
            return Ok(times);
        }
        let stage = &self.rank.stage;
        let model = &stage.types[kind as usize];
        let refused = |error: &dyn std::fmt::Display| Stuck::Refused(error.to_string());
        let (forward, backward) = model.times(record.rows).map_err(|e| refused(&e))?;
        let layer = model.at(record.rows, &stage.rooflines, &mut self.storage).map_err(|e| refused(&e))?;
        let added = evaluate(&layer, &record.plan, Collectives::ALL).map_err(|e| refused(&e))?.added_ns;
        self.costs.insert(key, (forward, backward, added));
        Ok((forward, backward, added))
    }

    fn count(&mut self, kind: u16, record: &LayerRecord) {
        self.carried.layers += 1;
        *self.carried.by_kind.entry(kind as usize).or_default() += 1;
        self.carried.whole_moe += u64::from(record.recompute == Recompute::WholeMoe);
        let plan = record.plan;
        for tensor in (plan.recompute | plan.offload | plan.quantize).iter() {
            let key = (kind as usize, tensor, plan.strategy(tensor));
            *self.carried.strategies.entry(key).or_default() += 1;
        }
    }
}

/// The queue of copies to the host.
#[derive(Default)]
struct Copies {
    now: u64,
    free: u64,
    pending: VecDeque<(u64, u32, u64)>,
}

impl Copies {
    fn start(&mut self, unit: u32, bytes: u64, ns: u64) {
        if bytes > 0 {
            self.free = self.free.max(self.now).saturating_add(ns);
            self.pending.push_back((self.free, unit, bytes));
        }
    }

    /// Moves the clock to the end of the next copy.
    fn wait(&mut self) -> bool {
        let Some(&(end, ..)) = self.pending.front() else { return false };
        self.now = self.now.max(end);
        true
    }

    fn ended(&mut self) -> Vec<(u32, u64)> {
        let count = self.pending.iter().take_while(|(end, ..)| *end <= self.now).count();
        self.pending.drain(..count).map(|(_, unit, bytes)| (unit, bytes)).collect()
    }
}
