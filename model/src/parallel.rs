//! How a model is distributed, and the rules that Megatron holds it to.

use crate::config::{MAX_LAYER_RUNS, MAX_LAYERS, MAX_MICRO_BATCHES, MAX_MTP_LAYERS, MAX_RANKS};
use crate::config::{MAX_SIZE, MAX_STAGE_RUNS, MAX_TOKENS};
use crate::{Activation, Attention, Layout, ModelConfig, ModelError, MoeLayers};

/// Element type of parameters and activations.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Precision {
    /// 2 bytes; the optimizer keeps FP32 main parameters.
    Bf16,
    /// 4 bytes.
    Fp32,
}

impl Precision {
    /// Bytes of an element.
    pub const fn bytes(self) -> u64 {
        match self {
            Self::Bf16 => 2,
            Self::Fp32 => 4,
        }
    }
}

/// Element type of the gradient buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GradientType {
    /// Megatron's default with `--bf16` (`--accumulate-allreduce-grads-in-fp32`).
    Fp32,
    /// `--grad-reduce-in-bf16`, `--main-grads-dtype bf16`, or FP16 training: 2 bytes.
    Bf16,
}

/// FP8 training: linear layers run in FP8 and save their inputs so.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fp8 {
    /// How scales are found (`--fp8-recipe`).
    pub recipe: Fp8Recipe,
    /// Whether parameters are kept in FP8 (`--fp8-param-gather`).
    pub parameters: bool,
}

/// How the scales of FP8 tensors are found.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Fp8Recipe {
    /// One scale a tensor, from earlier iterations.
    #[default]
    Delayed,
    /// One scale a tensor, from itself.
    Tensorwise,
    /// One FP32 scale for each 128 elements.
    Blockwise,
    /// One 8-bit scale for each 32 elements.
    Mxfp8,
}

/// How the rows of experts are padded for GEMMs in FP8.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RowPadding {
    /// What the rows of an expert become a multiple of; 1 without padding.
    pub multiple: u32,
    /// Whether routers pad what each of them sends to an expert (`--moe-router-padding-for-quantization`), and
    /// not the experts what they receive.
    pub by_router: bool,
}

impl Default for RowPadding {
    /// None.
    fn default() -> Self {
        Self { multiple: 1, by_router: false }
    }
}

/// Which libraries run the layers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Libraries {
    /// Transformer Engine (`--transformer-impl`), or Megatron's own layers: it fuses norms into the linear layer behind
    /// them, so that they are no modules of their own.
    pub transformer_engine: bool,
    /// Whether the experts' linear layers are one kernel (`--moe-grouped-gemm`).
    pub grouped_gemm: bool,
}

impl Default for Libraries {
    /// Megatron's.
    fn default() -> Self {
        Self { transformer_engine: true, grouped_gemm: false }
    }
}

/// What the optimizer keeps for each parameter, and where.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Optimizer {
    /// Bytes of a main parameter beside BF16 ones (`--main-params-dtype`); 2 where only what BF16 cuts off an
    /// FP32 parameter is kept, as with `--use-precision-aware-optimizer`.
    pub main_bytes: u64,
    /// Bytes of Adam's first moment (`--exp-avg-dtype`); 0 for an optimizer without.
    pub first_moment_bytes: u64,
    /// Bytes of Adam's second moment (`--exp-avg-sq-dtype`); 0 for an optimizer without.
    pub second_moment_bytes: u64,
    /// Share of the state that is kept on the host in FP32, in thousandths (`--optimizer-cpu-offload`,
    /// `--optimizer-offload-fraction`).
    pub host_permille: u32,
}

impl Default for Optimizer {
    /// Adam in FP32 on the device.
    fn default() -> Self {
        Self { main_bytes: 4, first_moment_bytes: 4, second_moment_bytes: 4, host_permille: 0 }
    }
}

