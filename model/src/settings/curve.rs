//! The operators of layers and chunks under settings, as the core's curve takes them (design §4).

use std::ops::Range;

use bagualu_core::cost::{Bytes, LayerModel, OpModel, TensorModel};
use bagualu_core::curve::{CurveError, OpCost, layer_costs};
use bagualu_core::layer::LayerPlan;
use bagualu_core::limits::MAX_OPS;
use bagualu_core::set::Set;

use super::recompute::{Recomputed, Replay};
use crate::LayerType;

/// One layer of a chunk under settings.
pub(super) struct Setting<'a> {
    pub layer: &'a LayerType,
    pub recomputed: Recomputed,
    /// The unit of full recomputation that it belongs to, as positions in the chunk.
    pub unit: Option<Range<usize>>,
}

/// What offloading makes of one layer of a unit.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub(super) struct LayerOffload {
    /// Tensors that leave the device, each with the operator behind whose forward it is gone.
    pub leaves: Vec<(usize, usize)>,
    /// What comes back.
    pub copies: Vec<Copied>,
    /// Bytes that come back behind an operator's backward, of this unit or the next.
    pub reloads: Vec<(usize, u64)>,
}

impl LayerOffload {
    /// The tensors that leave.
    pub fn tensors(&self) -> Set {
        self.leaves.iter().map(|&(tensor, _)| tensor).collect()
    }
}

/// A copy of a tensor that one operator saves.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Copied {
    pub bytes: u64,
    /// The operator ahead of whose backward it is needed.
    pub used: usize,
    /// The operator with whose backward it is free.
    pub freed: usize,
    /// Whether it has come back before it is needed.
    pub early: bool,
}

impl LayerOffload {
    /// The backward of `op`, with what comes back for it alone and what comes back behind it.
    fn around(&self, op: usize, cost: OpCost) -> Result<Backward, CurveError> {
        let late = self.copies.iter().filter(|copy| copy.used == op && !copy.early);
        let late = sum(late.map(|copy| copy.bytes))?;
        let freed = sum(self.copies.iter().filter(|copy| copy.freed == op).map(|copy| copy.bytes))?;
        let reloaded = sum(self.reloads.iter().filter(|reload| reload.0 == op).map(|reload| reload.1))?;
        let frees = cost.frees.checked_add(freed).ok_or(OVERFLOW)?;
        Ok(Backward { late, cost: OpCost { frees, ..cost }, reloaded })
    }
}

/// A chunk's operators, forward and backward; what runs again is among the latter.
#[derive(Default)]
pub(super) struct ChunkCurve {
    pub forward: Vec<OpCost>,
    pub backward: Vec<OpCost>,
    /// Where in `backward` what belongs to each operator begins, from the last operator on; and the end.
    starts: Vec<usize>,
    /// Time of what runs again, ns.
    pub again_ns: u64,
}

