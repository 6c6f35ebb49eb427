//! Flags to shapes and distribution, with Megatron's defaults (`megatron/training/arguments.py`).

use super::ScriptError;
use super::expand::Environment;
use super::flags::Flags;
use crate::{
    Activation, Attention, GradientType, ModelConfig, MoeConfig, MoeLayers, Norm, Parallelism,
    PermuteIndices, Precision, RouterInput,
};

/// Longest `--moe-layer-freq` list.
const MAX_PATTERN: usize = 4_096;

/// Reads values with their defaults.
pub(super) struct Reader<'a> {
    pub flags: &'a Flags,
    pub environment: &'a Environment,
}

impl Reader<'_> {
    fn number(&self, name: &'static str) -> Result<Option<u64>, ScriptError> {
        self.flags.number(name, self.environment)
    }

    fn or(&self, name: &'static str, default: u64) -> Result<u64, ScriptError> {
        Ok(self.number(name)?.unwrap_or(default))
    }

    fn small(&self, name: &'static str, default: u32) -> Result<u32, ScriptError> {
        Ok(self.flags.number(name, self.environment)?.unwrap_or(default))
    }

    fn needed(&self, name: &'static str) -> Result<u64, ScriptError> {
        self.number(name)?.ok_or(ScriptError::Missing { flag: name })
    }

    /// Zero is refused by the name of its flag, before others that are computed from it.
    fn positive<T: PartialEq + From<u8>>(&self, name: &'static str, value: T) -> Result<T, ScriptError> {
        if value == T::from(0) { Err(self.bad(name, "1 or more")) } else { Ok(value) }
    }

    fn text(&self, name: &'static str) -> Result<Option<&str>, ScriptError> {
        self.flags.text(name, self.environment)
    }

    /// The shape.
    pub fn config(&self) -> Result<ModelConfig, ScriptError> {
        self.refuse()?;
        let layers = self.positive("--num-layers", self.needed("--num-layers")?)?;
        let layers = u32::try_from(layers).map_err(|_| self.bad("--num-layers", "at most 4096"))?;
        let hidden = self.needed("--hidden-size")?;
        let heads = self.needed("--num-attention-heads")?;
        let gated = self.flags.switch("--swiglu") || self.flags.switch("--quick-geglu");
        let ffn = match self.number("--ffn-hidden-size")? {
            Some(ffn) => ffn,
            None if gated => hidden.saturating_mul(4).saturating_mul(2) / 3 / 64 * 64,
            None => hidden.saturating_mul(4),
        };
        let seq = self.needed("--seq-length")?;
        Ok(ModelConfig {
            layers,
            hidden,
            heads,
            kv_groups: if self.flags.switch("--group-query-attention") {
                self.or("--num-query-groups", 1)?
            } else {
                heads
            },
            head_dim: self.or("--kv-channels", hidden.checked_div(heads).unwrap_or(0))?,
            ffn,
            moe: self.moe(ffn)?,
            vocab: self.vocab()?,
            seq,
            norm: self.norm()?,
            qk_norm: self.flags.switch("--qk-layernorm"),
            activation: if gated { Activation::SwiGlu } else { Activation::Gelu },
            fused_activation: !self.flags.switch(if gated {
                "--no-bias-swiglu-fusion"
            } else {
                "--no-bias-gelu-fusion"
            }),
            attention: self.attention()?,
            hidden_dropout: self.dropout("--hidden-dropout")?,
            attention_dropout: self.dropout("--attention-dropout")?,
            tied_embeddings: !self.flags.switch("--untie-embeddings-and-output-weights"),
            bias: !self.flags.switch("--disable-bias-linear"),
            position_rows: self.position_rows(seq)?,
        })
    }

    fn bad(&self, flag: &'static str, expected: &'static str) -> ScriptError {
        let value = self.text(flag).ok().flatten().unwrap_or_default().to_owned();
        ScriptError::BadValue { flag, value, expected }
    }

    /// What would be another model than the one built here.
    fn refuse(&self) -> Result<(), ScriptError> {
        const REFUSED: [&str; 12] = [
            "--multi-latent-attention",
            "--decoder-first-pipeline-num-layers",
            "--decoder-last-pipeline-num-layers",
            "--pipeline-model-parallel-layout",
            "--account-for-embedding-in-pipeline-split",
            "--account-for-loss-in-pipeline-split",
            "--use-torch-fsdp2",
            "--use-megatron-fsdp",
            "--fp32-residual-connection",
            "--use-checkpoint-args",
            "--hybrid-layer-pattern",
            "--yaml-cfg",
        ];
        if let Some(flag) = REFUSED.into_iter().find(|flag| self.flags.switch(flag)) {
            return Err(ScriptError::NotModelled { flag });
        }
        match self.or("--mtp-num-layers", 0)? {
            0 => Ok(()),
            _ => Err(ScriptError::NotModelled { flag: "--mtp-num-layers" }),
        }
    }

    fn moe(&self, ffn: u64) -> Result<Option<MoeConfig>, ScriptError> {
        let Some(experts) = self.number("--num-experts")? else { return Ok(None) };
        Ok(Some(MoeConfig {
            experts,
            top_k: self.or("--moe-router-topk", 2)?,
            ffn: self.or("--moe-ffn-hidden-size", ffn)?,
            shared_ffn: self.or("--moe-shared-expert-intermediate-size", 0)?,
            layers: match self.text("--moe-layer-freq")? {
                None => MoeLayers::AfterDense(0),
                Some(text) => pattern(text).ok_or_else(|| {
                    self.bad("--moe-layer-freq", "a number, or a list such as ([0]*3+[1]*29)")
                })?,
            },
            permute_indices: PermuteIndices::default(),
            router_input: RouterInput::default(),
        }))
    }

    fn vocab(&self) -> Result<u64, ScriptError> {
        if let Some(vocab) = self.number("--padded-vocab-size")? {
            return Ok(vocab);
        }
        match (self.number("--vocab-size")?, self.flags.text("--tokenizer-type", self.environment)) {
            (Some(vocab), _) => Ok(vocab),
            (None, Ok(Some("GPT2BPETokenizer"))) => Ok(50_257),
            (None, _) => Err(ScriptError::Missing { flag: "--vocab-size" }),
        }
    }

    /// Rows of the learned position embedding; Megatron's older switch for RoPE overrules the kind.
    fn position_rows(&self, seq: u64) -> Result<u64, ScriptError> {
        match self.text("--position-embedding-type")?.unwrap_or("learned_absolute") {
            _ if self.flags.switch("--use-rotary-position-embeddings") => Ok(0),
            "learned_absolute" => self.or("--max-position-embeddings", seq),
            _ => Ok(0),
        }
    }

    fn norm(&self) -> Result<Norm, ScriptError> {
        match self.text("--normalization")? {
            None | Some("LayerNorm") => Ok(Norm::LayerNorm),
            Some("RMSNorm") => Ok(Norm::RmsNorm),
            Some(_) => Err(self.bad("--normalization", "LayerNorm or RMSNorm")),
        }
    }

    fn attention(&self) -> Result<Attention, ScriptError> {
        let half = self.precision() == Precision::Bf16;
        match self.text("--attention-backend")?.unwrap_or("auto") {
            "flash" | "fused" => Ok(Attention::Flash),
            "unfused" | "local" => Ok(Attention::Unfused),
            "auto" => {
                let local = self.text("--transformer-impl")? == Some("local");
                let flash = half && (!local || self.flags.switch("--use-flash-attn"));
                Ok(if flash { Attention::Flash } else { Attention::Unfused })
            }
            _ => Err(self.bad("--attention-backend", "auto, flash, fused, unfused or local")),
        }
    }

    fn dropout(&self, name: &'static str) -> Result<bool, ScriptError> {
        match self.text(name)? {
            None => Ok(true),
            Some(text) => match text.parse::<f64>() {
                Ok(p) if (0.0..=1.0).contains(&p) => Ok(p > 0.0),
                _ => Err(self.bad(name, "a number from 0 to 1")),
            },
        }
    }

    fn precision(&self) -> Precision {
        let half = self.flags.switch("--bf16") || self.flags.switch("--fp16");
        if half { Precision::Bf16 } else { Precision::Fp32 }
    }

    /// The distribution over `gpus` devices of a model with `layers` layers.
    pub fn parallelism(&self, gpus: u64, layers: u32) -> Result<Parallelism, ScriptError> {
        let ranks = |name| self.positive(name, self.or(name, 1)?);
        let tp = ranks("--tensor-model-parallel-size")?;
        let cp = ranks("--context-parallel-size")?;
        let ep = ranks("--expert-model-parallel-size")?;
        const PIPELINE: &str = "--pipeline-model-parallel-size";
        let pp = self.positive(PIPELINE, self.small(PIPELINE, 1)?)?;
        let micro_batch = self.positive("--micro-batch-size", self.needed("--micro-batch-size")?)?;
        let mut parallelism = Parallelism {
            gpus,
            tp,
            sequence_parallel: self.flags.switch("--sequence-parallel") && tp > 1,
            cp,
            ep,
            etp: 1,
            pp,
            chunks: self.chunks(pp, layers)?,
            group_size: self.small("--microbatch-group-size-per-virtual-pipeline-stage", pp)?,
            overlap_ep: self.flags.switch("--overlap-moe-expert-parallel-comm"),
            micro_batch,
            global_batch: 0,
            precision: self.precision(),
            gradients: if self.flags.switch("--grad-reduce-in-bf16") {
                GradientType::Bf16
            } else {
                GradientType::Fp32
            },
            distributed_optimizer: self.flags.switch("--use-distributed-optimizer"),
        };
        let experts = self.number("--num-experts")?.is_some();
        parallelism.etp = self.or("--expert-tensor-parallel-size", if experts { tp } else { 1 })?;
        // Megatron's default is one micro-batch for each data-parallel rank.
        let one_each = micro_batch.saturating_mul(parallelism.dp().max(1));
        parallelism.global_batch = self.or("--global-batch-size", one_each)?;
        Ok(parallelism)
    }

    /// V, from the layers of a virtual stage or given as it is.
    fn chunks(&self, pp: u32, layers: u32) -> Result<u32, ScriptError> {
        const PER_STAGE: &str = "--num-layers-per-virtual-pipeline-stage";
        let Some(per_stage) = self.number(PER_STAGE)? else {
            return self.small("--num-virtual-stages-per-pipeline-rank", 1);
        };
        let on_rank = u64::from(layers.checked_div(pp).unwrap_or(0));
        match on_rank.checked_div(per_stage) {
            Some(chunks) if chunks > 0 && chunks * per_stage == on_rank => Ok(chunks as u32),
            _ => Err(self.bad(PER_STAGE, "a divisor of the layers of a pipeline rank")),
        }
    }
}