/// The distribution of a training run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Parallelism {
    /// Devices.
    pub gpus: u64,
    /// Tensor parallel (`--tensor-model-parallel-size`).
    pub tp: u64,
    /// Sequence parallel (`--sequence-parallel`); means nothing with TP = 1.
    pub sequence_parallel: bool,
    /// Context parallel: a ring over parts of the sequence (`--context-parallel-size`).
    pub cp: u64,
    /// Expert parallel (`--expert-model-parallel-size`).
    pub ep: u64,
    /// Expert tensor parallel (`--expert-tensor-parallel-size`).
    pub etp: u64,
    /// Pipeline parallel (`--pipeline-model-parallel-size`).
    pub pp: u32,
    /// V, model chunks of a rank; 1 without interleaving.
    pub chunks: u32,
    /// Micro-batches that a chunk runs in a row when interleaved
    /// (`--microbatch-group-size-per-virtual-pipeline-stage`), PP by default.
    pub group_size: u32,
    /// Whether dispatch and combine overlap with another micro-batch, which takes one more warm-up forward
    /// (`--overlap-moe-expert-parallel-comm`).
    pub overlap_ep: bool,
    /// Sequences of a micro-batch (`--micro-batch-size`).
    pub micro_batch: u64,
    /// Sequences of an iteration over all ranks (`--global-batch-size`).
    pub global_batch: u64,
    /// Element type of parameters and activations.
    pub precision: Precision,
    /// Element type of the gradient buffer.
    pub gradients: GradientType,
    /// Whether 2-byte numbers are FP16 (`--fp16`), not BF16: the same bytes, another optimizer.
    pub fp16: bool,
    /// Whether optimizer state is divided over the data-parallel ranks (`--use-distributed-optimizer`).
    pub distributed_optimizer: bool,
    /// What the optimizer keeps.
    pub optimizer: Optimizer,
    /// Whether linear layers add to the gradient buffer themselves: not with `--no-gradient-accumulation-fusion`.
    pub fused_gradients: bool,
    /// Which libraries run the layers.
    pub libraries: Libraries,
    /// FP8 training (`--fp8-format`); `None`: linear layers run in [`Self::precision`].
    pub fp8: Option<Fp8>,
    /// Whether fc1's output is kept in FP8 for the activation's backward
    /// (`--activation-func-fp8-input-store`).
    pub fp8_activation_store: bool,
    /// How the rows of experts are padded.
    pub row_padding: RowPadding,
    /// Which layers a virtual stage runs.
    pub layout: Layout,
}

impl Default for Parallelism {
    /// One device, one sequence.
    fn default() -> Self {
        Self {
            gpus: 1,
            tp: 1,
            sequence_parallel: false,
            cp: 1,
            ep: 1,
            etp: 1,
            pp: 1,
            chunks: 1,
            group_size: 1,
            overlap_ep: false,
            micro_batch: 1,
            global_batch: 1,
            precision: Precision::Bf16,
            gradients: GradientType::Fp32,
            fp16: false,
            distributed_optimizer: false,
            optimizer: Optimizer::default(),
            fused_gradients: true,
            libraries: Libraries::default(),
            fp8: None,
            fp8_activation_store: false,
            row_padding: RowPadding::default(),
            layout: Layout::default(),
        }
    }
}

impl Parallelism {
    /// Data-parallel ranks of everything but the experts: gpus ÷ (TP · CP · PP).
    pub fn dp(&self) -> u64 {
        quotient(self.gpus, &[self.tp, self.cp, u64::from(self.pp)])
    }

    /// Data-parallel ranks of the experts: gpus ÷ (ETP · EP · PP).
    pub fn expert_dp(&self) -> u64 {
        quotient(self.gpus, &[self.etp, self.ep, u64::from(self.pp)])
    }

    /// Micro-batches of an iteration: global batch ÷ (micro-batch · DP).
    pub fn micro_batches(&self) -> u64 {
        quotient(self.global_batch, &[self.micro_batch, self.dp()])
    }

    /// Checks every rule between `config` and `self`.
    pub(crate) fn check(&self, config: &ModelConfig) -> Result<(), ModelError> {
        self.check_ranges(config)?;
        self.check_groups()?;
        self.check_shapes(config)?;
        self.check_pipeline(config)?;
        self.check_modelled(config)
    }

