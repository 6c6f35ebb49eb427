#!/usr/bin/env bash
# Qwen3-30B-A3B on two nodes of 8, flags in strings, as many training scripts are written.
NNODES=2
GPUS=8

DISTRIBUTED_ARGS="--nproc_per_node $GPUS --nnodes $NNODES \
                  --node_rank ${RANK:-0} --master_addr ${MASTER_ADDR:-localhost} --master_port 6000"

GPT_ARGS="
    --num-layers 48
    --hidden-size 2048
    --ffn-hidden-size 6144
    --num-attention-heads 32
    --kv-channels 128
    --group-query-attention
    --num-query-groups 4
    --qk-layernorm
    --seq-length 4096
    --max-position-embeddings 40960
    --position-embedding-type rope
    --rotary-base 1000000
    --normalization RMSNorm
    --norm-epsilon 1e-6
    --swiglu
    --disable-bias-linear
    --untie-embeddings-and-output-weights
    --attention-dropout 0.0
    --hidden-dropout 0.0
    --tokenizer-type HuggingFaceTokenizer
    --tokenizer-model Qwen/Qwen3-30B-A3B
    --vocab-size 151936
"
MOE_ARGS="--num-experts 128 --moe-router-topk 8 --moe-ffn-hidden-size 768 --moe-grouped-gemm"
MOE_ARGS="$MOE_ARGS --moe-token-dispatcher-type alltoall --moe-router-load-balancing-type aux_loss"

PARALLEL_ARGS="--tensor-model-parallel-size 1 --pipeline-model-parallel-size 2 \
    --num-layers-per-virtual-pipeline-stage 12 --expert-model-parallel-size 8 --use-distributed-optimizer"

python -m torch.distributed.launch $DISTRIBUTED_ARGS \
    pretrain_gpt.py $GPT_ARGS $MOE_ARGS $PARALLEL_ARGS \
    --micro-batch-size 1 --global-batch-size 256 --bf16 \
    --recompute-granularity selective --recompute-modules core_attn \
    --train-iters 50000 --lr 1e-4 --data-path "$DATA" --save /checkpoints/qwen3 "$@"
