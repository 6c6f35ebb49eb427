//! Shapes and distribution to flags.

use crate::{
    Activation, Attention, Fp8Recipe, GradientType, Layout, Loss, ModelConfig, Norm, Parallelism, Precision,
};

/// The flags that read back as `config` on `parallelism`; the number of devices, and what permutation and
/// router keep, have none.
pub fn to_flags(config: &ModelConfig, parallelism: &Parallelism) -> Vec<String> {
    let mut flags = Vec::new();
    let mut value = |name: &str, value: String| flags.extend([name.to_owned(), value]);
    let probability = |on: bool| if on { "0.1" } else { "0" }.to_owned();
    value("--num-layers", config.layers.to_string());
    value("--hidden-size", config.hidden.to_string());
    value("--num-attention-heads", config.heads.to_string());
    value("--num-query-groups", config.kv_groups.to_string());
    value("--kv-channels", config.head_dim.to_string());
    value("--ffn-hidden-size", config.ffn.to_string());
    value("--vocab-size", config.vocab.to_string());
    value("--seq-length", config.seq.to_string());
    value("--hidden-dropout", probability(config.hidden_dropout));
    value("--attention-dropout", probability(config.attention_dropout));
    value(
        "--normalization",
        match config.norm {
            Norm::RmsNorm => "RMSNorm".to_owned(),
            Norm::LayerNorm => "LayerNorm".to_owned(),
        },
    );
    value(
        "--attention-backend",
        match config.attention {
            Attention::Flash => "flash".to_owned(),
            Attention::Unfused => "unfused".to_owned(),
        },
    );
    match config.position_rows {
        0 => value("--position-embedding-type", "rope".to_owned()),
        rows => value("--max-position-embeddings", rows.to_string()),
    }
    if let Some(moe) = &config.moe {
        value("--num-experts", moe.experts.to_string());
        value("--moe-router-topk", moe.top_k.to_string());
        value("--moe-ffn-hidden-size", moe.ffn.to_string());
        value("--moe-shared-expert-intermediate-size", moe.shared_ffn.to_string());
        let layers: Vec<_> = (0..config.layers).map(|l| u8::from(config.is_moe(l)).to_string()).collect();
        value("--moe-layer-freq", format!("[{}]", layers.join(",")));
    }
    if let Some(moe) = &config.moe {
        value("--moe-token-dispatcher-type", "alltoall".to_owned());
        value("--moe-latent-size", moe.latent.to_string());
        if let Some(capacity) = moe.capacity {
            let factor = f64::from(capacity.factor_permille) / 1_000.0;
            value("--moe-expert-capacity-factor", factor.to_string());
        }
    }
    if let Some(mla) = &config.mla {
        value("--q-lora-rank", mla.q_lora_rank.to_string());
        value("--kv-lora-rank", mla.kv_lora_rank.to_string());
        value("--qk-head-dim", mla.qk_head_dim.to_string());
        value("--qk-pos-emb-head-dim", mla.qk_rope_dim.to_string());
        value("--v-head-dim", mla.v_head_dim.to_string());
    }
    value("--mtp-num-layers", config.mtp_layers.to_string());
    value("--make-vocab-size-divisible-by", config.vocab_multiple.to_string());
    if config.loss == Loss::TransformerEngine {
        value("--cross-entropy-fusion-impl", "te".to_owned());
    }
    value("--tensor-model-parallel-size", parallelism.tp.to_string());
    value("--context-parallel-size", parallelism.cp.to_string());
    value("--expert-model-parallel-size", parallelism.ep.to_string());
    value("--expert-tensor-parallel-size", parallelism.etp.to_string());
    value("--pipeline-model-parallel-size", parallelism.pp.to_string());
    value("--num-virtual-stages-per-pipeline-rank", parallelism.chunks.to_string());
    value("--microbatch-group-size-per-virtual-pipeline-stage", parallelism.group_size.to_string());
    value("--micro-batch-size", parallelism.micro_batch.to_string());
    value("--global-batch-size", parallelism.global_batch.to_string());
    distribution(parallelism, &mut value);
    let optimizer = parallelism.optimizer;
    let narrow = [optimizer.main_bytes, optimizer.first_moment_bytes, optimizer.second_moment_bytes]
        .iter()
        .any(|bytes| matches!(bytes, 1 | 2));
    let capacity = config.moe.as_ref().and_then(|moe| moe.capacity);
    let switches = [
        ("--group-query-attention", true),
        ("--qk-layernorm", config.qk_norm),
        ("--swiglu", config.activation == Activation::SwiGlu),
        (
            match config.activation {
                Activation::SwiGlu => "--no-bias-swiglu-fusion",
                Activation::Gelu => "--no-bias-gelu-fusion",
            },
            !config.fused_activation,
        ),
        ("--untie-embeddings-and-output-weights", !config.tied_embeddings),
        ("--disable-bias-linear", !config.bias),
        ("--add-qkv-bias", config.qkv_bias),
        ("--multi-latent-attention", config.mla.is_some()),
        ("--cross-entropy-loss-fusion", config.loss != Loss::Unfused),
        ("--moe-shared-expert-gate", config.moe.as_ref().is_some_and(|moe| moe.shared_gate)),
        ("--moe-pad-expert-input-to-capacity", capacity.is_some_and(|capacity| capacity.pad)),
        ("--use-precision-aware-optimizer", narrow),
        ("--optimizer-cpu-offload", parallelism.optimizer.host_permille > 0),
        ("--fp8-param-gather", parallelism.fp8.is_some_and(|fp8| fp8.parameters)),
        ("--activation-func-fp8-input-store", parallelism.fp8_activation_store),
        (
            "--account-for-embedding-in-pipeline-split",
            parallelism.layout == EMBEDDING || parallelism.layout == BOTH,
        ),
        ("--account-for-loss-in-pipeline-split", parallelism.layout == LOSS || parallelism.layout == BOTH),
        ("--sequence-parallel", parallelism.sequence_parallel),
        ("--overlap-moe-expert-parallel-comm", parallelism.overlap_ep),
        ("--bf16", parallelism.precision == Precision::Bf16),
        ("--grad-reduce-in-bf16", parallelism.gradients == GradientType::Bf16),
        ("--use-distributed-optimizer", parallelism.distributed_optimizer),
    ];
    flags.extend(switches.into_iter().filter(|(_, on)| *on).map(|(name, _)| name.to_owned()));
    flags
}

