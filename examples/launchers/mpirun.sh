#!/bin/sh
# Mixtral-8x22B on 16 nodes of 8, one MPI rank a GPU.
: "${HOSTFILE:=hosts}"
NP=128

MODEL="--num-layers 56 --hidden-size 6144 --ffn-hidden-size 16384 --num-attention-heads 48
  --group-query-attention --num-query-groups 8 --seq-length 4096 --max-position-embeddings 65536
  --position-embedding-type rope --rotary-base 1000000 --normalization RMSNorm --swiglu
  --disable-bias-linear --untie-embeddings-and-output-weights --attention-dropout 0 --hidden-dropout 0
  --vocab-size 32768"
MOE="--num-experts 8 --moe-router-topk 2 --moe-grouped-gemm --moe-token-dispatcher-type alltoall
  --moe-router-load-balancing-type aux_loss --moe-aux-loss-coeff 1e-2"
PARALLEL="--tensor-model-parallel-size 2 --sequence-parallel --pipeline-model-parallel-size 8
  --num-layers-per-virtual-pipeline-stage 1 --expert-model-parallel-size 8 --expert-tensor-parallel-size 1
  --use-distributed-optimizer"

mpirun -np $NP --hostfile "$HOSTFILE" --bind-to none --map-by ppr:8:node \
  -x NCCL_DEBUG=WARN -x CUDA_DEVICE_MAX_CONNECTIONS=1 -x PATH -x LD_LIBRARY_PATH \
  python3 -u pretrain_gpt.py $MODEL $MOE $PARALLEL \
  --micro-batch-size 1 --global-batch-size 256 --bf16 \
  --distributed-backend nccl --train-samples 122070312 --lr 1e-4 --data-path "$DATA_PATH"
