//! The run-time workflow of one rank (§V, Fig. 7), as a state machine without I/O.
//!
//! Time, rows and measurements come in through `handle_*`; decisions come out as values; `poll_*` says
//! whether an operator may start. One iteration, in the order of the rank's schedule:
//!
//! ```text
//! forward of a unit   handle_forward → per layer: poll_to_gate (until Run) → handle_layer → poll_layer (until
//!                     Run) → handle_layer_done → handle_forward_done
//! backward of a unit  handle_backward → per layer, last first: poll_recovery (until Run) → handle_recovery_done
//!                     → handle_backward_done
//! any time            handle_copied_out, recover_early; after a forward: poll_correction
//! ```
//!
//! At a fused scheduling point F_x B_y the backward may start once the forward has.
//!
//! *Deferred planning*: a micro-batch is planned to its quota before its forward, from expected rows; after
//! the gate of each layer the real rows are known and the plan is re-checked up to the limit.

use crate::budget::{Allowance, Budget, Share, Unit};
use crate::fingerprint::Fingerprint;
use crate::group::{GroupDecision, agreement};
use crate::layer::LayerPlan;
use crate::ledger::{Admission, Entry, Ledger, Side};
use crate::limits::MAX_LAYERS;
use crate::mitigate::{Config, Limits};
use crate::plan_cache::{CacheSlot, CacheStatistics, PlanCache, SelectionKey};
use crate::planner::{Demand, Planner, PlannerStorage};
use crate::provision::Provision;
use crate::schedule::{Event, Pipeline};
use crate::stage::{Held, Recompute, StageModel};

mod correction;
mod deferred;
mod error;
mod kind;
mod record;

pub use correction::Correction;
pub use error::ControllerError;
pub use kind::Kind;
pub use record::LayerRecord;

/// Storage of a controller, all of it the caller's.
#[derive(Debug)]
pub struct ControllerStorage<'a> {
    /// One per unit of the iteration.
    pub device_units: &'a mut [Unit],
    /// One per unit.
    pub host_units: &'a mut [Unit],
    /// One per unit.
    pub entries: &'a mut [Entry],
    /// One per unit and layer of its chunk (units × the longest chunk).
    pub records: &'a mut [LayerRecord],
    /// One per layer type.
    pub kinds: &'a mut [Kind],
    /// The planner's.
    pub planner: PlannerStorage<'a>,
    /// Plans found before; may be empty.
    pub plans: &'a mut [CacheSlot<SelectionKey, ChunkPlan>],
}

/// The plans of a chunk's layers, from the first one planned on.
pub type ChunkPlan = [LayerPlan; MAX_LAYERS];

/// What a controller is told once.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// How quotas are weighted.
    pub share: Share,
    /// The exact selector's limits. At run time a hundredth above the bound is close enough; what is found is mostly closer.
    pub selector: Config,
    /// Rows are planned in steps of this many; 0 takes a sixteenth of the balanced rows.
    pub row_granule: u32,
    /// Limits are planned for in steps of this many bytes; 0 takes a 1024th of the capacity.
    pub byte_granule: u64,
    /// Bytes held back for errors of the model.
    pub slack_bytes: u64,
}

impl Default for Settings {
    fn default() -> Self {
        let selector = Config { tolerance_ppm: 10_000, ..Config::default() };
        Self { share: Share::Even, selector, row_granule: 0, byte_granule: 0, slack_bytes: 0 }
    }
}

/// What the gate of a layer says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Gate {
    /// Rows that this rank's experts receive.
    pub rows: u32,
    /// What the group decided.
    pub group: GroupDecision,
    /// Bytes that the micro-batch may hold up to and including this layer, where the group's rule grants
    /// them (`ReplicatedState`).
    pub granted: Option<u64>,
}

impl Gate {
    /// A layer without a router.
    pub const DENSE: Self =
        Self { rows: 0, group: GroupDecision { whole_moe: false, dispatch_chunks: 1 }, granted: None };
}

