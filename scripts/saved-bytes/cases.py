"""The cases that are measured: Megatron flags, which the planner's own reader takes as they are."""

import argparse
import math
import shlex

import torch
from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig

# What all cases share: one layer, Megatron's local modules.
COMMON = "--transformer-impl local --attention-backend unfused --num-layers 1 --global-batch-size 8 --vocab-size 2048"
DENSE = "--hidden-size 512 --num-attention-heads 8 --ffn-hidden-size 1536 --seq-length 256 --micro-batch-size 2"
LARGE = "--hidden-size 1024 --num-attention-heads 16 --ffn-hidden-size 4096 --seq-length 512 --micro-batch-size 1"
NO_DROPOUT = "--attention-dropout 0 --hidden-dropout 0"
PLAIN = f"--swiglu --disable-bias-linear {NO_DROPOUT}"
NO_ROPE = "--position-embedding-type none"
ROPE = "--position-embedding-type rope --no-rope-fusion"
BF16 = "--bf16"
MOE = "--moe-token-dispatcher-type alltoall --num-experts 8 --moe-router-topk 2 --moe-ffn-hidden-size 512"
WIDE_MOE = "--moe-token-dispatcher-type alltoall --num-experts 16 --moe-router-topk 4 --moe-ffn-hidden-size 768"
MLA = "--multi-latent-attention --qk-head-dim 64 --qk-pos-emb-head-dim 32 --v-head-dim 64 --kv-lora-rank 128"
MLA_LARGE = "--multi-latent-attention --qk-head-dim 128 --qk-pos-emb-head-dim 64 --v-head-dim 128 --kv-lora-rank 256 --q-lora-rank 384"
Q_LORA = "--q-lora-rank 192"
FP8_STORE = "--activation-func-fp8-input-store"
ETP1 = "--expert-tensor-parallel-size 1"
EP2 = "--expert-model-parallel-size 2"
MTP = "--mtp-num-layers 1"
NATIVE_LOSS = "--cross-entropy-loss-fusion --cross-entropy-fusion-impl native"
ENDS = "--untie-embeddings-and-output-weights"
TP2 = "--tensor-model-parallel-size 2 --sequence-parallel"


def _case(name, *flags, **more):
    return {"name": name, "flags": " ".join((COMMON, *flags)), **more}


def _recompute(modules):
    return f"--recompute-granularity selective --recompute-modules {modules}"


FULL = "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"
GQA = "--group-query-attention --num-query-groups 2"
SHARED = "--moe-shared-expert-intermediate-size 768"

