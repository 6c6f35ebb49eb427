//! Flags to shapes, with Megatron's defaults (`megatron/training/arguments.py`).

use std::str::FromStr;

use super::ScriptError;
use super::decimal;
use super::expand::Environment;
use super::flags::Flags;
use super::pattern::{self, pattern};
use crate::assumptions::VOCAB_MULTIPLE;
use crate::{
    Activation, Attention, Capacity, Loss, Mla, ModelConfig, MoeConfig, MoeLayers, Norm, PermuteIndices,
    Precision, Rotary, RouterInput,
};

/// Reads values with their defaults.
pub(super) struct Reader<'a> {
    pub flags: &'a Flags,
    pub environment: &'a Environment,
}

impl Reader<'_> {
    pub(super) fn number<T: FromStr>(&self, name: &'static str) -> Result<Option<T>, ScriptError> {
        self.flags.number(name, self.environment)
    }

    pub(super) fn or(&self, name: &'static str, default: u64) -> Result<u64, ScriptError> {
        Ok(self.number(name)?.unwrap_or(default))
    }

    pub(super) fn small(&self, name: &'static str, default: u32) -> Result<u32, ScriptError> {
        Ok(self.number(name)?.unwrap_or(default))
    }

    pub(super) fn needed(&self, name: &'static str) -> Result<u64, ScriptError> {
        self.number(name)?.ok_or(ScriptError::Missing { flag: name })
    }

    /// Zero is refused by the name of its flag, before others that are computed from it.
    pub(super) fn positive<T: PartialEq + From<u8>>(
        &self,
        name: &'static str,
        value: T,
    ) -> Result<T, ScriptError> {
        if value == T::from(0) { Err(self.bad(name, "1 or more")) } else { Ok(value) }
    }

    pub(super) fn text(&self, name: &'static str) -> Result<Option<&str>, ScriptError> {
        self.flags.text(name, self.environment)
    }

    /// The shape.
    pub fn config(&self) -> Result<ModelConfig, ScriptError> {
        self.refuse()?;
        let layers = self.positive("--num-layers", self.needed("--num-layers")?)?;
        let layers = u32::try_from(layers).map_err(|_| self.bad("--num-layers", "at most 4096"))?;
        let hidden = self.needed("--hidden-size")?;
        let heads = self.needed("--num-attention-heads")?;
        let swiglu = self.flags.switch("--swiglu");
        let gated = swiglu || self.flags.switch("--quick-geglu");
        let bias = !self.flags.switch("--disable-bias-linear");
        let ffn = match self.number("--ffn-hidden-size")? {
            Some(ffn) => ffn,
            None if swiglu => hidden.saturating_mul(4).saturating_mul(2) / 3 / 64 * 64,
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
            moe: self.moe(ffn, layers)?,
            vocab: self.vocab()?,
            seq,
            norm: self.norm()?,
            qk_norm: self.flags.switch("--qk-layernorm"),
            activation: if gated { Activation::SwiGlu } else { Activation::Gelu },
            // Every other activation has the fusion of GELU, which takes a bias.
            fused_activation: match swiglu {
                true => !self.flags.switch("--no-bias-swiglu-fusion"),
                false => bias && !self.flags.switch("--no-bias-gelu-fusion"),
            },
            attention: self.attention()?,
            hidden_dropout: self.dropout("--hidden-dropout")?,
            attention_dropout: self.dropout("--attention-dropout")?,
            tied_embeddings: !self.flags.switch("--untie-embeddings-and-output-weights"),
            bias,
            position_rows: self.position_rows(seq)?,
            rotary: self.rotary()?,
            qkv_bias: self.flags.switch("--add-qkv-bias"),
            mla: self.mla()?,
            mtp_layers: self.small("--mtp-num-layers", 0)?,
            loss: self.loss()?,
            vocab_multiple: self.vocab_multiple()?,
        })
    }

    pub(super) fn bad(&self, flag: &'static str, expected: &'static str) -> ScriptError {
        let value = self.text(flag).ok().flatten().unwrap_or_default().to_owned();
        ScriptError::BadValue { flag, value, expected }
    }

    /// What would be another model than the one built here.
    fn refuse(&self) -> Result<(), ScriptError> {
        const REFUSED: [&str; 6] = [
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
        for (flag, other, rule) in
            [("--bf16", "--fp16", "another precision"), ("--swiglu", "--quick-geglu", "another activation")]
        {
            if self.flags.switch(flag) && self.flags.switch(other) {
                return Err(ScriptError::Conflict { flag, other, rule });
            }
        }
        Ok(())
    }

    fn moe(&self, ffn: u64, layers: u32) -> Result<Option<MoeConfig>, ScriptError> {
        // None are a dense model in Megatron too.
        let experts = match self.or("--num-experts", 0)? {
            0 => return Ok(None),
            experts => experts,
        };
        Ok(Some(MoeConfig {
            experts,
            top_k: self.or("--moe-router-topk", 2)?,
            ffn: self.or("--moe-ffn-hidden-size", ffn)?,
            shared_ffn: self.or("--moe-shared-expert-intermediate-size", 0)?,
            layers: match self.text("--moe-layer-freq")? {
                None => MoeLayers::AfterDense(0),
                Some(text) => {
                    pattern(text, layers).ok_or_else(|| self.bad("--moe-layer-freq", pattern::EXPECTED))?
                }
            },
            permute_indices: PermuteIndices::default(),
            router_input: RouterInput::default(),
            latent: self.or("--moe-latent-size", 0)?,
            shared_gate: self.flags.switch("--moe-shared-expert-gate"),
            capacity: self.capacity()?,
        }))
    }

    fn capacity(&self) -> Result<Option<Capacity>, ScriptError> {
        const FACTOR: &str = "--moe-expert-capacity-factor";
        let pad = self.flags.switch("--moe-pad-expert-input-to-capacity");
        // Megatron takes a negative factor as none.
        let negative = self.text(FACTOR)?.is_some_and(|text| text.trim_start().starts_with('-'));
        let factor = if negative { None } else { self.permille(FACTOR, 1_000_000)? };
        if pad && factor.is_none() {
            return Err(self.bad(FACTOR, "a positive number with --moe-pad-expert-input-to-capacity"));
        }
        Ok(factor.filter(|&factor| factor > 0).map(|factor_permille| Capacity { factor_permille, pad }))
    }

    /// A share from 0 to 1 in thousandths, all of it where none is given.
    pub(super) fn fraction(&self, name: &'static str) -> Result<u32, ScriptError> {
        match self.permille(name, 1_000) {
            Ok(share) => Ok(share.unwrap_or(1_000)),
            Err(ScriptError::BadValue { .. }) => Err(self.bad(name, "a number from 0 to 1")),
            Err(error) => Err(error),
        }
    }

    /// A decimal number as thousandths, rounded up, at most `most`.
    fn permille(&self, name: &'static str, most: u32) -> Result<Option<u32>, ScriptError> {
        let Some(text) = self.text(name)? else { return Ok(None) };
        match decimal::permille(text.trim()).filter(|&number| number <= most) {
            Some(number) => Ok(Some(number)),
            None => Err(self.bad(name, "a number within range")),
        }
    }

    /// Defaults are those of Megatron's `MLATransformerConfig`.
    fn mla(&self) -> Result<Option<Mla>, ScriptError> {
        if !self.flags.switch("--multi-latent-attention") {
            return Ok(None);
        }
        Ok(Some(Mla {
            q_lora_rank: self.or("--q-lora-rank", 0)?,
            kv_lora_rank: self.or("--kv-lora-rank", 32)?,
            qk_head_dim: self.or("--qk-head-dim", 128)?,
            qk_rope_dim: self.or("--qk-pos-emb-head-dim", 64)?,
            v_head_dim: self.or("--v-head-dim", 128)?,
        }))
    }

    fn loss(&self) -> Result<Loss, ScriptError> {
        const IMPL: &str = "--cross-entropy-fusion-impl";
        match (self.flags.switch("--cross-entropy-loss-fusion"), self.text(IMPL)?) {
            (false, _) => Ok(Loss::Unfused),
            (true, None | Some("native")) => Ok(Loss::Native),
            (true, Some("te")) => Ok(Loss::TransformerEngine),
            (true, Some(_)) => Err(self.bad(IMPL, "native or te")),
        }
    }

    /// A vocabulary that is given padded is taken as it is.
    fn vocab_multiple(&self) -> Result<u64, ScriptError> {
        const MULTIPLE: &str = "--make-vocab-size-divisible-by";
        match self.number::<u64>("--padded-vocab-size")? {
            Some(_) => Ok(1),
            None => self.positive(MULTIPLE, self.or(MULTIPLE, VOCAB_MULTIPLE)?),
        }
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

    /// Multi-latent attention has rotary positions whatever is said of the others.
    fn rotary(&self) -> Result<Rotary, ScriptError> {
        let kind = self.text("--position-embedding-type")?.unwrap_or("learned_absolute");
        let rotary = self.flags.switch("--use-rotary-position-embeddings")
            || self.flags.switch("--multi-latent-attention")
            || matches!(kind, "rope" | "yarn" | "mrope");
        Ok(match (rotary, self.flags.switch("--no-rope-fusion")) {
            (false, _) => Rotary::None,
            (true, false) => Rotary::Fused,
            (true, true) => Rotary::Unfused,
        })
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

    pub(super) fn precision(&self) -> Precision {
        let half = self.flags.switch("--bf16") || self.flags.switch("--fp16");
        if half { Precision::Bf16 } else { Precision::Fp32 }
    }
}
