//! The shape of a model, independent of how it is distributed.

/// Largest value of any size or count, and of the columns of all heads together. With [`MAX_TOKENS`] it keeps the
/// products of the layer tables far inside `u128`: the longest have the tokens and three sizes, or the tokens,
/// two sizes and two numbers of ranks.
pub(crate) const MAX_SIZE: u64 = 1 << 28;
/// Largest number of tokens of a micro-batch.
pub(crate) const MAX_TOKENS: u64 = 1 << 32;
/// Largest number of ranks: keeps products of group sizes inside `u64`.
pub(crate) const MAX_RANKS: u64 = 1 << 20;
/// Largest number of micro-batches of an iteration.
pub(crate) const MAX_MICRO_BATCHES: u64 = 16_384;
/// Largest number of micro-batches times virtual stages: what all ranks run in an iteration.
pub(crate) const MAX_STAGE_RUNS: u64 = 1 << 20;
/// Largest number of micro-batches times layers.
pub(crate) const MAX_LAYER_RUNS: u64 = 1 << 22;
/// Largest number of layers of multi-token prediction.
pub(crate) const MAX_MTP_LAYERS: u64 = 8;
/// Largest number of layers.
pub(crate) const MAX_LAYERS: u64 = 4_096;

/// A GPT model as Megatron builds it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ModelConfig {
    /// Transformer layers (`--num-layers`).
    pub layers: u32,
    /// h (`--hidden-size`).
    pub hidden: u64,
    /// Attention heads (`--num-attention-heads`).
    pub heads: u64,
    /// Key/value groups of grouped-query attention; equal to the heads without it
    /// (`--num-query-groups`).
    pub kv_groups: u64,
    /// Elements of a head (`--kv-channels`).
    pub head_dim: u64,
    /// Hidden size of a dense MLP (`--ffn-hidden-size`).
    pub ffn: u64,
    /// The experts; `None` for a dense model.
    pub moe: Option<MoeConfig>,
    /// Vocabulary before padding (`--vocab-size`).
    pub vocab: u64,
    /// Tokens of a sequence (`--seq-length`).
    pub seq: u64,
    /// Normalisation (`--normalization`).
    pub norm: Norm,
    /// Whether queries and keys are normalised (`--qk-layernorm`).
    pub qk_norm: bool,
    /// MLP activation (`--swiglu`).
    pub activation: Activation,
    /// Whether one kernel runs the activation (no `--no-bias-swiglu-fusion`); otherwise each of its factors
    /// is saved.
    pub fused_activation: bool,
    /// Attention kernel (`--attention-backend`).
    pub attention: Attention,
    /// Whether the outputs of attention and MLP are dropped out (`--hidden-dropout` above 0).
    pub hidden_dropout: bool,
    /// Whether attention probabilities are dropped out (`--attention-dropout` above 0).
    pub attention_dropout: bool,
    /// Whether embedding and output share weights (no `--untie-embeddings-and-output-weights`).
    pub tied_embeddings: bool,
    /// Whether linear layers have a bias (no `--disable-bias-linear`).
    pub bias: bool,
    /// Rows of a learned position embedding; 0 with rotary or no positions.
    pub position_rows: u64,
    /// Rotary position embedding of queries and keys (`--position-embedding-type`).
    pub rotary: Rotary,
    /// Whether only the projection to queries, keys and values has a bias (`--add-qkv-bias`).
    pub qkv_bias: bool,
    /// Multi-latent attention, in place of grouped queries (`--multi-latent-attention`).
    pub mla: Option<Mla>,
    /// Layers of multi-token prediction behind the last layer (`--mtp-num-layers`).
    pub mtp_layers: u32,
    /// How the loss is computed (`--cross-entropy-loss-fusion`).
    pub loss: Loss,
    /// What the vocabulary of a tensor-parallel rank is padded to a multiple of
    /// (`--make-vocab-size-divisible-by`).
    pub vocab_multiple: u64,
}

/// Rotary position embedding of queries and keys.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Rotary {
    /// None, or positions of another kind.
    None,
    /// One kernel, which keeps nothing of its own.
    #[default]
    Fused,
    /// Several kernels, which keep a table of cosines and sines for queries and one for keys
    /// (`--no-rope-fusion`).
    Unfused,
}

