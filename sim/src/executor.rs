//! A stand-in for the executor of one rank: runs layers under given decisions and writes the log.
//!
//! It has a clock of its own. Operators run one after another; copies to and from the host each have a
//! queue at the device's bandwidth and run beside the operators, so that pending copies are real. It never
//! waits for another rank: on a machine such waits only give copies more time.

use std::collections::VecDeque;
use std::sync::Arc;

use bagualu_core::cost::{Bytes, LayerModel};
use bagualu_core::layer::LayerPlan;
use bagualu_core::set::Set;
use bagualu_core::stage::StageModel;

use crate::log::{Event, Form, Item, Log, Pass, Place, Run};
use crate::order::Order;

mod copies;

/// How one layer of one micro-batch is run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Decision {
    /// Strategies of its saved tensors, a whole-MoE recompute included.
    pub plan: LayerPlan,
    /// Row chunks of dispatch, experts and combine; 1 is no split.
    pub dispatch_chunks: u32,
    /// Row chunks of the experts within each of these, in forward; 1 is no split.
    pub expert_chunks: u32,
}

impl Decision {
    /// `plan` and no split.
    pub const fn new(plan: LayerPlan) -> Self {
        Self { plan, dispatch_chunks: 1, expert_chunks: 1 }
    }
}

/// When what a layer dropped comes back in its backward.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Recovery {
    /// All of a layer before its first backward operator.
    Layer,
    /// Each tensor before the first backward operator that reads it, as Megatron's selective recompute.
    Operator,
}

/// A copy-out that has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CopiedOut {
    /// The tensor.
    pub item: Item,
    /// Device bytes it gave back.
    pub bytes: u64,
}

/// Runs the layers of one rank.
#[derive(Debug)]
pub struct Executor<'a, L> {
    stage: &'a StageModel<'a>,
    orders: Vec<Arc<Order>>,
    recovery: Recovery,
    log: L,
    now: u64,
    copy_out_free: u64,
    copy_in_free: u64,
    pending: VecDeque<(u64, CopiedOut)>,
    arriving: VecDeque<(u64, Item)>,
    copied: Vec<CopiedOut>,
    units: Vec<Vec<Running>>,
}

/// A layer between its forward and its backward.
#[derive(Clone, Copy, Debug)]
struct Running {
    kind: u16,
    rows: u32,
    decision: Decision,
    /// Tensors on the device in the wide form.
    wide: Set,
    /// Of these, those that hold one row chunk.
    parts: Set,
}

impl<'a, L: Log> Executor<'a, L> {
    /// An executor of `stage` that writes to `log`.
    pub fn new(stage: &'a StageModel<'a>, recovery: Recovery, log: L) -> Self {
        Self {
            stage,
            orders: stage.types.iter().map(|model| Arc::new(Order::new(model))).collect(),
            recovery,
            log,
            now: 0,
            copy_out_free: 0,
            copy_in_free: 0,
            pending: VecDeque::new(),
            arriving: VecDeque::new(),
            copied: Vec::new(),
            units: Vec::new(),
        }
    }

    /// The log.
    pub fn log(&mut self) -> &mut L {
        &mut self.log
    }

    /// Nanoseconds since the iteration began.
    pub const fn now(&self) -> u64 {
        self.now
    }

    /// Starts the clock again for the next iteration; copies still pending end first.
    pub fn begin(&mut self) {
        self.drain();
        (self.now, self.copy_out_free, self.copy_in_free) = (0, 0, 0);
    }

    /// Runs the forward of a layer up to its gate: everything that does not depend on routed rows.
    /// Tensors of `recompute` may be dropped already.
    pub fn forward_to_gate(&mut self, place: Place, kind: u16, rows: u32, recompute: Set) {
        let Some(model) = self.stage.types.get(kind as usize) else { return };
        self.log.record(self.now, Event::Enter { place, kind, rows });
        let decision = Decision::new(LayerPlan { recompute, ..LayerPlan::KEEP });
        self.set(place, Running { kind, rows, decision, wide: Set::EMPTY, parts: Set::EMPTY });
        let order = Arc::clone(&self.orders[kind as usize]);
        for tensor in order.received.iter() {
            self.alloc(place, tensor, false);
        }
        for &op in &order.before {
            self.forward_op(place, model, &order, op, true);
        }
    }

