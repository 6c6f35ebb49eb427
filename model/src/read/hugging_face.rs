//! Hugging Face `config.json` to a shape, by the keys of each model type.

use std::collections::BTreeSet;

use serde_json::Value;

use super::ConfigError;
use super::json::Object;
use super::kind::{Bias, Choice, HARMLESS, HeadDim, Kind, of_experts};
use crate::assumptions::VOCAB_MULTIPLE;
use crate::config::{MAX_LAYERS, MAX_SIZE};
use crate::{
    Activation, Attention, Loss, Mla, ModelConfig, MoeConfig, MoeLayers, Norm, PermuteIndices, Rotary,
    RouterInput,
};

/// Tokens of a sequence where the run does not say; `max_position_embeddings` is what the model could take,
/// not what it is trained on.
pub const DEFAULT_SEQ: u64 = 4_096;

/// A shape, and what was said about it on the way.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HuggingFace {
    /// The shape, with sequences of [`DEFAULT_SEQ`] tokens.
    pub config: ModelConfig,
    /// Keys that cannot change memory.
    pub ignored: Vec<String>,
    /// What may change memory and is not modelled, or was assumed.
    pub warnings: Vec<String>,
}

impl HuggingFace {
    /// Reads a `config.json`.
    pub fn parse(text: &[u8]) -> Result<Self, ConfigError> {
        let object: Object =
            serde_json::from_slice(text).map_err(|error| ConfigError::Syntax { text: error.to_string() })?;
        // Models that also see or hear keep the language model in an object of its own.
        let (object, part) = match object.value("text_config") {
            Some(inner @ Value::Object(_)) if object.value("hidden_size").is_none() => {
                let inner = serde_json::from_value(inner.clone());
                (inner.map_err(|error| ConfigError::Syntax { text: error.to_string() })?, true)
            }
            _ => (object, false),
        };
        let mut reader = Reader::new(&object)?;
        if part {
            reader.warnings.push("text_config: only the language model is modelled".to_owned());
        }
        let config = reader.config()?;
        let dense = reader.says_dense();
        let Reader { used, mut warnings, .. } = reader;
        let mut ignored = Vec::new();
        for (key, value) in object.0.iter().filter(|(key, _)| !used.contains(&key.as_str())) {
            if value.is_null() || HARMLESS.iter().any(|prefix| key.starts_with(prefix)) {
                ignored.push(key.clone());
            } else {
                if !dense {
                    refuse_experts(key, value)?;
                }
                warnings.push(format!("{key}: not a key known here; it may change memory"));
            }
        }
        Ok(Self { config, ignored, warnings })
    }
}

const EXPERTS: [&str; 4] = ["n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts"];
const TOP_K: [&str; 3] = ["num_experts_per_tok", "experts_per_token", "moe_k"];
const SHARED: [&str; 3] = ["n_shared_experts", "num_shared_experts", "moe_num_shared_experts"];

/// Refuses a key of experts that nothing was made of, in sections too. What is off, and what is no number of
/// anything, changes no size.
fn refuse_experts(key: &str, value: &Value) -> Result<(), ConfigError> {
    let off = match value {
        Value::Null => true,
        Value::Bool(on) => !on,
        Value::Number(number) => number.as_u64() == Some(0) || number.is_f64(),
        Value::Array(items) => items.is_empty(),
        Value::String(_) | Value::Object(_) => false,
    };
    if of_experts(key.rsplit('.').next().unwrap_or(key)) && !off {
        return Err(ConfigError::UnknownExperts { key: key.to_owned(), value: shortened(value) });
    }
    match value {
        Value::Object(inner) => {
            inner.iter().try_for_each(|(name, value)| refuse_experts(&format!("{key}.{name}"), value))
        }
        _ => Ok(()),
    }
}

/// The beginning of a value.
fn shortened(value: &Value) -> String {
    const MOST: usize = 60;
    let text = value.to_string();
    match text.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

struct Reader<'a> {
    object: &'a Object,
    kind: &'static Kind,
    used: Vec<&'static str>,
    warnings: Vec<String>,
}

