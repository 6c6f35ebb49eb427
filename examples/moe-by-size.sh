#!/bin/bash
# One script for several sizes: ./moe-by-size.sh [tiny|small|large] [more Megatron flags].
# The sizes are small enough to try on one node.

SIZE=${1:-small}
[[ $# -gt 0 ]] && shift

EXPERTS=16
case $SIZE in
    tiny)
        LAYERS=4; HIDDEN=512; HEADS=8
        ;;
    small)
        LAYERS=16 HIDDEN=1024 HEADS=16
        ;;
    large | xl)
        LAYERS=32 HIDDEN=2048 HEADS=16
        EXPERTS=64
        ;;
    *)
        echo "unknown size: $SIZE" >&2
        exit 2
        ;;
esac

ARGS=(
    --num-layers "$LAYERS" --hidden-size "$HIDDEN" --num-attention-heads "$HEADS"
    --seq-length 2048 --max-position-embeddings 2048 --position-embedding-type rope
    --normalization RMSNorm --swiglu --disable-bias-linear
    --attention-dropout 0 --hidden-dropout 0
    --tokenizer-type NullTokenizer --vocab-size 32768
)

# The first layer is dense; the rest have experts half as wide as the hidden size.
add_experts() {
    local width=$((HIDDEN / 2))
    ARGS+=(--num-experts "$1" --moe-router-topk 4 --moe-ffn-hidden-size $width --moe-token-dispatcher-type alltoall)
    ARGS+=(--moe-layer-freq "([0]*1+[1]*$((LAYERS - 1)))")
}
add_experts $EXPERTS

GPUS=8
if [ "$LAYERS" -ge 32 ]; then
    PP=4
else
    PP=2
fi
ARGS+=(--pipeline-model-parallel-size $PP --expert-model-parallel-size $((GPUS / PP)))

BATCH=$((8 * GPUS))
ARGS+=(--micro-batch-size 2 --global-batch-size "$BATCH" --bf16 --use-distributed-optimizer --mock-data)

if command -v nsys >/dev/null; then
    PROFILE="nsys profile -o trace"
fi

LAUNCH="${PROFILE:-} torchrun --standalone --nproc-per-node=$GPUS"
$LAUNCH pretrain_gpt.py "${ARGS[@]}" "$@" 2>&1 | tee train.log
