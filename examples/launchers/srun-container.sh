#!/bin/bash
#SBATCH -A moe -p batch -t 04:00:00
#SBATCH --nodes=16
#SBATCH --exclusive
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
# Qwen3-235B-A22B in a container under Slurm, torchrun in each task; 94 layers and both ends make 96.
WORKDIR=${WORKDIR:-/lustre/moe}
OPTIONS=(
    --use-mcore-models --transformer-impl transformer_engine
    --num-layers 94 --hidden-size 4096 --ffn-hidden-size 12288 --num-attention-heads 64 --kv-channels 128
    --group-query-attention --num-query-groups 4 --qk-layernorm
    --seq-length 4096 --max-position-embeddings 40960 --position-embedding-type rope
    --normalization RMSNorm --swiglu --disable-bias-linear --untie-embeddings-and-output-weights
    --attention-dropout 0.0 --hidden-dropout 0.0 --vocab-size 151936 --make-vocab-size-divisible-by 1187
    --num-experts 128 --moe-ffn-hidden-size 1536 --moe-router-topk 8 --moe-router-dtype fp32
    --moe-token-dispatcher-type alltoall --moe-grouped-gemm --moe-permute-fusion
    --tensor-model-parallel-size 2 --sequence-parallel --pipeline-model-parallel-size 8
    --account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split
    --num-virtual-stages-per-pipeline-rank 4 --expert-model-parallel-size 16 --expert-tensor-parallel-size 1
    --micro-batch-size 1 --global-batch-size 1024 --bf16 --use-distributed-optimizer
    --overlap-grad-reduce --overlap-param-gather --cross-entropy-loss-fusion --cross-entropy-fusion-impl te
    --recompute-granularity selective --recompute-modules moe_act layernorm
)
RUN="torchrun --nproc-per-node=8 --nnodes=$SLURM_NNODES --node-rank=\$SLURM_NODEID \
    --rdzv-endpoint=$(hostname):29500 pretrain_gpt.py ${OPTIONS[@]}"
srun --mpi=pmix --container-image=${WORKDIR}/pytorch.sqsh --container-mounts=/lustre:/lustre \
    --output=${WORKDIR}/logs/%j.log bash -c "cd ${WORKDIR}/Megatron-LM; ${RUN}"