impl<'a> Reader<'a> {
    fn new(object: &'a Object) -> Result<Self, ConfigError> {
        let mut reader = Self { object, kind: Kind::other(), used: Vec::new(), warnings: Vec::new() };
        let name = reader.text("model_type")?;
        if let Some(kind) = name.and_then(Kind::named) {
            reader.kind = kind;
            return Ok(reader);
        }
        let needed = ["hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size"];
        if needed.iter().any(|key| object.value(key).is_none()) {
            let name = name.unwrap_or_default().to_owned();
            return Err(ConfigError::UnknownType { name, known: Kind::known() });
        }
        let name = name.unwrap_or("not given");
        reader.warnings.push(format!(
            "model_type {name}: not a type known here; it is modelled by its keys, as a decoder with RMSNorm and a \
             gated MLP"
        ));
        Ok(reader)
    }

    fn config(&mut self) -> Result<ModelConfig, ConfigError> {
        let layers = self.needed("num_hidden_layers", MAX_LAYERS)? as u32;
        let hidden = self.needed("hidden_size", MAX_SIZE)?;
        let heads = self.needed("num_attention_heads", MAX_SIZE)?;
        let mla = self.mla()?;
        let bias = self.bias()?;
        self.window()?;
        Ok(ModelConfig {
            layers,
            hidden,
            heads,
            kv_groups: self.kv_groups(heads, mla.as_ref())?,
            head_dim: self.head_dim(hidden, heads, mla.as_ref())?,
            ffn: self.dense_ffn()?,
            moe: self.moe(layers)?,
            vocab: self.needed("vocab_size", MAX_SIZE)?,
            seq: DEFAULT_SEQ,
            norm: Norm::RmsNorm,
            qk_norm: self.qk_norm()?,
            activation: self.activation()?,
            fused_activation: true,
            attention: Attention::Flash,
            hidden_dropout: false,
            attention_dropout: self.dropout("attention_dropout")?,
            tied_embeddings: self.switch("tie_word_embeddings")?.unwrap_or(self.kind.tied),
            bias: self.bias_everywhere()?,
            position_rows: 0,
            rotary: Rotary::Fused,
            qkv_bias: bias,
            mla,
            mtp_layers: self.number("num_nextn_predict_layers", 0, MAX_LAYERS)?.unwrap_or(0) as u32,
            loss: Loss::default(),
            vocab_multiple: VOCAB_MULTIPLE,
        })
    }

    /// `q_lora_rank` is null where queries are projected directly.
    fn mla(&mut self) -> Result<Option<Mla>, ConfigError> {
        if !self.kind.mla && self.object.value("kv_lora_rank").is_none() {
            return Ok(None);
        }
        Ok(Some(Mla {
            q_lora_rank: self.number("q_lora_rank", 0, MAX_SIZE)?.unwrap_or(0),
            kv_lora_rank: self.needed("kv_lora_rank", MAX_SIZE)?,
            qk_head_dim: self.needed("qk_nope_head_dim", MAX_SIZE)?,
            qk_rope_dim: self.needed("qk_rope_head_dim", MAX_SIZE)?,
            v_head_dim: self.needed("v_head_dim", MAX_SIZE)?,
        }))
    }

    fn kv_groups(&mut self, heads: u64, mla: Option<&Mla>) -> Result<u64, ConfigError> {
        const KEY: &str = "num_key_value_heads";
        let default = self.kind.kv_groups.filter(|_| !self.object.contains(KEY));
        match (self.number(KEY, 1, heads)?, default) {
            // Every head has a key of its own, made from the latent.
            _ if mla.is_some() => Ok(heads),
            (Some(groups), _) if heads.is_multiple_of(groups) => Ok(groups),
            (Some(_), _) => Err(self.bad(KEY, format!("a divisor of num_attention_heads = {heads}"))),
            (None, Some(groups)) if heads.is_multiple_of(groups) => {
                self.warnings.push(format!("{KEY} is missing: the {groups} of its type are modelled"));
                Ok(groups)
            }
            (None, Some(_)) => Err(ConfigError::Missing { key: KEY }),
            (None, None) => {
                self.warnings.push(format!("{KEY} is missing: as many as heads are modelled"));
                Ok(heads)
            }
        }
    }

