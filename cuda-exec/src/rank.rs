//! What runs a plan: one pipeline rank, its controller in step with its saved tensors (§V, Fig. 7; design §6).
//!
//! The program runs its operators on the compute stream and calls, in the order of its schedule:
//!
//! ```text
//! forward of a unit   begin_forward → per layer: to_gate → (router) → gate → (experts) save … → layer_done
//!                     → end_forward
//! backward of a unit  begin_backward → per layer, last first: recover → (backward, reading tensor) → layer_undone
//!                     → end_backward
//! after all           end_iteration; after an error: abandon
//! ```
//!
//! Every call that admits an operator blocks until the copy-outs have ended that its bytes count on
//! (back-pressure): when it returns, the operator may allocate and be submitted.
//! At a fused scheduling point the calls of a forward and of a backward may alternate.

use core::fmt;

use bagualu_core::controller::{Controller, ControllerError, Correction, Gate, LayerDecision};
use bagualu_core::ledger::Admission;
use bagualu_core::schedule::Event;

use crate::device::DeviceSlice;
use crate::engine::EngineError;
use crate::recompute::Hook;
use crate::store::{Saved, Store, StoreError};

/// One pipeline rank under way. All calls come from one thread.
#[derive(Debug)]
pub struct Rank<'c> {
    controller: Controller<'c>,
    store: Store<'c>,
    events: &'c [Event],
    /// The event under way, or that comes next.
    at: usize,
    forward: Option<Forward>,
    backward: Option<Backward>,
    counts: Counts,
}

#[derive(Clone, Copy, Debug)]
struct Forward {
    unit: u32,
    /// Layers admitted.
    layers: usize,
    /// The next one, decided and not yet admitted.
    decided: Option<LayerDecision>,
}

#[derive(Clone, Copy, Debug)]
struct Backward {
    unit: u32,
    /// The layer whose backward runs.
    layer: Option<usize>,
}

/// What a rank has done since it was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Layers whose real rows changed the plan.
    pub replanned: u64,
    /// Waits for copy-outs before an operator could start.
    pub waits: u64,
    /// Units brought back before their backward.
    pub early: u64,
    /// Kept tensors that were offloaded after all.
    pub corrections: u64,
    /// Bytes offloaded.
    pub offloaded_bytes: u64,
    /// Tensors offloaded.
    pub offloaded: u64,
    /// Tensors recomputed.
    pub recomputed: u64,
    /// Tensors quantised.
    pub quantized: u64,
}

impl<'c> Rank<'c> {
    /// A rank before its first iteration. `controller` and `store` are of the same stage and pipeline, whose
    /// schedule `events` is.
    pub fn new(controller: Controller<'c>, store: Store<'c>, events: &'c [Event]) -> Self {
        Self { controller, store, events, at: 0, forward: None, backward: None, counts: Counts::default() }
    }

    /// The forward of `unit` starts; what the next backward needs begins to come back, if there is room.
    pub fn begin_forward(&mut self, unit: u32) -> Result<(), RankError> {
        self.report_copies()?;
        if self.forward.is_none() && self.events.get(self.at) == Some(&Event::Forward(unit)) {
            self.recover_early()?;
        }
        self.controller.handle_forward(unit)?;
        self.forward = Some(Forward { unit, layers: 0, decided: None });
        Ok(())
    }

    /// Waits until the operators before the next layer's gate may start.
    pub fn to_gate(&mut self) -> Result<(), RankError> {
        self.admit(Controller::poll_to_gate)
    }

    /// The gate of the next layer has run: decides what is done with it, reserves host memory for what it offloads, and
    /// waits until its other operators may start. Called again after [`RankError::Waits`], what was decided stands.
    pub fn gate(&mut self, gate: Gate) -> Result<LayerDecision, RankError> {
        let Some(Forward { unit, layers: layer, decided }) = self.forward else {
            return Err(RankError::Idle { call: "gate" });
        };
        let decision = match decided {
            Some(decision) => decision,
            None => self.controller.handle_layer(layer, gate)?,
        };
        self.forward = Some(Forward { unit, layers: layer, decided: Some(decision) });
        self.admit(Controller::poll_layer)?;
        let record = self.controller.decided(unit, layer)?;
        let decision = LayerDecision {
            expert_chunks: record.expert_chunks,
            work_bytes: record.forward_work_bytes,
            ..decision
        };
        self.store.enter(unit, layer, record.rows, decision.plan, decision.dispatch_chunks)?;
        self.forward = Some(Forward { unit, layers: layer + 1, decided: None });
        self.counts.add(&decision);
        Ok(decision)
    }

    /// Device memory for an operator that was admitted.
    pub fn allocate(&mut self, bytes: u64) -> Result<DeviceSlice, RankError> {
        Ok(self.store.allocate(bytes)?)
    }

    /// Gives back what [`allocate`](Self::allocate) returned and was not saved, after the work of the compute stream so far.
    ///
    /// # Safety
    /// As for [`Store::free`].
    pub unsafe fn free(&mut self, memory: DeviceSlice) -> Result<(), RankError> {
        // SAFETY: passed on to the caller.
        Ok(unsafe { self.store.free(memory) }?)
    }