    /// Runs the rest of the layer's forward under `decision`, drops what it recomputes as soon as nothing
    /// reads it, casts, and queues the copies to the host.
    pub fn forward_from_gate(&mut self, place: Place, decision: Decision) {
        let Some(running) = self.running_mut(place) else { return };
        running.decision = decision;
        let kind = running.kind as usize;
        let model = &self.stage.types[kind];
        let order = Arc::clone(&self.orders[kind]);
        self.split(place, decision.expert_chunks);
        for tensor in (decision.plan.recompute & order.done_before_gate).iter() {
            self.free(place, tensor);
        }
        let chunks = decision.dispatch_chunks.max(1);
        for chunk in 1..=chunks {
            self.forward_routed(place, model, &order, chunk == chunks);
        }
        for &op in &order.after {
            self.forward_op(place, model, &order, op, true);
        }
        self.settle(place);
    }

    /// Dispatch, experts and combine on one row chunk.
    fn forward_routed(&mut self, place: Place, model: &LayerModel<'_>, order: &Order, last: bool) {
        let chunks = self.running(place).map_or(1, |r| r.decision.expert_chunks.max(1));
        let is_expert = |op: &u8| model.experts.contains(*op as usize);
        let mut rest = order.routed.as_slice();
        while let Some(first) = rest.first() {
            let run = rest.iter().take_while(|op| is_expert(op) == is_expert(first)).count();
            let (ops, after) = rest.split_at(run);
            let chunks = if is_expert(first) { chunks } else { 1 };
            for chunk in 1..=chunks {
                for &op in ops {
                    self.forward_op(place, model, order, op, last && chunk == chunks);
                }
            }
            rest = after;
        }
        for tensor in self.running(place).map_or(Set::EMPTY, |r| r.parts).iter() {
            self.free(place, tensor);
        }
    }

    /// Tells the log in how many row chunks the layer runs.
    fn split(&mut self, place: Place, expert_chunks: u32) {
        let Some(running) = self.running_mut(place) else { return };
        running.decision.expert_chunks = expert_chunks.max(1);
        let dispatch_chunks = running.decision.dispatch_chunks.max(1);
        if dispatch_chunks > 1 || expert_chunks > 1 {
            let expert_chunks = running.decision.expert_chunks;
            self.log.record(self.now, Event::Split { place, dispatch_chunks, expert_chunks });
        }
    }

    /// `last`: not to be run again for another row chunk.
    fn forward_op(&mut self, place: Place, model: &LayerModel<'_>, order: &Order, op: u8, last: bool) {
        let Some(running) = self.running(place) else { return };
        let recompute = running.decision.plan.recompute;
        let by_part = recompute & running.in_parts(order);
        for tensor in ((model.ops[op as usize].makes & order.tracked) - running.wide).iter() {
            self.alloc(place, tensor, by_part.contains(tensor));
        }
        self.run(Run { place, op, pass: Pass::Forward });
        // Between row chunks of the experts, what came with the dispatch stays.
        let dropped = if last { recompute } else { by_part & order.experts_only };
        for tensor in (dropped & order.last_read_by(op)).iter() {
            self.free(place, tensor);
        }
    }

    /// Casts what is quantised and queues what is offloaded.
    fn settle(&mut self, place: Place) {
        let Some(running) = self.running(place) else { return };
        let plan = running.decision.plan;
        for tensor in (plan.quantize & running.wide).iter() {
            let item = Item { place, tensor: tensor as u8 };
            self.log.record(self.now, Event::Alloc(item, Form::Narrow));
            self.log.record(self.now, Event::CopyStart(item, Form::Wide, Form::Narrow));
            self.advance(self.stage.rooflines.cast.ns(self.bytes(place, tensor)));
            self.log.record(self.now, Event::CopyEnd(item, Form::Wide, Form::Narrow));
            self.free(place, tensor);
        }
        for tensor in (plan.offload & running.wide).iter() {
            let item = Item { place, tensor: tensor as u8 };
            let bytes = self.bytes(place, tensor);
            self.log.record(self.now, Event::Alloc(item, Form::Host));
            self.log.record(self.now, Event::CopyStart(item, Form::Wide, Form::Host));
            let start = self.copy_out_free.max(self.now);
            self.copy_out_free = start.saturating_add(self.stage.rooflines.copy_out.ns(bytes));
            self.pending.push_back((self.copy_out_free, CopiedOut { item, bytes }));
        }
    }