CASES = [
    _case("dense", DENSE, PLAIN, NO_ROPE, BF16),
    _case("dense-large", LARGE, PLAIN, NO_ROPE, BF16),
    _case("dense-fp32", DENSE, PLAIN, NO_ROPE),
    _case("dense-rope", DENSE, PLAIN, ROPE, BF16),
    _case("dense-rope-large", LARGE, PLAIN, ROPE, BF16),
    _case("dense-rms-norm", DENSE, PLAIN, NO_ROPE, BF16, "--normalization RMSNorm"),
    _case("dense-gelu", LARGE, NO_DROPOUT, NO_ROPE, BF16),
    _case("dense-gelu-unfused", DENSE, NO_DROPOUT, NO_ROPE, BF16, "--no-bias-gelu-fusion"),
    _case("dense-swiglu-unfused", DENSE, PLAIN, NO_ROPE, BF16, "--no-bias-swiglu-fusion"),
    _case("dense-fp8-input-store", DENSE, PLAIN, NO_ROPE, BF16, FP8_STORE),
    _case("dense-bias", DENSE, "--swiglu", NO_DROPOUT, NO_ROPE, BF16),
    _case("dense-qkv-bias", DENSE, PLAIN, NO_ROPE, BF16, "--add-qkv-bias"),
    _case("dense-hidden-dropout", LARGE, "--swiglu --disable-bias-linear --attention-dropout 0", NO_ROPE, BF16),
    _case("dense-dropout", DENSE, "--swiglu --disable-bias-linear", NO_ROPE, BF16),
    _case("dense-dropout-fp32", LARGE, "--swiglu --disable-bias-linear", NO_ROPE),
    _case("gqa", DENSE, GQA, PLAIN, NO_ROPE, BF16),
    _case("gqa-rope-large", LARGE, "--group-query-attention --num-query-groups 4", PLAIN, ROPE, BF16),
    _case("gqa-fp32", DENSE, GQA, PLAIN, ROPE),
    _case("qk-layernorm", DENSE, PLAIN, ROPE, BF16, "--qk-layernorm"),
    _case("qk-layernorm-gqa", LARGE, GQA, PLAIN, ROPE, BF16, "--qk-layernorm"),
    _case("mla", DENSE, MLA, Q_LORA, PLAIN, ROPE, BF16, "--qk-layernorm"),
    _case("mla-large", LARGE, MLA_LARGE, PLAIN, ROPE, BF16, "--qk-layernorm"),
    _case("mla-fp32", DENSE, MLA, Q_LORA, PLAIN, ROPE, "--qk-layernorm"),
    _case("mla-no-q-lora", DENSE, MLA, PLAIN, ROPE, BF16, "--qk-layernorm"),
    _case("mla-no-norm", DENSE, MLA, Q_LORA, PLAIN, ROPE, BF16),
    _case("mla-moe-shared", DENSE, MLA, Q_LORA, WIDE_MOE, SHARED, PLAIN, ROPE, BF16, "--qk-layernorm"),
    _case("mla-moe-tp2-sp-ep2", LARGE, MLA_LARGE, WIDE_MOE, SHARED, PLAIN, ROPE, BF16, "--qk-layernorm", TP2, EP2, ETP1),
    _case("mla-tp2-sp", DENSE, MLA, Q_LORA, PLAIN, ROPE, BF16, "--qk-layernorm", TP2),
    _case("moe", DENSE, MOE, PLAIN, NO_ROPE, BF16),
    _case("moe-large", LARGE, WIDE_MOE, PLAIN, NO_ROPE, BF16),
    _case("moe-fp32", DENSE, MOE, PLAIN, NO_ROPE),
    _case("moe-swiglu-unfused", DENSE, MOE, PLAIN, NO_ROPE, BF16, "--no-bias-swiglu-fusion"),
    _case("moe-fp8-input-store", LARGE, WIDE_MOE, SHARED, PLAIN, NO_ROPE, BF16, FP8_STORE),
    _case("moe-dropout", DENSE, MOE, "--swiglu --disable-bias-linear", NO_ROPE, BF16),
    _case("moe-shared", DENSE, MOE, SHARED, PLAIN, NO_ROPE, BF16),
    _case("moe-shared-large", LARGE, WIDE_MOE, SHARED, PLAIN, NO_ROPE, BF16),
    _case("moe-shared-gate", DENSE, MOE, SHARED, PLAIN, NO_ROPE, BF16, "--moe-shared-expert-gate"),
    _case("moe-router-fp32", DENSE, MOE, PLAIN, NO_ROPE, BF16, "--moe-router-dtype fp32"),
    _case("moe-latent", DENSE, WIDE_MOE, "--moe-latent-size 256", PLAIN, NO_ROPE, BF16),
    _case("moe-latent-shared", LARGE, WIDE_MOE, SHARED, "--moe-latent-size 256", PLAIN, NO_ROPE, BF16),
    _case("dense-tp2-sp", DENSE, PLAIN, NO_ROPE, BF16, TP2),
    _case("dense-tp2", LARGE, PLAIN, NO_ROPE, BF16, "--tensor-model-parallel-size 2"),
    _case("gqa-tp2-sp", LARGE, GQA, PLAIN, ROPE, BF16, TP2),
    _case("moe-tp2-sp-etp2", DENSE, MOE, PLAIN, NO_ROPE, BF16, TP2),
    _case("moe-tp2-sp-ep2", DENSE, MOE, SHARED, PLAIN, NO_ROPE, BF16, TP2, EP2, ETP1),
    _case("moe-ep2", DENSE, MOE, PLAIN, NO_ROPE, BF16, EP2),
    _case("moe-ep2-large", LARGE, WIDE_MOE, PLAIN, NO_ROPE, BF16, EP2),
    _case("moe-ep2-fp32", DENSE, MOE, PLAIN, NO_ROPE, EP2),
    _case("moe-ep2-skewed", DENSE, MOE, PLAIN, NO_ROPE, BF16, EP2, push=1.0),
    _case("moe-ep2-all-on-one-rank", LARGE, WIDE_MOE, PLAIN, NO_ROPE, BF16, EP2, push=100.0),
    _case("model", DENSE, WIDE_MOE, PLAIN, NO_ROPE, BF16, ENDS, part="model"),
    _case("model-rope-fp32", DENSE, GQA, PLAIN, ROPE, ENDS, part="model"),
    _case("model-tp2-sp", LARGE, PLAIN, NO_ROPE, BF16, TP2, ENDS, part="model"),
    _case("model-fused-loss", DENSE, PLAIN, NO_ROPE, BF16, ENDS, NATIVE_LOSS, part="model"),
    _case("model-fused-loss-tp2-sp", LARGE, PLAIN, NO_ROPE, BF16, TP2, ENDS, NATIVE_LOSS, part="model"),
    _case("model-mtp", DENSE, PLAIN, NO_ROPE, BF16, ENDS, MTP, part="model"),
    _case("model-mtp-moe", LARGE, WIDE_MOE, PLAIN, NO_ROPE, BF16, ENDS, MTP, part="model"),
    _case("model-mtp-two", DENSE, PLAIN, NO_ROPE, ENDS, "--mtp-num-layers 2", part="model"),
    _case("model-mtp-tp2-sp", LARGE, PLAIN, NO_ROPE, BF16, TP2, ENDS, MTP, part="model"),
    _case("recompute-full", DENSE, PLAIN, NO_ROPE, BF16, FULL),
    _case("recompute-full-moe", DENSE, MOE, PLAIN, NO_ROPE, BF16, FULL),
    _case("recompute-core_attn", DENSE, PLAIN, NO_ROPE, BF16, _recompute("core_attn")),
    _case("recompute-core_attn-gqa", LARGE, GQA, PLAIN, ROPE, BF16, _recompute("core_attn")),
    _case("recompute-core_attn-mla", DENSE, MLA, Q_LORA, PLAIN, ROPE, BF16, "--qk-layernorm", _recompute("core_attn")),
    _case("recompute-layernorm", DENSE, PLAIN, NO_ROPE, BF16, _recompute("layernorm")),
    _case("recompute-layernorm-moe", LARGE, WIDE_MOE, SHARED, PLAIN, NO_ROPE, BF16, _recompute("layernorm")),
    _case("recompute-mlp", DENSE, PLAIN, NO_ROPE, BF16, _recompute("mlp")),
    _case("recompute-moe", DENSE, MOE, PLAIN, NO_ROPE, BF16, _recompute("moe")),
    _case("recompute-moe-shared", LARGE, WIDE_MOE, SHARED, PLAIN, NO_ROPE, BF16, _recompute("moe")),
    _case("recompute-moe-ep2", DENSE, MOE, PLAIN, NO_ROPE, BF16, EP2, _recompute("moe")),
    _case("recompute-shared_experts", DENSE, MOE, SHARED, PLAIN, NO_ROPE, BF16, _recompute("shared_experts")),
    _case("recompute-mla_up_proj", DENSE, MLA, Q_LORA, PLAIN, ROPE, BF16, "--qk-layernorm", _recompute("mla_up_proj")),
    _case("recompute-mla_up_proj-large", LARGE, MLA_LARGE, PLAIN, ROPE, BF16, "--qk-layernorm", _recompute("mla_up_proj")),
    _case("recompute-mla_up_proj-tp2-sp", LARGE, MLA_LARGE, PLAIN, ROPE, BF16, "--qk-layernorm", TP2, _recompute("mla_up_proj")),
    _case("recompute-several", DENSE, MOE, PLAIN, NO_ROPE, BF16, _recompute("core_attn layernorm moe")),
]