const EMBEDDING: Layout = Layout::Even { embedding: true, loss: false };
const LOSS: Layout = Layout::Even { embedding: false, loss: true };
const BOTH: Layout = Layout::Even { embedding: true, loss: true };

/// Optimizer, FP8 and the layers of the pipeline's ends.
fn distribution(parallelism: &Parallelism, value: &mut impl FnMut(&str, String)) {
    let optimizer = &parallelism.optimizer;
    let dtype = |bytes| match bytes {
        1 => "fp8".to_owned(),
        2 => "fp16".to_owned(),
        _ => "fp32".to_owned(),
    };
    match (optimizer.first_moment_bytes, optimizer.second_moment_bytes) {
        (0, 0) => value("--optimizer", "sgd".to_owned()),
        (_, 0) => value("--optimizer", "muon".to_owned()),
        (first, second) => {
            value("--exp-avg-dtype", dtype(first));
            value("--exp-avg-sq-dtype", dtype(second));
        }
    }
    value("--main-params-dtype", dtype(optimizer.main_bytes));
    if optimizer.host_permille > 0 {
        value("--optimizer-offload-fraction", (f64::from(optimizer.host_permille) / 1_000.0).to_string());
    }
    if let Some(fp8) = &parallelism.fp8 {
        value("--fp8-format", "hybrid".to_owned());
        let recipe = match fp8.recipe {
            Fp8Recipe::Delayed => "delayed",
            Fp8Recipe::Tensorwise => "tensorwise",
            Fp8Recipe::Blockwise => "blockwise",
            Fp8Recipe::Mxfp8 => "mxfp8",
        };
        value("--fp8-recipe", recipe.to_owned());
    }
    if let Layout::Ends { first, last } = parallelism.layout {
        let ends =
            [("--decoder-first-pipeline-num-layers", first), ("--decoder-last-pipeline-num-layers", last)];
        for (name, layers) in ends {
            if let Some(layers) = layers {
                value(name, layers.to_string());
            }
        }
    }
}
