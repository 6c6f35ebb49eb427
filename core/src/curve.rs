//! The activation memory curve (§IV-A, Fig. 5): bytes over time, from operators to an iteration.
//!
//! A micro-batch is the concatenation of its operators, an iteration that of a rank's schedule. [`peak`]
//! is the true maximum of the curve, work included. The paper's model, one triangle per micro-batch, is
//! [`triangle_peak`]; it leaves out what operators need while they run.
//!
//! *Erratum*: the paper calls cooldown free of risk. Recovery allocates, so it is followed like the rest.

use core::fmt;

use crate::cost::{CostError, LayerModel};
use crate::layer::LayerPlan;
use crate::limits::MAX_TENSORS;
use crate::schedule::Event;
use crate::set::Set;

/// An operator as the curve sees it: (Δt, Δm), and what it needs beside.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct OpCost {
    /// How long it runs, ns.
    pub ns: u64,
    /// Bytes it adds that stay.
    pub holds: u64,
    /// Bytes that are free after it.
    pub frees: u64,
    /// Bytes needed only while it runs.
    pub work: u64,
}

/// A point of the curve.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Point {
    /// Time since the iteration began, ns.
    pub ns: u64,
    /// Bytes on the device.
    pub bytes: u64,
}

impl Point {
    /// The corner that `op` reaches from here, work included, and where it ends; `at` is its event.
    pub fn through(self, op: &OpCost, at: usize) -> Result<(Self, Self), CurveError> {
        let overflow = CurveError::Overflow { at };
        let held = self.bytes.checked_add(op.holds).ok_or(overflow)?;
        let highest = held.checked_add(op.work).ok_or(overflow)?;
        let ns = self.ns.checked_add(op.ns).ok_or(overflow)?;
        let bytes = held.checked_sub(op.frees).ok_or(CurveError::FreesTooMuch { at })?;
        Ok((Self { ns, bytes: highest }, Self { ns, bytes }))
    }
}

/// Where the curve is highest.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Peak {
    /// Bytes.
    pub bytes: u64,
    /// When, ns.
    pub ns: u64,
    /// During which event of the schedule.
    pub event: usize,
}

/// The highest point of an iteration's curve. `costs` names the operators of each event.
pub fn peak<'c>(events: &[Event], costs: impl FnMut(Event) -> &'c [OpCost]) -> Result<Peak, CurveError> {
    let mut peak = Peak::default();
    follow(events, costs, |event, point| {
        if point.bytes > peak.bytes {
            peak = Peak { bytes: point.bytes, ns: point.ns, event };
        }
    })?;
    Ok(peak)
}

/// The highest point if each micro-batch is one triangle, as the paper approximates it: what is held at
/// the end of each event, and nothing between.
pub fn triangle_peak<'c>(
    events: &[Event],
    mut costs: impl FnMut(Event) -> &'c [OpCost],
) -> Result<u64, CurveError> {
    let (mut held, mut peak) = (0u64, 0);
    for (at, event) in events.iter().enumerate() {
        let ops = costs(*event);
        let sum = |each: fn(&OpCost) -> u64| {
            ops.iter().try_fold(0u64, |s, op| s.checked_add(each(op))).ok_or(CurveError::Overflow { at })
        };
        let raised = held.checked_add(sum(|op| op.holds)?).ok_or(CurveError::Overflow { at })?;
        held = raised.checked_sub(sum(|op| op.frees)?).ok_or(CurveError::FreesTooMuch { at })?;
        peak = peak.max(held);
    }
    Ok(peak)
}

/// Visits the corners of the curve in order of time, with the event of each.
pub fn follow<'c>(
    events: &[Event],
    mut costs: impl FnMut(Event) -> &'c [OpCost],
    mut visit: impl FnMut(usize, Point),
) -> Result<(), CurveError> {
    let mut now = Point::default();
    for (at, event) in events.iter().enumerate() {
        for op in costs(*event) {
            visit(at, now);
            let (highest, end) = now.through(op, at)?;
            visit(at, highest);
            now = end;
        }
        visit(at, now);
    }
    Ok(())
}

