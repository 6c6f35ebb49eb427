#!/bin/bash
#SBATCH --job-name=mixtral
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --exclusive
# Mixtral-8x7B under Slurm: one task a GPU, the command in a string that each task's shell runs.

export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_PORT=29500
LOGS=logs/$(date +%F)
mkdir -p "$LOGS"

OPTIONS="--num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 \
  --group-query-attention --num-query-groups 8 \
  --seq-length 4096 --max-position-embeddings 32768 --position-embedding-type rope \
  --normalization RMSNorm --swiglu --disable-bias-linear --untie-embeddings-and-output-weights \
  --attention-dropout 0.0 --hidden-dropout 0.0 \
  --num-experts 8 --moe-router-topk 2 --moe-token-dispatcher-type alltoall --moe-grouped-gemm --moe-aux-loss-coeff 1e-2 \
  --tokenizer-type Llama2Tokenizer --tokenizer-model tokenizer.model --vocab-size 32000"
OPTIONS+=" --tensor-model-parallel-size 1 --pipeline-model-parallel-size 4 \
  --num-virtual-stages-per-pipeline-rank 2 --expert-model-parallel-size 8 \
  --use-distributed-optimizer --overlap-grad-reduce \
  --micro-batch-size 1 --global-batch-size 256 --train-iters 500000 --lr 1e-4 --bf16"

srun --label --output="$LOGS/%x_%j.log" bash -c "
  export RANK=\$SLURM_PROCID LOCAL_RANK=\$SLURM_LOCALID WORLD_SIZE=\$SLURM_NTASKS
  python -u pretrain_gpt.py $OPTIONS --data-path ${DATA:-corpus}
"