def _parser():
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for name in (
        "num-layers hidden-size num-attention-heads ffn-hidden-size seq-length micro-batch-size "
        "global-batch-size num-query-groups kv-channels num-experts moe-ffn-hidden-size "
        "moe-shared-expert-intermediate-size vocab-size q-lora-rank kv-lora-rank qk-head-dim "
        "qk-pos-emb-head-dim v-head-dim moe-latent-size mtp-num-layers"
    ).split():
        parser.add_argument(f"--{name}", type=int)
    for name in "tensor-model expert-model".split():
        parser.add_argument(f"--{name}-parallel-size", type=int, default=1)
    parser.add_argument("--expert-tensor-parallel-size", type=int)
    parser.add_argument("--moe-router-topk", type=int, default=2)
    parser.add_argument("--attention-dropout", type=float, default=0.1)
    parser.add_argument("--hidden-dropout", type=float, default=0.1)
    parser.add_argument("--recompute-num-layers", type=int)
    for name in "transformer-impl attention-backend recompute-granularity recompute-method".split():
        parser.add_argument(f"--{name}")
    parser.add_argument("--moe-router-dtype")
    parser.add_argument("--moe-token-dispatcher-type")
    parser.add_argument("--position-embedding-type", default="learned_absolute")
    parser.add_argument("--normalization", default="LayerNorm")
    parser.add_argument("--recompute-modules", nargs="*", default=["core_attn"])
    parser.add_argument("--cross-entropy-fusion-impl", default="native")
    for name in (
        "activation-func-fp8-input-store cross-entropy-loss-fusion swiglu disable-bias-linear group-query-attention qk-layernorm bf16 sequence-parallel "
        "multi-latent-attention no-bias-swiglu-fusion no-bias-gelu-fusion add-qkv-bias "
        "moe-shared-expert-gate attention-softmax-in-fp32 no-rope-fusion "
        "untie-embeddings-and-output-weights"
    ).split():
        parser.add_argument(f"--{name}", action="store_true")
    return parser