/// What is done with one layer of one micro-batch.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct LayerDecision {
    /// A strategy for each saved tensor.
    pub plan: LayerPlan,
    /// What is recomputed whatever the budget.
    pub recompute: Recompute,
    /// In how many parts the group splits the dispatch.
    pub dispatch_chunks: u32,
    /// In how many row chunks this rank runs its experts.
    pub expert_chunks: u32,
    /// Device bytes held until backward.
    pub held_bytes: u64,
    /// Bytes copied out after the layer, on the device until then.
    pub offload_bytes: u64,
    /// Bytes needed only while the layer runs.
    pub work_bytes: u64,
    /// Whether the real rows changed the plan made before the forward.
    pub replanned: bool,
}

/// The forward under way.
#[derive(Clone, Copy, Debug)]
struct Forward {
    unit: u32,
    chunk: usize,
    /// The layer under way.
    layer: usize,
    state: LayerState,
    device: Allowance,
    host: Allowance,
    /// Held by the layers decided.
    used: Held,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum LayerState {
    /// Its gate has not run.
    Waiting,
    Decided,
    Running,
}

/// The backward under way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Backward {
    unit: u32,
    /// It ended before the forward beside it, which the schedule has first.
    ended: bool,
}

/// The controller of one rank.
#[derive(Debug)]
pub struct Controller<'a> {
    stage: StageModel<'a>,
    pipeline: Pipeline,
    provision: Provision,
    device: Budget<'a>,
    host: Budget<'a>,
    ledger: Ledger<'a>,
    records: &'a mut [LayerRecord],
    kinds: &'a mut [Kind],
    planner: Planner<'a>,
    cache: PlanCache<'a, SelectionKey, ChunkPlan>,
    byte_granule: u64,
    /// Layers of the longest chunk: the stride of `records`.
    longest: usize,
    forward: Option<Forward>,
    backward: Option<Backward>,
    plans: [LayerPlan; MAX_LAYERS],
    demands: [Demand; MAX_LAYERS],
    /// What the layers from each on are planned to hold.
    later: [Held; MAX_LAYERS + 1],
    fingerprint: Fingerprint,
}

impl<'a> Controller<'a> {
    /// A controller for one rank: `events` are its schedule's, `provision` the group's.
    pub fn new(
        stage: StageModel<'a>,
        pipeline: Pipeline,
        events: &'a [Event],
        provision: Provision,
        settings: Settings,
        storage: ControllerStorage<'a>,
    ) -> Result<Self, ControllerError> {
        stage.check()?;
        let longest = stage.chunks.iter().map(|layers| layers.len()).max().unwrap_or(0);
        let units = check_storage(&stage, &pipeline, longest, &storage)?;
        let granule = match settings.row_granule {
            0 => stage.balanced_rows.div_ceil(16),
            granule => granule,
        };
        let mut planner = Planner::new(storage.planner, settings.selector, granule)?;
        kind::fill(&stage, &provision, storage.kinds, planner.layer_storage())?;
        let kinds = &*storage.kinds;
        // Of longer storage the rest stays unused, so that no event can name a unit outside the pipeline.
        let (device_units, host_units) =
            (&mut storage.device_units[..units], &mut storage.host_units[..units]);
        for chunk in 0..stage.chunks.len() {
            let floor = kind::floor(&stage, kinds, chunk)?;
            for micro_batch in 0..pipeline.micro_batches {
                let unit = pipeline.unit(micro_batch, chunk as u32) as usize;
                device_units[unit] = Unit::new(floor.bytes);
                host_units[unit] = Unit::new(floor.host_bytes);
            }
        }
        let capacity = provision.capacity_bytes.saturating_sub(settings.slack_bytes);
        storage.records.fill(LayerRecord::default());
        Ok(Self {
            stage,
            pipeline,
            provision,
            device: Budget::new(capacity, settings.share, events, device_units)?,
            host: Budget::new(stage.host_bytes, settings.share, events, host_units)?,
            ledger: Ledger::new(stage.device_bytes, storage.entries),
            records: storage.records,
            kinds: storage.kinds,
            planner,
            cache: PlanCache::new(storage.plans),
            byte_granule: match settings.byte_granule {
                0 => capacity / 1_024,
                granule => granule,
            },
            longest,
            forward: None,
            backward: None,
            plans: [LayerPlan::KEEP; MAX_LAYERS],
            demands: [Demand { rows: 0, recompute: Recompute::Local, least_bytes: 0 }; MAX_LAYERS],
            later: [Held::default(); MAX_LAYERS + 1],
            fingerprint: Fingerprint::new().with(agreement(stage.fingerprint(), &provision)),
        })
    }