    /// Hands a saved tensor of the layer under way over; a block input too.
    ///
    /// # Safety
    /// As for [`Store::save`].
    pub unsafe fn save(&mut self, tensor: usize, saved: impl Into<Saved>) -> Result<(), RankError> {
        let (unit, layer) = self.layer_under_way("save")?;
        // SAFETY: passed on to the caller.
        Ok(unsafe { self.store.save(unit, layer, tensor, saved.into()) }?)
    }

    /// Leaves a payload and the state of the random numbers for an operator of the layer under way, should it run again.
    pub fn remember(&mut self, op: usize, payload: u64, rng: &[u8]) -> Result<(), RankError> {
        let (unit, layer) = self.layer_under_way("remember")?;
        Ok(self.store.remember(unit, layer, op, payload, rng)?)
    }

    /// The layer's forward has been submitted: its tensors are dropped, cast or copied out as decided.
    pub fn layer_done(&mut self) -> Result<(), RankError> {
        let (unit, layer) = self.layer_under_way("layer_done")?;
        self.store.settle(unit, layer)?;
        let bytes = self.controller.handle_layer_done()?;
        self.counts.offloaded_bytes = self.counts.offloaded_bytes.saturating_add(bytes);
        self.report_copies()?;
        Ok(self.store.poll_reloads()?)
    }

    /// The forward has ended; `measured` is what it really holds, where the program knows.
    pub fn end_forward(&mut self, measured: Option<u64>) -> Result<(), RankError> {
        self.controller.handle_forward_done(measured)?;
        self.forward = None;
        self.at += 1;
        while let Some(Correction { unit, layer, tensors, .. }) = self.controller.poll_correction()? {
            self.store.offload_after_all(unit, layer, tensors)?;
            self.counts.corrections += tensors.len() as u64;
        }
        Ok(())
    }

    /// The backward of `unit` starts.
    pub fn begin_backward(&mut self, unit: u32) -> Result<(), RankError> {
        self.report_copies()?;
        self.controller.handle_backward(unit)?;
        self.backward = Some(Backward { unit, layer: None });
        Ok(())
    }

    /// Waits until `layer` may be recovered, and brings its saved tensors back for work submitted to the compute stream
    /// from now on. The layer before it must have been undone: the controller counts one at a time.
    pub fn recover(&mut self, layer: usize, hook: &mut dyn Hook) -> Result<(), RankError> {
        let Backward { unit, layer: under_way } = self.backward_under_way("recover")?;
        if under_way.is_some() {
            let needs = "the layer recovered before it to have been undone";
            return Err(StoreError::OutOfOrder { call: "recover", unit, layer, needs }.into());
        }
        self.store.may_recover(unit, layer)?;
        self.admit(|controller| controller.poll_recovery(layer))?;
        self.backward = Some(Backward { unit, layer: Some(layer) });
        self.store.recover(unit, layer, hook)?;
        Ok(self.store.poll_reloads()?)
    }

    /// In how many parts the dispatch of a layer of the backward was split; more than 1:
    /// [`recover_part`](Self::recover_part) before the backward of each.
    pub fn parts(&self, layer: usize) -> Result<u32, RankError> {
        Ok(self.store.parts(self.backward_under_way("parts")?.unit, layer)?)
    }

    /// Brings one part of a split dispatch back, in place of the part before.
    pub fn recover_part(&mut self, layer: usize, part: u32, hook: &mut dyn Hook) -> Result<(), RankError> {
        let unit = self.backward_under_way("recover_part")?.unit;
        Ok(self.store.recover_part(unit, layer, part, hook)?)
    }

    /// A saved tensor of the backward under way.
    pub fn tensor(&self, layer: usize, tensor: usize) -> Result<DeviceSlice, RankError> {
        let unit = self.backward_under_way("tensor")?.unit;
        self.store.tensor(unit, layer, tensor).ok_or(RankError::NotThere { unit, layer, tensor })
    }

    /// The layer's backward has been submitted: its tensors are freed.
    pub fn layer_undone(&mut self, layer: usize) -> Result<(), RankError> {
        let Backward { unit, .. } = self.backward_under_way("layer_undone")?;
        self.store.release(unit, layer)?;
        self.controller.handle_recovery_done()?;
        self.backward = Some(Backward { unit, layer: None });
        self.report_copies()
    }

    /// The backward has ended: nothing of its unit is left, as each of its layers has been undone.
    pub fn end_backward(&mut self) -> Result<(), RankError> {
        let Backward { unit, .. } = self.backward_under_way("end_backward")?;
        if let Some(layer) = self.store.first_held(unit) {
            let needs = "it and all others of the unit to have been undone";
            return Err(StoreError::OutOfOrder { call: "end_backward", unit, layer, needs }.into());
        }
        self.controller.handle_backward_done()?;
        self.backward = None;
        self.at += 1;
        Ok(())
    }

