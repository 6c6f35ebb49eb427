//! Megatron's flags (Megatron-core 0.14 and later) that this model reads.

use std::collections::BTreeMap;
use std::str::FromStr;

use super::ScriptError;
use super::effects::{Effect, effect, replaces};
use super::expand::{Environment, is_unknown};

/// A flag that the model reads.
#[derive(Clone, Copy, Debug)]
pub struct Flag {
    /// Its name, with dashes.
    pub name: &'static str,
    /// What its value is called, `None` for a switch.
    pub value: Option<&'static str>,
    /// One line for the user.
    pub help: &'static str,
    /// Whether all words up to the next flag are its values.
    pub many: bool,
}

const fn value(name: &'static str, value: &'static str, help: &'static str) -> Flag {
    Flag { name, value: Some(value), help, many: false }
}

/// A flag with several values; as one word they are given with commas.
const fn list(name: &'static str, value: &'static str, help: &'static str) -> Flag {
    Flag { name, value: Some(value), help, many: true }
}

const fn switch(name: &'static str, help: &'static str) -> Flag {
    Flag { name, value: None, help, many: false }
}

/// The flags that decide shapes, distribution and static memory.
pub const FLAGS: &[Flag] = &[
    value("--num-layers", "N", "Transformer layers"),
    value("--hidden-size", "N", "h"),
    value("--ffn-hidden-size", "N", "Hidden size of a dense MLP [4·h; with SwiGLU two thirds of it]"),
    value("--num-attention-heads", "N", "Attention heads"),
    value("--kv-channels", "N", "Elements of a head [h ÷ heads]"),
    switch("--group-query-attention", "Share keys and values among groups of heads"),
    value("--num-query-groups", "N", "Groups of --group-query-attention"),
    value("--seq-length", "N", "Tokens of a sequence"),
    value("--max-position-embeddings", "N", "Rows of a learned position embedding [sequence length]"),
    value("--position-embedding-type", "KIND", "learned_absolute or rope, among others"),
    switch("--use-rotary-position-embeddings", "The older way to say --position-embedding-type rope"),
    switch("--no-rope-fusion", "Rotary embedding by several kernels, its tables saved"),
    value("--vocab-size", "N", "Vocabulary before padding"),
    value("--padded-vocab-size", "N", "Vocabulary after padding"),
    value("--tokenizer-type", "KIND", "GPT2BPETokenizer implies a vocabulary of 50257"),
    value("--normalization", "KIND", "LayerNorm or RMSNorm"),
    switch("--qk-layernorm", "Normalise queries and keys"),
    switch("--swiglu", "Gated activation"),
    switch("--quick-geglu", "Gated activation"),
    switch("--no-bias-swiglu-fusion", "Gated activation by several kernels, each factor saved"),
    switch("--no-bias-gelu-fusion", "Plain activation by several kernels"),
    value("--attention-backend", "KIND", "auto, flash, fused, unfused or local"),
    switch("--use-flash-attn", "Flash attention"),
    value("--transformer-impl", "KIND", "transformer_engine or local"),
    value("--hidden-dropout", "P", "Dropout of attention and MLP outputs [0.1]"),
    value("--attention-dropout", "P", "Dropout of attention probabilities [0.1]"),
    switch("--untie-embeddings-and-output-weights", "Embedding and output layer of their own"),
    switch("--disable-bias-linear", "Linear layers without bias"),
    switch("--add-qkv-bias", "A bias for queries, keys and values alone"),
    switch("--multi-latent-attention", "Multi-latent attention (MLA)"),
    value("--q-lora-rank", "N", "MLA: columns of the queries' latent [no latent]"),
    value("--kv-lora-rank", "N", "MLA: columns of the latent of keys and values [32]"),
    value("--qk-head-dim", "N", "MLA: elements of a query's head without position [128]"),
    value("--qk-pos-emb-head-dim", "N", "MLA: elements of it with position [64]"),
    value("--v-head-dim", "N", "MLA: elements of a value's head [128]"),
    value("--mtp-num-layers", "N", "Layers of multi-token prediction"),
    switch("--cross-entropy-loss-fusion", "Fused loss"),
    value("--cross-entropy-fusion-impl", "KIND", "native or te [native]"),
    value("--make-vocab-size-divisible-by", "N", "The vocabulary is padded to a multiple of N·TP [128]"),
    value("--num-experts", "N", "E"),
    value("--moe-router-topk", "N", "k [2]"),
    value("--moe-ffn-hidden-size", "N", "Hidden size of an expert [that of a dense MLP]"),
    value("--moe-shared-expert-intermediate-size", "N", "Hidden size of the shared expert"),
    value("--moe-layer-freq", "N|LIST", "Which layers have experts: every N-th, or ([0]*3+[1]*29)"),
    switch("--moe-shared-expert-gate", "A gate on the shared expert's output"),
    switch("--moe-shared-expert-overlap", "The shared expert beside dispatch; modelled before it"),
    value("--moe-latent-size", "N", "Columns of the latent that experts run on [h]"),
    value(
        "--moe-token-dispatcher-type",
        "KIND",
        "alltoall, flex or allgather [allgather]; modelled as alltoall",
    ),
    value("--moe-expert-capacity-factor", "F", "Drop rows above F·T·k/E for each expert"),
    switch("--moe-pad-expert-input-to-capacity", "Pad every expert's rows to its capacity"),
    switch("--moe-router-padding-for-quantization", "FP8: routers pad what they send to an expert"),
    value("--tensor-model-parallel-size", "N", "TP"),
    switch("--sequence-parallel", "Sequence parallel"),
    value("--context-parallel-size", "N", "CP"),
    value("--expert-model-parallel-size", "N", "EP"),
    value("--expert-tensor-parallel-size", "N", "Expert TP [TP]"),
    value("--pipeline-model-parallel-size", "N", "PP"),
    value("--num-layers-per-virtual-pipeline-stage", "N", "Layers of a virtual stage"),
    value("--num-virtual-stages-per-pipeline-rank", "N", "V"),
    value("--microbatch-group-size-per-virtual-pipeline-stage", "N", "Micro-batches in a row per chunk [PP]"),
    value("--decoder-first-pipeline-num-layers", "N", "Layers of the first pipeline rank"),
    value("--decoder-last-pipeline-num-layers", "N", "Layers of the last pipeline rank"),
    value(
        "--pipeline-model-parallel-layout",
        "LAYOUT",
        "Layers of every virtual stage, such as 'Ett|(tt|)*6ttL': E embedding, t layer, m MTP layer, L loss",
    ),
    switch("--account-for-embedding-in-pipeline-split", "The embedding counts as a layer"),
    switch("--account-for-loss-in-pipeline-split", "The loss counts as a layer"),
    switch("--overlap-moe-expert-parallel-comm", "Overlap dispatch and combine: one more warm-up forward"),
    value("--micro-batch-size", "N", "Sequences of a micro-batch"),
    value("--global-batch-size", "N", "Sequences of an iteration"),
    switch("--bf16", "BF16"),
    switch("--fp16", "FP16: 2 bytes, like BF16, and such gradients"),
    switch("--use-distributed-optimizer", "Divide optimizer state over data parallel ranks"),
    switch("--no-gradient-accumulation-fusion", "Weight gradients of their own, added to the buffer later"),
    value("--optimizer", "KIND", "adam, sgd, lion or muon [adam]"),
    value("--sgd-momentum", "F", "0: SGD keeps no state [0.9]"),
    switch("--use-precision-aware-optimizer", "Optimizer state in the types below"),
    value("--main-params-dtype", "TYPE", "Type of main parameters [fp32]"),
    value("--main-grads-dtype", "TYPE", "Type of the gradient buffer [fp32]"),
    value("--exp-avg-dtype", "TYPE", "Type of the first moment [fp32]"),
    value("--exp-avg-sq-dtype", "TYPE", "Type of the second moment [fp32]"),
    switch("--optimizer-cpu-offload", "Optimizer state on the host, in FP32"),
    value("--optimizer-offload-fraction", "F", "Share of it [1.0]"),
    value("--fp8-format", "KIND", "FP8 training: e4m3 or hybrid"),
    value("--fp8-recipe", "KIND", "delayed, tensorwise, blockwise or mxfp8 [delayed]"),
    switch("--fp8-param-gather", "Parameters in FP8"),
    switch("--activation-func-fp8-input-store", "fc1's output is kept in FP8"),
    switch("--grad-reduce-in-bf16", "BF16 gradient buffer"),
    switch("--accumulate-allreduce-grads-in-fp32", "FP32 gradient buffer (the default with BF16)"),
    value("--recompute-granularity", "KIND", "As configured: full or selective recomputation"),
    value("--recompute-method", "uniform|block", "As configured: full recomputation uniform or block"),
    value("--recompute-num-layers", "N", "As configured: layers of a unit (uniform) or of a stage (block)"),
    list(
        "--recompute-modules",
        "MODULE,…",
        "As configured: core_attn, moe_act, layernorm, mla_up_proj, mlp, moe, shared_experts [core_attn]",
    ),
    switch("--recompute-activations", "As configured: --recompute-granularity selective"),
    switch("--moe-layer-recompute", "As configured: selective, with the module moe"),
    switch("--checkpoint-activations", "As configured: the oldest way to say full, uniform"),
    value("--checkpoint-num-layers", "N", "As configured: layers of its units [1]"),
    switch("--fine-grained-activation-offloading", "As configured: offload what the modules below save"),
    list(
        "--offload-modules",
        "MODULE,…",
        "As configured: attn_norm, qkv_linear, core_attn, attn_proj, mlp_norm, expert_fc1, moe_act, fused_group_mlp",
    ),
    value(
        "--min-offloaded-tensor-size",
        "N",
        "As configured: elements of the smallest tensor offloaded [1048576]",
    ),
    value(
        "--delta-offload-bytes-across-pp-ranks",
        "N",
        "As configured: bytes that a rank offloads less than the one before [0]",
    ),
    value("--activation-offload-fraction", "F", "As configured: share of the groups offloaded [1.0]"),
    switch("--moe-grouped-gemm", "The experts' linear layers as one kernel"),
    switch("--use-transformer-engine-op-fuser", "Experts as one fused module"),
    switch("--use-torch-fsdp2", "Not modelled yet"),
    switch("--use-megatron-fsdp", "Not modelled yet"),
    switch("--fp32-residual-connection", "Not modelled yet"),
    switch("--use-checkpoint-args", "Not modelled: the shape would come from a checkpoint"),
    value("--hybrid-layer-pattern", "PATTERN", "Not modelled yet"),
    value("--yaml-cfg", "FILE", "Not modelled: the shape would come from another file"),
];

