#!/bin/bash
# Everything in positional arguments, as in cluster templates:
#   positional.sh dlc 16B 1 16 1e-5 1e-6 4096 bf16 1 2 8 true
set -e
ENV=$1
MODEL_SIZE=$2
BATCH_SIZE=$3
GLOBAL_BATCH_SIZE=$4
LR=$5
MIN_LR=$6
SEQ_LEN=$7
PR=$8
TP=$9
PP=${10}
EP=${11}
SP=${12}

if [ $ENV = dsw ]; then
    NNODES=1
    NODE_RANK=0
    GPUS_PER_NODE=8
elif [ $ENV = dlc ]; then
    NNODES=${WORLD_SIZE}
    NODE_RANK=${RANK}
    GPUS_PER_NODE=${KUBERNETES_CONTAINER_RESOURCE_GPU:-8}
fi
DISTRIBUTED_ARGS="--nproc_per_node $GPUS_PER_NODE --nnodes $NNODES --node_rank $NODE_RANK --master_addr $MASTER_ADDR"

if [ $MODEL_SIZE = 16B ]; then
    HIDDEN_SIZE=2048
    NUM_ATTN_HEADS=16
    NUM_LAYERS=27
    INTERMEDIATE_SIZE=10944
    MOE_INTERMEDIATE_SIZE=1408
    KV_LORA_RANK=512
    NUM_EXPERTS=64
    ROUTER_TOPK=6
    NUM_SHARED_EXPERTS=2
    MOE_FIRST_K_DENSE_REPLACE=1
    EXTRA_VOCAB=0
fi

moe_options=" \
    --num-experts ${NUM_EXPERTS} \
    --moe-layer-freq '([0]*${MOE_FIRST_K_DENSE_REPLACE}+[1]*$((NUM_LAYERS - MOE_FIRST_K_DENSE_REPLACE)))' \
    --moe-ffn-hidden-size ${MOE_INTERMEDIATE_SIZE} \
    --moe-shared-expert-intermediate-size $((MOE_INTERMEDIATE_SIZE * NUM_SHARED_EXPERTS)) \
    --moe-router-topk ${ROUTER_TOPK} \
    --moe-token-dispatcher-type alltoall \
    --moe-aux-loss-coeff 1e-2 \
    --expert-model-parallel-size ${EP} \
    --kv-lora-rank ${KV_LORA_RANK} --qk-head-dim 128 --qk-pos-emb-head-dim 64 --v-head-dim 128 \
    --multi-latent-attention --qk-layernorm"

if [ $PR = fp16 ]; then
    pr_options="--fp16 --initial-loss-scale 65536"
elif [ $PR = bf16 ]; then
    pr_options="--bf16"
fi

if [ $SP = true ] && [ $TP -gt 1 ]; then
    sp_options="--sequence-parallel"
else
    sp_options=""
fi

if [ $((NUM_LAYERS % PP)) -ne 0 ]; then
    uneven_options="--decoder-first-pipeline-num-layers $((NUM_LAYERS / PP + 1)) --decoder-last-pipeline-num-layers $((NUM_LAYERS / PP))"
fi

run_cmd="torchrun ${DISTRIBUTED_ARGS} ../pretrain_deepseek.py \
    --num-layers ${NUM_LAYERS} --hidden-size ${HIDDEN_SIZE} --num-attention-heads ${NUM_ATTN_HEADS} \
    --ffn-hidden-size ${INTERMEDIATE_SIZE} --seq-length ${SEQ_LEN} --max-position-embeddings ${SEQ_LEN} \
    --micro-batch-size ${BATCH_SIZE} --global-batch-size ${GLOBAL_BATCH_SIZE} --lr ${LR} --min-lr ${MIN_LR} \
    --tensor-model-parallel-size ${TP} --pipeline-model-parallel-size ${PP} \
    --swiglu --normalization RMSNorm --position-embedding-type rope --no-rope-fusion --disable-bias-linear \
    --untie-embeddings-and-output-weights --hidden-dropout 0.0 --attention-dropout 0.0 \
    --vocab-size 102400 --use-distributed-optimizer --train-iters 1000 \
    ${moe_options} ${pr_options} ${sp_options} ${uneven_options}"
echo ${run_cmd}
eval ${run_cmd}
set +x
