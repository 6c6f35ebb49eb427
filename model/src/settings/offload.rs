//! Megatron's fine-grained offloading (`pipeline_parallel/fine_grained_activation_offload.py`, 0.16 and later):
//! which tensors leave the device in which unit. When they come back is in `reload.rs`.
//!
//! What is saved while a module runs is a *group*. It is copied out as soon as the module is done (for norms once the
//! residual is added, for the experts' activation once fc2 has run), and Megatron then holds no reference to it. Every
//! operator's saved tensor is a copy of its own: one that two operators save goes out and comes back twice. What is
//! recomputed too, queries and keys for instance, is copied like the rest.
//! After its first iteration Megatron takes groups back: those that backward needs at once, those of a byte margin, and
//! a share of the rest. That choice is equal for all later iterations. Assumed of expert groups: the first iteration had
//! the rows that are planned with. A tensor that is saved outside of groups too does not leave.

use std::collections::BTreeMap;

use bagualu_core::cost::Rooflines;
use bagualu_core::schedule::Pipeline;
use bagualu_core::set::Set;

use super::curve::{Copied, LayerOffload, Setting};
use super::modules::Parts;
use super::overlap::Step;
use super::recompute::Recomputed;
use super::reload::Reloads;
use super::{ActivationSettings, Offload, OffloadModule, RecomputeModule};
use crate::layer::fp8::is_copy;
use crate::{LayerType, Model, Precision};

/// What one unit offloads.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct UnitOffload {
    /// Of each layer of its chunk.
    pub layers: Vec<LayerOffload>,
    /// Copies out and in, ns.
    pub copies_ns: u64,
    /// Bytes in host memory.
    pub host_bytes: u64,
}

/// The layers of a chunk.
pub(super) type Layers<'a> = Vec<Setting<'a>>;

/// One group of a chunk.
pub(super) struct Group {
    pub layer: usize,
    pub module: OffloadModule,
    /// Its operators.
    pub ops: Set,
    /// The operator behind whose forward it is copied out, ahead of whose backward it is needed.
    pub end: usize,
    /// What it copies, with the tensor of each.
    pub copies: Vec<(usize, Copied)>,
}

impl Group {
    /// The operator behind whose backward the next group is asked for.
    pub fn begin(&self) -> usize {
        self.ops.iter().next().unwrap_or_default()
    }

    fn bytes(&self) -> u64 {
        self.copies.iter().fold(0, |sum, (_, copy)| sum.saturating_add(copy.bytes))
    }
}

/// A rank whose groups are chosen between.
pub(super) struct Chooser<'a> {
    pub settings: &'a ActivationSettings,
    pub offload: &'a Offload,
    pub model: &'a Model,
    pub chunks: &'a [Layers<'a>],
    pub pipeline: &'a Pipeline,
    pub rows: u32,
}

