//! What Megatron's recomputation drops of a layer, and what runs again when.
//!
//! - `CheckpointFunction` (`tensor_parallel/random.py`) keeps a module's inputs and drops what is saved inside;
//!   its output stays where somebody outside saved it. It runs again ahead of its own backward. `full`,
//!   `core_attn`, `mlp`, `moe` and `shared_experts` are so.
//! - `CheckpointWithoutOutput` drops the output's storage too, and runs again ahead of the backward of what
//!   read it: `layernorm`, `mla_up_proj` and `moe_act`.

use std::ops::Range;

use bagualu_core::set::Set;

use super::modules::Parts;
use super::{ActivationSettings, Method, Recompute, RecomputeModule};
use crate::LayerType;
use crate::layer::fp8::is_cast;

/// Operators that run again together.
#[derive(Clone, Debug)]
pub(super) struct Replay {
    /// The operators.
    pub ops: Set,
    /// What their first run does not leave behind.
    pub dropped: Set,
    /// It runs ahead of this operator's backward.
    pub before: usize,
}

/// What recomputation makes of one layer.
#[derive(Clone, Debug, Default)]
pub(super) struct Recomputed {
    /// In the order in which they run where they meet; an outer one before what is inside it.
    pub replays: Vec<Replay>,
    /// For each replay, the inputs that it saves.
    pub inputs: Vec<(usize, Set)>,
}

impl Recomputed {
    /// Everything dropped.
    pub fn dropped(&self) -> Set {
        self.replays.iter().fold(Set::EMPTY, |set, replay| set | replay.dropped)
    }

    /// A layer under selective recomputation.
    pub fn selective(layer: &LayerType, modules: &[RecomputeModule], transformer_engine: bool) -> Self {
        let parts = Parts::new(layer, transformer_engine);
        let mut recomputed = Self::default();
        if !parts.is_transformer() {
            return recomputed;
        }
        for module in modules {
            match module {
                RecomputeModule::CoreAttn => recomputed.checkpoint(layer, parts.core_attention()),
                RecomputeModule::Mlp => recomputed.checkpoint(layer, parts.mlp()),
                RecomputeModule::Moe => recomputed.checkpoint(layer, parts.moe()),
                RecomputeModule::SharedExperts => recomputed.checkpoint(layer, parts.shared_expert()),
                RecomputeModule::MoeAct => {
                    let before = layer.op("fc2").unwrap_or_default();
                    recomputed.without_output(layer, parts.expert_activation(), before);
                }
                RecomputeModule::MlaUpProj => {
                    let before = parts.core_attention().last().unwrap_or_default();
                    recomputed.without_output(layer, parts.up_projections(), before);
                }
                RecomputeModule::Layernorm => {
                    let before = layer.op("proj").unwrap_or_default();
                    recomputed.without_output(layer, parts.attention_norm(), before);
                    let before = layer.op("mlp_add").unwrap_or_default().saturating_sub(1);
                    recomputed.without_output(layer, parts.mlp_norm(), before);
                }
            }
        }
        recomputed.replays.sort_by_key(|replay| (first(replay.ops), usize::MAX - replay.ops.len()));
        recomputed
    }

    /// A layer that runs again as a whole; what comes from outside is kept where it is the first of its unit.
    pub fn full(layer: &LayerType, first: bool) -> Self {
        // The embedding of a depth of multi-token prediction is looked up before its unit.
        let lookup = layer.op("embedding").map_or(Set::EMPTY, Set::one);
        let all = Set::first(layer.ops.len()) - lookup;
        let made = all.iter().fold(Set::EMPTY, |made, op| made | layer.ops[op].makes);
        let held = saved(layer) | inputs(layer);
        let dropped = if first { held & made } else { held };
        let before = all.last().unwrap_or_default();
        Self { replays: vec![Replay { ops: all, dropped, before }], inputs: Vec::new() }
    }

    /// Megatron's `CheckpointFunction` around `ops`.
    fn checkpoint(&mut self, layer: &LayerType, ops: Set) {
        let kept = saves(layer, Set::first(layer.ops.len()) - ops);
        let before = ops.last().unwrap_or_default();
        self.add(layer, ops, before, kept);
    }

    /// Megatron's `CheckpointWithoutOutput` around `ops`.
    ///
    /// In FP8 training Megatron has what reads the output save it itself, so that nothing of it stays: the
    /// casts to FP8 run again too.
    fn without_output(&mut self, layer: &LayerType, ops: Set, before: usize) {
        let made = ops.iter().fold(Set::EMPTY, |made, op| made | layer.ops[op].makes);
        let casts = (0..layer.ops.len())
            .filter(|&op| is_cast(layer.op_names[op]) && layer.ops[op].reads.is_subset(made));
        let ops = if ops.is_empty() { ops } else { ops | casts.collect::<Set>() };
        self.add(layer, ops, before, Set::EMPTY);
    }

    fn add(&mut self, layer: &LayerType, ops: Set, before: usize, kept: Set) {
        if ops.is_empty() {
            return;
        }
        let made = ops.iter().fold(Set::EMPTY, |made, op| made | layer.ops[op].makes);
        let read = ops.iter().fold(Set::EMPTY, |read, op| read | layer.ops[op].reads);
        let held = saved(layer) | inputs(layer);
        self.inputs.push((first(ops), read - made));
        self.replays.push(Replay { ops, dropped: (made & held) - kept, before });
    }
}

fn first(ops: Set) -> usize {
    ops.iter().next().unwrap_or_default()
}

/// What is kept whatever is recomputed by our own plans; Megatron makes some of it again.
fn inputs(layer: &LayerType) -> Set {
    (0..layer.tensors.len()).filter(|&tensor| layer.tensors[tensor].block_input).collect()
}

/// What somebody saves.
fn saved(layer: &LayerType) -> Set {
    saves(layer, Set::first(layer.ops.len()))
}

fn saves(layer: &LayerType, ops: Set) -> Set {
    ops.iter().fold(Set::EMPTY, |set, op| set | layer.ops[op].saves)
}

/// The units that a virtual stage's transformer layers run again as, as ranges of positions among them.
/// Megatron counts the layers of each virtual stage on their own (`recompute.py`, `transformer_block.py`).
pub(super) fn full_units(settings: &ActivationSettings, layers: usize) -> Vec<Range<usize>> {
    let Recompute::Full { method, layers: count } = settings.recompute else { return Vec::new() };
    let count = (count as usize).max(1);
    match method {
        Method::Uniform => {
            (0..layers).step_by(count).map(|first| first..(first + count).min(layers)).collect()
        }
        Method::Block => (0..count.min(layers)).map(|layer| layer..layer + 1).collect(),
    }
}
