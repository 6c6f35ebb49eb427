#!/bin/bash
# Moonlight-16B-A3B on 8 H100: what NVIDIA-NeMo/Megatron-Bridge measured for each module's recomputation.
# docs/predictions.md compares.

torchrun --nnodes 1 --nproc_per_node 8 pretrain_gpt.py \
    --num-layers 27 --moe-layer-freq '([0]*1+[1]*26)' --hidden-size 2048 --ffn-hidden-size 11264 \
    --num-attention-heads 16 --multi-latent-attention --kv-lora-rank 512 --qk-head-dim 128 \
    --qk-pos-emb-head-dim 64 --v-head-dim 128 --qk-layernorm --num-experts 64 --moe-router-topk 6 \
    --moe-ffn-hidden-size 1408 --moe-shared-expert-intermediate-size 2816 --moe-grouped-gemm \
    --moe-token-dispatcher-type alltoall --moe-permute-fusion --seq-length 4096 --vocab-size 163840 \
    --position-embedding-type rope --normalization RMSNorm --swiglu --disable-bias-linear \
    --untie-embeddings-and-output-weights --hidden-dropout 0 --attention-dropout 0 \
    --cross-entropy-loss-fusion --cross-entropy-fusion-impl te --micro-batch-size 1 --global-batch-size 4 \
    --tensor-model-parallel-size 2 --sequence-parallel --expert-model-parallel-size 8 \
    --expert-tensor-parallel-size 1 --use-distributed-optimizer --bf16