impl Chooser<'_> {
    /// What each unit offloads, in the order of units.
    pub fn choose(&self, steps: &[Step]) -> Vec<UnitOffload> {
        let mut groups: Vec<Vec<Group>> = self.chunks.iter().map(|layers| self.groups(layers)).collect();
        // In the order in which they begin.
        groups.iter_mut().for_each(|groups| groups.sort_by_key(|group| (group.layer, group.begin())));
        let of = |unit: u32| &groups[self.pipeline.parts(unit).1 as usize];
        let backwards: Vec<u32> = steps.iter().filter_map(|step| step.backward()).collect();
        let mut on: Vec<Vec<bool>> =
            (0..backwards.len()).map(|unit| vec![true; of(unit as u32).len()]).collect();
        // The first to come back would wait for its copies.
        for module in OffloadModule::ALL {
            let last = backwards.iter().find_map(|&unit| Some((unit, last_of(of(unit), module)?)));
            if let Some((unit, group)) = last {
                on[unit as usize][group] = false;
            }
        }
        let mut margin = u128::from(self.offload.delta_bytes) * u128::from(self.pipeline.rank);
        for &unit in &backwards {
            for (on, group) in on[unit as usize].iter_mut().zip(of(unit)).filter(|(on, _)| **on) {
                if margin > 0 {
                    margin = margin.saturating_sub(group.bytes().into());
                    *on = false;
                }
            }
            self.keep_a_share(&mut on[unit as usize], of(unit));
        }
        // A unit whose backward is the next to come: its last groups would come back before they had left.
        let mut done = 0;
        for step in steps {
            done += usize::from(step.backward().is_some());
            let Some(unit) = step.forward() else { continue };
            for module in OffloadModule::ALL {
                let next = backwards[done..].iter().find(|&&next| last_of(of(next), module).is_some());
                if let (Some(&next), Some(group)) = (next, last_of(of(unit), module))
                    && next == unit
                {
                    on[unit as usize][group] = false;
                }
            }
        }
        let mut units: Vec<_> =
            (0..backwards.len() as u32).map(|unit| self.unit(unit, &on[unit as usize], of(unit))).collect();
        Reloads::new(steps, &backwards, of, &on).run(&mut units);
        units
    }

    /// The later groups of a unit stay, as many as the fraction leaves.
    fn keep_a_share(&self, on: &mut [bool], groups: &[Group]) {
        let eligible: Vec<usize> = (0..on.len()).filter(|&at| on[at] && groups[at].bytes() > 0).collect();
        let kept =
            eligible.len() as u64 * u64::from(1_000 - self.offload.fraction_permille.min(1_000)) / 1_000;
        for &at in eligible.iter().rev().take(kept as usize) {
            on[at] = false;
        }
    }

    fn groups(&self, layers: &Layers<'_>) -> Vec<Group> {
        let mut groups = Vec::new();
        for (at, Setting { layer, recomputed, .. }) in layers.iter().enumerate() {
            let parts = Parts::new(layer, self.model.parallelism.libraries.transformer_engine);
            for &module in &self.offload.modules {
                // Megatron opens no group around core attention that is recomputed.
                let recomputed_whole =
                    module == OffloadModule::CoreAttn && self.settings.recomputes(RecomputeModule::CoreAttn);
                let ops = parts.offloaded(module);
                if parts.is_transformer() && !ops.is_empty() && !recomputed_whole {
                    groups.push(self.group(layer, recomputed, at, module, ops));
                }
            }
        }
        groups
    }

    fn group(
        &self,
        layer: &LayerType,
        recomputed: &Recomputed,
        at: usize,
        module: OffloadModule,
        ops: Set,
    ) -> Group {
        let behind = |name| layer.op(name);
        let end = match module {
            OffloadModule::AttnNorm => behind("attn_add"),
            OffloadModule::MlpNorm => behind("mlp_add"),
            OffloadModule::MoeAct => behind("fc2"),
            _ => None,
        };
        let end = end.or(ops.last()).unwrap_or_default();
        let copies = saved_copies(layer, recomputed, ops)
            .into_iter()
            .filter(|&(tensor, ..)| self.elements(layer, tensor) >= self.offload.least_elements)
            .map(|(tensor, used, freed)| {
                (tensor, Copied { bytes: self.bytes(layer, tensor), used, freed, early: false })
            });
        Group { layer: at, module, ops, end, copies: copies.collect() }
    }

    fn unit(&self, unit: u32, on: &[bool], groups: &[Group]) -> UnitOffload {
        let Rooflines { copy_out, copy_in, .. } = self.model.device.rooflines();
        let layers = &self.chunks[self.pipeline.parts(unit).1 as usize];
        let mut unit = UnitOffload::default();
        for (at, Setting { layer, recomputed, .. }) in layers.iter().enumerate() {
            let mut ops = Set::EMPTY;
            let mut ends = BTreeMap::new();
            let mut offload = LayerOffload::default();
            for group in on.iter().zip(groups).filter(|(on, g)| **on && g.layer == at).map(|(_, g)| g) {
                ops |= group.ops;
                for &(tensor, copy) in &group.copies {
                    let end = ends.entry(tensor).or_insert(group.end);
                    *end = group.end.max(*end);
                    let ns = copy_out.ns(copy.bytes).saturating_add(copy_in.ns(copy.bytes));
                    unit.copies_ns = unit.copies_ns.saturating_add(ns);
                    unit.host_bytes = unit.host_bytes.saturating_add(copy.bytes);
                    offload.copies.push(copy);
                }
            }
            let others = Set::first(layer.ops.len()) - ops;
            let stays = saved(layer, recomputed, others) | recomputed.dropped();
            let leaves = ends.into_iter().filter(|&(tensor, _)| !stays.contains(tensor));
            offload.leaves =
                leaves.map(|(tensor, end)| (tensor, end.max(last_reader(layer, tensor)))).collect();
            unit.layers.push(offload);
        }
        unit
    }

    fn bytes(&self, layer: &LayerType, tensor: usize) -> u64 {
        let rows = if layer.routed { self.rows } else { 0 };
        layer.tensors[tensor].bytes.at(rows).unwrap_or(u64::MAX)
    }

    /// Activations have the run's type, or are in FP8; of the rest a module saves FP32 statistics.
    fn elements(&self, layer: &LayerType, tensor: usize) -> u64 {
        let t = &layer.tensors[tensor];
        let element = match t.quantized.is_some() || t.block_input {
            true => self.model.parallelism.precision.bytes(),
            false if is_copy(layer.tensor_names[tensor]) => 1,
            false => Precision::Fp32.bytes(),
        };
        self.bytes(layer, tensor) / element
    }
}

fn last_of(groups: &[Group], module: OffloadModule) -> Option<usize> {
    groups.iter().rposition(|group| group.module == module)
}

fn last_reader(layer: &LayerType, tensor: usize) -> usize {
    layer.ops.iter().rposition(|op| op.reads.contains(tensor)).unwrap_or_default()
}

/// What `ops` save, inputs of checkpoints among them included.
fn saved(layer: &LayerType, recomputed: &Recomputed, ops: Set) -> Set {
    let own = ops.iter().fold(Set::EMPTY, |set, op| set | layer.ops[op].saves);
    let inputs = recomputed.inputs.iter().filter(|(op, _)| ops.contains(*op));
    inputs.fold(own, |set, (_, inputs)| set | *inputs)
}

/// What `ops` save in their first run, each once for each of them: tensor, the operator ahead of whose backward it is
/// needed, the one with whose backward it is free. Inside a checkpoint nothing is saved but its inputs, which are
/// needed where it runs again.
fn saved_copies(layer: &LayerType, recomputed: &Recomputed, ops: Set) -> Vec<(usize, usize, usize)> {
    let again = recomputed.replays.iter().fold(Set::EMPTY, |set, replay| set | replay.ops);
    let own = (ops - again).iter().flat_map(|op| layer.ops[op].saves.iter().map(move |t| (t, op, op)));
    let inputs = recomputed.inputs.iter().filter(|(op, _)| ops.contains(*op)).flat_map(|&(op, inputs)| {
        let replay = recomputed.replays.iter().find(|replay| replay.ops.iter().next() == Some(op));
        let used = replay.map_or(op, |replay| replay.before);
        inputs.iter().map(move |tensor| (tensor, used, op))
    });
    own.chain(inputs).collect()
}
