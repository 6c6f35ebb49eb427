//! The operators of layers and chunks under settings, as the core's curve takes them (design §4).

use std::ops::Range;

use bagualu_core::cost::{LayerModel, OpModel, TensorModel};
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

/// A chunk's operators, forward and backward; what runs again is among the latter.
#[derive(Default)]
pub(super) struct ChunkCurve {
    pub forward: Vec<OpCost>,
    pub backward: Vec<OpCost>,
    /// Time of what runs again, ns.
    pub again_ns: u64,
}

impl ChunkCurve {
    /// The chunk of these layers, each with what it offloads, those with experts at `rows`.
    pub fn new(layers: &[Setting<'_>], offload: &[Set], rows: u32) -> Result<Self, CurveError> {
        let curves = layers.iter().zip(offload).map(|(layer, &offload)| layer.curve(offload, rows));
        let curves: Vec<_> = curves.collect::<Result<_, _>>()?;
        let mut chunk = Self::default();
        for curve in &curves {
            chunk.forward.extend_from_slice(&curve.forward);
        }
        for (position, curve) in curves.iter().enumerate().rev() {
            match &layers[position].unit {
                Some(unit) if unit.end == position + 1 => {
                    for curve in &curves[unit.clone()] {
                        curve.replays.iter().for_each(|(_, replay)| chunk.replay(replay));
                    }
                    chunk.backward.extend_from_slice(&curve.backward);
                }
                Some(_) => chunk.backward.extend_from_slice(&curve.backward),
                None => chunk.selective(curve),
            }
        }
        Ok(chunk)
    }

    fn selective(&mut self, curve: &LayerCurve) {
        for (op, cost) in (0..curve.backward.len()).rev().zip(&curve.backward) {
            for (_, replay) in curve.replays.iter().filter(|(before, _)| *before == op) {
                self.replay(replay);
            }
            self.backward.push(*cost);
        }
    }

    fn replay(&mut self, ops: &[OpCost]) {
        self.again_ns = ops.iter().fold(self.again_ns, |sum, op| sum.saturating_add(op.ns));
        self.backward.extend_from_slice(ops);
    }
}

/// A layer's operators.
struct LayerCurve {
    forward: Vec<OpCost>,
    backward: Vec<OpCost>,
    /// What runs again ahead of which operator's backward.
    replays: Vec<(usize, Vec<OpCost>)>,
}

impl Setting<'_> {
    /// The strategies of its tensors.
    pub fn plan(&self, offload: Set) -> LayerPlan {
        LayerPlan { recompute: self.recomputed.dropped(), offload, quantize: Set::EMPTY }
    }

    fn curve(&self, offload: Set, rows: u32) -> Result<LayerCurve, CurveError> {
        let rows = if self.layer.routed { rows } else { 0 };
        let ops = self.ops();
        let model = LayerModel { ops: &ops, ..self.layer.model() };
        let forward = costs(&model, rows, &self.plan(offload))?[0].clone();
        // What runs again puts its tensors there: for the backward behind it they are as if kept.
        let plan = LayerPlan { recompute: Set::EMPTY, ..self.plan(offload) };
        let backward = costs(&model, rows, &plan)?[1].clone();
        let replays = self.recomputed.replays.iter();
        let replays = replays.map(|replay| Ok((replay.before, self.replay(replay, &ops, rows)?)));
        Ok(LayerCurve { forward, backward, replays: replays.collect::<Result<_, CurveError>>()? })
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
            let offload = ["qkv", "fc1_out", "ln2_out"].into_iter().filter_map(|name| layer.tensor(name));
            let offload = offload.collect::<Set>() - recomputed.dropped();
            let setting = Setting { layer, recomputed, unit };
            let chunk = ChunkCurve::new(&[setting], &[offload], 5_000).expect("a curve");
            let sum =
                |of: fn(&OpCost) -> u64| chunk.forward.iter().chain(&chunk.backward).map(of).sum::<u64>();
            assert_eq!(sum(|op| op.holds), sum(|op| op.frees));
            assert!(sum(|op| op.holds) > 0);
        }
    }
}
