//! Settings of programs around Megatron: where they stand, how their values are written, and what is taken where
//! they say nothing.

use bagualu_model::read::read;
use bagualu_model::script::{Given, Launch};
use bagualu_model::settings::Recompute;
use bagualu_model::{Attention, GradientType, MODELS, Optimizer};

/// Reads YAML for 16 devices where it does not say.
fn yaml(text: &str) -> Launch {
    refused_or(text).unwrap_or_else(|error| panic!("{error}"))
}

fn refused_or(text: &str) -> Result<Launch, String> {
    read(text.as_bytes(), None, &Given { gpus: Some(16), ..Given::default() })
        .map_err(|error| error.to_string())
}

const MODEL: &str = "model:\n  config: {num_layers: 4, hidden_size: 256, num_attention_heads: 4, seq_length: 512,\n    num_moe_experts: 8, position_embedding_type: rope}\nvocab_size: 1000\n";

#[test]
fn settings_are_read_in_whatever_section_they_stand() {
    let text = format!(
        "trainer:\n  devices: 8\n  num_nodes: 2\n  precision: bf16-mixed\n  max_steps: 10\n  strategy:\n    \
         tensor_model_parallel_size: 2\n    sequence_parallel: true\n    expert_model_parallel_size: 4\n    ddp: \
         {{grad_reduce_in_fp32: false, data_parallel_sharding_strategy: optim_grads_params}}\n{MODEL}\
         data: {{micro_batch_size: 1, global_batch_size: 16, num_workers: 8}}\noptim:\n  config: {{optimizer: adam, \
         lr: 1e-4, use_distributed_optimizer: true, use_precision_aware_optimizer: true, exp_avg_dtype: bf16}}\n\
         comm_overlap: {{tp_comm_overlap: true}}\n"
    );
    let launch = yaml(&text);
    let p = &launch.parallelism;
    assert_eq!((p.tp, p.sequence_parallel, p.ep, p.gradients), (2, true, 4, GradientType::Bf16));
    assert!(p.distributed_optimizer);
    assert_eq!((p.optimizer.main_bytes, p.optimizer.first_moment_bytes), (2, 2));
    for setting in
        ["trainer.strategy.ddp.data_parallel_sharding_strategy: ", "comm_overlap.tp_comm_overlap: "]
    {
        assert!(
            launch.warnings.iter().any(|line| line.starts_with(setting)),
            "{setting} {:?}",
            launch.warnings
        );
    }
    let ignored = |start: &str| launch.ignored.iter().find(|line| line.starts_with(start)).cloned();
    assert_eq!(ignored("data").as_deref(), Some("data (but micro_batch_size, global_batch_size)"));
    assert!(
        ignored("trainer").expect("max_steps").starts_with("trainer (but devices, num_nodes, precision, ")
    );
}

#[test]
fn an_override_of_the_optimizer_is_read_and_another_model_s_is_not() {
    let text = "actor_rollout_ref:\n  model: {path: Qwen/Qwen3-30B-A3B}\n  actor:\n    ppo_micro_batch_size_per_gpu: 1\n    \
                megatron: {tensor_model_parallel_size: 2, expert_model_parallel_size: 8}\n    optim:\n      \
                override_optimizer_config: {optimizer_cpu_offload: true, optimizer_offload_fraction: 0.5, \
                use_precision_aware_optimizer: true}\n  ref:\n    megatron: {tensor_model_parallel_size: 4}\ncritic:\n  \
                optim: {override_optimizer_config: {optimizer_offload_fraction: 1}}\n";
    let launch = yaml(text);
    assert_eq!((launch.parallelism.optimizer.host_permille, launch.parallelism.tp), (500, 2));
}

#[test]
fn element_types_are_known_by_each_of_their_names() {
    let launch = |kind: &str| {
        yaml(&format!(
            "{MODEL}train: {{micro_batch_size: 1, global_batch_size: 16}}\nparams_dtype: {kind}\noptimizer:\n  \
             use_distributed_optimizer: true\n  use_precision_aware_optimizer: true\n  exp_avg_dtype: {kind}\n  \
             main_grads_dtype: {kind}\n"
        ))
        .parallelism
    };
    let expected = launch("bf16");
    assert_eq!((expected.optimizer.first_moment_bytes, expected.gradients), (2, GradientType::Bf16));
    for kind in ["torch.bfloat16", "bfloat16", "{_target_: torch.bfloat16, _call_: false}"] {
        assert_eq!(launch(kind), expected, "{kind}");
    }
    let wide = yaml(&format!(
        "{MODEL}micro_batch_size: 1\nbf16: true\nuse_distributed_optimizer: true\nuse_precision_aware_optimizer: true\n\
         exp_avg_dtype: torch.float32\nexp_avg_sq_dtype: {{_target_: torch.uint8, _call_: false}}\n\
         attention_backend: {{_target_: megatron.core.transformer.enums.AttnBackend, _call_: true, _args_: [3]}}\n"
    ));
    let optimizer = Optimizer { main_bytes: 2, second_moment_bytes: 1, ..Optimizer::default() };
    assert_eq!((wide.parallelism.optimizer, wide.config.attention), (optimizer, Attention::Unfused));
    let error = refused_or(&format!(
        "{MODEL}micro_batch_size: 1\nuse_distributed_optimizer: true\nuse_precision_aware_optimizer: true\n\
         exp_avg_dtype: int3\n"
    ))
    .expect_err("no type");
    assert!(error.contains("exp_avg_dtype: --exp-avg-dtype is \"int3\"; give fp32"), "{error}");
}