    fn check_ranges(&self, config: &ModelConfig) -> Result<(), ModelError> {
        let ranks =
            [("gpus", self.gpus), ("tp", self.tp), ("cp", self.cp), ("ep", self.ep), ("etp", self.etp)];
        for (field, value) in ranks {
            in_range(field, value, 1, MAX_RANKS)?;
        }
        let sizes = [
            ("micro_batch", self.micro_batch),
            ("global_batch", self.global_batch),
            ("hidden", config.hidden),
            ("heads", config.heads),
            ("kv_groups", config.kv_groups),
            ("head_dim", config.head_dim),
            ("ffn", config.ffn),
            ("vocab", config.vocab),
            ("make_vocab_size_divisible_by", config.vocab_multiple),
            ("seq", config.seq),
        ];
        for (field, value) in sizes {
            in_range(field, value, 1, MAX_SIZE)?;
        }
        in_range("layers", config.layers.into(), 1, MAX_LAYERS)?;
        in_range("pp", self.pp.into(), 1, MAX_LAYERS)?;
        in_range("chunks", self.chunks.into(), 1, MAX_LAYERS)?;
        in_range("group_size", self.group_size.into(), 1, MAX_SIZE)?;
        in_range("mtp_layers", config.mtp_layers.into(), 0, MAX_MTP_LAYERS)?;
        in_range("position_rows", config.position_rows, 0, MAX_SIZE)?;
        if let Some(mla) = &config.mla {
            in_range("q_lora_rank", mla.q_lora_rank, 0, MAX_SIZE)?;
            in_range("kv_lora_rank", mla.kv_lora_rank, 1, MAX_SIZE)?;
            in_range("qk_head_dim", mla.qk_head_dim, 0, MAX_SIZE)?;
            in_range("qk_pos_emb_head_dim", mla.qk_rope_dim, 1, MAX_SIZE)?;
            in_range("v_head_dim", mla.v_head_dim, 1, MAX_SIZE)?;
        }
        self.check_products(config)?;
        let Some(moe) = &config.moe else { return Ok(()) };
        in_range("experts", moe.experts, 1, MAX_SIZE)?;
        in_range("multiple of an expert's rows", self.row_padding.multiple.into(), 1, 256)?;
        in_range("moe_ffn", moe.ffn, 1, MAX_SIZE)?;
        in_range("shared_ffn", moe.shared_ffn, 0, MAX_SIZE)?;
        in_range("moe_latent_size", moe.latent, 0, MAX_SIZE)?;
        in_range("top_k", moe.top_k, 1, moe.experts)?;
        match &moe.layers {
            MoeLayers::AfterDense(dense) => {
                in_range("leading dense layers", u64::from(*dense), 0, config.layers.into())
            }
            MoeLayers::Every(every) => in_range("moe_layer_freq", u64::from(*every), 1, MAX_LAYERS),
            MoeLayers::Listed(listed) => {
                let layers = u64::from(config.layers);
                in_range("entries of moe_layer_freq", listed.len() as u64, layers, layers)
            }
        }
    }

    /// Sizes that stand as one in every formula are bounded as one; each of them is in range.
    fn check_products(&self, config: &ModelConfig) -> Result<(), ModelError> {
        in_range("seq·micro_batch", config.seq * self.micro_batch, 1, MAX_TOKENS)?;
        match &config.mla {
            None => in_range("heads·head_dim", config.heads * config.head_dim, 1, MAX_SIZE),
            Some(mla) => {
                let query = mla.qk_head_dim + mla.qk_rope_dim;
                in_range("heads·(qk_head_dim + qk_pos_emb_head_dim)", config.heads * query, 1, MAX_SIZE)?;
                in_range("heads·v_head_dim", config.heads * mla.v_head_dim, 1, MAX_SIZE)
            }
        }
    }