/// `--moe-layer-freq`: a number, or a Python list made of `[…]`, `*` and `+`.
fn pattern(text: &str) -> Option<MoeLayers> {
    if let Ok(every) = text.trim().parse() {
        return Some(MoeLayers::Every(every));
    }
    let text: String = text.chars().filter(|c| !c.is_whitespace() && !"()".contains(*c)).collect();
    let mut layers = Vec::new();
    for term in text.split('+') {
        let (list, times) = match term.split_once('*') {
            Some((list, times)) => (list, times.parse::<usize>().ok()?),
            None => (term, 1),
        };
        let list = list.strip_prefix('[')?.strip_suffix(']')?;
        let entries: Option<Vec<bool>> = list
            .split(',')
            .filter(|entry| !entry.is_empty())
            .map(|entry| match entry {
                "0" => Some(false),
                "1" => Some(true),
                _ => None,
            })
            .collect();
        let entries = entries?;
        if entries.len().checked_mul(times)?.checked_add(layers.len())? > MAX_PATTERN {
            return None;
        }
        layers.extend(entries.repeat(times));
    }
    let dense = layers.iter().take_while(|&&moe| !moe).count();
    Some(match layers[dense..].iter().all(|&moe| moe) && dense < layers.len() {
        true => MoeLayers::AfterDense(u32::try_from(dense).ok()?),
        false => MoeLayers::Listed(layers),
    })
}