/// Other names of flags above.
const ALIASES: &[(&str, &str)] = &[
    ("--encoder-num-layers", "--num-layers"),
    ("--encoder-seq-length", "--seq-length"),
    ("--num-moe-experts", "--num-experts"),
    ("--moe-router-padding-for-fp8", "--moe-router-padding-for-quantization"),
    ("--hybrid-override-pattern", "--hybrid-layer-pattern"),
    ("--use-custom-fsdp", "--use-megatron-fsdp"),
];

/// Older switches, which stand for a flag with a value.
const SWITCHES: &[(&str, &str, &str)] =
    &[("--fp8-hybrid", "--fp8-format", "hybrid"), ("--fp8-e4m3", "--fp8-format", "e4m3")];

/// Whether the flag of this name is read, or is known to change memory.
pub(crate) fn changes_memory(name: &str) -> bool {
    let alias = ALIASES.iter().any(|(alias, _)| *alias == name)
        || SWITCHES.iter().any(|(switch, ..)| *switch == name);
    let effect = effect(name, &[]);
    alias
        || FLAGS.iter().any(|flag| flag.name == name)
        || !matches!(effect, Effect::Harmless | Effect::Unknown)
}

/// What a flag's value is called; none for a switch.
pub(super) fn value_of(name: &str) -> Option<&'static str> {
    FLAGS.iter().find(|flag| flag.name == name)?.value
}

