//! What a plan of one layer holds and costs (§IV-B), and what a recomputation runs again.

use core::fmt;

use super::FrontPoint;
use crate::layer::{Collectives, Group, Layer, LayerPlan, Strategy};
use crate::limits::MAX_OPS;
use crate::set::Set;

/// Bytes and added time of `plan`.
///
/// Block inputs are always counted. A recomputed tensor's producer runs again from block inputs and from
/// saved tensors, however those are held; a tensor that is not saved is re-made in turn; no operator runs
/// twice.
pub fn evaluate(layer: &Layer<'_>, plan: &LayerPlan, allow: Collectives) -> Result<FrontPoint, Refused> {
    check(layer, plan)?;
    let ran = closure(layer, plan.recompute, allow)?;
    let mut point = FrontPoint { plan: *plan, ..FrontPoint::default() };
    let kept = layer.saved() - plan.recompute - plan.offload - plan.quantize;
    point.bytes = layer.bytes(kept | layer.block_inputs());
    point.host_bytes = layer.bytes(plan.offload);
    point.added_ns = run_ns(layer, ran);
    for tensor in plan.offload.iter() {
        let copy = layer.tensors()[tensor].copy.unwrap_or_default();
        point.added_ns += copy.out_ns + copy.in_ns;
    }
    for tensor in plan.quantize.iter() {
        let cast = layer.tensors()[tensor].cast.unwrap_or_default();
        point.bytes += cast.bytes;
        point.added_ns += cast.cast_ns + cast.uncast_ns;
    }
    Ok(point)
}

/// Every strategy of the plan is one that its tensor offers.
fn check(layer: &Layer<'_>, plan: &LayerPlan) -> Result<(), Refused> {
    let (recompute, offload, quantize) = (plan.recompute, plan.offload, plan.quantize);
    let twice = (recompute & offload) | (recompute & quantize) | (offload & quantize);
    if let Some(tensor) = twice.last() {
        return Err(Refused::TwoStrategies { tensor });
    }
    if let Some(tensor) = ((recompute | offload | quantize) - layer.saved()).last() {
        return Err(Refused::NotSaved { tensor });
    }
    for tensor in (offload | quantize).iter() {
        let strategy = plan.strategy(tensor);
        if !offers(layer, tensor, strategy) {
            return Err(Refused::NotOffered { tensor, strategy });
        }
    }
    Ok(())
}

/// Whether the saved `tensor` may be treated so; whether a recomputation can run is the closure's question.
pub(crate) fn offers(layer: &Layer<'_>, tensor: usize, strategy: Strategy) -> bool {
    let t = &layer.tensors()[tensor];
    match strategy {
        Strategy::Keep => true,
        Strategy::Recompute => layer.producer(tensor).is_some(),
        Strategy::Offload => t.copy.is_some(),
        Strategy::Quantize => t.cast.is_some(),
    }
}

/// The operators that run again so that `recompute` is back.
fn closure(layer: &Layer<'_>, recompute: Set, allow: Collectives) -> Result<Set, Refused> {
    let present = layer.block_inputs() | (layer.saved() - recompute);
    let (mut ran, mut missing) = (Set::EMPTY, recompute);
    while let Some(tensor) = missing.last() {
        missing.remove(tensor);
        let op = layer.producer(tensor).ok_or(Refused::NoProducer { tensor })?;
        if ran.contains(op) {
            continue;
        }
        let o = &layer.ops()[op];
        if let Some(group) = o.collective
            && !allow.allow(o.collective)
        {
            return Err(Refused::Collective { op, group });
        }
        ran.insert(op);
        missing |= o.reads - present;
    }
    Ok(ran)
}

/// Sum of forward times, ns.
pub(crate) fn run_ns(layer: &Layer<'_>, ops: Set) -> u64 {
    ops.iter().map(|op| layer.ops()[op].forward_ns).sum()
}

/// For each operator, what runs again when it does: itself and, through tensors that nobody saves, the
/// operators before it. `None` where a collective is not allowed or a tensor has no producer.
///
/// Saved tensors do not extend it: each is held, or recomputed by a choice of its own.
pub(crate) fn closures(layer: &Layer<'_>, allow: Collectives) -> [Option<Set>; MAX_OPS] {
    let mut all = [None; MAX_OPS];
    let present = layer.block_inputs() | layer.saved();
    for op in layer.order() {
        let o = &layer.ops()[op];
        let own = allow.allow(o.collective).then_some(Set::one(op));
        all[op] = (o.reads - present).iter().fold(own, |set, tensor| {
            let before = layer.producer(tensor).and_then(|p| all[p]);
            set.zip(before).map(|(set, before)| set | before)
        });
    }
    all
}

/// The saved tensors whose producer may run again.
pub(crate) fn recomputable(layer: &Layer<'_>, allow: Collectives) -> Set {
    let closures = closures(layer, allow);
    layer.saved().iter().filter(|&t| layer.producer(t).is_some_and(|op| closures[op].is_some())).collect()
}

/// Why a plan of a layer cannot be run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Refused {
    /// The tensor has no strategy: nobody saves it, it is a block input, or it does not exist.
    NotSaved {
        /// The tensor.
        tensor: usize,
    },
    /// Two strategies for one tensor.
    TwoStrategies {
        /// The tensor.
        tensor: usize,
    },
    /// The tensor may not be treated so.
    NotOffered {
        /// The tensor.
        tensor: usize,
        /// The strategy.
        strategy: Strategy,
    },
    /// A recomputation needs a tensor that no operator makes.
    NoProducer {
        /// The tensor.
        tensor: usize,
    },
    /// A recomputation would run a collective that is not allowed.
    Collective {
        /// The operator.
        op: usize,
        /// Who meets in it.
        group: Group,
    },
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotSaved { tensor } => {
                write!(
                    f,
                    "tensor {tensor} is not saved by any operator, so it takes no strategy; leave it out"
                )
            }
            Self::TwoStrategies { tensor } => write!(f, "tensor {tensor} has two strategies; give it one"),
            Self::NotOffered { tensor, strategy } => {
                write!(
                    f,
                    "tensor {tensor} has no times for {strategy:?}; give both or choose another strategy"
                )
            }
            Self::NoProducer { tensor } => {
                write!(f, "recomputation needs tensor {tensor}, which no operator makes; keep what it is for")
            }
            Self::Collective { op, group } => {
                write!(
                    f,
                    "recomputation would run operator {op}, a collective of {group:?}; allow that group"
                )
            }
        }
    }
}

impl core::error::Error for Refused {}