    /// Starts the next iteration. Everything of the last one must have ended: what is still on the device
    /// would be forgotten.
    pub fn restart(&mut self) -> Result<(), ControllerError> {
        let under_way = self.forward.is_some() || self.backward.is_some();
        if under_way || self.device.held() > 0 || self.ledger.current() > 0 {
            return Err(ControllerError::OutOfOrder { call: "restart" });
        }
        self.abandon();
        Ok(())
    }

    /// Forgets the iteration under way: for an executor that has freed everything of it itself.
    pub fn abandon(&mut self) {
        self.device.restart();
        self.host.restart();
        self.ledger.restart();
        self.records.fill(LayerRecord::default());
        (self.forward, self.backward) = (None, None);
    }

    /// The forward of `unit` starts: Algorithm 1 gives its allowance, and its layers are planned to the
    /// quota at the rows expected.
    pub fn handle_forward(&mut self, unit: u32) -> Result<Allowance, ControllerError> {
        if self.forward.is_some() || self.device.upcoming() != Some(Event::Forward(unit)) {
            return Err(ControllerError::OutOfOrder { call: "handle_forward" });
        }
        let (device, host) = (self.device.forward()?, self.host.forward()?);
        let chunk = self.pipeline.parts(unit).1 as usize;
        self.expect(chunk)?;
        self.plan(chunk, 0, false, Limits { bytes: device.quota, host_bytes: host.quota }, u64::MAX)?;
        let state = LayerState::Waiting;
        self.forward = Some(Forward { unit, chunk, layer: 0, state, device, host, used: Held::default() });
        Ok(device)
    }

    /// Whether the operators before the next layer's gate may start: until the gate decides, all that they
    /// make is work.
    pub fn poll_to_gate(&mut self) -> Result<Admission, ControllerError> {
        let forward = self.forward_in(LayerState::Waiting, "poll_to_gate")?;
        let kind = self.kind_of(forward.chunk, forward.layer)?;
        let work = self.kinds[kind].before_gate_bytes;
        Ok(self.ledger.admit(Side::Forward, forward.unit, 0, 0, work)?)
    }

    /// The gate of `layer` has run (or it has none: [`Gate::DENSE`]). Deferred planning: the plan is kept
    /// if it fits the real rows up to the limit, else this and later layers are planned afresh.
    pub fn handle_layer(&mut self, layer: usize, gate: Gate) -> Result<LayerDecision, ControllerError> {
        let forward = match self.forward {
            Some(f) if f.layer == layer && f.state == LayerState::Waiting => f,
            _ => return Err(ControllerError::OutOfOrder { call: "handle_layer" }),
        };
        let kind = self.kind_of(forward.chunk, layer)?;
        let gate = if self.stage.types[kind].routed { gate } else { Gate::DENSE };
        let replanned = self.deferred(&forward, layer, &gate)?;
        let record = self.decide(kind, layer, &gate)?;
        let held = Held { bytes: record.held_bytes, host_bytes: record.offload_bytes };
        self.fingerprint = record.fold(self.fingerprint.with(forward.unit.into()).with(layer as u64));
        *self.record_mut(forward.unit, layer)? = record;
        let used = forward.used.plus(held)?;
        self.forward = Some(Forward { used, state: LayerState::Decided, ..forward });
        Ok(record.decision(replanned))
    }

    /// Whether the layer decided last may start. Its bytes are counted once it may.
    ///
    /// A layer that could never start runs its experts in row chunks, as few as fit; the decision that
    /// stands is [`decided`](Self::decided)'s.
    pub fn poll_layer(&mut self) -> Result<Admission, ControllerError> {
        let forward = self.forward_in(LayerState::Decided, "poll_layer")?;
        let admission = self.admit(&forward)?;
        if admission == Admission::Run {
            self.forward = Some(Forward { state: LayerState::Running, ..forward });
        }
        Ok(admission)
    }