/// The flags that read back as `config` on `parallelism`; the number of devices, and what permutation and
/// router keep, have none.
pub fn to_flags(config: &ModelConfig, parallelism: &Parallelism) -> Vec<String> {
    let mut flags = Vec::new();
    let mut value = |name: &str, value: String| flags.extend([name.to_owned(), value]);
    let probability = |on: bool| if on { "0.1" } else { "0" }.to_owned();
    value("--num-layers", config.layers.to_string());
    value("--hidden-size", config.hidden.to_string());
    value("--num-attention-heads", config.heads.to_string());
    value("--num-query-groups", config.kv_groups.to_string());
    value("--kv-channels", config.head_dim.to_string());
    value("--ffn-hidden-size", config.ffn.to_string());
    value("--vocab-size", config.vocab.to_string());
    value("--seq-length", config.seq.to_string());
    value("--hidden-dropout", probability(config.hidden_dropout));
    value("--attention-dropout", probability(config.attention_dropout));
    value(
        "--normalization",
        match config.norm {
            Norm::RmsNorm => "RMSNorm".to_owned(),
            Norm::LayerNorm => "LayerNorm".to_owned(),
        },
    );
    value(
        "--attention-backend",
        match config.attention {
            Attention::Flash => "flash".to_owned(),
            Attention::Unfused => "unfused".to_owned(),
        },
    );
    match config.position_rows {
        0 => value("--position-embedding-type", "rope".to_owned()),
        rows => value("--max-position-embeddings", rows.to_string()),
    }
    if let Some(moe) = &config.moe {
        value("--num-experts", moe.experts.to_string());
        value("--moe-router-topk", moe.top_k.to_string());
        value("--moe-ffn-hidden-size", moe.ffn.to_string());
        value("--moe-shared-expert-intermediate-size", moe.shared_ffn.to_string());
        let layers: Vec<_> = (0..config.layers).map(|l| u8::from(config.is_moe(l)).to_string()).collect();
        value("--moe-layer-freq", format!("[{}]", layers.join(",")));
    }
    value("--tensor-model-parallel-size", parallelism.tp.to_string());
    value("--context-parallel-size", parallelism.cp.to_string());
    value("--expert-model-parallel-size", parallelism.ep.to_string());
    value("--expert-tensor-parallel-size", parallelism.etp.to_string());
    value("--pipeline-model-parallel-size", parallelism.pp.to_string());
    value("--num-virtual-stages-per-pipeline-rank", parallelism.chunks.to_string());
    value("--microbatch-group-size-per-virtual-pipeline-stage", parallelism.group_size.to_string());
    value("--micro-batch-size", parallelism.micro_batch.to_string());
    value("--global-batch-size", parallelism.global_batch.to_string());
    let switches = [
        ("--group-query-attention", true),
        ("--qk-layernorm", config.qk_norm),
        ("--swiglu", config.activation == Activation::SwiGlu),
        (
            match config.activation {
                Activation::SwiGlu => "--no-bias-swiglu-fusion",
                Activation::Gelu => "--no-bias-gelu-fusion",
            },
            !config.fused_activation,
        ),
        ("--untie-embeddings-and-output-weights", !config.tied_embeddings),
        ("--disable-bias-linear", !config.bias),
        ("--sequence-parallel", parallelism.sequence_parallel),
        ("--overlap-moe-expert-parallel-comm", parallelism.overlap_ep),
        ("--bf16", parallelism.precision == Precision::Bf16),
        ("--grad-reduce-in-bf16", parallelism.gradients == GradientType::Bf16),
        ("--use-distributed-optimizer", parallelism.distributed_optimizer),
    ];
    flags.extend(switches.into_iter().filter(|(_, on)| *on).map(|(name, _)| name.to_owned()));
    flags
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layer_patterns_are_python_lists() {
        assert_eq!(pattern("2"), Some(MoeLayers::Every(2)));
        assert_eq!(pattern("([0]*3+[1]*29)"), Some(MoeLayers::AfterDense(3)));
        assert_eq!(pattern("[0, 1]*2"), Some(MoeLayers::Listed(vec![false, true, false, true])));
        for bad in ["", "[2]", "[1]*99999999999", "[1", "x", "[1]*[1]"] {
            assert_eq!(pattern(bad), None, "{bad}");
        }
    }
}
