//! Where Megatron saves each tensor of the layer tables: a file under `megatron/` and the module or
//! function in it (Megatron-core 0.14 to main).

use super::LayerType;

/// Saved tensors by name, or by `layer type.name` where the name alone would mislead.
#[rustfmt::skip]
const SAVED_IN: &[(&str, &str)] = &[
    ("input", "core/transformer/transformer_layer.py: input_layernorm"),
    ("rng_state", "core/tensor_parallel/random.py: CheckpointFunction"),
    ("ln1_stats", "core/transformer/transformer_layer.py: input_layernorm"),
    ("ln1_out", "core/transformer/attention.py: linear_qkv"),
    ("qkv_linear", "core/transformer/attention.py: q_layernorm, k_layernorm"),
    ("qk_stats", "core/transformer/attention.py: q_layernorm, k_layernorm"),
    ("qkv", "core/transformer/attention.py: core_attention"),
    ("query_linear", "core/transformer/attention.py: q_layernorm"),
    ("rotary_tables", "core/models/common/embeddings/rope_utils.py: apply_rotary_pos_emb"),
    ("query_tables", "core/models/common/embeddings/rope_utils.py: apply_rotary_pos_emb"),
    ("key_tables", "core/models/common/embeddings/rope_utils.py: apply_rotary_pos_emb"),
    ("q_latent", "core/transformer/multi_latent_attention.py: q_layernorm, linear_q_up_proj"),
    ("q_norm_stats", "core/transformer/multi_latent_attention.py: q_layernorm"),
    ("q_norm_out", "core/transformer/multi_latent_attention.py: linear_q_up_proj"),
    ("kv_latent", "core/transformer/multi_latent_attention.py: kv_layernorm, linear_kv_up_proj"),
    ("kv_norm_stats", "core/transformer/multi_latent_attention.py: kv_layernorm"),
    ("kv_norm_out", "core/transformer/multi_latent_attention.py: linear_kv_up_proj"),
    ("query", "core/transformer/attention.py: core_attention"),
    ("key_value", "core/transformer/multi_latent_attention.py: core_attention"),
    ("query_key", "core/transformer/dot_product_attention.py: forward"),
    ("key_value_expanded", "core/transformer/dot_product_attention.py: forward"),
    ("attn_lse", "core/transformer/attention.py: core_attention"),
    ("attn_probs", "core/transformer/dot_product_attention.py: scale_mask_softmax"),
    ("attn_probs_mask", "core/transformer/dot_product_attention.py: attention_dropout"),
    ("attn_probs_dropped", "core/transformer/dot_product_attention.py: attention_dropout"),
    ("attn_out", "core/transformer/attention.py: core_attention, linear_proj"),
    ("attn_residual", "core/transformer/transformer_layer.py: pre_mlp_layernorm"),
    ("attn_mask", "core/fusions/fused_bias_dropout.py: self_attn_bda"),
    ("ln2_stats", "core/transformer/transformer_layer.py: pre_mlp_layernorm"),
    ("ln2_out", "core/transformer/moe/router.py: gating"),
    ("dense.ln2_out", "core/transformer/mlp.py: linear_fc1"),
    ("mlp_mask", "core/fusions/fused_bias_dropout.py: mlp_bda"),
    ("fc1_out", "core/transformer/moe/experts.py: activation_func"),
    ("act_gate", "core/transformer/moe/experts.py: activation_func"),
    ("act_linear", "core/transformer/moe/experts.py: activation_func"),
    ("act_unweighted", "core/transformer/moe/experts.py: activation_func"),
    ("act_out", "core/transformer/moe/experts.py: linear_fc2"),
    ("dense.fc1_out", "core/transformer/mlp.py: activation_func"),
    ("dense.act_gate", "core/transformer/mlp.py: activation_func"),
    ("dense.act_linear", "core/transformer/mlp.py: activation_func"),
    ("dense.act_out", "core/transformer/mlp.py: linear_fc2"),
    ("shared_fc1_out", "core/transformer/moe/shared_experts.py: activation_func"),
    ("shared_act_gate", "core/transformer/moe/shared_experts.py: activation_func"),
    ("shared_act_linear", "core/transformer/moe/shared_experts.py: activation_func"),
    ("shared_act_out", "core/transformer/moe/shared_experts.py: linear_fc2"),
    ("shared_out", "core/transformer/moe/shared_experts.py: gate_weight"),
    ("shared_gate_score", "core/transformer/moe/shared_experts.py: gate_weight"),
    ("moe_out", "core/transformer/moe/moe_layer.py: fc2_latent_proj"),
    ("router_input", "core/transformer/moe/router.py: gating"),
    ("router_scores", "core/transformer/moe/router.py: routing"),
    ("top_k", "core/transformer/moe/router.py: routing"),
    ("routing_map", "core/transformer/moe/token_dispatcher.py: dispatch_preprocess"),
    ("permute_indices", "core/transformer/moe/moe_utils.py: permute, unpermute"),
    ("expert_input", "core/transformer/moe/experts.py: linear_fc1"),
    ("expert_probs", "core/transformer/moe/experts.py: activation_func"),
    ("tokens", "core/models/common/embeddings/language_model_embedding.py: word_embeddings"),
    ("embedding_mask", "core/models/common/embeddings/language_model_embedding.py: embedding_dropout"),
    ("output.input", "core/transformer/transformer_block.py: final_layernorm"),
    ("final_norm_stats", "core/transformer/transformer_block.py: final_layernorm"),
    ("final_norm_out", "core/models/gpt/gpt_model.py: output_layer"),
    ("mtp.input", "core/transformer/multi_token_prediction.py: hnorm"),
    ("mtp.embedding_out", "core/transformer/multi_token_prediction.py: enorm"),
    ("enorm_stats", "core/transformer/multi_token_prediction.py: enorm"),
    ("hnorm_stats", "core/transformer/multi_token_prediction.py: hnorm"),
    ("mtp_hidden_others", "core/transformer/multi_token_prediction.py: scatter_to_sequence_parallel_region"),
    ("eh_input", "core/transformer/multi_token_prediction.py: eh_proj"),
    ("final_norm.input", "core/transformer/multi_token_prediction.py: final_layernorm"),
    ("head.input", "core/models/gpt/gpt_model.py: output_layer"),
    ("loss_gradient", "core/extensions/transformer_engine.py: te_parallel_cross_entropy"),
    ("loss", "core/extensions/transformer_engine.py: te_parallel_cross_entropy"),
    ("loss_softmax", "core/tensor_parallel/cross_entropy.py: vocab_parallel_cross_entropy"),
    ("loss_target", "core/tensor_parallel/cross_entropy.py: vocab_parallel_cross_entropy"),
];

impl LayerType {
    /// Where Megatron saves a tensor, as `core/transformer/attention.py: linear_qkv`; `None` for one that
    /// nobody saves.
    pub fn saved_in(&self, tensor: usize) -> Option<&'static str> {
        let name = *self.tensor_names.get(tensor)?;
        let place = |key: &str| SAVED_IN.iter().find(|(k, _)| *k == key).map(|(_, place)| *place);
        place(&format!("{}.{name}", self.name)).or_else(|| place(name))
    }
}