/// The flags of one command.
#[derive(Debug, Default)]
pub(super) struct Flags {
    given: BTreeMap<&'static str, Vec<String>>,
    /// Names that cannot change memory.
    pub ignored: Vec<String>,
    /// Activation settings that the plan replaces.
    pub replaced: Vec<String>,
    /// One line for each flag or word that may change memory and is not modelled.
    pub warnings: Vec<String>,
    /// Words that are not known and may hide flags.
    hidden: Vec<String>,
}

impl Flags {
    /// Sorts the words of a command by flag; of a repeated flag the last counts, as in Megatron.
    pub fn new(words: &[String], environment: &Environment) -> Self {
        let mut flags = Self::default();
        let mut words = words.iter().peekable();
        while let Some(word) = words.next() {
            let (name, joined) = match word.split_once('=') {
                Some((name, value)) => (name, Some(value.to_owned())),
                None => (word.as_str(), None),
            };
            let mut values: Vec<_> = joined.into_iter().collect();
            while let Some(value) = words.next_if(|word| !word.starts_with("--")) {
                values.push(value.clone());
            }
            if !name.starts_with("--") {
                values.insert(0, word.clone());
                flags.stray(&values, environment);
            } else {
                flags.add(name, values, environment);
            }
        }
        flags
    }

