//! The least a layer can hold: floor (full recomputation) and g (the strongest local strategies).

use crate::layer::{Collectives, Layer, LayerPlan};
use crate::set::Set;

/// A layer's least bytes and how they are reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Least {
    /// Device bytes held.
    pub bytes: u64,
    /// Host bytes taken.
    pub host_bytes: u64,
    /// The strategies.
    pub plan: LayerPlan,
}

/// floor: full recomputation from the block inputs, every collective run again (the paper's M0).
pub fn full_recompute(layer: &Layer<'_>) -> Least {
    let remade = recomputable(layer, Collectives::ALL) & layer.saved();
    Least {
        bytes: layer.bytes(layer.block_inputs() | (layer.saved() - remade)),
        host_bytes: 0,
        plan: LayerPlan { recompute: remade, ..LayerPlan::KEEP },
    }
}

/// g: each tensor under the local strategy that leaves the fewest device bytes, and of these the one
/// that takes the fewest host bytes: recompute, else offload, else quantise where that is smaller.
///
/// `allow` names collectives that a static setting, equal on all ranks, lets run again.
pub fn strongest_local(layer: &Layer<'_>, allow: Collectives) -> Least {
    let remade = recomputable(layer, allow) & layer.saved();
    let mut least = Least {
        bytes: layer.bytes(layer.block_inputs()),
        host_bytes: 0,
        plan: LayerPlan { recompute: remade, ..LayerPlan::KEEP },
    };
    for index in (layer.saved() - remade).iter() {
        let tensor = &layer.tensors()[index];
        let narrow = tensor.cast.map(|c| c.bytes).filter(|&b| b < tensor.bytes);
        if tensor.copy.is_some() {
            least.plan.offload.insert(index);
            least.host_bytes += tensor.bytes;
        } else if let Some(bytes) = narrow {
            least.plan.quantize.insert(index);
            least.bytes += bytes;
        } else {
            least.bytes += tensor.bytes;
        }
    }
    least
}

/// Tensors that can be made again before backward with no collective outside `allow`.
///
/// Saved tensors and block inputs are there, or are made again themselves; what neither is must have a
/// producer that can run.
pub fn recomputable(layer: &Layer<'_>, allow: Collectives) -> Set {
    let present = layer.saved() | layer.block_inputs();
    let mut made = Set::EMPTY;
    for op in layer.order() {
        let op = &layer.ops()[op];
        if allow.allow(op.collective) && op.reads.is_subset(present | made) {
            made |= op.makes;
        }
    }
    made - layer.block_inputs()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layer::{CastTimes, CopyTimes, Group, Op, Tensor};

    fn set<const N: usize>(indices: [usize; N]) -> Set {
        indices.into_iter().collect()
    }

    #[test]
    fn local_strategies_stop_at_collectives() {
        let copy = Some(CopyTimes { out_ns: 1, in_ns: 1 });
        let cast = Some(CastTimes { cast_ns: 1, uncast_ns: 1, bytes: 30 });
        let tensors = [
            Tensor { bytes: 64, block_input: true, ..Default::default() },
            Tensor { bytes: 100, ..Default::default() }, // ln, local
            Tensor { bytes: 7, ..Default::default() },   // dispatched, unsaved
            Tensor { bytes: 200, copy, ..Default::default() }, // fc1 input, behind dispatch
            Tensor { bytes: 50, cast, ..Default::default() }, // probs, no producer
        ];
        let op = |reads, makes, saves, collective| Op { reads, makes, saves, forward_ns: 1, collective };
        let ops = [
            op(set([0]), set([1]), Set::EMPTY, None),
            op(set([1]), set([2]), set([1]), Some(Group::Ep)),
            op(set([2]), set([3]), set([3]), None),
            op(set([3, 4]), Set::EMPTY, set([3, 4]), None),
        ];
        let layer = Layer::new(&tensors, &ops).expect("a layer");

        let local = strongest_local(&layer, Collectives::NONE);
        assert_eq!((local.bytes, local.host_bytes), (64 + 30, 200));
        assert_eq!(local.plan.recompute, set([1]));

        let full = full_recompute(&layer);
        assert_eq!((full.bytes, full.host_bytes), (64 + 50, 0));
        assert_eq!(full.plan.recompute, set([1, 3]));

        let allowed = strongest_local(&layer, Collectives::NONE.with(Group::Ep));
        assert_eq!((allowed.bytes, allowed.host_bytes), (64 + 30, 0));
    }
}
