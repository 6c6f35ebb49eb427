# Full fine-tuning of Qwen3-30B-A3B with ms-swift's Megatron backend; the sizes come with the model's name.
PYTORCH_CUDA_ALLOC_CONF='expandable_segments:True' \
NPROC_PER_NODE=8 \
NNODES=2 \
NODE_RANK=$NODE_RANK \
MASTER_ADDR=$MASTER_ADDR \
megatron sft \
    --model Qwen/Qwen3-30B-A3B-Instruct-2507 \
    --save_safetensors true \
    --dataset 'AI-ModelScope/alpaca-gpt4-data-zh#10000' \
              'swift/self-cognition#1000' \
    --load_from_cache_file true \
    --tensor_model_parallel_size 2 \
    --pipeline_model_parallel_size 2 \
    --expert_model_parallel_size 4 \
    --expert_tensor_parallel_size 1 \
    --sequence_parallel true \
    --moe_permute_fusion true \
    --moe_grouped_gemm true \
    --moe_shared_expert_overlap false \
    --moe_token_dispatcher_type alltoall \
    --moe_aux_loss_coeff 1e-6 \
    --micro_batch_size 1 \
    --global_batch_size 32 \
    --recompute_granularity full \
    --recompute_method uniform \
    --recompute_num_layers 1 \
    --num_train_epochs 3 \
    --cross_entropy_loss_fusion false \
    --lr 1e-5 \
    --lr_warmup_fraction 0.05 \
    --min_lr 1e-6 \
    --packing true \
    --max_length 8192 \
    --attention_backend flash \
    --output_dir megatron_output/qwen3