    fn head_dim(&mut self, hidden: u64, heads: u64, mla: Option<&Mla>) -> Result<u64, ConfigError> {
        const KEY: &str = "head_dim";
        if let Some(head_dim) = self.number(KEY, 1, MAX_SIZE)?.filter(|_| mla.is_none()) {
            return Ok(head_dim);
        }
        match (mla, self.kind.head_dim) {
            (Some(mla), _) => Ok(mla.qk_head_dim),
            (None, HeadDim::Default(elements)) if !self.object.contains(KEY) => {
                self.warnings.push(format!("{KEY} is missing: the {elements} of its type are modelled"));
                Ok(elements)
            }
            (None, kind) if hidden.is_multiple_of(heads) => {
                let elements = hidden / heads;
                if matches!(kind, HeadDim::Written) {
                    let how = "hidden_size ÷ num_attention_heads";
                    self.warnings.push(format!("{KEY} is missing: {how} = {elements} is modelled"));
                }
                Ok(elements)
            }
            (None, _) => {
                let expected = format!("a divisor of hidden_size = {hidden}, or head_dim beside it");
                Err(self.bad("num_attention_heads", expected))
            }
        }
    }

    /// Width of a dense MLP; models without one may leave it out.
    fn dense_ffn(&mut self) -> Result<u64, ConfigError> {
        const EXPERT: &str = "moe_intermediate_size";
        match self.number("intermediate_size", 1, MAX_SIZE)? {
            Some(ffn) => Ok(ffn),
            None if self.object.value(EXPERT).is_some() => self.needed(EXPERT, MAX_SIZE),
            None => Err(ConfigError::Missing { key: "intermediate_size" }),
        }
    }

    fn moe(&mut self, layers: u32) -> Result<Option<MoeConfig>, ConfigError> {
        let (count, needs) =
            self.kind.needs.split_first().map_or((None, &[][..]), |(f, rest)| (Some(f), rest));
        if let Some(key) = count.filter(|_| !EXPERTS.iter().any(|key| self.object.contains(key))) {
            return Err(ConfigError::Missing { key });
        }
        // A type with experts writes 0 for a dense model of its family, or null.
        let Some(key) = self.one_of(&EXPERTS)? else { return Ok(None) };
        let experts = self.number(key, 0, MAX_SIZE)?.unwrap_or(0);
        if experts == 0 {
            return Ok(None);
        }
        if let Some(key) = needs.iter().find(|key| !self.object.contains(key)) {
            return Err(ConfigError::Missing { key });
        }
        let key = self.one_of(&TOP_K)?.unwrap_or(TOP_K[0]);
        let top_k = self.needed(key, experts)?;
        let ffn = match self.number("moe_intermediate_size", 1, MAX_SIZE)? {
            Some(ffn) => ffn,
            None => self.needed("intermediate_size", MAX_SIZE)?,
        };
        let shared_ffn = self.shared_ffn(ffn)?;
        Ok(Some(MoeConfig {
            experts,
            top_k,
            ffn,
            shared_ffn,
            layers: self.moe_layers(layers)?,
            permute_indices: PermuteIndices::default(),
            router_input: RouterInput::default(),
            latent: 0,
            shared_gate: self.kind.shared_gate && shared_ffn > 0,
            capacity: None,
        }))
    }