    fn check_groups(&self) -> Result<(), ModelError> {
        let pp = u64::from(self.pp);
        let fix = "change the number of GPUs (--gpus, or nodes × GPUs per node)";
        divides("gpus", self.gpus, "tp·cp·pp", self.tp * self.cp * pp, fix)?;
        let fix = "change EP or expert TP: experts take the ranks of TP and DP of one pipeline stage";
        divides("gpus", self.gpus, "etp·ep·pp", self.etp * self.ep * pp, fix)?;
        let fix = "give a multiple of micro-batch × data-parallel ranks";
        divides("global_batch", self.global_batch, "micro_batch·dp", self.micro_batch * self.dp(), fix)?;
        in_range("global_batch ÷ (micro_batch·dp)", self.micro_batches(), 1, MAX_MICRO_BATCHES)
    }

    fn check_shapes(&self, config: &ModelConfig) -> Result<(), ModelError> {
        let fix = "change TP or the model";
        divides("heads", config.heads, "tp", self.tp, fix)?;
        if config.mla.is_none() {
            let fix = "change the number of query groups";
            divides("heads", config.heads, "kv_groups", config.kv_groups, fix)?;
            self.check_query_groups(config)?;
        }
        divides("ffn", config.ffn, "tp", self.tp, fix)?;
        if self.cp > 1 {
            let fix = "context parallel gives a rank two parts of the sequence; change CP or the sequence";
            divides("seq", config.seq, "2·cp", 2 * self.cp, fix)?;
        }
        if self.sequence_parallel {
            let fix = "sequence parallel splits the sequence; change TP";
            divides("seq", config.seq, "tp·cp", self.tp * self.cp, fix)?;
        }
        let Some(moe) = &config.moe else { return Ok(()) };
        divides("experts", moe.experts, "ep", self.ep, "change EP or the number of experts")?;
        divides("moe_ffn", moe.ffn, "etp", self.etp, "change expert TP")?;
        divides("shared_ffn", moe.shared_ffn, "tp", self.tp, fix)
    }

    /// Megatron also divides a group over ranks (`attention.py`): each makes its part of the fused projection.
    fn check_query_groups(&self, config: &ModelConfig) -> Result<(), ModelError> {
        if !self.tp.is_multiple_of(config.kv_groups) && !config.kv_groups.is_multiple_of(self.tp) {
            return Err(unsupported(
                "kv_groups",
                config.kv_groups,
                "Megatron takes a multiple or a divisor of TP",
                "change TP or the number of query groups",
            ));
        }
        let columns = config.head_dim * (config.heads + 2 * config.kv_groups);
        divides("columns of queries, keys and values", columns, "tp", self.tp, "change TP or the model")
    }

    fn check_pipeline(&self, config: &ModelConfig) -> Result<(), ModelError> {
        self.stage_layouts(config)?;
        // A plan goes through all of them on every rank; each factor is in range.
        let stages = u64::from(self.pp) * u64::from(self.chunks);
        in_range("pp·chunks·micro-batches", stages * self.micro_batches(), 1, MAX_STAGE_RUNS)?;
        let layers = u64::from(config.layers);
        in_range("layers·micro-batches", layers * self.micro_batches(), 1, MAX_LAYER_RUNS)?;
        if self.chunks == 1 {
            return Ok(());
        }
        if self.pp == 1 {
            return Err(unsupported(
                "chunks",
                self.chunks,
                "interleaving needs PP above 1",
                "raise PP or drop the virtual stages",
            ));
        }
        if self.micro_batches() < u64::from(self.pp) {
            return Err(unsupported(
                "micro-batches",
                self.micro_batches(),
                "interleaving needs at least as many micro-batches as pipeline ranks",
                "raise the global batch or lower PP",
            ));
        }
        in_range("group_size", self.group_size.into(), self.pp.into(), self.micro_batches())?;
        let rest = self.micro_batches() % u64::from(self.group_size);
        if rest != 0 && rest < u64::from(self.pp) {
            return Err(unsupported(
                "micro-batches",
                self.micro_batches(),
                "interleaving leaves a last group smaller than PP",
                "give a global batch whose micro-batches are a multiple of the group size",
            ));
        }
        Ok(())
    }

