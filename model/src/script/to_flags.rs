//! Shapes and distribution to flags.

use crate::layout;
use crate::{
    Activation, Attention, Fp8Recipe, GradientType, Layout, Loss, ModelConfig, MoeConfig, Norm, Optimizer,
    Parallelism, Precision, Rotary,
};

/// The flags that read back as `config` on `parallelism`; the number of devices, and what permutation and
/// router keep, have none.
pub fn to_flags(config: &ModelConfig, parallelism: &Parallelism) -> Vec<String> {
    let mut flags = config_flags(config);
    if !parallelism.libraries.grouped_gemm {
        flags.retain(|flag| flag != GROUPED_GEMM);
    }
    flags.append(&mut parallelism_flags(parallelism));
    flags
}

/// A model alone is taken to have its experts in one kernel.
const GROUPED_GEMM: &str = "--moe-grouped-gemm";

/// The flags of the shape alone.
pub(crate) fn config_flags(config: &ModelConfig) -> Vec<String> {
    let mut list = List::default();
    let probability = |on: bool| if on { "0.1" } else { "0" };
    list.value("--num-layers", config.layers);
    list.value("--hidden-size", config.hidden);
    list.value("--num-attention-heads", config.heads);
    list.switch("--group-query-attention", true);
    list.value("--num-query-groups", config.kv_groups);
    list.value("--kv-channels", config.head_dim);
    list.value("--ffn-hidden-size", config.ffn);
    list.value("--vocab-size", config.vocab);
    list.value("--make-vocab-size-divisible-by", config.vocab_multiple);
    list.value("--seq-length", config.seq);
    list.value("--hidden-dropout", probability(config.hidden_dropout));
    list.value("--attention-dropout", probability(config.attention_dropout));
    list.value(
        "--normalization",
        match config.norm {
            Norm::RmsNorm => "RMSNorm",
            Norm::LayerNorm => "LayerNorm",
        },
    );
    list.value(
        "--attention-backend",
        match config.attention {
            Attention::Flash => "flash",
            Attention::Unfused => "unfused",
        },
    );
    match (config.position_rows, config.rotary) {
        (0, Rotary::None) => list.value("--position-embedding-type", "none"),
        (0, _) => list.value("--position-embedding-type", "rope"),
        (rows, _) => list.value("--max-position-embeddings", rows),
    }
    list.switch("--no-rope-fusion", config.rotary == Rotary::Unfused);
    list.switch("--qk-layernorm", config.qk_norm);
    activation(config, &mut list);
    list.switch("--untie-embeddings-and-output-weights", !config.tied_embeddings);
    list.switch("--disable-bias-linear", !config.bias);
    list.switch("--add-qkv-bias", config.qkv_bias);
    if let Some(moe) = &config.moe {
        experts(config, moe, &mut list);
    }
    if let Some(mla) = &config.mla {
        list.switch("--multi-latent-attention", true);
        list.value("--q-lora-rank", mla.q_lora_rank);
        list.value("--kv-lora-rank", mla.kv_lora_rank);
        list.value("--qk-head-dim", mla.qk_head_dim);
        list.value("--qk-pos-emb-head-dim", mla.qk_rope_dim);
        list.value("--v-head-dim", mla.v_head_dim);
    }
    list.value("--mtp-num-layers", config.mtp_layers);
    list.switch("--cross-entropy-loss-fusion", config.loss != Loss::Unfused);
    if config.loss == Loss::TransformerEngine {
        list.value("--cross-entropy-fusion-impl", "te");
    }
    list.0
}

fn activation(config: &ModelConfig, list: &mut List) {
    let fused = match config.activation {
        Activation::SwiGlu => "--no-bias-swiglu-fusion",
        Activation::Gelu => "--no-bias-gelu-fusion",
    };
    list.switch("--swiglu", config.activation == Activation::SwiGlu);
    list.switch(fused, !config.fused_activation);
}

fn experts(config: &ModelConfig, moe: &MoeConfig, list: &mut List) {
    list.value("--num-experts", moe.experts);
    list.value("--moe-router-topk", moe.top_k);
    list.value("--moe-ffn-hidden-size", moe.ffn);
    list.value("--moe-shared-expert-intermediate-size", moe.shared_ffn);
    list.switch("--moe-shared-expert-gate", moe.shared_gate);
    layer_frequency(config, list);
    list.value("--moe-token-dispatcher-type", "alltoall");
    list.switch(GROUPED_GEMM, true);
    list.value("--moe-latent-size", moe.latent);
    if let Some(capacity) = moe.capacity {
        list.value("--moe-expert-capacity-factor", f64::from(capacity.factor_permille) / 1_000.0);
        list.switch("--moe-pad-expert-input-to-capacity", capacity.pad);
    }
}

/// Which layers have experts, as runs of equal layers; nothing where all have.
fn layer_frequency(config: &ModelConfig, list: &mut List) {
    let layers: Vec<bool> = (0..config.layers).map(|layer| config.is_moe(layer)).collect();
    if layers.iter().all(|&moe| moe) {
        return;
    }
    let runs = layers.chunk_by(|a, b| a == b).map(|run| format!("[{}]*{}", u8::from(run[0]), run.len()));
    list.value("--moe-layer-freq", format_args!("({})", runs.collect::<Vec<_>>().join("+")));
}