    /// Runs the backward of a layer, recovery included. Copies of its tensors to the host end first.
    pub fn backward(&mut self, place: Place) {
        while self.pending.iter().any(|(_, copy)| copy.item.place == place) && self.wait() {}
        self.await_arrivals(place);
        // Row chunks of the experts are for the forward.
        if self.running(place).is_some_and(|r| r.decision.expert_chunks > 1) {
            self.split(place, 1);
        }
        let Some(running) = self.running(place) else { return };
        let Some(model) = self.stage.types.get(running.kind as usize) else { return };
        let order = Arc::clone(&self.orders[running.kind as usize]);
        let pieces = running.decision.dispatch_chunks.max(1);
        let by_piece = if pieces > 1 { order.routed_only } else { Set::EMPTY };
        if self.recovery == Recovery::Layer {
            self.recover(place, model, &order, order.tracked - by_piece);
        }
        for &op in order.after.iter().rev() {
            self.backward_op(place, model, &order, op, true);
        }
        for piece in 1..=pieces {
            if pieces > 1 {
                self.recover(place, model, &order, order.tracked & by_piece);
            }
            for &op in order.routed.iter().rev() {
                self.backward_op(place, model, &order, op, piece == pieces);
            }
            for tensor in self.running(place).map_or(Set::EMPTY, |r| r.parts).iter() {
                self.free(place, tensor);
            }
        }
        for &op in order.before.iter().rev() {
            self.backward_op(place, model, &order, op, true);
        }
        for tensor in self.running(place).map_or(Set::EMPTY, |r| r.wide).iter() {
            self.free(place, tensor);
        }
    }

    /// The backward of the unit is over.
    pub fn leave(&mut self, unit: u32) {
        // A chunk without layers was never entered.
        let Some(layers) = self.units.get_mut(unit as usize).filter(|layers| !layers.is_empty()) else {
            return;
        };
        layers.clear();
        self.log.record(self.now, Event::Leave { unit });
    }

    /// The iteration ends in the middle: nothing of it is left. The log is not told.
    pub fn abandon(&mut self) {
        self.units.clear();
        self.pending.clear();
        self.arriving.clear();
        self.copied.clear();
    }

    /// Units between their forward and their backward.
    #[cfg(test)]
    pub fn in_flight(&self) -> Vec<u32> {
        (0..).zip(&self.units).filter(|(_, layers)| !layers.is_empty()).map(|(unit, _)| unit).collect()
    }

    fn backward_op(&mut self, place: Place, model: &LayerModel<'_>, order: &Order, op: u8, last: bool) {
        let saves = model.ops[op as usize].saves;
        if self.recovery == Recovery::Operator {
            self.recover(place, model, order, saves);
        }
        self.run(Run { place, op, pass: Pass::Backward });
        let Some(running) = self.running(place) else { return };
        let held = if last { running.wide } else { running.parts };
        for tensor in (order.released_by(op) & held).iter() {
            self.free(place, tensor);
        }
    }

    /// Brings the tensors of `wanted` back that are not on the device: copies, casts, and then what must
    /// be made again, with everything that takes.
    fn recover(&mut self, place: Place, model: &LayerModel<'_>, order: &Order, wanted: Set) {
        let Some(running) = self.running(place) else { return };
        let plan = running.decision.plan;
        let ops = again(model, order, plan.recompute, wanted - running.wide);
        // A closure may read what its own layer offloaded or quantised.
        let reads = ops.iter().fold(wanted, |all, &op| all | model.ops[op as usize].reads);
        self.copy_in(place, (reads & plan.offload) - running.wide);
        for tensor in ((reads & plan.quantize) - running.wide).iter() {
            let item = Item { place, tensor: tensor as u8 };
            self.alloc(place, tensor, false);
            self.log.record(self.now, Event::CopyStart(item, Form::Narrow, Form::Wide));
            self.advance(self.stage.rooflines.uncast.ns(self.bytes(place, tensor)));
            self.log.record(self.now, Event::CopyEnd(item, Form::Narrow, Form::Wide));
            self.log.record(self.now, Event::Free(item, Form::Narrow));
        }
        let in_parts = running.in_parts(order);
        for op in ops {
            let held = self.running(place).map_or(Set::EMPTY, |r| r.wide);
            for tensor in ((model.ops[op as usize].makes & plan.recompute) - held).iter() {
                self.alloc(place, tensor, in_parts.contains(tensor));
            }
            self.run(Run { place, op, pass: Pass::Again });
        }
    }

