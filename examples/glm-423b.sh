#!/bin/bash
# GLM-423B-A30B on 512 GPUs: the row of the paper's Table II, what it leaves open as in the public GLM-4.5.
# Table II's VP column counts layers: 2 layers a virtual stage, so V = 32 / (8 · 2) = 2.
set -euo pipefail

export CUDA_DEVICE_MAX_CONNECTIONS=1

GPUS_PER_NODE=${GPUS_PER_NODE:-8}
NNODES=${NNODES:-64}
WORLD_SIZE=$((GPUS_PER_NODE * NNODES))
MASTER_ADDR=${MASTER_ADDR:-localhost}
NODE_RANK=${NODE_RANK:-0}

TP=2
PP=8
EP=64
DP=$((WORLD_SIZE / TP / PP))
MICRO_BATCH=1
MICRO_BATCHES=64

DATA_PATH=${1:-/data/corpus}
CHECKPOINTS=${2:-/checkpoints/glm-423b}

DISTRIBUTED_ARGS=(
    --nproc_per_node "$GPUS_PER_NODE"
    --nnodes "$NNODES"
    --node_rank "$NODE_RANK"
    --master_addr "$MASTER_ADDR"
    --master_port 29500
)

MODEL_ARGS=(
    --num-layers 32
    --hidden-size 8192
    --num-attention-heads 64
    --kv-channels 128
    --group-query-attention
    --num-query-groups 8
    --ffn-hidden-size 4096
    --seq-length 4096
    --max-position-embeddings 4096
    --position-embedding-type rope
    --normalization RMSNorm
    --swiglu
    --disable-bias-linear
    --attention-dropout 0
    --hidden-dropout 0
    --untie-embeddings-and-output-weights
    --vocab-size 151552
)

MOE_ARGS=(
    --num-experts 128
    --moe-router-topk 6
    --moe-ffn-hidden-size 4096
    --moe-shared-expert-intermediate-size 4096   # one shared expert
    --moe-router-dtype fp32
    --moe-router-load-balancing-type aux_loss
    --moe-aux-loss-coeff 1e-3
    --moe-grouped-gemm
    --moe-token-dispatcher-type alltoall
)

PARALLEL_ARGS=(
    --tensor-model-parallel-size $TP
    --sequence-parallel
    --pipeline-model-parallel-size $PP
    --num-layers-per-virtual-pipeline-stage 2
    --expert-model-parallel-size $EP
    --expert-tensor-parallel-size 1
    --use-distributed-optimizer
    --overlap-grad-reduce
    --overlap-param-gather
)

TRAINING_ARGS=(
    --micro-batch-size $MICRO_BATCH
    --global-batch-size $((DP * MICRO_BATCH * MICRO_BATCHES))
    --train-iters 100000
    --lr 2e-4
    --min-lr 2e-5
    --lr-decay-style cosine
    --weight-decay 0.1
    --clip-grad 1.0
    --bf16
    --data-path "$DATA_PATH"
    --save "$CHECKPOINTS"
    --log-interval 1
)

torchrun "${DISTRIBUTED_ARGS[@]}" pretrain_gpt.py \
    "${MODEL_ARGS[@]}" \
    "${MOE_ARGS[@]}" \
    "${PARALLEL_ARGS[@]}" \
    "${TRAINING_ARGS[@]}"