    /// The first of `keys` that is there. The others may repeat it.
    fn one_of(&mut self, keys: &'static [&'static str]) -> Result<Option<&'static str>, ConfigError> {
        let mut given = keys.iter().copied().filter(|key| self.object.value(key).is_some());
        let Some(first) = given.next() else { return Ok(None) };
        let value = self.object.value(first);
        if let Some(other) = given.find(|key| self.object.value(key) != value) {
            let value = value.map(Value::to_string).unwrap_or_default();
            return Err(self.bad(other, format!("the same as {first} = {value}")));
        }
        self.used.extend(keys);
        Ok(Some(first))
    }

    /// Whether it says that there are no experts: other keys of its family's experts then mean nothing.
    fn says_dense(&self) -> bool {
        let mut given = EXPERTS.iter().filter(|key| self.object.contains(key)).peekable();
        given.peek().is_some()
            && given.all(|key| self.object.value(key).is_none_or(|value| value.as_u64() == Some(0)))
    }

    /// Several shared experts are one as wide as all of them.
    fn shared_ffn(&mut self, expert: u64) -> Result<u64, ConfigError> {
        if let Some(width) = self.number("shared_expert_intermediate_size", 0, MAX_SIZE)? {
            return Ok(width);
        }
        let Some(key) = self.one_of(&SHARED)? else { return Ok(0) };
        let count = self.number(key, 0, MAX_SIZE)?.unwrap_or(0);
        match count.saturating_mul(expert) {
            width if width <= MAX_SIZE => Ok(width),
            _ => Err(self.bad(key, format!("at most {} of width {expert}", MAX_SIZE / expert))),
        }
    }

    /// DeepSeek's first dense layers and frequency, Qwen's step and list of dense layers, or ERNIE's range and
    /// interval.
    fn moe_layers(&mut self, layers: u32) -> Result<MoeLayers, ConfigError> {
        let dense = self.number("first_k_dense_replace", 0, layers.into())?.unwrap_or(0) as u32;
        let every = self.number("moe_layer_freq", 1, MAX_LAYERS)?.unwrap_or(1) as u32;
        let step = self.number("decoder_sparse_step", 1, MAX_LAYERS)?.unwrap_or(1) as u32;
        let listed = self.dense_layers(layers)?;
        let start = self.number("moe_layer_start_index", 0, layers.into())?.unwrap_or(0) as u32;
        let end = self.last_moe_layer(layers)?;
        let interval = self.number("moe_layer_interval", 1, MAX_LAYERS)?.unwrap_or(1) as u32;
        let has_experts = |layer: u32| {
            layer >= dense
                && layer.is_multiple_of(every)
                && (layer + 1).is_multiple_of(step)
                && (start..end).contains(&layer)
                && (layer + 1).is_multiple_of(interval)
                && !listed.contains(&u64::from(layer))
        };
        let all: Vec<bool> = (0..layers).map(has_experts).collect();
        let leading = all.iter().take_while(|&&experts| !experts).count();
        Ok(match all[leading..].iter().all(|&experts| experts) {
            true => MoeLayers::AfterDense(leading as u32),
            false => MoeLayers::Listed(all),
        })
    }

    /// The layer behind the last with experts; −1 stands for the model's last.
    fn last_moe_layer(&mut self, layers: u32) -> Result<u32, ConfigError> {
        const KEY: &str = "moe_layer_end_index";
        let Some(value) = self.value(KEY) else { return Ok(layers) };
        match value.as_i64() {
            Some(-1) => Ok(layers),
            Some(last) if (0..i64::from(layers)).contains(&last) => Ok(last as u32 + 1),
            _ => Err(self.bad(KEY, format!("-1 or a layer number below {layers}"))),
        }
    }

    fn dense_layers(&mut self, layers: u32) -> Result<Vec<u64>, ConfigError> {
        const KEY: &str = "mlp_only_layers";
        let expected = || format!("a list of layer numbers below {layers}");
        let Some(value) = self.value(KEY) else { return Ok(Vec::new()) };
        let numbers = value.as_array().and_then(|numbers| {
            numbers.iter().map(|number| number.as_u64().filter(|&layer| layer < layers.into())).collect()
        });
        numbers.ok_or_else(|| self.bad(KEY, expected()))
    }

    fn qk_norm(&mut self) -> Result<bool, ConfigError> {
        match self.kind.qk_norm {
            Choice::No => Ok(false),
            Choice::Yes => Ok(true),
            Choice::Key(key) => Ok(self.switch(key)?.unwrap_or(false)),
        }
    }

    /// Whether every linear layer has a bias.
    fn bias_everywhere(&mut self) -> Result<bool, ConfigError> {
        match self.kind.bias {
            Bias::Qkv(..) => Ok(false),
            Bias::All => Ok(true),
            Bias::AllIf(key) => Ok(self.switch(key)?.unwrap_or(false)),
        }
    }

    /// Whether queries, keys and values have a bias of their own.
    fn bias(&mut self) -> Result<bool, ConfigError> {
        let (key, default) = match self.kind.bias {
            Bias::Qkv(key, default) => (key, default),
            Bias::All | Bias::AllIf(_) => ("attention_bias", false),
        };
        let qkv = self.switch(key)?.unwrap_or(default);
        if self.switch("mlp_bias")? == Some(true) {
            self.warnings.push("mlp_bias: an MLP without bias is modelled".to_owned());
        }
        Ok(qkv && matches!(self.kind.bias, Bias::Qkv(..)))
    }

    fn activation(&mut self) -> Result<Activation, ConfigError> {
        const KEY: &str = "hidden_act";
        match self.text(KEY)? {
            None | Some("silu" | "swish") => {}
            Some(kind) => {
                let kind = kind.to_owned();
                self.warnings.push(format!("{KEY} {kind}: the bytes and times of SwiGLU are modelled"));
            }
        }
        Ok(Activation::SwiGlu)
    }

    fn dropout(&mut self, key: &'static str) -> Result<bool, ConfigError> {
        let Some(value) = self.value(key) else { return Ok(false) };
        match value.as_f64() {
            Some(p) if (0.0..=1.0).contains(&p) => Ok(p > 0.0),
            _ => Err(self.bad(key, "a number from 0 to 1".to_owned())),
        }
    }

    fn window(&mut self) -> Result<(), ConfigError> {
        let used = self.switch("use_sliding_window")?.unwrap_or(true);
        let window = self.value("sliding_window").is_some();
        self.layer_types();
        if used && window {
            self.warnings.push("sliding_window: attention is priced without a window".to_owned());
        }
        Ok(())
    }

    /// Layers of other kinds than attention, or attention that is not full.
    fn layer_types(&mut self) {
        const KEY: &str = "layer_types";
        let kinds: Vec<_> = self.value(KEY).into_iter().filter_map(Value::as_array).flatten().collect();
        // Windows have a key of their own.
        let same = |kind: &Value| matches!(kind.as_str(), Some("full_attention" | "sliding_attention"));
        let others: BTreeSet<_> =
            kinds.iter().filter(|kind| !same(kind)).map(|kind| kind.to_string()).collect();
        if !others.is_empty() {
            let count = kinds.iter().filter(|kind| !same(kind)).count();
            let others = others.into_iter().collect::<Vec<_>>().join(", ");
            self.warnings.push(format!(
                "{KEY}: {count} layers are {others}; full attention is modelled in all of them"
            ));
        }
    }

    fn value(&mut self, key: &'static str) -> Option<&'a Value> {
        self.used.push(key);
        self.object.value(key)
    }

    fn needed(&mut self, key: &'static str, most: u64) -> Result<u64, ConfigError> {
        self.number(key, 1, most)?.ok_or(ConfigError::Missing { key })
    }

    fn number(&mut self, key: &'static str, least: u64, most: u64) -> Result<Option<u64>, ConfigError> {
        let Some(value) = self.value(key) else { return Ok(None) };
        match value.as_u64().filter(|number| (least..=most).contains(number)) {
            Some(number) => Ok(Some(number)),
            None => Err(self.bad(key, format!("a whole number from {least} to {most}"))),
        }
    }

    fn switch(&mut self, key: &'static str) -> Result<Option<bool>, ConfigError> {
        let Some(value) = self.value(key) else { return Ok(None) };
        value.as_bool().map(Some).ok_or_else(|| self.bad(key, "true or false".to_owned()))
    }

    fn text(&mut self, key: &'static str) -> Result<Option<&'a str>, ConfigError> {
        let Some(value) = self.value(key) else { return Ok(None) };
        value.as_str().map(Some).ok_or_else(|| self.bad(key, "a text in quotes".to_owned()))
    }

    fn bad(&self, key: &'static str, expected: String) -> ConfigError {
        let value = self.object.value(key).map(Value::to_string).unwrap_or_default();
        ConfigError::BadValue { key, value, expected }
    }
}
