//! Small models for the tests.

use bagualu_model::{
    Activation, Attention, Device, Loss, Model, ModelConfig, MoeConfig, MoeLayers, Norm, Parallelism,
    PermuteIndices, Rotary, RouterInput,
};

/// A one-layer model with h = 32, 2 of 4 experts of f = 48, and 64 tokens: the shape that Megatron's saved
/// tensors were counted with.
pub fn small() -> ModelConfig {
    ModelConfig {
        layers: 1,
        hidden: 32,
        heads: 4,
        kv_groups: 4,
        head_dim: 8,
        ffn: 48,
        moe: Some(MoeConfig {
            experts: 4,
            top_k: 2,
            ffn: 48,
            shared_ffn: 0,
            layers: MoeLayers::AfterDense(0),
            permute_indices: PermuteIndices::default(),
            router_input: RouterInput::default(),
            latent: 0,
            shared_gate: false,
            capacity: None,
        }),
        vocab: 1_000,
        seq: 32,
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
        vocab_multiple: 128,
    }
}

/// Two sequences of [`small`] on one device: T = 64.
pub fn alone() -> Parallelism {
    Parallelism { micro_batch: 2, global_batch: 2, ..Parallelism::default() }
}

pub fn device() -> Device {
    Device::named("dcu-64g").expect("a preset")
}

pub fn build(config: &ModelConfig, parallelism: &Parallelism) -> Model {
    Model::new(config, parallelism, &device()).unwrap_or_else(|error| panic!("{error}"))
}