impl ChunkCurve {
    /// The chunk of these layers, each with what it offloads, those with experts at `rows`.
    pub fn new(layers: &[Setting<'_>], offload: &[LayerOffload], rows: u32) -> Result<Self, CurveError> {
        let curves = layers.iter().zip(offload).map(|(layer, offload)| layer.curve(offload, rows));
        let curves: Vec<_> = curves.collect::<Result<_, _>>()?;
        let mut chunk = Self::default();
        for curve in &curves {
            chunk.forward.extend_from_slice(&curve.forward);
        }
        for (position, curve) in curves.iter().enumerate().rev() {
            let unit = layers[position].unit.clone();
            for op in (0..curve.forward.len()).rev() {
                chunk.starts.push(chunk.backward.len());
                let Backward { late, cost, reloaded } = curve.backward[op];
                chunk.comes(late);
                match &unit {
                    Some(unit) if unit.end == position + 1 && op + 1 == curve.forward.len() => {
                        curves[unit.clone()].iter().for_each(|curve| chunk.replay_all(curve));
                    }
                    Some(_) => {}
                    None => chunk.replay_ahead(curve, op),
                }
                chunk.backward.push(cost);
                chunk.comes(reloaded);
            }
        }
        chunk.starts.push(chunk.backward.len());
        Ok(chunk)
    }

    /// The backward of a range of operators.
    pub fn backward_of(&self, ops: &Range<usize>) -> &[OpCost] {
        let count = self.forward.len();
        &self.backward[self.starts[count - ops.end]..self.starts[count - ops.start]]
    }

    fn comes(&mut self, bytes: u64) {
        if bytes > 0 {
            self.backward.push(OpCost { holds: bytes, ..OpCost::default() });
        }
    }

    fn replay_all(&mut self, curve: &LayerCurve) {
        curve.replays.iter().for_each(|(_, replay)| self.replay(replay));
    }

    fn replay_ahead(&mut self, curve: &LayerCurve, op: usize) {
        let ahead = curve.replays.iter().filter(|(before, _)| *before == op);
        ahead.for_each(|(_, replay)| self.replay(replay));
    }

    fn replay(&mut self, ops: &[OpCost]) {
        self.again_ns = ops.iter().fold(self.again_ns, |sum, op| sum.saturating_add(op.ns));
        self.backward.extend_from_slice(ops);
    }
}

/// The backward of an operator.
#[derive(Clone, Copy)]
struct Backward {
    /// Bytes that come back ahead of it and of what it runs again.
    late: u64,
    cost: OpCost,
    /// Bytes that come back behind it, for others.
    reloaded: u64,
}

/// A layer's operators.
struct LayerCurve {
    forward: Vec<OpCost>,
    backward: Vec<Backward>,
    /// What runs again ahead of which operator's backward.
    replays: Vec<(usize, Vec<OpCost>)>,
}

impl Setting<'_> {
    /// The strategies of its tensors.
    pub fn plan(&self, offload: Set) -> LayerPlan {
        LayerPlan { recompute: self.recomputed.dropped(), offload, quantize: Set::EMPTY }
    }

    fn curve(&self, offload: &LayerOffload, rows: u32) -> Result<LayerCurve, CurveError> {
        let rows = if self.layer.routed { rows } else { 0 };
        let ops = self.ops();
        let model = LayerModel { ops: &ops, ..self.layer.model() };
        let [mut forward, _] = costs(&model, rows, &self.plan(Set::EMPTY))?;
        for &(tensor, gone) in &offload.leaves {
            let bytes = self.layer.tensors[tensor].bytes.at(rows).ok_or(OVERFLOW)?;
            forward[gone].frees = forward[gone].frees.checked_add(bytes).ok_or(OVERFLOW)?;
        }
        // What runs again puts its tensors there: for the backward behind it they are as if kept. What has left comes
        // back as copies.
        let left = offload.tensors();
        let tensors = self.layer.tensors.iter().enumerate();
        let tensors: Vec<_> = tensors
            .map(|(index, t)| match left.contains(index) {
                true => TensorModel { bytes: Bytes::default(), ..*t },
                false => *t,
            })
            .collect();
        let [_, backward] = costs(&LayerModel { tensors: &tensors, ..model }, rows, &LayerPlan::KEEP)?;
        let backward = backward.iter().rev().enumerate().map(|(op, cost)| offload.around(op, *cost));
        let replays = self.recomputed.replays.iter();
        let replays = replays.map(|replay| Ok((replay.before, self.replay(replay, &ops, rows)?)));
        Ok(LayerCurve {
            forward,
            backward: backward.collect::<Result<_, _>>()?,
            replays: replays.collect::<Result<_, CurveError>>()?,
        })
    }

    /// The operators, with the inputs that checkpoints save.
    fn ops(&self) -> Vec<OpModel> {
        let mut ops = self.layer.ops.clone();
        for &(op, inputs) in &self.recomputed.inputs {
            ops[op].saves |= inputs;
        }
        ops
    }

