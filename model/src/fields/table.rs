//! Which field means what.

use crate::script::changes_memory;

/// What a field means.
#[derive(Clone, Copy)]
pub(super) enum Means {
    /// This flag, with its value or as a switch.
    Flag(&'static str),
    /// This switch where it is false.
    Not(&'static str),
    /// Groups of keys and values: a switch and a number in Megatron.
    KvGroups,
    /// The name of an activation.
    Activation,
    /// The name of a normalisation.
    Norm,
    /// The name of a precision or of a recipe of mixed precision.
    Precision,
    /// This flag, with the name of an element type.
    Type(&'static str),
    /// This flag, with one of an enumeration.
    Backend(&'static str),
    /// What runs the training beside its settings; fully sharded data parallel is one of them.
    Strategy,
    /// A Hugging Face id or the folder of a model.
    Model,
    /// Devices of a node.
    DevicesPerNode,
    Nodes,
    /// A part of the sequence; parts are added up.
    SequencePart,
    /// Prompts of a batch, each sampled several times.
    Prompts,
    Samples,
    /// Memory differs from what is modelled, unless it is off or full.
    Differs(&'static str),
    /// Without effect on memory.
    Harmless,
    /// The flag of the same name.
    SameName,
}

use Means::{Differs, Flag, Harmless, Not, Type};

/// Fields that are not a flag of the same name.
#[rustfmt::skip]
const FIELDS: &[(&str, Means)] = &[
    // Megatron's TransformerConfig and ModelParallelConfig where their names are not those of its flags.
    ("num_moe_experts", Flag("--num-experts")),
    ("num_query_groups", Means::KvGroups),
    ("gated_linear_unit", Flag("--swiglu")),
    ("activation_func", Means::Activation),
    ("add_bias_linear", Not("--disable-bias-linear")),
    ("share_embeddings_and_output_weights", Not("--untie-embeddings-and-output-weights")),
    ("bias_activation_fusion", Not("--no-bias-swiglu-fusion")),
    ("apply_rope_fusion", Not("--no-rope-fusion")),
    ("virtual_pipeline_model_parallel_size", Flag("--num-virtual-stages-per-pipeline-rank")),
    ("microbatch_group_size_per_vp_stage", Flag("--microbatch-group-size-per-virtual-pipeline-stage")),
    ("num_layers_in_first_pipeline_stage", Flag("--decoder-first-pipeline-num-layers")),
    ("num_layers_in_last_pipeline_stage", Flag("--decoder-last-pipeline-num-layers")),
    ("fp8", Flag("--fp8-format")),
    ("fp8_param", Flag("--fp8-param-gather")),
    ("grad_reduce_in_fp32", Not("--grad-reduce-in-bf16")),
    ("gradient_accumulation_fusion", Not("--no-gradient-accumulation-fusion")),
    ("params_dtype", Means::Precision),
    ("main_params_dtype", Type("--main-params-dtype")),
    ("main_grads_dtype", Type("--main-grads-dtype")),
    ("exp_avg_dtype", Type("--exp-avg-dtype")),
    ("exp_avg_sq_dtype", Type("--exp-avg-sq-dtype")),
    ("attention_backend", Means::Backend("--attention-backend")),
    ("normalization", Means::Norm),
    // NeMo and Megatron-Bridge.
    ("encoder_seq_length", Flag("--seq-length")),
    ("sequence_length", Flag("--seq-length")),
    ("activation", Means::Activation),
    ("bias", Not("--disable-bias-linear")),
    ("precision", Means::Precision),
    ("mixed_precision", Means::Precision),
    ("devices", Means::DevicesPerNode),
    ("num_nodes", Means::Nodes),
    ("activations_checkpoint_granularity", Flag("--recompute-granularity")),
    ("activations_checkpoint_method", Flag("--recompute-method")),
    ("activations_checkpoint_num_layers", Flag("--recompute-num-layers")),
    // ms-swift.
    ("model", Means::Model),
    ("model_name_or_path", Means::Model),
    ("hf_model_id", Means::Model),
    ("hf_path", Means::Model),
    ("pretrained_model_name_or_path", Means::Model),
    ("max_length", Flag("--seq-length")),
    ("torch_dtype", Means::Precision),
    ("train_type", Differs("training of all parameters is modelled")),
    ("tuner_type", Differs("training of all parameters is modelled")),
    // verl.
    ("path", Means::Model),
    ("n_gpus_per_node", Means::DevicesPerNode),
    ("nnodes", Means::Nodes),
    ("max_prompt_length", Means::SequencePart),
    ("max_response_length", Means::SequencePart),
    ("ppo_micro_batch_size_per_gpu", Flag("--micro-batch-size")),
    ("ppo_mini_batch_size", Means::Prompts),
    ("n", Means::Samples),
    ("strategy", Means::Strategy),
    ("use_dynamic_bsz", Differs("micro-batches of full sequences are modelled")),
    ("param_offload", Differs("parameters are modelled on the device")),
    ("grad_offload", Differs("gradients are modelled on the device")),
    ("optimizer_offload", Differs("optimizer state is modelled on the device")),
];

/// Fields that cannot change memory, or only by less than the margin, beside those whose flags cannot.
#[rustfmt::skip]
const HARMLESS: &[&str] = &[
    "add_version", "autocast_dtype",
    "average_in_collective", "barrier_with_L1_time", "bias_dropout_fusion", "bucket_size", "cached_dataset",
    "clip_ratio", "deallocate_pipeline_outputs", "entropy_coeff", "ffn_dropout", "grad_clip",
    "init_method_std", "kl_loss_coef", "kl_loss_type", "layernorm_epsilon",
    "lazy_tokenize", "loss_scale", "max_epochs", "mcore_gpt", "mcore_model", "megatron_amp_O2", "model_author",
    "model_name", "model_type", "name", "num_train_epochs", "output_dir", "packing", "padding_free",
    "perform_initialization", "pipeline_dtype", "ppo_epochs", "rotary_percent", "should_pad_vocab",
    "system", "template", "transformer_engine", "use_dist_checkpointing", "use_hf", "use_kl_loss", "use_mbridge",
    "use_remove_padding",
];

/// What `field` means.
pub(super) fn means(field: &str) -> Means {
    match FIELDS.iter().find(|(name, _)| *name == field) {
        Some((_, means)) => *means,
        // `_target_` and its like name classes.
        None if HARMLESS.contains(&field) || field.starts_with('_') => Harmless,
        None => Means::SameName,
    }
}

/// Sections that describe something other than the trained model and its run: nothing in them is the run's.
#[rustfmt::skip]
pub(super) const OTHER_SECTIONS: &[&str] = &[
    "env_vars", "env", "metrics", "inference", "rollout", "ref", "critic", "reward_model", "reward", "teacher",
    "reference", "algorithm", "validation", "validation_ds", "test_ds", "hydra", "defaults", "run", "slurm",
    "launcher", "launcher_args", "ray_kwargs", "ray_init", "custom_reward_function", "global_profiler", "test_type",
    "mode", "before_script", "after_script",
];

/// Sections of what stands around the model. Most of their fields are without effect on memory, and some have
/// names that mean something else in a model; but a field that is a flag's is read wherever it stands.
#[rustfmt::skip]
pub(super) const OUTER_SECTIONS: &[&str] = &[
    "data", "dataset", "trainer", "exp_manager", "logger", "logging", "checkpoint", "tokenizer", "scheduler",
    "lr_scheduler", "profiling", "profiler", "rng", "wandb", "callbacks", "resume", "straggler", "ft", "dist",
    "comm_overlap", "nsys_profile", "optim", "inprocess_restart", "rerun_state_machine",
];

/// Sections of the data and of the loop around training, in which these fields are the run's, too.
pub(super) const LOOP_SECTIONS: [&str; 3] = ["data", "dataset", "trainer"];
pub(super) const LOOP_FIELDS: [&str; 9] = [
    "sequence_length",
    "max_prompt_length",
    "max_response_length",
    "devices",
    "num_nodes",
    "precision",
    "n_gpus_per_node",
    "nnodes",
    "strategy",
];

/// Fields that have another meaning outside of a model.
const OF_THE_MODEL: [&str; 6] = ["activation", "bias", "max_length", "model", "n", "path"];

/// Whether `field`, in a section of what stands around the model, may be the run's all the same.
pub(super) fn matters(field: &str) -> bool {
    match means(field) {
        _ if OF_THE_MODEL.contains(&field) => false,
        Flag(_) | Not(_) | Type(_) | Differs(_) | Means::Backend(_) | Means::KvGroups => true,
        Means::SameName => changes_memory(&format!("--{}", field.replace('_', "-"))),
        _ => false,
    }
}

/// Sections that change what is trained.
pub(super) const ADAPTERS: [&str; 2] = ["peft", "lora"];