fn parallelism_flags(parallelism: &Parallelism) -> Vec<String> {
    let mut list = List::default();
    list.value("--tensor-model-parallel-size", parallelism.tp);
    list.switch("--sequence-parallel", parallelism.sequence_parallel);
    list.value("--context-parallel-size", parallelism.cp);
    list.value("--expert-model-parallel-size", parallelism.ep);
    list.value("--expert-tensor-parallel-size", parallelism.etp);
    list.value("--pipeline-model-parallel-size", parallelism.pp);
    list.value("--num-virtual-stages-per-pipeline-rank", parallelism.chunks);
    list.value("--microbatch-group-size-per-virtual-pipeline-stage", parallelism.group_size);
    list.switch("--overlap-moe-expert-parallel-comm", parallelism.overlap_ep);
    list.value("--micro-batch-size", parallelism.micro_batch);
    list.value("--global-batch-size", parallelism.global_batch);
    precision(parallelism, &mut list);
    list.switch("--use-distributed-optimizer", parallelism.distributed_optimizer);
    list.switch("--activation-func-fp8-input-store", parallelism.fp8_activation_store);
    optimizer(parallelism, &mut list);
    list.switch("--no-gradient-accumulation-fusion", !parallelism.fused_gradients);
    if !parallelism.libraries.transformer_engine {
        list.value("--transformer-impl", "local");
    }
    fp8(parallelism, &mut list);
    layout(parallelism, &mut list);
    list.0
}

fn precision(parallelism: &Parallelism, list: &mut List) {
    let half = parallelism.precision == Precision::Bf16;
    let fp16 = half && parallelism.fp16;
    list.switch("--bf16", half && !fp16);
    list.switch("--fp16", fp16);
    list.switch("--grad-reduce-in-bf16", parallelism.gradients == GradientType::Bf16);
    list.switch("--accumulate-allreduce-grads-in-fp32", fp16 && parallelism.gradients == GradientType::Fp32);
}

/// Whether it takes Megatron's precision-aware optimizer.
fn aware(optimizer: &Optimizer) -> bool {
    let sizes = [optimizer.main_bytes, optimizer.first_moment_bytes, optimizer.second_moment_bytes];
    optimizer.host_permille > 0 || sizes.iter().any(|bytes| matches!(bytes, 1 | 2))
}

fn optimizer(parallelism: &Parallelism, list: &mut List) {
    let optimizer = &parallelism.optimizer;
    let dtype = |bytes| match bytes {
        1 => "fp8",
        2 => "fp16",
        _ => "fp32",
    };
    list.switch("--use-precision-aware-optimizer", aware(optimizer));
    match (optimizer.first_moment_bytes, optimizer.second_moment_bytes) {
        (0, 0) => {
            list.value("--optimizer", "sgd");
            list.value("--sgd-momentum", 0);
        }
        (_, 0) => list.value("--optimizer", "muon"),
        (first, second) => {
            list.value("--exp-avg-dtype", dtype(first));
            list.value("--exp-avg-sq-dtype", dtype(second));
        }
    }
    list.value("--main-params-dtype", dtype(optimizer.main_bytes));
    if optimizer.host_permille > 0 {
        list.switch("--optimizer-cpu-offload", true);
        list.value("--optimizer-offload-fraction", f64::from(optimizer.host_permille) / 1_000.0);
    }
}

fn fp8(parallelism: &Parallelism, list: &mut List) {
    let Some(fp8) = &parallelism.fp8 else { return };
    list.value("--fp8-format", "hybrid");
    list.value(
        "--fp8-recipe",
        match fp8.recipe {
            Fp8Recipe::Delayed => "delayed",
            Fp8Recipe::Tensorwise => "tensorwise",
            Fp8Recipe::Blockwise => "blockwise",
            Fp8Recipe::Mxfp8 => "mxfp8",
        },
    );
    list.switch("--fp8-param-gather", fp8.parameters);
    list.switch("--moe-router-padding-for-quantization", parallelism.row_padding.by_router);
    list.switch("--use-transformer-engine-op-fuser", parallelism.row_padding.multiple == 256);
}

fn layout(parallelism: &Parallelism, list: &mut List) {
    match &parallelism.layout {
        Layout::Even { embedding, loss } => {
            list.switch("--account-for-embedding-in-pipeline-split", *embedding);
            list.switch("--account-for-loss-in-pipeline-split", *loss);
        }
        Layout::Ends { first, last } => {
            let ends = [
                ("--decoder-first-pipeline-num-layers", first),
                ("--decoder-last-pipeline-num-layers", last),
            ];
            for (name, layers) in ends {
                if let Some(layers) = layers {
                    list.value(name, layers);
                }
            }
        }
        Layout::Stages(stages) => list.value("--pipeline-model-parallel-layout", layout::text(stages)),
    }
}

/// Flags in order.
#[derive(Default)]
struct List(Vec<String>);

impl List {
    fn value(&mut self, name: &str, value: impl ToString) {
        self.0.extend([name.to_owned(), value.to_string()]);
    }

    fn switch(&mut self, name: &str, on: bool) {
        if on {
            self.0.push(name.to_owned());
        }
    }
}
