//! Megatron's names for parts of a layer, and the operators that each stands for.

use std::fmt;
use std::ops::Range;

use bagualu_core::set::Set;

use crate::LayerType;

/// What `--recompute-modules` may name.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum RecomputeModule {
    /// Core attention.
    CoreAttn,
    /// The experts' activation.
    MoeAct,
    /// Norms before attention and MLP, where they are modules of their own.
    Layernorm,
    /// MLA's projections from the latents to queries, keys and values.
    MlaUpProj,
    /// The dense MLP.
    Mlp,
    /// The whole MoE layer: router, dispatch, experts, combine and shared expert.
    Moe,
    /// The shared expert.
    SharedExperts,
}

impl RecomputeModule {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::CoreAttn,
        Self::MoeAct,
        Self::Layernorm,
        Self::MlaUpProj,
        Self::Mlp,
        Self::Moe,
        Self::SharedExperts,
    ];

    /// Megatron's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::CoreAttn => "core_attn",
            Self::MoeAct => "moe_act",
            Self::Layernorm => "layernorm",
            Self::MlaUpProj => "mla_up_proj",
            Self::Mlp => "mlp",
            Self::Moe => "moe",
            Self::SharedExperts => "shared_experts",
        }
    }
}

impl fmt::Display for RecomputeModule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What `--offload-modules` may name, in the order in which a layer runs them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum OffloadModule {
    /// The norm before attention, where it is a module of its own.
    AttnNorm,
    /// From there to queries, keys and values.
    QkvLinear,
    /// Core attention.
    CoreAttn,
    /// Attention's output projection.
    AttnProj,
    /// The norm before the MLP, where it is a module of its own.
    MlpNorm,
    /// The experts' first linear layer.
    ExpertFc1,
    /// The experts' activation.
    MoeAct,
    /// The experts as one fused module.
    FusedGroupMlp,
}

impl OffloadModule {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::AttnNorm,
        Self::QkvLinear,
        Self::CoreAttn,
        Self::AttnProj,
        Self::MlpNorm,
        Self::ExpertFc1,
        Self::MoeAct,
        Self::FusedGroupMlp,
    ];

    /// Megatron's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::AttnNorm => "attn_norm",
            Self::QkvLinear => "qkv_linear",
            Self::CoreAttn => "core_attn",
            Self::AttnProj => "attn_proj",
            Self::MlpNorm => "mlp_norm",
            Self::ExpertFc1 => "expert_fc1",
            Self::MoeAct => "moe_act",
            Self::FusedGroupMlp => "fused_group_mlp",
        }
    }
}

impl fmt::Display for OffloadModule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Where the modules of one layer type are among its operators. Empty where it has no such module.
pub(super) struct Parts<'a> {
    layer: &'a LayerType,
    /// Whether norms are part of the linear layer behind them.
    fused_norms: bool,
}

impl<'a> Parts<'a> {
    pub fn new(layer: &'a LayerType, transformer_engine: bool) -> Self {
        Self { layer, fused_norms: transformer_engine }
    }

    /// Whether it is a transformer layer.
    pub fn is_transformer(&self) -> bool {
        self.layer.op("core_attention").is_some()
    }

    /// The norm before attention. Megatron leaves it a module in front of MLA, whose down-projections read it
    /// twice.
    pub fn attention_norm(&self) -> Range<usize> {
        let fused = self.fused_norms && self.latents().is_empty();
        if fused { 0..0 } else { self.named("ln1") }
    }

    /// Queries, keys and values, with the norm that is fused into their projection.
    pub fn qkv(&self) -> Range<usize> {
        let norm = self.named("ln1");
        let first = if self.attention_norm().is_empty() { norm.start } else { norm.end };
        first..self.core_attention().start.max(first)
    }

    /// MLA's projections from the latents, with the norms that are fused into them.
    pub fn up_projections(&self) -> Range<usize> {
        let latents = self.latents();
        if latents.is_empty() { 0..0 } else { latents.end..self.core_attention().start }
    }

    /// Core attention.
    pub fn core_attention(&self) -> Range<usize> {
        let last = self.named("core_attention");
        let first = self.layer.op("attention_scores").unwrap_or(last.start);
        first..last.end
    }

    /// Attention's output projection.
    pub fn projection(&self) -> Range<usize> {
        self.named("proj")
    }

    /// The norm before the MLP. Before a router it is a module in any case.
    pub fn mlp_norm(&self) -> Range<usize> {
        if self.fused_norms && !self.layer.routed { 0..0 } else { self.named("ln2") }
    }

    /// The dense MLP, with the norm that is fused into it.
    pub fn mlp(&self) -> Range<usize> {
        if self.layer.routed { 0..0 } else { self.behind_attention() }
    }

    /// The MoE layer, shared expert included.
    pub fn moe(&self) -> Range<usize> {
        if self.layer.routed { self.behind_attention() } else { 0..0 }
    }

    /// The shared expert.
    pub fn shared_expert(&self) -> Range<usize> {
        self.span(|name| name.starts_with("shared_"))
    }

    /// The experts' first linear layer.
    pub fn expert_fc1(&self) -> Range<usize> {
        if self.layer.routed { self.named("fc1") } else { 0..0 }
    }

    /// The experts' activation.
    pub fn expert_activation(&self) -> Range<usize> {
        if self.layer.routed { self.named("act") } else { 0..0 }
    }

    /// All of the experts' own operators.
    pub fn experts(&self) -> Range<usize> {
        let ops = self.layer.experts;
        ops.iter().next().map_or(0..0, |first| first..ops.last().map_or(first, |last| last + 1))
    }

    /// The operators whose saved tensors `module` offloads.
    pub fn offloaded(&self, module: OffloadModule) -> Range<usize> {
        match module {
            OffloadModule::AttnNorm => self.attention_norm(),
            OffloadModule::QkvLinear => self.qkv(),
            OffloadModule::CoreAttn => self.core_attention(),
            OffloadModule::AttnProj => self.projection(),
            OffloadModule::MlpNorm => self.mlp_norm(),
            OffloadModule::ExpertFc1 => self.expert_fc1(),
            OffloadModule::MoeAct => self.expert_activation(),
            OffloadModule::FusedGroupMlp => self.experts(),
        }
    }

    /// MLA's projections to the latents.
    fn latents(&self) -> Range<usize> {
        self.span(|name| name.ends_with("_down"))
    }

    fn behind_attention(&self) -> Range<usize> {
        let norm = self.named("ln2");
        let first = if self.mlp_norm().is_empty() { norm.start } else { norm.end };
        first..self.named("mlp_add").start.max(first)
    }

    fn named(&self, name: &str) -> Range<usize> {
        self.span(|op| op == name)
    }

    /// From the first to the last operator whose name is so.
    fn span(&self, is: impl Fn(&str) -> bool) -> Range<usize> {
        let names = &self.layer.op_names;
        let first = names.iter().position(|name| is(name));
        let last = names.iter().rposition(|name| is(name));
        first.zip(last).map_or(0..0, |(first, last)| first..last + 1)
    }
}

/// The operators of a range.
pub(super) fn set(ops: &Range<usize>) -> Set {
    Set::first(ops.end) - Set::first(ops.start)
}