/// The operators of one layer at `rows` under `plan`, forward in program order and backward in reverse.
///
/// A tensor is on the device from its producer on (from the first operator, where nothing makes it). One
/// that is not kept leaves after its last forward reader and returns with the first backward that needs
/// it; after the backward of its first reader it is free. Copies and casts take no time here: that is
/// `interleave`'s subject.
pub fn layer_costs(
    model: &LayerModel<'_>,
    rows: u32,
    plan: &LayerPlan,
    forward: &mut [OpCost],
    backward: &mut [OpCost],
) -> Result<usize, CurveError> {
    let count = model.ops.len();
    if forward.len() < count || backward.len() < count || model.tensors.len() > MAX_TENSORS {
        return Err(CurveError::OutTooShort { needed: count, available: forward.len().min(backward.len()) });
    }
    for (index, op) in model.ops.iter().enumerate() {
        let overflow = CostError::OpOverflow { op: index, rows };
        let at = |ns: Option<u64>, work: Option<u64>| {
            let (ns, work) = (ns.ok_or(overflow)?, work.ok_or(overflow)?);
            Ok::<_, CurveError>(OpCost { ns, work, ..OpCost::default() })
        };
        forward[index] = at(op.forward.at(rows), op.forward_work.at(rows))?;
        backward[count - 1 - index] = at(op.backward.at(rows), op.backward_work.at(rows))?;
    }
    for (index, tensor) in model.tensors.iter().enumerate() {
        let life = Life::of(model, index, tensor.block_input);
        let bytes = tensor.bytes.at(rows).ok_or(CostError::TensorOverflow { tensor: index, rows })?;
        let narrow = tensor.quantized.unwrap_or_default();
        let between = match () {
            () if !life.saved => 0,
            () if plan.recompute.contains(index) || plan.offload.contains(index) => 0,
            () if plan.quantize.contains(index) => {
                narrow.at(rows).ok_or(CostError::TensorOverflow { tensor: index, rows })?
            }
            () => bytes,
        };
        life.charge(bytes, between, forward, &mut backward[..count])?;
    }
    Ok(count)
}

/// Which operators of a layer a tensor spans.
struct Life {
    saved: bool,
    made: usize,
    last_reader: usize,
    first_saver: usize,
    last_saver: usize,
}

impl Life {
    fn of(model: &LayerModel<'_>, tensor: usize, block_input: bool) -> Self {
        let find = |set: fn(&crate::cost::OpModel) -> Set| {
            let mut users = (0..model.ops.len()).filter(move |&op| set(&model.ops[op]).contains(tensor));
            let first = users.next();
            (first, users.next_back().or(first))
        };
        let made = find(|op| op.makes).0.unwrap_or(0);
        let savers = find(|op| op.saves);
        let readers = find(|op| op.reads);
        Self {
            saved: block_input || savers.0.is_some(),
            made,
            last_reader: readers.1.unwrap_or(made).max(made),
            first_saver: savers.0.unwrap_or(0),
            last_saver: savers.1.unwrap_or(0),
        }
    }

    fn charge(
        &self,
        bytes: u64,
        between: u64,
        forward: &mut [OpCost],
        backward: &mut [OpCost],
    ) -> Result<(), CurveError> {
        if forward.is_empty() || backward.is_empty() || !self.saved {
            // Tensors that nobody saves are in their operators' work.
            return Ok(());
        }
        let last = backward.len() - 1;
        let add = |to: &mut u64, bytes: u64| {
            *to = to.checked_add(bytes).ok_or(CurveError::Overflow { at: 0 })?;
            Ok::<_, CurveError>(())
        };
        add(&mut forward[self.made].holds, bytes)?;
        // What is narrower between than the tensor itself leaves and returns; where it is wider, the
        // wide form is what stays.
        add(&mut forward[self.last_reader].holds, between.saturating_sub(bytes))?;
        add(&mut forward[self.last_reader].frees, bytes.saturating_sub(between))?;
        add(&mut backward[last - self.last_saver].holds, bytes.saturating_sub(between))?;
        add(&mut backward[last - self.first_saver].frees, bytes.max(between))
    }
}

