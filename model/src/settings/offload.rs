//! Megatron's fine-grained offloading (`pipeline_parallel/fine_grained_activation_offload.py`, 0.16 and later):
//! which tensors leave the device in which unit.
//!
//! What is saved while a module runs is a *group* and leaves at its end. After its first iteration Megatron
//! takes groups back: those that backward needs at once, those of a byte margin, and a share of the rest.
//! That choice is equal for all later iterations. Assumed of expert groups: the first iteration had the rows
//! that are planned with. A tensor that two groups save (attention's output) leaves only if both are offloaded.

use bagualu_core::cost::Rooflines;
use bagualu_core::schedule::{Event, Pipeline};
use bagualu_core::set::Set;

use super::curve::Setting;
use super::modules::Parts;
use super::recompute::Recomputed;
use super::{ActivationSettings, Offload, OffloadModule, RecomputeModule};
use crate::layer::fp8::is_copy;
use crate::{LayerType, Model, Precision};

/// What one unit offloads.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct UnitOffload {
    /// The tensors of each layer of its chunk that leave the device.
    pub tensors: Vec<Set>,
    /// Copies out and in, ns.
    pub copies_ns: u64,
    /// Bytes in host memory.
    pub host_bytes: u64,
}

/// The layers of a chunk.
pub(super) type Layers<'a> = Vec<Setting<'a>>;

/// One group of a chunk.
struct Group {
    layer: usize,
    module: OffloadModule,
    /// Its operators.
    ops: Set,
    /// Saved by them and large enough.
    tensors: Set,
    bytes: u64,
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
    pub fn choose(&self, events: &[Event]) -> Vec<UnitOffload> {
        let groups: Vec<Vec<Group>> = self.chunks.iter().map(|layers| self.groups(layers)).collect();
        let chunk = |unit: u32| self.pipeline.parts(unit).1 as usize;
        let backwards: Vec<u32> = events
            .iter()
            .filter_map(|event| match event {
                Event::Backward(unit) => Some(*unit),
                Event::Forward(_) => None,
            })
            .collect();
        let mut on: Vec<Vec<bool>> =
            (0..backwards.len()).map(|unit| vec![true; groups[chunk(unit as u32)].len()]).collect();
        // The first to come back would wait for its copies.
        for module in OffloadModule::ALL {
            let last =
                backwards.iter().find_map(|&unit| Some((unit, last_of(&groups[chunk(unit)], module)?)));
            if let Some((unit, group)) = last {
                on[unit as usize][group] = false;
            }
        }
        let mut margin = u128::from(self.offload.delta_bytes) * u128::from(self.pipeline.rank);
        for &unit in &backwards {
            let groups = &groups[chunk(unit)];
            for (on, group) in on[unit as usize].iter_mut().zip(groups).filter(|(on, _)| **on) {
                if margin > 0 {
                    margin = margin.saturating_sub(group.bytes.into());
                    *on = false;
                }
            }
            self.keep_a_share(&mut on[unit as usize], groups);
        }
        // A backward right behind its own forward: its last groups would come back before they had left.
        for pair in events.windows(2) {
            let [Event::Forward(unit), Event::Backward(next)] = *pair else { continue };
            for module in OffloadModule::ALL.into_iter().filter(|_| unit == next) {
                if let Some(group) = last_of(&groups[chunk(unit)], module) {
                    on[unit as usize][group] = false;
                }
            }
        }
        on.iter().enumerate().map(|(unit, on)| self.unit(chunk(unit as u32), on, &groups)).collect()
    }

    /// The later groups of a unit stay, as many as the fraction leaves.
    fn keep_a_share(&self, on: &mut [bool], groups: &[Group]) {
        let eligible: Vec<usize> = (0..on.len()).filter(|&at| on[at] && groups[at].bytes > 0).collect();
        let kept =
            eligible.len() as u64 * u64::from(1_000 - self.offload.fraction_permille.min(1_000)) / 1_000;
        for &at in eligible.iter().rev().take(kept as usize) {
            on[at] = false;
        }
    }

    fn groups(&self, layers: &Layers<'_>) -> Vec<Group> {
        let mut groups = Vec::new();
        for (at, Setting { layer, recomputed, .. }) in layers.iter().enumerate() {
            let parts = Parts::new(layer, self.settings.transformer_engine);
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
        let tensors: Set = (saved(layer, recomputed, ops) - recomputed.dropped())
            .iter()
            .filter(|&tensor| self.elements(layer, tensor) >= self.offload.least_elements)
            .collect();
        let bytes = tensors.iter().fold(0u64, |sum, tensor| sum.saturating_add(self.bytes(layer, tensor)));
        Group { layer: at, module, ops, tensors, bytes }
    }

    fn unit(&self, chunk: usize, on: &[bool], groups: &[Vec<Group>]) -> UnitOffload {
        let Rooflines { copy_out, copy_in, .. } = self.model.device.rooflines();
        let mut unit =
            UnitOffload { tensors: vec![Set::EMPTY; self.chunks[chunk].len()], ..UnitOffload::default() };
        for (at, Setting { layer, recomputed, .. }) in self.chunks[chunk].iter().enumerate() {
            let (mut ops, mut tensors) = (Set::EMPTY, Set::EMPTY);
            for group in on.iter().zip(&groups[chunk]).filter(|(on, g)| **on && g.layer == at).map(|(_, g)| g)
            {
                ops |= group.ops;
                tensors |= group.tensors;
                for tensor in group.tensors.iter() {
                    let bytes = self.bytes(layer, tensor);
                    let ns = copy_out.ns(bytes).saturating_add(copy_in.ns(bytes));
                    unit.copies_ns = unit.copies_ns.saturating_add(ns);
                    unit.host_bytes = unit.host_bytes.saturating_add(bytes);
                }
            }
            let others = Set::first(layer.ops.len()) - ops;
            unit.tensors[at] = tensors - saved(layer, recomputed, others);
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

/// What `ops` save, inputs of checkpoints among them included.
fn saved(layer: &LayerType, recomputed: &Recomputed, ops: Set) -> Set {
    let own = ops.iter().fold(Set::EMPTY, |set, op| set | layer.ops[op].saves);
    let inputs = recomputed.inputs.iter().filter(|(op, _)| ops.contains(*op));
    inputs.fold(own, |set, (_, inputs)| set | *inputs)
}