    fn add(&mut self, name: &str, mut values: Vec<String>, environment: &Environment) {
        let given = name;
        // ms-swift writes Megatron's flags with underscores.
        let name = &*name.replace('_', "-");
        let alias = ALIASES.iter().find(|(alias, _)| *alias == name).map(|(_, name)| *name);
        let name = alias.unwrap_or(name);
        if let Some((_, name, value)) = SWITCHES.iter().find(|(switch, ..)| *switch == name) {
            if values.first().is_none_or(|value| !matches!(&**value, "false" | "False")) {
                self.add(name, vec![(*value).to_owned()], environment);
            }
            return;
        }
        if let Some(flag) = FLAGS.iter().find(|flag| flag.name == name) {
            let own = if flag.many { values.len() } else { usize::from(flag.value.is_some()) };
            let rest = values.split_off(own.min(values.len()));
            self.stray(&rest, environment);
            match (flag.value, rest.first().map(String::as_str)) {
                // And switches with a value.
                (None, Some("false" | "False")) => self.given.remove(flag.name),
                _ => self.given.insert(flag.name, values),
            };
            if replaces(name) && !self.replaced.iter().any(|replaced| replaced == name) {
                self.replaced.push(name.to_owned());
            }
            return;
        }
        let shown = environment.shown(given);
        match effect(name, &values) {
            Effect::Replaced => {
                self.warnings
                    .push(format!("{shown}: the plan replaces it; as configured is shown without it"));
                self.replaced.push(shown);
            }
            Effect::Differs(how) => self.warnings.push(format!("{shown}: {how}")),
            Effect::Harmless => {
                // A value that is not known may hide more flags only if it is a word of its own.
                self.stray(values.get(1..).unwrap_or_default(), environment);
                self.ignored.push(shown);
            }
            Effect::Unknown => {
                self.warnings.push(format!("{shown}: not a flag known here; it may change memory"));
            }
        }
    }

    /// Words that belong to no flag: of interest only where they may hide flags.
    fn stray(&mut self, words: &[String], environment: &Environment) {
        for word in words.iter().filter(|word| is_unknown(word)) {
            let shown = environment.shown(word);
            self.warnings.push(format!("{shown}: not known without running the script; taken as empty"));
            self.hidden.push(shown);
        }
    }

    /// `error`, with the words that may hide a flag that is missing.
    pub fn hidden(&self, error: ScriptError) -> ScriptError {
        match error {
            ScriptError::Missing { flag } if !self.hidden.is_empty() => {
                ScriptError::Hidden { flag, text: self.hidden.join(" ") }
            }
            error => error,
        }
    }

    /// Whether a switch is given.
    pub fn switch(&self, name: &'static str) -> bool {
        self.given.contains_key(name)
    }

    /// The text of a flag's value.
    pub fn text(&self, name: &'static str, environment: &Environment) -> Result<Option<&str>, ScriptError> {
        let Some(values) = self.given.get(name) else { return Ok(None) };
        match values.first() {
            Some(value) if is_unknown(value) => {
                Err(ScriptError::Unknown { flag: name, text: environment.shown(value) })
            }
            Some(value) => Ok(Some(value)),
            None => Err(ScriptError::BadValue { flag: name, value: String::new(), expected: "a value" }),
        }
    }

    /// All values of a flag, as words or with commas.
    pub fn list(&self, name: &'static str, environment: &Environment) -> Result<Vec<&str>, ScriptError> {
        let values = self.given.get(name).map_or(&[][..], Vec::as_slice);
        if let Some(value) = values.iter().find(|value| is_unknown(value)) {
            return Err(ScriptError::Unknown { flag: name, text: environment.shown(value) });
        }
        let words = values.iter().flat_map(|value| value.split([',', ' ', '[', ']']));
        Ok(words.filter(|word| !word.is_empty()).collect())
    }

    /// A flag's value as a number.
    pub fn number<T: FromStr>(
        &self,
        name: &'static str,
        environment: &Environment,
    ) -> Result<Option<T>, ScriptError> {
        let Some(text) = self.text(name, environment)? else { return Ok(None) };
        match text.trim().parse() {
            Ok(number) => Ok(Some(number)),
            Err(_) => {
                let expected = "a whole number within range";
                Err(ScriptError::BadValue { flag: name, value: text.to_owned(), expected })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_flag_is_listed_twice() {
        for (index, flag) in FLAGS.iter().enumerate() {
            assert!(FLAGS[..index].iter().all(|other| other.name != flag.name), "{}", flag.name);
            assert!(flag.name.starts_with("--"));
        }
    }

    #[test]
    fn the_last_of_a_repeated_flag_counts() {
        let words =
            ["--num-layers", "8", "--num-layers=4", "--lr", "-1", "--new-thing", "x"].map(str::to_owned);
        let environment = Environment::default();
        let flags = Flags::new(&words, &environment);
        assert_eq!(flags.number("--num-layers", &environment), Ok(Some(4u32)));
        assert_eq!(flags.ignored, ["--lr"]);
        assert_eq!(flags.warnings, ["--new-thing: not a flag known here; it may change memory"]);
    }
}