    fn run(&mut self, run: Run) {
        let Some(running) = self.running(run.place) else { return };
        let Some(op) = self.stage.types[running.kind as usize].ops.get(run.op as usize) else { return };
        let rows = running.rows_of(&self.stage.types[running.kind as usize], run.op);
        let time = if run.pass == Pass::Backward { op.backward } else { op.forward };
        self.log.record(self.now, Event::Start(run));
        self.advance(time.at(rows).unwrap_or(u64::MAX));
        self.log.record(self.now, Event::End(run));
    }

    fn alloc(&mut self, place: Place, tensor: usize, part: bool) {
        let form = if part { Form::Part } else { Form::Wide };
        self.log.record(self.now, Event::Alloc(Item { place, tensor: tensor as u8 }, form));
        if let Some(running) = self.running_mut(place) {
            running.wide.insert(tensor);
            if part {
                running.parts.insert(tensor);
            }
        }
    }

    fn free(&mut self, place: Place, tensor: usize) {
        let Some(running) = self.running_mut(place).filter(|r| r.wide.contains(tensor)) else { return };
        let form = if running.parts.contains(tensor) { Form::Part } else { Form::Wide };
        running.wide.remove(tensor);
        running.parts.remove(tensor);
        self.log.record(self.now, Event::Free(Item { place, tensor: tensor as u8 }, form));
    }

    /// Bytes of a tensor, for the time that a copy or cast of it takes.
    fn bytes(&self, place: Place, tensor: usize) -> u64 {
        let Some(running) = self.running(place) else { return 0 };
        let model = self.stage.types.get(running.kind as usize).and_then(|t| t.tensors.get(tensor));
        model.and_then(|t| Bytes::at(t.bytes, running.rows)).unwrap_or(u64::MAX)
    }

    fn running(&self, place: Place) -> Option<Running> {
        self.units.get(place.unit as usize)?.get(place.layer as usize).copied()
    }

    fn running_mut(&mut self, place: Place) -> Option<&mut Running> {
        self.units.get_mut(place.unit as usize)?.get_mut(place.layer as usize)
    }

    /// Layers of a unit are entered in order.
    fn set(&mut self, place: Place, running: Running) {
        if self.units.len() <= place.unit as usize {
            self.units.resize_with(place.unit as usize + 1, Vec::new);
        }
        let layers = &mut self.units[place.unit as usize];
        layers.truncate(place.layer as usize);
        layers.push(running);
    }
}

impl Running {
    /// The rows that one run of an operator sees; without meaning for one off the routed rows.
    fn rows_of(&self, model: &LayerModel<'_>, op: u8) -> u32 {
        let part = self.rows.div_ceil(self.decision.dispatch_chunks.max(1));
        let experts =
            if model.experts.contains(op as usize) { self.decision.expert_chunks.max(1) } else { 1 };
        part.div_ceil(experts)
    }

    /// Tensors that exist one row chunk at a time, where they are recomputed.
    fn in_parts(&self, order: &Order) -> Set {
        if self.decision.dispatch_chunks > 1 {
            order.routed_only
        } else if self.decision.expert_chunks > 1 {
            order.experts_only
        } else {
            Set::EMPTY
        }
    }
}

/// The operators that must run again for `wanted`, in order: the producers of what is recomputed, and
/// of what these read and nobody stores.
fn again(model: &LayerModel<'_>, order: &Order, recompute: Set, wanted: Set) -> Vec<u8> {
    let stored = order.tracked - recompute;
    let mut demanded = wanted & recompute;
    let mut ops = Vec::new();
    for &op in order.all.iter().rev() {
        let model = &model.ops[op as usize];
        if !(model.makes & demanded).is_empty() {
            demanded |= model.reads - stored;
            ops.push(op);
        }
    }
    ops.reverse();
    ops
}

#[cfg(test)]
mod tests;