#[test]
fn two_settings_of_one_thing_are_told_where_they_differ() {
    let base = format!("{MODEL}micro_batch_size: 1\nbf16: true\n");
    let latter = |text: &str| -> Vec<_> {
        let warnings = yaml(&format!("{base}{text}")).warnings;
        warnings.into_iter().filter(|line| line.contains("the latter is taken")).collect()
    };
    assert_eq!(latter("num_experts: 8"), [""; 0]);
    assert_eq!(
        latter("num_experts: 16"),
        ["model.config.num_moe_experts is 8 and num_experts is 16: the latter is taken"]
    );
    assert_eq!(
        latter("dataset: {seq_length: 1024}"),
        ["dataset.seq_length is 1024 and model.config.seq_length is 512: the latter is taken"]
    );
    assert_eq!(latter("add_bias_linear: false\nbias: true").len(), 1);
}

#[test]
fn false_and_null_take_back_what_was_said_before() {
    let base = format!("{MODEL}micro_batch_size: 1\nbf16: true\ntensor_model_parallel_size: 2\n");
    let launch = |text: &str| yaml(&format!("{base}{text}"));
    let shared = "x: &x {sequence_parallel: true, recompute_granularity: full, recompute_method: uniform, \
                  recompute_num_layers: 1}\n";
    assert!(launch(shared).parallelism.sequence_parallel);
    let own = "y: {sequence_parallel: false, recompute_granularity: null, recompute_method: null, \
               recompute_num_layers: null}\n";
    let error =
        refused_or(&format!("{base}{shared}{own}")).map(|launch| launch.parallelism.sequence_parallel);
    assert_eq!(error, Ok(false));
    assert_eq!(
        launch(&format!(
            "{shared}y: {{recompute_granularity: null, recompute_method: null, recompute_num_layers: null}}"
        ))
        .settings
        .recompute,
        Recompute::None
    );
}

#[test]
fn what_a_program_takes_by_itself_is_assumed_and_told() {
    assert!(MODELS.contains(&"qwen3-30b-a3b"));
    let swift = "model: Qwen/Qwen3-30B-A3B\ntrain_type: full\ntensor_model_parallel_size: 2\nsequence_parallel: true\n\
                 expert_model_parallel_size: 4\n";
    let launch = yaml(swift);
    assert_eq!((launch.parallelism.etp, launch.parallelism.global_batch), (1, 16));
    assert!(matches!(launch.settings.recompute, Recompute::Selective(_)));
    let note = |launch: &Launch, program: &str| {
        launch.warnings.iter().find(|line| line.contains(program)).cloned().unwrap_or_default()
    };
    assert!(
        note(&launch, "ms-swift 3.10").contains("--expert-tensor-parallel-size 1"),
        "{:?}",
        launch.warnings
    );
    let given = yaml(&format!("{swift}expert_tensor_parallel_size: 2\n"));
    assert_eq!(given.parallelism.etp, 2);
    assert!(!note(&given, "ms-swift 3.10").contains("expert-tensor"));

    let verl = |more: &str| {
        let text = format!(
            "python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path=Qwen/Qwen3-30B-A3B \
             actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1 data.max_prompt_length=1024 \
             data.max_response_length=1024 actor_rollout_ref.actor.megatron.tensor_model_parallel_size=2 \
             trainer.n_gpus_per_node=8 {more}\n"
        );
        read(text.as_bytes(), None, &Given::default()).expect("a launch")
    };
    let launch = verl("");
    assert!(launch.parallelism.sequence_parallel && launch.parallelism.distributed_optimizer);
    assert_eq!(launch.parallelism.etp, 2, "experts take the TP");
    assert!(note(&launch, "verl 0.6").contains("--sequence-parallel"));
    let off = verl("actor_rollout_ref.actor.megatron.sequence_parallel=False");
    assert!(!off.parallelism.sequence_parallel && !note(&off, "verl 0.6").contains("--sequence-parallel"));
    // Megatron's own files keep its defaults.
    let plain = yaml(&format!("{MODEL}micro_batch_size: 1\nbf16: true\ntensor_model_parallel_size: 2\n"));
    assert_eq!((plain.parallelism.etp, plain.parallelism.sequence_parallel), (2, false));
}

#[test]
fn fully_sharded_training_is_refused_by_its_setting() {
    let error =
        refused_or(&format!("{MODEL}micro_batch_size: 1\nactor: {{strategy: fsdp}}\n")).expect_err("refused");
    assert!(error.contains("actor.strategy") && error.contains("not modelled"), "{error}");
    let launch = yaml(&format!("{MODEL}micro_batch_size: 1\nactor: {{strategy: megatron}}\n"));
    assert!(launch.ignored.contains(&"actor.strategy".to_owned()));
}

#[test]
fn a_checkpoint_without_its_sizes_is_named() {
    let script = "NPROC_PER_NODE=8 megatron sft --load Qwen3-30B-A3B-mcore --micro_batch_size 1\n";
    let error = read(script.as_bytes(), None, &Given::default()).expect_err("no sizes").to_string();
    assert!(error.contains("\"Qwen3-30B-A3B-mcore\"") && error.contains("config.json"), "{error}");
}