    /// The layer has run. The caller now starts copying out its offloaded tensors: the bytes returned.
    pub fn handle_layer_done(&mut self) -> Result<u64, ControllerError> {
        let forward = self.forward_in(LayerState::Running, "handle_layer_done")?;
        self.ledger.done(Side::Forward);
        let offload = self.record(forward.unit, forward.layer)?.offload_bytes;
        let layer = forward.layer + 1;
        self.forward = Some(Forward { layer, state: LayerState::Waiting, ..forward });
        Ok(offload)
    }

    /// The forward has ended; `measured` is what it really holds, where the caller knows (lines 7, 14).
    ///
    /// If that leaves a later forward less than its floor, [`poll_correction`](Self::poll_correction) says
    /// what to offload.
    pub fn handle_forward_done(&mut self, measured: Option<u64>) -> Result<(), ControllerError> {
        let forward = self.forward_in(LayerState::Waiting, "handle_forward_done")?;
        if forward.layer != self.stage.chunks[forward.chunk].len() {
            return Err(ControllerError::OutOfOrder { call: "handle_forward_done" });
        }
        if let Some(kept) = measured {
            self.ledger.measured(forward.unit, kept)?;
        }
        self.device.launch(measured.unwrap_or(forward.used.bytes))?;
        self.host.launch(forward.used.host_bytes)?;
        self.forward = None;
        self.release_ended()
    }

    /// A copy-out of `bytes` of `unit` has ended.
    pub fn handle_copied_out(&mut self, unit: u32, bytes: u64) -> Result<(), ControllerError> {
        Ok(self.ledger.copied_out(unit, bytes)?)
    }

    /// Asks to bring back, before its backward, all of `unit` that needs no collective. Counted if granted.
    ///
    /// It is growth of held: granted only if every later limit still covers its floor, and the bytes fit
    /// beside the work reserve now.
    pub fn recover_early(&mut self, unit: u32) -> Result<bool, ControllerError> {
        if self.backward.is_some_and(|b| b.unit == unit) {
            return Ok(false);
        }
        let layers = self.layers_of(unit)?;
        let mut growth = 0u64;
        for layer in 0..layers {
            growth = growth.saturating_add(self.record(unit, layer)?.local_growth_bytes);
        }
        let promised = self.promised()?;
        let beyond = self.forward.map_or(0, |f| promised.saturating_sub(self.device.floor_of(f.unit)));
        if growth > self.device.headroom(unit)?.saturating_sub(beyond)
            || !self.ledger.grow(unit, growth, self.provision.work_bytes)?
        {
            return Ok(false);
        }
        // The forward beside it gives up what it was allowed beyond its plan.
        if let Some(forward) = &mut self.forward {
            forward.device.limit = forward.device.limit.min(promised);
        }
        self.device.hold(unit, self.device.held_by(unit).saturating_add(growth))?;
        for layer in 0..layers {
            let record = self.record_mut(unit, layer)?;
            record.growth_bytes -= core::mem::take(&mut record.local_growth_bytes);
        }
        Ok(true)
    }

    /// The backward of `unit` starts.
    pub fn handle_backward(&mut self, unit: u32) -> Result<(), ControllerError> {
        let scheduled = match self.forward {
            None => self.device.upcoming(),
            Some(forward) => self.device.following().filter(|_| forward.unit != unit),
        };
        if self.backward.is_some() || scheduled != Some(Event::Backward(unit)) {
            return Err(ControllerError::OutOfOrder { call: "handle_backward" });
        }
        self.backward = Some(Backward { unit, ended: false });
        Ok(())
    }

    /// Whether `layer` of the backward under way may be recovered and run.
    pub fn poll_recovery(&mut self, layer: usize) -> Result<Admission, ControllerError> {
        let unit = self.backward_unit("poll_recovery")?;
        let pending = self.ledger.pending_of(unit);
        if pending > 0 {
            return Ok(Admission::Wait { bytes: pending });
        }
        let record = self.record(unit, layer)?;
        let work = record.growth_bytes.saturating_add(record.backward_work_bytes);
        Ok(self.ledger.admit(Side::Backward, unit, 0, 0, work)?)
    }

    /// The layer's backward has ended.
    pub fn handle_recovery_done(&mut self) -> Result<(), ControllerError> {
        self.backward_unit("handle_recovery_done")?;
        self.ledger.done(Side::Backward);
        Ok(())
    }