    /// A second run of operators: it leaves what the first dropped, but for what one inside it drops again.
    fn replay(&self, replay: &Replay, ops: &[OpModel], rows: u32) -> Result<Vec<OpCost>, CurveError> {
        let mask = |op: &OpModel| OpModel { saves: op.saves & replay.dropped, ..*op };
        let ops: Vec<_> = ops.iter().map(mask).collect();
        let tensors = self.layer.tensors.iter().enumerate();
        let tensors: Vec<_> = tensors
            .map(|(index, t)| TensorModel {
                block_input: t.block_input && replay.dropped.contains(index),
                ..*t
            })
            .collect();
        let model = LayerModel { tensors: &tensors, ops: &ops, ..self.layer.model() };
        let inner = self
            .recomputed
            .replays
            .iter()
            .filter(|inner| inner.ops != replay.ops && inner.ops.is_subset(replay.ops));
        let recompute = inner.fold(Set::EMPTY, |set, inner| set | inner.dropped);
        let forward = &costs(&model, rows, &LayerPlan { recompute, ..LayerPlan::KEEP })?[0];
        Ok(replay.ops.iter().map(|op| forward[op]).collect())
    }
}

fn sum(mut bytes: impl Iterator<Item = u64>) -> Result<u64, CurveError> {
    bytes.try_fold(0u64, |sum, bytes| sum.checked_add(bytes)).ok_or(OVERFLOW)
}

const OVERFLOW: CurveError = CurveError::Overflow { at: 0 };

fn costs(model: &LayerModel<'_>, rows: u32, plan: &LayerPlan) -> Result<[Vec<OpCost>; 2], CurveError> {
    let mut costs = [[OpCost::default(); MAX_OPS]; 2];
    let [forward, backward] = &mut costs;
    let count = layer_costs(model, rows, plan, forward, backward)?;
    Ok(costs.map(|costs| costs[..count].to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::RecomputeModule;
    use crate::{Device, Model, Preset};

    /// Everything that a chunk holds is free at its end, whatever is recomputed inside what.
    #[test]
    fn all_is_freed() {
        let preset = Preset::named("glm-188b-a20b", None).expect("a preset");
        let device = Device::named("dcu-64g").expect("a preset");
        let model = Model::new(&preset.config, &preset.parallelism, &device).expect("a model");
        let layer = model.types.iter().find(|layer| layer.routed).expect("a MoE layer");
        let mut all: Vec<_> = (0..1 << RecomputeModule::ALL.len())
            .map(|bits: u32| {
                let modules = RecomputeModule::ALL.into_iter().enumerate();
                let chosen: Vec<_> = modules.filter(|(at, _)| bits >> at & 1 == 1).map(|(_, m)| m).collect();
                (Recomputed::selective(layer, &chosen, bits & 1 == 0), None)
            })
            .collect();
        all.extend([true, false].map(|first| (Recomputed::full(layer, first), Some(0..1))));
        for (recomputed, unit) in all {
            let setting = Setting { layer, recomputed, unit };
            let left = ["qkv", "fc1_out", "ln2_out"].into_iter().filter_map(|name| layer.tensor(name));
            let left = left.filter(|&tensor| !setting.recomputed.dropped().contains(tensor));
            let last = layer.ops.len() - 1;
            let copy = |tensor: usize| Copied {
                bytes: layer.tensors[tensor].bytes.at(5_000).expect("bytes"),
                used: last,
                freed: 0,
                early: false,
            };
            let offload = LayerOffload {
                copies: left.clone().map(copy).collect(),
                leaves: left.map(|tensor| (tensor, last)).collect(),
                reloads: Vec::new(),
            };
            let chunk = ChunkCurve::new(&[setting], &[offload], 5_000).expect("a curve");
            let sum =
                |of: fn(&OpCost) -> u64| chunk.forward.iter().chain(&chunk.backward).map(of).sum::<u64>();
            assert_eq!(sum(|op| op.holds), sum(|op| op.frees));
            assert!(sum(|op| op.holds) > 0);
        }
    }
}
