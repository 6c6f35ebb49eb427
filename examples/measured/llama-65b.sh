#!/bin/bash
# Llama-65B on 256 H800: Fig. 7 of Yuan et al., USENIX ATC 2024, without its offloading.
# docs/predictions.md compares.

torchrun --nnodes 32 --nproc_per_node 8 pretrain_gpt.py \
    --num-layers 80 --hidden-size 8192 --ffn-hidden-size 22016 --num-attention-heads 64 --vocab-size 32004 \
    --seq-length 8192 --swiglu --no-bias-swiglu-fusion --normalization RMSNorm \
    --position-embedding-type rope --untie-embeddings-and-output-weights --disable-bias-linear \
    --hidden-dropout 0 --attention-dropout 0 --use-flash-attn --tensor-model-parallel-size 2 \
    --sequence-parallel --context-parallel-size 2 --pipeline-model-parallel-size 8 --transformer-impl local \
    --num-layers-per-virtual-pipeline-stage 2 --use-distributed-optimizer --bf16 --micro-batch-size 1 \
    --global-batch-size 256