    fn check_modelled(&self, config: &ModelConfig) -> Result<(), ModelError> {
        in_range("optimizer offload fraction, thousandths", self.optimizer.host_permille.into(), 0, 1_000)?;
        for (field, bytes) in [
            ("bytes of a main parameter", self.optimizer.main_bytes),
            ("bytes of a first moment", self.optimizer.first_moment_bytes),
            ("bytes of a second moment", self.optimizer.second_moment_bytes),
        ] {
            in_range(field, bytes, 0, 8)?;
        }
        let fused_glu = config.fused_activation && config.activation == Activation::SwiGlu;
        if self.fp8_activation_store && !fused_glu {
            return Err(unsupported(
                "fp8_activation_store",
                "given",
                "only the fused gated activation stores its input so",
                "add --swiglu, or drop --activation-func-fp8-input-store",
            ));
        }
        if config.mtp_layers > 0 && config.position_rows > 0 {
            return Err(unsupported(
                "position_rows",
                config.position_rows,
                "multi-token prediction runs with rotary positions or none",
                "add --position-embedding-type rope",
            ));
        }
        if config.mtp_layers > 1 && self.overlap_ep {
            return Err(unsupported(
                "mtp_layers",
                config.mtp_layers,
                "the overlap of dispatch and combine takes at most one layer of multi-token prediction",
                "give 1 or drop --overlap-moe-expert-parallel-comm",
            ));
        }
        self.check_overlap()?;
        if config.moe.is_none() && (self.ep > 1 || self.etp > 1) {
            let ranks = self.ep * self.etp;
            return Err(unsupported("ep·etp", ranks, "a dense model has no experts", "give 1"));
        }
        if config.moe.is_some() && self.tp > 1 && !self.sequence_parallel {
            return Err(unsupported(
                "sequence_parallel",
                false,
                "Megatron refuses to train experts with TP above 1 without it",
                "add --sequence-parallel",
            ));
        }
        if self.cp > 1 && config.attention == Attention::Unfused {
            return Err(unsupported(
                "cp",
                self.cp,
                "Megatron's unfused attention has no context parallel",
                "give 1 or --attention-backend flash",
            ));
        }
        if config.attention == Attention::Flash && self.precision == Precision::Fp32 {
            return Err(unsupported(
                "attention",
                "flash",
                "flash attention does not run in FP32",
                "give --attention-backend unfused or --bf16",
            ));
        }
        Ok(())
    }
    /// Megatron's rules for `--overlap-moe-expert-parallel-comm` (`transformer_config.py`).
    fn check_overlap(&self) -> Result<(), ModelError> {
        const FIX: &str = "change it or drop --overlap-moe-expert-parallel-comm";
        if !self.overlap_ep {
            return Ok(());
        }
        let refused = |field, value: u64, rule| Err(unsupported(field, value, rule, FIX));
        if self.ep == 1 {
            return refused("ep", 1, "the overlap of dispatch and combine needs EP above 1");
        }
        if self.pp > 1 && self.chunks == 1 {
            return refused(
                "chunks",
                1,
                "in a pipeline the overlap of dispatch and combine needs virtual stages",
            );
        }
        match self.precision {
            Precision::Bf16 => Ok(()),
            Precision::Fp32 => Err(unsupported(
                "precision",
                "FP32",
                "the overlap of dispatch and combine runs in BF16 or FP16",
                "add --bf16 or drop --overlap-moe-expert-parallel-comm",
            )),
        }
    }
}

fn quotient(value: u64, divisors: &[u64]) -> u64 {
    divisors.iter().fold(value, |rest, &divisor| rest.checked_div(divisor).unwrap_or(0))
}

pub(crate) fn in_range(field: &'static str, value: u64, least: u64, most: u64) -> Result<(), ModelError> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    Err(ModelError::OutOfRange { field, value, least, most })
}

pub(crate) fn divides(
    field: &'static str,
    value: u64,
    by: &'static str,
    divisor: u64,
    fix: &'static str,
) -> Result<(), ModelError> {
    if divisor != 0 && value.is_multiple_of(divisor) {
        return Ok(());
    }
    Err(ModelError::NotDivisible { field, value, by, divisor, fix })
}

pub(crate) fn unsupported(
    field: &'static str,
    value: impl ToString,
    rule: &'static str,
    fix: &'static str,
) -> ModelError {
    ModelError::Unsupported { field, value: value.to_string(), rule, fix }
}