/// Why there is no curve.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum CurveError {
    /// The bytes or the time pass `u64` in this event.
    Overflow {
        /// The event.
        at: usize,
    },
    /// An operator frees more than is there in this event.
    FreesTooMuch {
        /// The event.
        at: usize,
    },
    /// The caller's storage is too short.
    OutTooShort {
        /// Operators there are.
        needed: usize,
        /// Storage given.
        available: usize,
    },
    /// The layer type cannot be evaluated.
    Cost(CostError),
}

impl From<CostError> for CurveError {
    fn from(error: CostError) -> Self {
        Self::Cost(error)
    }
}

impl fmt::Display for CurveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Overflow { at } => write!(f, "the bytes or the time pass 2^64 in event {at}"),
            Self::FreesTooMuch { at } => {
                write!(f, "event {at} frees more bytes than there are; give forwards before backwards")
            }
            Self::OutTooShort { needed, available } => {
                write!(f, "the layer has {needed} operators; storage was given for {available}")
            }
            Self::Cost(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for CurveError {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::{Bytes, OpModel, TensorModel, Time};
    use crate::layer::Resource;

    const EVENTS: [Event; 4] = [Event::Forward(0), Event::Forward(1), Event::Backward(0), Event::Backward(1)];

    fn op(read: usize, make: usize) -> OpModel {
        OpModel {
            reads: Set::one(read),
            makes: Set::one(make),
            saves: Set::one(read),
            forward: Time { fixed_ns: 10, per_row_ps: 0 },
            backward: Time { fixed_ns: 20, per_row_ps: 0 },
            resource: Resource::Compute,
            collective: None,
            forward_work: Bytes::fixed(5),
            backward_work: Bytes::fixed(9),
        }
    }

    fn costs(plan: LayerPlan) -> ([OpCost; 2], [OpCost; 2]) {
        // x → a → (output, unsaved)
        let tensor = |bytes| TensorModel { bytes: Bytes::fixed(bytes), ..Default::default() };
        let tensors = [TensorModel { block_input: true, ..tensor(100) }, tensor(40), tensor(7)];
        let ops = [op(0, 1), op(1, 2)];
        let (moe, experts) = (Set::EMPTY, Set::EMPTY);
        let model = LayerModel { tensors: &tensors, ops: &ops, moe, experts, routed: false };
        let (mut forward, mut backward) = ([OpCost::default(); 2], [OpCost::default(); 2]);
        assert_eq!(layer_costs(&model, 1, &plan, &mut forward, &mut backward), Ok(2));
        (forward, backward)
    }

    fn peaks(plan: LayerPlan) -> (Peak, u64) {
        let (forward, backward) = costs(plan);
        let of = |event| match event {
            Event::Forward(_) => &forward[..],
            Event::Backward(_) => &backward[..],
        };
        (peak(&EVENTS, of).expect("a curve"), triangle_peak(&EVENTS, of).expect("a curve"))
    }

    #[test]
    fn the_true_peak_includes_work_and_the_triangle_does_not() {
        let (peak, triangle) = peaks(LayerPlan::KEEP);
        assert_eq!(triangle, 280);
        // The first backward operator runs with both micro-batches held.
        assert_eq!(peak, Peak { bytes: 280 + 9, ns: 60, event: 2 });
    }

    #[test]
    fn recovery_raises_the_curve_again() {
        let plan = LayerPlan { recompute: Set::one(1), ..LayerPlan::KEEP };
        let (peak, triangle) = peaks(plan);
        assert_eq!(triangle, 200, "held between forward and backward");
        assert_eq!(peak.bytes, 249, "the recomputed tensor and the backward's work");
    }

    #[test]
    fn everything_is_free_at_the_end() {
        for plan in [LayerPlan::KEEP, LayerPlan { offload: Set::one(1), ..LayerPlan::KEEP }] {
            let (forward, backward) = costs(plan);
            let (holds, frees) =
                forward.iter().chain(&backward).fold((0, 0), |(h, f), op| (h + op.holds, f + op.frees));
            assert_eq!(holds, frees);
        }
        let of = |_| &[OpCost { ns: 0, holds: 0, frees: 1, work: 0 }][..];
        assert_eq!(triangle_peak(&EVENTS, of), Err(CurveError::FreesTooMuch { at: 0 }));
    }
}
