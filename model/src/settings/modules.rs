//! Megatron's names for parts of a layer, and the operators that each stands for.

use std::fmt;

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

/// The operators of the modules of one layer type. Empty where it has no such module.
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

    /// The norm before attention. It stays a module in front of MLA, whose projections down both read it.
    pub fn attention_norm(&self) -> Set {
        let latents = self.layer.op("kv_down").is_some();
        if self.fused_norms && !latents { Set::EMPTY } else { self.named(&["ln1"]) }
    }

    /// Queries, keys and values, with the norm that is fused into their projection.
    pub fn qkv(&self) -> Set {
        let before = self.core_attention().iter().next().unwrap_or(0);
        Set::first(before) - self.attention_norm()
    }

    /// MLA's projections to heads, with the norms that are fused into them.
    pub fn up_projections(&self) -> Set {
        let norms: &[_] = if self.fused_norms { &["q_norm", "kv_norm"] } else { &[] };
        match self.layer.op("kv_up") {
            Some(_) => self.named(&["q_proj", "q_up", "kv_up"]) | self.named(norms),
            None => Set::EMPTY,
        }
    }

    /// Core attention; the unfused one repeats keys and values inside.
    pub fn core_attention(&self) -> Set {
        self.named(&["expand_groups", "attention_scores", "attention_dropout", "core_attention"])
    }

    /// Attention's output projection.
    pub fn projection(&self) -> Set {
        self.named(&["proj"])
    }

    /// The norm before the MLP. Before a router it is a module in any case.
    pub fn mlp_norm(&self) -> Set {
        if self.fused_norms && !self.layer.routed { Set::EMPTY } else { self.named(&["ln2"]) }
    }

    /// The dense MLP, with the norm that is fused into it.
    pub fn mlp(&self) -> Set {
        if self.layer.routed { Set::EMPTY } else { self.behind_attention() }
    }

    /// The MoE layer, shared expert included.
    pub fn moe(&self) -> Set {
        if self.layer.routed { self.behind_attention() } else { Set::EMPTY }
    }

    /// The shared expert.
    pub fn shared_expert(&self) -> Set {
        let names = self.layer.op_names.iter().enumerate();
        names.filter(|(_, name)| name.starts_with("shared_")).map(|(op, _)| op).collect()
    }

    /// The experts' first linear layer.
    pub fn expert_fc1(&self) -> Set {
        self.layer.experts & self.named(&["fc1"])
    }

    /// The experts' activation.
    pub fn expert_activation(&self) -> Set {
        self.layer.experts & self.named(&["act"])
    }

    /// The operators whose saved tensors `module` offloads.
    pub fn offloaded(&self, module: OffloadModule) -> Set {
        match module {
            OffloadModule::AttnNorm => self.attention_norm(),
            OffloadModule::QkvLinear => self.qkv(),
            OffloadModule::CoreAttn => self.core_attention(),
            OffloadModule::AttnProj => self.projection(),
            OffloadModule::MlpNorm => self.mlp_norm(),
            OffloadModule::ExpertFc1 => self.expert_fc1(),
            OffloadModule::MoeAct => self.expert_activation(),
            OffloadModule::FusedGroupMlp => self.layer.experts,
        }
    }

    /// From the norm before the MLP, where it is fused, to the addition of the residual.
    fn behind_attention(&self) -> Set {
        let (first, end) = (self.layer.op("ln2").unwrap_or(0), self.layer.op("mlp_add").unwrap_or(0));
        Set::first(end) - Set::first(first) - self.mlp_norm()
    }

    fn named(&self, names: &[&str]) -> Set {
        names.iter().filter_map(|name| self.layer.op(name)).collect()
    }
}
