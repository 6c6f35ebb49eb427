#!/bin/bash
# 14 layers of DeepSeek-V3's shape on 64 H100: what NVIDIA/Megatron-LM pull request 6311 measured.
# docs/predictions.md compares.

torchrun --nnodes 8 --nproc_per_node 8 pretrain_gpt.py \
    --num-layers 14 --moe-layer-freq '([0]*3+[1]*11)' --hidden-size 7168 --ffn-hidden-size 18432 \
    --num-attention-heads 128 --multi-latent-attention --q-lora-rank 1536 --kv-lora-rank 512 \
    --qk-head-dim 128 --qk-pos-emb-head-dim 64 --v-head-dim 128 --qk-layernorm --num-experts 256 \
    --moe-router-topk 8 --moe-ffn-hidden-size 2048 --moe-shared-expert-intermediate-size 2048 \
    --moe-grouped-gemm --moe-token-dispatcher-type alltoall --mtp-num-layers 1 --seq-length 2048 \
    --vocab-size 129280 --position-embedding-type rope --normalization RMSNorm --swiglu \
    --disable-bias-linear --untie-embeddings-and-output-weights --hidden-dropout 0 --attention-dropout 0 \
    --cross-entropy-loss-fusion --cross-entropy-fusion-impl native \
    --micro-batch-size 1 --global-batch-size 256 --pipeline-model-parallel-size 4 \
    --pipeline-model-parallel-layout 'Ett|(tt|)*6mL' --expert-model-parallel-size 16 \
    --use-distributed-optimizer --bf16