def parse(flags):
    parsed = _parser().parse_args(shlex.split(flags))
    if parsed.kv_channels is None:
        # Without its own flag the local attention takes the values' head size from here.
        parsed.kv_channels = parsed.v_head_dim or parsed.hidden_size // parsed.num_attention_heads
    if parsed.expert_tensor_parallel_size is None:
        parsed.expert_tensor_parallel_size = parsed.tensor_model_parallel_size if parsed.num_experts else 1
    return parsed


def world_size(flags):
    expert = flags.expert_model_parallel_size * flags.expert_tensor_parallel_size
    return math.lcm(flags.tensor_model_parallel_size, expert)


def transformer_config(flags):
    """Megatron's configuration, as its own argument parser would fill it."""
    fused = not (flags.no_bias_swiglu_fusion if flags.swiglu else flags.no_bias_gelu_fusion)
    dtype = torch.bfloat16 if flags.bf16 else torch.float32
    settings = dict(
        num_layers=flags.num_layers,
        hidden_size=flags.hidden_size,
        num_attention_heads=flags.num_attention_heads,
        num_query_groups=flags.num_query_groups if flags.group_query_attention else None,
        kv_channels=flags.kv_channels,
        ffn_hidden_size=flags.ffn_hidden_size,
        normalization=flags.normalization,
        gated_linear_unit=flags.swiglu,
        activation_func=torch.nn.functional.silu if flags.swiglu else torch.nn.functional.gelu,
        bias_activation_fusion=fused and (flags.swiglu or not flags.disable_bias_linear),
        activation_func_fp8_input_store=flags.activation_func_fp8_input_store,
        add_bias_linear=not flags.disable_bias_linear,
        add_qkv_bias=flags.add_qkv_bias,
        attention_dropout=flags.attention_dropout,
        hidden_dropout=flags.hidden_dropout,
        attention_softmax_in_fp32=flags.attention_softmax_in_fp32,
        qk_layernorm=flags.qk_layernorm,
        mtp_num_layers=flags.mtp_num_layers,
        cross_entropy_loss_fusion=flags.cross_entropy_loss_fusion,
        cross_entropy_fusion_impl=flags.cross_entropy_fusion_impl,
        bf16=flags.bf16,
        params_dtype=dtype,
        pipeline_dtype=dtype,
        tensor_model_parallel_size=flags.tensor_model_parallel_size,
        sequence_parallel=flags.sequence_parallel,
        gradient_accumulation_fusion=False,
        recompute_granularity=flags.recompute_granularity,
        recompute_method=flags.recompute_method,
        recompute_num_layers=flags.recompute_num_layers,
        recompute_modules=flags.recompute_modules if flags.recompute_granularity == "selective" else None,
    )
    if flags.num_experts:
        settings |= dict(
            num_moe_experts=flags.num_experts,
            moe_router_topk=flags.moe_router_topk,
            moe_ffn_hidden_size=flags.moe_ffn_hidden_size,
            moe_shared_expert_intermediate_size=flags.moe_shared_expert_intermediate_size,
            moe_shared_expert_gate=flags.moe_shared_expert_gate,
            moe_token_dispatcher_type="alltoall",
            moe_router_load_balancing_type="aux_loss",
            moe_aux_loss_coeff=1e-2,
            moe_router_dtype=flags.moe_router_dtype,
            moe_latent_size=flags.moe_latent_size,
            expert_model_parallel_size=flags.expert_model_parallel_size,
            expert_tensor_parallel_size=flags.expert_tensor_parallel_size,
        )
    if not flags.multi_latent_attention:
        return TransformerConfig(**settings)
    return MLATransformerConfig(
        **settings,
        multi_latent_attention=True,
        q_lora_rank=flags.q_lora_rank,
        kv_lora_rank=flags.kv_lora_rank,
        qk_head_dim=flags.qk_head_dim,
        qk_pos_emb_head_dim=flags.qk_pos_emb_head_dim,
        v_head_dim=flags.v_head_dim,
        rope_type="rope",
    )