/// Multi-latent attention: queries, keys and values come from compressed latents.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mla {
    /// Columns of the queries' latent, 0 where queries are projected directly (`--q-lora-rank`).
    pub q_lora_rank: u64,
    /// Columns of the latent of keys and values (`--kv-lora-rank`).
    pub kv_lora_rank: u64,
    /// Elements of a query's or key's head without position (`--qk-head-dim`).
    pub qk_head_dim: u64,
    /// Elements of it with rotary position, the key's shared by all heads (`--qk-pos-emb-head-dim`).
    pub qk_rope_dim: u64,
    /// Elements of a value's head (`--v-head-dim`).
    pub v_head_dim: u64,
}

/// How the loss is computed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Loss {
    /// Several kernels on an FP32 copy of the logits.
    #[default]
    Unfused,
    /// Megatron's fused kernels (`--cross-entropy-fusion-impl native`).
    Native,
    /// Transformer Engine's, which works on the logits in place (`te`).
    TransformerEngine,
}

/// The Mixture-of-Experts part.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MoeConfig {
    /// E (`--num-experts`).
    pub experts: u64,
    /// k (`--moe-router-topk`).
    pub top_k: u64,
    /// Hidden size of an expert (`--moe-ffn-hidden-size`).
    pub ffn: u64,
    /// Hidden size of the shared expert, 0 without (`--moe-shared-expert-intermediate-size`).
    pub shared_ffn: u64,
    /// Which layers have experts (`--moe-layer-freq`).
    pub layers: MoeLayers,
    /// What permutation keeps.
    pub permute_indices: PermuteIndices,
    /// What the router keeps.
    pub router_input: RouterInput,
    /// Columns of the latent that experts run on, 0 where it is h (`--moe-latent-size`).
    pub latent: u64,
    /// Whether the shared expert's output is weighted by a gate (`--moe-shared-expert-gate`).
    pub shared_gate: bool,
    /// Rows above an expert's capacity are dropped; `None`: no row is.
    pub capacity: Option<Capacity>,
}

/// A limit of the rows of an expert.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Capacity {
    /// The limit in thousandths of T·k/E (`--moe-expert-capacity-factor`).
    pub factor_permille: u32,
    /// Whether every expert's input is padded to it (`--moe-pad-expert-input-to-capacity`).
    pub pad: bool,
}

/// Which layers have experts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MoeLayers {
    /// All but the first so many.
    AfterDense(u32),
    /// Every n-th, beginning with layer 0.
    Every(u32),
    /// As listed, one entry a layer.
    Listed(Vec<bool>),
}

impl MoeLayers {
    /// Whether layer `number` (from 0) has experts.
    pub fn contains(&self, number: u32) -> bool {
        match self {
            Self::AfterDense(dense) => number >= *dense,
            Self::Every(every) => *every != 0 && number.is_multiple_of(*every),
            Self::Listed(layers) => layers.get(number as usize).copied().unwrap_or(false),
        }
    }
}

/// What permute and unpermute save. Both occur in Megatron: see its `moe_utils.py`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum PermuteIndices {
    /// One int64 index for each routed row: 8·T·k bytes (Megatron-core 0.14 to 0.16).
    Sliced,
    /// The slice keeps the whole argsort alive: 8·T·k + 8·T·E bytes (0.17 and later).
    #[default]
    PinsArgsort,
}

/// What the router saves of its input.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum RouterInput {
    /// The storage that the shared expert saves too, as Megatron's fused router linear does.
    #[default]
    Shared,
    /// A copy cast to FP32, as in the paper's first conflict pattern (§V-A) and in implementations that
    /// cast before the linear layer.
    Fp32Copy,
}

/// Normalisation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Norm {
    /// One statistic a row.
    RmsNorm,
    /// Two statistics a row, two parameters an element.
    LayerNorm,
}

/// MLP activation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Activation {
    /// Gated: fc1 is twice as wide.
    SwiGlu,
    /// Not gated.
    Gelu,
}

impl Activation {
    /// Columns of fc1's output for each column of fc2's input.
    pub(crate) fn width(self) -> u128 {
        match self {
            Self::SwiGlu => 2,
            Self::Gelu => 1,
        }
    }
}

/// Attention kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Attention {
    /// Saves q, k, v, the output and one statistic a row and head.
    Flash,
    /// Saves the probabilities.
    Unfused,
}

impl ModelConfig {
    /// Whether layer `number` (from 0) has experts. Layers of multi-token prediction, which have the numbers
    /// behind the last, are of its kind.
    pub fn is_moe(&self, number: u32) -> bool {
        let number = number.min(self.layers.saturating_sub(1));
        self.moe.as_ref().is_some_and(|moe| moe.layers.contains(number))
    }
}
