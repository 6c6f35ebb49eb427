#!/bin/bash
# torchrun in a container on each node; sizes come from an environment file (--env LAYERS=…, or the defaults here).
set -a
[ -f cluster.env ] && source cluster.env
set +a

IMAGE=nvcr.io/nvidia/pytorch:25.04-py3
LAYERS=${LAYERS:-16}
NODES=${NODES:-1}

docker run --rm --gpus all --ipc=host --network=host --ulimit memlock=-1 \
    --env-file cluster.env -e NCCL_SOCKET_IFNAME=eth0 -v /data:/data -w /workspace/megatron \
    $IMAGE bash -c "
        pip install -q sentencepiece &&
        torchrun --nproc-per-node 8 --nnodes ${NODES} --node-rank \${NODE_RANK:-0} \
            --rdzv-backend c10d --rdzv-endpoint ${HEAD:-localhost}:29400 \
            pretrain_gpt.py \
            --num-layers ${LAYERS} --hidden-size 2048 --num-attention-heads 16 --ffn-hidden-size 1024 \
            --qk-layernorm --seq-length 4096 --max-position-embeddings 4096 --position-embedding-type rope \
            --normalization RMSNorm --swiglu --disable-bias-linear --untie-embeddings-and-output-weights \
            --attention-dropout 0 --hidden-dropout 0 --vocab-size 50304 \
            --num-experts 64 --moe-router-topk 8 --moe-ffn-hidden-size 1024 --moe-grouped-gemm \
            --moe-token-dispatcher-type alltoall --expert-model-parallel-size 4 \
            --pipeline-model-parallel-size 2 --num-virtual-stages-per-pipeline-rank 2 \
            --micro-batch-size 2 --global-batch-size 512 --bf16 --use-distributed-optimizer \
            --data-path /data/dolma --tokenizer-type HuggingFaceTokenizer --tokenizer-model allenai/OLMoE-1B-7B-0924
    "