    /// The iteration has ended.
    pub fn end_iteration(&mut self) -> Result<(), RankError> {
        self.report_copies()?;
        self.controller.restart()?;
        self.at = 0;
        Ok(())
    }

    /// Ends the iteration in the middle, after an error: what it has on the device and in host memory is freed.
    pub fn abandon(&mut self) {
        self.store.abandon();
        self.controller.abandon();
        (self.at, self.forward, self.backward) = (0, None, None);
    }

    /// What it has done so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// The controller.
    pub fn controller(&self) -> &Controller<'c> {
        &self.controller
    }

    /// The saved tensors: only the rank changes them, in step with its controller.
    pub fn store(&self) -> &Store<'c> {
        &self.store
    }

    /// Blocks until every copy under way has ended, and tells the controller.
    pub fn drain(&mut self) -> Result<(), RankError> {
        self.store.drain()?;
        self.report_copies()
    }

    /// Waits for copies to the host until the controller lets the next step run.
    fn admit(
        &mut self,
        mut poll: impl FnMut(&mut Controller<'c>) -> Result<Admission, ControllerError>,
    ) -> Result<(), RankError> {
        self.report_copies()?;
        while let Admission::Wait { bytes } = poll(&mut self.controller)? {
            self.counts.waits += 1;
            match self.store.block_until_released(bytes) {
                Err(StoreError::Engine(EngineError::NothingLeaving { .. })) => {
                    return Err(RankError::Waits { bytes });
                }
                waited => waited?,
            }
            self.report_copies()?;
        }
        Ok(())
    }

    fn report_copies(&mut self) -> Result<(), RankError> {
        while let Some(left) = self.store.poll_copied_out()? {
            self.controller.handle_copied_out(left.unit, left.bytes)?;
        }
        Ok(())
    }

    /// Brings the unit of the next backward back beside this forward, if the controller grants it.
    fn recover_early(&mut self) -> Result<(), RankError> {
        if let Some(unit) = self.next_backward().filter(|&unit| self.store.can_come_back(unit))
            && self.controller.recover_early(unit)?
        {
            self.counts.early += 1;
            self.store.announce(unit)?;
            self.store.poll_reloads()?;
        }
        Ok(())
    }

    /// The unit of the next backward, if its forward came before.
    fn next_backward(&self) -> Option<u32> {
        let rest = self.events.get(self.at..).unwrap_or_default();
        let ahead = rest.iter().position(|event| matches!(event, Event::Backward(_)))?;
        let Event::Backward(unit) = rest[ahead] else { return None };
        Some(unit).filter(|&unit| !rest[..ahead].contains(&Event::Forward(unit)))
    }

    fn layer_under_way(&self, call: &'static str) -> Result<(u32, usize), RankError> {
        let forward = self.forward.filter(|forward| forward.layers > 0);
        forward.map(|forward| (forward.unit, forward.layers - 1)).ok_or(RankError::Idle { call })
    }

    fn backward_under_way(&self, call: &'static str) -> Result<Backward, RankError> {
        self.backward.ok_or(RankError::Idle { call })
    }
}

impl Counts {
    fn add(&mut self, decision: &LayerDecision) {
        self.replanned += u64::from(decision.replanned);
        self.offloaded += decision.plan.offload.len() as u64;
        self.recomputed += decision.plan.recompute.len() as u64;
        self.quantized += decision.plan.quantize.len() as u64;
    }
}

/// Why a rank refuses a call. A step out of order has changed nothing: the right one may be taken. After any other of these
/// but [`Waits`](Self::Waits): [`Rank::abandon`].
#[derive(Debug)]
#[non_exhaustive]
pub enum RankError {
    /// No layer, or no backward, is under way.
    Idle {
        /// The call.
        call: &'static str,
    },
    /// The step must wait for the forward or backward beside it, which only the program can run on.
    Waits {
        /// Bytes that must be freed first.
        bytes: u64,
    },
    /// The tensor is not on the device: its layer is not recovered, or the part with it is another.
    NotThere {
        /// The unit.
        unit: u32,
        /// Its layer.
        layer: usize,
        /// The tensor.
        tensor: usize,
    },
    /// The controller refuses.
    Controller(ControllerError),
    /// The store refuses.
    Store(StoreError),
}

impl From<ControllerError> for RankError {
    fn from(error: ControllerError) -> Self {
        Self::Controller(error)
    }
}

impl From<StoreError> for RankError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl fmt::Display for RankError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Idle { call } => write!(f, "{call} needs a pass under way; see the order in `rank`"),
            Self::Waits { bytes } => write!(
                f,
                "{bytes} bytes must be freed first, and no copy-out will: end the layer of the other pass"
            ),
            Self::NotThere { unit, layer, tensor } => write!(
                f,
                "tensor {tensor} of layer {layer} of unit {unit} is not on the device; recover the layer first"
            ),
            Self::Controller(error) => error.fmt(f),
            Self::Store(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for RankError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Controller(error) => Some(error),
            Self::Store(error) => Some(error),
            _ => None,
        }
    }
}
