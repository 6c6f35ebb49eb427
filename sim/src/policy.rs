//! Static policies: what Megatron does without us, the same for every micro-batch.

use core::fmt;
use core::str::FromStr;

use bagualu_core::layer::LayerPlan;
use bagualu_core::set::Set;
use bagualu_model::LayerType;

use crate::executor::Recovery;

/// A static policy.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub enum Static {
    /// Everything is kept.
    None,
    /// `--recompute-granularity selective --recompute-modules core_attn layernorm moe_act`, Megatron's
    /// finest that re-runs no collective: what these modules save is dropped, each comes back when its own
    /// backward needs it (`core/transformer/transformer_config.py`, `core/tensor_parallel/random.py`).
    Selective,
    /// `--recompute-granularity full --recompute-method uniform --recompute-num-layers 1`: a transformer
    /// layer keeps its block inputs and runs again as a whole before its backward
    /// (`core/recompute.py`). Embedding and output layer keep what they save.
    Full,
}

impl Static {
    /// All, from most to least memory.
    pub const ALL: [Self; 3] = [Self::None, Self::Selective, Self::Full];

    /// The name on the command line.
    pub const fn name(self) -> &'static str {
        ["none", "selective", "full"][self as usize]
    }

    /// The strategies for a layer; `transformer` is false for embedding and output layer.
    pub(crate) fn plan(self, layer: &LayerType, transformer: bool) -> LayerPlan {
        let recompute = match self {
            Self::None => Set::EMPTY,
            Self::Selective => SELECTIVE.iter().filter_map(|name| layer.tensor(name)).collect(),
            Self::Full if transformer => layer.ops.iter().fold(Set::EMPTY, |all, op| all | op.saves),
            Self::Full => Set::EMPTY,
        };
        let inputs: Set = (0..layer.tensors.len()).filter(|&t| layer.tensors[t].block_input).collect();
        LayerPlan { recompute: recompute - inputs, ..LayerPlan::KEEP }
    }

    pub(crate) const fn recovery(self) -> Recovery {
        match self {
            Self::Full => Recovery::Layer,
            _ => Recovery::Operator,
        }
    }
}

/// What the modules of [`Static::Selective`] drop: core attention all but its inputs and the output that
/// the projection keeps anyway; the norms' outputs and statistics; the experts' activation.
pub(crate) const SELECTIVE: [&str; 9] = [
    "attn_lse",
    "attn_probs",
    "attn_probs_mask",
    "attn_probs_dropped",
    "ln1_out",
    "ln1_stats",
    "ln2_out",
    "ln2_stats",
    "act_out",
];

impl FromStr for Static {
    type Err = UnknownPolicy;

    fn from_str(text: &str) -> Result<Self, UnknownPolicy> {
        let known = Self::ALL.into_iter().find(|policy| policy.name() == text);
        known.ok_or_else(|| UnknownPolicy { name: text.to_owned() })
    }
}

/// No static policy has this name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnknownPolicy {
    /// The name.
    pub name: String,
}

impl fmt::Display for UnknownPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\" is no static policy; there are none, selective and full", self.name)
    }
}

impl core::error::Error for UnknownPolicy {}