    /// The backward has ended: nothing of its unit is left.
    pub fn handle_backward_done(&mut self) -> Result<(), ControllerError> {
        let unit = self.backward_unit("handle_backward_done")?;
        self.ledger.release(unit)?;
        self.backward = Some(Backward { unit, ended: true });
        self.release_ended()
    }

    /// The static decisions.
    pub fn provision(&self) -> &Provision {
        &self.provision
    }

    /// The device budget.
    pub fn budget(&self) -> &Budget<'a> {
        &self.device
    }

    /// The host pool's budget.
    pub fn host_budget(&self) -> &Budget<'a> {
        &self.host
    }

    /// The bytes on the device.
    pub fn ledger(&self) -> &Ledger<'a> {
        &self.ledger
    }

    /// How often a plan was known.
    pub fn plan_statistics(&self) -> CacheStatistics {
        self.cache.statistics()
    }

    /// How often a layer's front was known.
    pub fn front_statistics(&self) -> CacheStatistics {
        self.planner.statistics()
    }

    /// What was decided for a layer of a unit in flight.
    pub fn decided(&self, unit: u32, layer: usize) -> Result<&LayerRecord, ControllerError> {
        self.record(unit, layer)
    }

    /// A fingerprint of every decision so far, and of the profile and budgets they were taken under.
    pub fn fingerprint(&self) -> u64 {
        self.fingerprint.value()
    }

    fn forward_in(&self, state: LayerState, call: &'static str) -> Result<Forward, ControllerError> {
        self.forward.filter(|f| f.state == state).ok_or(ControllerError::OutOfOrder { call })
    }

    fn backward_unit(&self, call: &'static str) -> Result<u32, ControllerError> {
        let under_way = self.backward.filter(|b| !b.ended);
        under_way.map(|b| b.unit).ok_or(ControllerError::OutOfOrder { call })
    }

    /// Releases a backward's budget once the forward beside it is launched.
    fn release_ended(&mut self) -> Result<(), ControllerError> {
        if self.forward.is_none() && self.backward.is_some_and(|b| b.ended) {
            self.device.release()?;
            self.host.release()?;
            self.backward = None;
        }
        Ok(())
    }

    fn layers_of(&self, unit: u32) -> Result<usize, ControllerError> {
        let chunk = self.pipeline.parts(unit).1 as usize;
        let layers = self.stage.chunks.get(chunk).map(|layers| layers.len());
        layers.ok_or(ControllerError::NoSuchLayer { unit, layer: 0 })
    }

    fn place(&self, unit: u32, layer: usize) -> Option<usize> {
        let first = (unit as usize).checked_mul(self.longest)?;
        first.checked_add(layer).filter(|_| layer < self.longest)
    }

    fn record(&self, unit: u32, layer: usize) -> Result<&LayerRecord, ControllerError> {
        let at = self.place(unit, layer);
        at.and_then(|at| self.records.get(at)).ok_or(ControllerError::NoSuchLayer { unit, layer })
    }

    fn record_mut(&mut self, unit: u32, layer: usize) -> Result<&mut LayerRecord, ControllerError> {
        let at = self.place(unit, layer);
        at.and_then(|at| self.records.get_mut(at)).ok_or(ControllerError::NoSuchLayer { unit, layer })
    }
}

/// How many units there are, with storage for all of them.
fn check_storage(
    stage: &StageModel<'_>,
    pipeline: &Pipeline,
    longest: usize,
    storage: &ControllerStorage<'_>,
) -> Result<usize, ControllerError> {
    let units = pipeline.units().map_err(ControllerError::Schedule)? as usize;
    if pipeline.chunks as usize != stage.chunks.len() {
        return Err(ControllerError::Chunks {
            pipeline: pipeline.chunks as usize,
            stage: stage.chunks.len(),
        });
    }
    let given = [
        ("device_units", units, storage.device_units.len()),
        ("host_units", units, storage.host_units.len()),
        ("entries", units, storage.entries.len()),
        ("records", units.saturating_mul(longest), storage.records.len()),
        ("kinds", stage.types.len(), storage.kinds.len()),
    ];
    match given.into_iter().find(|&(_, needed, available)| available < needed) {
        None => Ok(units),
        Some((field, needed, available)) => {
            Err(ControllerError::StorageTooShort { field, needed, available })
        }
    }
}
