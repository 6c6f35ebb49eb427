//! What a Hugging Face model type means without saying it in a key (the `configuration_*.py` and
//! `modeling_*.py` of each type in transformers).

/// A model type.
#[derive(Debug)]
pub(super) struct Kind {
    /// Values of `model_type`.
    pub names: &'static [&'static str],
    /// Whether queries and keys are normalised.
    pub qk_norm: Choice,
    /// Which linear layers have a bias.
    pub bias: Bias,
    /// Whether a shared expert's output is weighted by a gate.
    pub shared_gate: bool,
    /// Whether attention is multi-latent.
    pub mla: bool,
    /// Whether embedding and output share weights where no key says so.
    pub tied: bool,
    /// Elements of a head where no key says so.
    pub head_dim: HeadDim,
    /// Groups of keys and values where no key says so; `None`: as many as heads.
    pub kv_groups: Option<u64>,
    /// Keys that a type with experts always writes, the first of which says how many: transformers' defaults are
    /// those of one model of the family.
    pub needs: &'static [&'static str],
}

/// Elements of a head without a key.
#[derive(Clone, Copy, Debug)]
pub(super) enum HeadDim {
    /// Hidden size ÷ heads.
    Quotient,
    /// The same for transformers, but published configs always have the key.
    Written,
    /// So many.
    Default(u64),
}

/// A property of a model type.
#[derive(Clone, Copy, Debug)]
pub(super) enum Choice {
    No,
    Yes,
    /// As this key says, no without.
    Key(&'static str),
}

/// Which linear layers have a bias.
#[derive(Clone, Copy, Debug)]
pub(super) enum Bias {
    /// Queries, keys and values as this key says, and without it as here.
    Qkv(&'static str, bool),
    /// All of them, the experts' too.
    All,
    /// All of them or none, as this key says.
    AllIf(&'static str),
}

const PLAIN: Kind = Kind {
    names: &[],
    qk_norm: Choice::No,
    bias: Bias::Qkv("attention_bias", false),
    shared_gate: false,
    mla: false,
    tied: false,
    head_dim: HeadDim::Quotient,
    kv_groups: None,
    needs: &[],
};

const QWEN3: Kind = Kind { qk_norm: Choice::Yes, ..PLAIN };

const FINE_GRAINED: &[&str] =
    &["n_routed_experts", "moe_intermediate_size", "n_shared_experts", "first_k_dense_replace"];

/// Both latents are normalised, which is Megatron's --qk-layernorm.
const DEEPSEEK: Kind = Kind { qk_norm: Choice::Yes, mla: true, needs: FINE_GRAINED, ..PLAIN };

const KINDS: [Kind; 14] = [
    Kind { names: &["llama"], ..PLAIN },
    Kind { names: &["mistral"], kv_groups: Some(8), ..PLAIN },
    Kind { names: &["mixtral"], kv_groups: Some(8), needs: &["num_local_experts"], ..PLAIN },
    Kind { names: &["qwen2"], bias: Bias::Qkv("attention_bias", true), kv_groups: Some(32), ..PLAIN },
    Kind {
        names: &["qwen2_moe"],
        bias: Bias::Qkv("qkv_bias", true),
        shared_gate: true,
        kv_groups: Some(16),
        needs: &["num_experts", "moe_intermediate_size", "shared_expert_intermediate_size"],
        ..PLAIN
    },
    Kind { names: &["qwen3"], head_dim: HeadDim::Default(128), kv_groups: Some(32), ..QWEN3 },
    Kind {
        names: &["qwen3_moe"],
        head_dim: HeadDim::Written,
        kv_groups: Some(4),
        needs: &["num_experts", "moe_intermediate_size"],
        ..QWEN3
    },
    Kind { names: &["olmoe"], needs: &["num_experts"], ..QWEN3 },
    Kind {
        names: &["glm4_moe"],
        qk_norm: Choice::Key("use_qk_norm"),
        head_dim: HeadDim::Written,
        kv_groups: Some(8),
        needs: FINE_GRAINED,
        ..PLAIN
    },
    Kind { names: &["deepseek_v2"], ..DEEPSEEK },
    Kind { names: &["deepseek_v3"], ..DEEPSEEK },
    // Its keys and its code are DeepSeek-V3's.
    Kind { names: &["kimi_k2"], ..DEEPSEEK },
    Kind {
        names: &["gpt_oss"],
        bias: Bias::All,
        head_dim: HeadDim::Default(64),
        kv_groups: Some(8),
        needs: &["num_local_experts"],
        ..PLAIN
    },
    Kind {
        names: &["ernie4_5_moe"],
        bias: Bias::AllIf("use_bias"),
        tied: true,
        kv_groups: Some(4),
        needs: &[
            "moe_num_experts",
            "moe_intermediate_size",
            "moe_num_shared_experts",
            "moe_layer_start_index",
            "moe_layer_interval",
        ],
        ..PLAIN
    },
];

/// A type that is not known is taken by its keys; transformers ties weights where none says otherwise.
const OTHER: Kind = Kind { qk_norm: Choice::Key("use_qk_norm"), tied: true, ..PLAIN };

impl Kind {
    /// The type called `name`.
    pub fn named(name: &str) -> Option<&'static Self> {
        KINDS.iter().find(|kind| kind.names.contains(&name))
    }

    /// What is assumed of a type that is not known.
    pub fn other() -> &'static Self {
        &OTHER
    }

    /// The types there are, for a message.
    pub fn known() -> String {
        let names: Vec<_> = KINDS.iter().flat_map(|kind| kind.names).copied().collect();
        names.join(", ")
    }
}

/// Keys that cannot change memory in training, by prefix.
#[rustfmt::skip]
pub(super) const HARMLESS: &[&str] = &[
    "_", "add_", "architectures", "attn_implementation", "auto_map", "aux_loss_alpha", "begin_suppress_tokens", "bos_", "cache_",
    "chunk_size", "classifier_dropout", "decoder_start_", "embedding_initializer", "eos_", "ep_size", "finetuning_task",
    "forced_", "id2label", "initial_context_length", "initializer_", "is_decoder", "is_encoder_decoder", "label2id", "length_penalty",
    "max_position_embeddings", "max_length", "max_window_layers", "min_length", "moe_router_", "n_group", "norm_eps", "norm_topk_prob",
    "num_beams", "output_", "pad_token_id", "partial_rotary_factor", "prefix", "pretraining_tp", "problem_type",
    "quantization_config", "return_dict", "rms_norm_eps", "rope_", "rotary_", "routed_scaling_factor",
    "router_aux_loss_coef", "router_jitter_noise", "router_z_loss", "scoring_func", "seq_aux", "swiglu_limit", "task_specific_params",
    "dtype", "temperature", "tokenizer_class", "torch_dtype", "top_p", "topk_group", "topk_method", "transformers_version", "use_cache", "use_return_dict",
    "sep_token_id", "expert_router_", "vision_config", "image_token_id", "ignore_index", "mscale", "use_mrope",
    // How rows are routed, in training without dropping.
    "moe_aux_loss", "moe_capacity", "moe_gate", "moe_norm_min", "moe_use_aux_free", "moe_z_loss",
];

/// Whether a key that is not known speaks of experts: a model read without it would be another one.
pub(super) fn of_experts(key: &str) -> bool {
    ["expert", "moe"].iter().any(|word| key.contains(word)) || key.starts_with("shared_")
}
