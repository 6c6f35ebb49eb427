#!/bin/bash
# A recipe's own sizes overridden on the command line, as Megatron-Bridge and NeMo-Run scripts do.
python -m torch.distributed.run --nproc_per_node=8 --nnodes=4 scripts/run_recipe.py \
    --recipe mixtral_8x7b_pretrain_config \
    model.num_layers=32 model.hidden_size=4096 model.ffn_hidden_size=14336 \
    model.num_attention_heads=32 model.num_query_groups=8 model.normalization=RMSNorm \
    model.gated_linear_unit=true model.add_bias_linear=false model.share_embeddings_and_output_weights=false \
    model.position_embedding_type=rope model.hidden_dropout=0 model.attention_dropout=0 \
    model.num_moe_experts=8 model.moe_router_topk=2 model.moe_token_dispatcher_type=alltoall \
    model.moe_grouped_gemm=true \
    model.vocab_size=32000 model.seq_length=4096 \
    model.tensor_model_parallel_size=1 model.pipeline_model_parallel_size=4 \
    model.virtual_pipeline_model_parallel_size=2 model.expert_model_parallel_size=8 \
    train.micro_batch_size=1 train.global_batch_size=256 train.train_iters=1000 \
    ddp.use_distributed_optimizer=true mixed_precision=bf16_mixed logger.log_interval=1
