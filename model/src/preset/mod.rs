//! Models by name: the paper's Table II with its parallelism, and public models.

mod public;
mod table_ii;

use crate::assumptions::VOCAB_MULTIPLE;
use crate::{
    Activation, Attention, Libraries, Loss, ModelConfig, ModelError, MoeConfig, MoeLayers, Norm, Parallelism,
    PermuteIndices, Rotary, RouterInput,
};

/// A model with the parallelism that it is published with, or one that fits it.
#[derive(Clone, Debug)]
pub struct Preset {
    /// Its shape.
    pub config: ModelConfig,
    /// Its distribution.
    pub parallelism: Parallelism,
}

/// Names of the model presets.
pub const MODELS: [&str; 22] = [
    "glm-188b-a20b",
    "glm-319b-a30b",
    "glm-423b-a30b",
    "glm-629b-a30b",
    "glm-783b-a35b",
    "glm-835b-a30b",
    "glm-1041b-a35b",
    "mixtral-8x7b",
    "qwen3-30b-a3b",
    "deepseek-v2",
    "deepseek-v2-lite",
    "deepseek-v3",
    "mixtral-8x22b",
    "qwen2-57b-a14b",
    "qwen3-235b-a22b",
    "glm-4.5",
    "glm-4.5-air",
    "kimi-k2",
    "olmoe-1b-7b",
    "moonlight-16b-a3b",
    "gpt-oss-20b",
    "gpt-oss-120b",
];

impl Preset {
    /// The preset called `name`, or that a Hugging Face id stands for; `gpus` chooses where a name stands in two rows of Table II and otherwise
    /// must be a number of GPUs that the parallelism divides.
    pub fn named(name: &str, gpus: Option<u64>) -> Result<Self, ModelError> {
        let preset =
            table_ii::preset(name, gpus).or_else(|| public::preset(Self::of_id(name).unwrap_or(name)));
        let mut preset = preset.ok_or_else(|| ModelError::NoSuchName {
            field: "model",
            value: name.to_owned(),
            known: MODELS.join(", "),
        })?;
        if let Some(gpus) = gpus {
            let micro_batches = preset.parallelism.micro_batches();
            preset.parallelism.gpus = gpus;
            preset.parallelism.repeat(micro_batches);
        }
        Ok(preset)
    }

    /// The name of the preset that a Hugging Face id stands for, be it the published id, a later version of
    /// the same shape or a folder of that name.
    pub fn of_id(id: &str) -> Option<&'static str> {
        public::name_of_id(id)
    }
}

impl Parallelism {
    /// Sets the global batch to so many micro-batches on each data-parallel rank.
    pub fn repeat(&mut self, micro_batches: u64) {
        self.global_batch = micro_batches.saturating_mul(self.micro_batch).saturating_mul(self.dp());
    }
}

/// All presets have experts.
const GROUPED: Libraries = Libraries { transformer_engine: true, grouped_gemm: true };

fn moe(experts: u64, top_k: u64, ffn: u64) -> MoeConfig {
    MoeConfig {
        experts,
        top_k,
        ffn,
        shared_ffn: 0,
        layers: MoeLayers::AfterDense(0),
        permute_indices: PermuteIndices::default(),
        router_input: RouterInput::default(),
        latent: 0,
        shared_gate: false,
        capacity: None,
    }
}

/// What the presets have in common: RMSNorm, SwiGLU, flash attention, no bias, no dropout, untied.
fn decoder() -> ModelConfig {
    ModelConfig {
        layers: 1,
        hidden: 1,
        heads: 1,
        kv_groups: 1,
        head_dim: 1,
        ffn: 1,
        moe: None,
        vocab: 1,
        seq: 1,
        norm: Norm::RmsNorm,
        qk_norm: false,
        activation: Activation::SwiGlu,
        fused_activation: true,
        attention: Attention::Flash,
        hidden_dropout: false,
        attention_dropout: false,
        tied_embeddings: false,
        bias: false,
        position_rows: 0,
        rotary: Rotary::Fused,
        qkv_bias: false,
        mla: None,
        mtp_layers: 0,
        loss: Loss::default(),
        vocab_multiple: VOCAB_MULTIPLE,
    }
}
