#!/bin/bash
# A dense 1.3B GPT with the DeepSpeed launcher, as in Megatron-DeepSpeed's example scripts.
DIR=$(dirname "$0")
num_nodes=2
num_gpus=8
world_size=$((num_nodes * num_gpus))

seq_len=2048
hidden_size=2048
num_layers=24
num_heads=16
batch_size=4
mp_size=2
pp_size=4
dp_size=$((world_size / mp_size / pp_size))
global_batch_size=$((batch_size * dp_size * 16))

data_options="--vocab-file gpt2-vocab.json --merge-file gpt2-merges.txt --data-path ${DATA_ROOT:-/data}/pile_text_document"

megatron_options="\
    --tensor-model-parallel-size ${mp_size} \
    --pipeline-model-parallel-size ${pp_size} \
    --num-layers ${num_layers} \
    --hidden-size ${hidden_size} \
    --num-attention-heads ${num_heads} \
    --seq-length ${seq_len} \
    --max-position-embeddings ${seq_len} \
    --micro-batch-size ${batch_size} \
    --global-batch-size ${global_batch_size} \
    --tokenizer-type GPT2BPETokenizer \
    --train-iters 100000 --lr 2.0e-4 --min-lr 1.0e-6 --lr-decay-style cosine \
    --weight-decay 0.1 --adam-beta1 0.9 --adam-beta2 0.95 --clip-grad 1.0 \
    --log-interval 10 --eval-interval 1000 --eval-iters 10 --num-workers 0 --fp16"

if [[ $world_size -gt 8 ]]; then
    megatron_options="${megatron_options} --recompute-granularity full --recompute-method uniform --recompute-num-layers 1"
fi

deepspeed --num_nodes $num_nodes --num_gpus $num_gpus --hostfile "${DIR}/hostfile" \
    pretrain_gpt.py ${megatron_options} ${data_options} &> train.log
