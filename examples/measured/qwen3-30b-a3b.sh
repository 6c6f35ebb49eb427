#!/bin/bash
# Qwen3-30B-A3B on 16 H100: what NVIDIA-NeMo/Megatron-Bridge pull request 3880 measured.
# docs/predictions.md compares.

torchrun --nnodes 2 --nproc_per_node 8 pretrain_gpt.py \
    --num-layers 48 --hidden-size 2048 --num-attention-heads 32 --kv-channels 128 --group-query-attention \
    --num-query-groups 4 --qk-layernorm --ffn-hidden-size 6144 --num-experts 128 --moe-router-topk 8 \
    --moe-ffn-hidden-size 768 --moe-grouped-gemm --moe-token-dispatcher-type alltoall --seq-length 4096 \
    --vocab-size 151936 --position-embedding-type rope --normalization RMSNorm --swiglu \
    --disable-bias-linear --untie-embeddings-and-output-weights --hidden-dropout 0 --attention-dropout 0 \
    --cross-entropy-loss-fusion --cross-entropy-fusion-impl te --micro-batch-size 1 --global-batch-size 1024 \
    --expert-model-parallel-size 16 --use-distributed-optimizer --grad-reduce-in-bf16 --bf16
