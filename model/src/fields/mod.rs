//! Settings of other programs to Megatron's flags: the fields of its `TransformerConfig`, NeMo, Megatron-Bridge,
//! ms-swift, verl, and its own YAML files. One table says which field is which flag; a field that is not in
//! it is the flag of the same name.

mod table;

use std::collections::BTreeMap;

use crate::Preset;
use crate::script::{ScriptError, config_flags};
use table::Means::{self, Differs, Flag, Harmless, Not};
use table::{ADAPTERS, OTHER_SECTIONS, OUTER_FIELDS, OUTER_SECTIONS, means};

/// A setting: where it stands and what it is set to.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Setting {
    /// Names of the sections and of the field.
    pub path: Vec<String>,
    /// Its value.
    pub value: Value,
}

/// The value of a setting.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Value {
    Null,
    Text(String),
    List(Vec<String>),
}

/// What settings say.
#[derive(Debug, Default)]
pub(crate) struct Settings {
    /// Megatron's flags.
    pub flags: Vec<String>,
    /// Settings that cannot change memory.
    pub ignored: Vec<String>,
    /// What may change memory and is not modelled, or was assumed.
    pub warnings: Vec<String>,
    /// Devices, where a setting says how many.
    pub gpus: Option<u64>,
    /// The Hugging Face id of a model that is no preset.
    pub unknown_model: Option<String>,
    /// The setting that each flag comes from.
    origins: BTreeMap<String, String>,
}

/// What ms-swift, Megatron-Bridge and verl take where a model is given by its Hugging Face id.
const WITH_A_MODEL: [&str; 4] = ["--bf16", "--use-distributed-optimizer", "--micro-batch-size", "1"];

/// Turns settings into flags; of two settings of one flag the last counts, after those of data and
/// trainer sections.
pub(crate) fn settings(list: &[Setting]) -> Settings {
    let mut reader = Reader::default();
    let (outer, inner): (Vec<_>, Vec<_>) = list.iter().partition(|setting| setting.in_any(&OUTER_SECTIONS));
    for setting in outer.into_iter().chain(inner) {
        reader.setting(setting);
    }
    reader.finish()
}

impl Setting {
    /// An override such as `model.num_layers=4`, as Hydra takes them.
    pub fn of_override(word: &str) -> Option<Self> {
        let (path, value) = word.split_once('=')?;
        let path = path.trim_start_matches('+');
        let is_name =
            |part: &str| !part.is_empty() && part.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        if path.starts_with('-') || !path.split('.').all(is_name) {
            return None;
        }
        let value = match value {
            "null" | "None" => Value::Null,
            value => Value::Text(value.trim_matches(['"', '\'']).to_owned()),
        };
        Some(Self { path: path.split('.').map(str::to_owned).collect(), value })
    }

    /// An option such as `--num_layers 4`, with the words behind it.
    pub fn of_option(words: &[String]) -> Option<Self> {
        let (first, values) = words.split_first()?;
        let name = first.strip_prefix("--")?;
        let (name, joined) = name.split_once('=').map_or((name, None), |(name, value)| (name, Some(value)));
        let value = match (joined, values) {
            (Some(value), _) => Value::Text(value.to_owned()),
            (None, []) => Value::Text("true".to_owned()),
            (None, [value]) => Value::Text(value.clone()),
            (None, values) => Value::List(values.to_vec()),
        };
        Some(Self { path: vec![name.to_owned()], value })
    }

    /// Whether it is the size of a model or of its distribution, in some section.
    pub fn starts_training(&self) -> bool {
        self.path.len() > 1 && is_size(self.field())
    }

    /// The field's name.
    fn field(&self) -> &str {
        self.path.last().map_or("", String::as_str)
    }

    fn in_any(&self, sections: &[&str]) -> bool {
        let outer = &self.path[..self.path.len().saturating_sub(1)];
        outer.iter().any(|part| sections.contains(&part.to_ascii_lowercase().as_str()))
    }

    fn shown(&self) -> String {
        self.path.join(".")
    }
}

/// Whether a field of this name says that a training is started.
fn is_size(field: &str) -> bool {
    matches!(
        field,
        "num_layers"
            | "hidden_size"
            | "micro_batch_size"
            | "num_attention_heads"
            | "tensor_model_parallel_size"
            | "pipeline_model_parallel_size"
    )
}

#[derive(Default)]
struct Reader {
    settings: Settings,
    model: Vec<String>,
    per_node: Option<u64>,
    /// Given, and known.
    nodes: Option<Option<u64>>,
    sequence: Option<u64>,
    prompts: Option<u64>,
    samples: Option<u64>,
}

impl Reader {
    fn setting(&mut self, setting: &Setting) {
        let field = setting.field();
        let text = match &setting.value {
            Value::Null => return,
            Value::Text(text) => text.clone(),
            Value::List(values) => values.join(","),
        };
        let means = means(field);
        if matches!(means, Means::Samples) {
            // The samples of a prompt are a setting of the rollout, whose others are not the training's.
            self.samples = self.samples.or(text.parse().ok().filter(|_| setting.in_any(&["rollout"])));
            return;
        }
        let other = |name: &str| OTHER_SECTIONS.contains(&name.to_ascii_lowercase().as_str());
        if setting.in_any(&ADAPTERS) {
            self.once(setting, "training of all parameters is modelled", true);
        } else if setting.in_any(OTHER_SECTIONS)
            || other(field)
            || (setting.in_any(&OUTER_SECTIONS) && !OUTER_FIELDS.contains(&field))
        {
            self.once(setting, "", false);
        } else {
            self.field(setting, means, &text);
        }
    }

    /// One line for a section, however many settings it has.
    fn once(&mut self, setting: &Setting, what: &str, warn: bool) {
        let sections = [&ADAPTERS[..], OTHER_SECTIONS, &OUTER_SECTIONS].concat();
        let at = setting.path.iter().position(|part| sections.contains(&part.to_ascii_lowercase().as_str()));
        let name = setting.path[..at.map_or(setting.path.len(), |at| at + 1)].join(".");
        let (list, line) = match warn {
            true => (&mut self.settings.warnings, format!("{name}: {what}")),
            false => (&mut self.settings.ignored, name),
        };
        if !list.contains(&line) {
            list.push(line);
        }
    }

    fn field(&mut self, setting: &Setting, means: Means, text: &str) {
        let number = || text.trim().parse::<u64>().ok();
        let is = |word: &str| text.to_ascii_lowercase().contains(word);
        match means {
            Means::SameName => self.same_name(setting, text),
            Flag(flag) => self.flag(setting, flag, text),
            Not(flag) if is_false(text) => self.flag(setting, flag, "true"),
            Not(_) => {}
            Means::KvGroups => {
                self.flag(setting, "--group-query-attention", "true");
                self.flag(setting, "--num-query-groups", text);
            }
            Means::Activation if is("glu") => self.flag(setting, "--swiglu", "true"),
            Means::Activation => {}
            Means::Norm if is("rms") => self.flag(setting, "--normalization", "RMSNorm"),
            Means::Norm if is("layernorm") => self.flag(setting, "--normalization", "LayerNorm"),
            Means::Norm => self.flag(setting, "--normalization", text),
            Means::Precision => self.precision(setting, &text.to_ascii_lowercase()),
            Means::Model => self.model(setting, text),
            Means::DevicesPerNode => self.per_node = number(),
            Means::Nodes => self.nodes = Some(number()),
            Means::SequencePart => {
                self.sequence = number().map(|part| part.saturating_add(self.sequence.unwrap_or(0)));
            }
            Means::Prompts => self.prompts = number(),
            Differs(how) if !is_false(text) && text != "full" => {
                self.settings.warnings.push(format!("{} {text}: {how}", setting.shown()));
            }
            Differs(_) | Harmless | Means::Samples => self.settings.ignored.push(setting.shown()),
        }
    }

    fn same_name(&mut self, setting: &Setting, text: &str) {
        let field = setting.field();
        let name = field.trim_start_matches('-').replace('_', "-");
        let flag = format!("--{name}");
        if is_false(text) {
            return;
        }
        match &setting.value {
            Value::List(values) if name == "moe-layer-freq" => {
                self.flag(setting, &flag, &format!("[{}]", values.join(",")));
            }
            Value::List(values) => self.many(setting, &flag, values),
            // Megatron's tests write lists as text too.
            _ if text.starts_with('[') && name != "moe-layer-freq" => {
                self.many(setting, &flag, &[text.trim_matches(['[', ']']).to_owned()]);
            }
            _ => self.flag(setting, &flag, text),
        }
    }

    /// A flag with several values, which may stand in one text.
    fn many(&mut self, setting: &Setting, flag: &str, values: &[String]) {
        self.flag(setting, flag, "true");
        let values = values
            .iter()
            .flat_map(|value| value.split([' ', ',']))
            .map(|value| value.trim_matches(['"', '\'']));
        self.settings
            .flags
            .extend(values.filter(|value| !value.is_empty() && !value.starts_with("--")).map(str::to_owned));
    }

    /// `true` stands for a switch.
    fn flag(&mut self, setting: &Setting, flag: &str, text: &str) {
        if is_false(text) {
            return;
        }
        self.settings.flags.push(flag.to_owned());
        if !is_true(text) {
            self.settings.flags.push(text.to_owned());
        }
        self.settings.origins.insert(flag.to_owned(), setting.shown());
    }

    /// `bf16`, `16-mixed`, `bfloat16`, or a recipe of Megatron-Bridge such as `bf16_with_mxfp8_mixed`.
    fn precision(&mut self, setting: &Setting, text: &str) {
        let has = |word: &str| text.contains(word);
        if has("bf16") || has("bfloat16") {
            self.flag(setting, "--bf16", "true");
        } else if has("16") {
            self.flag(setting, "--fp16", "true");
        }
        if has("fp8") {
            let recipe = match () {
                () if has("mxfp8") => "mxfp8",
                () if has("subchannel") || has("blockwise") => "blockwise",
                () if has("current") || has("tensorwise") => "tensorwise",
                () => "delayed",
            };
            self.flag(setting, "--fp8-format", "hybrid");
            self.flag(setting, "--fp8-recipe", recipe);
        }
    }

    fn model(&mut self, setting: &Setting, text: &str) {
        match Preset::of_id(text) {
            Some(name) => {
                let Ok(preset) = Preset::named(name, None) else { return };
                self.model = config_flags(&preset.config);
                self.model.extend(WITH_A_MODEL.map(str::to_owned));
                let shown = setting.shown();
                self.settings.warnings.push(format!(
                    "{shown} {text}: the sizes of the preset {name}; assumed: --bf16, --use-distributed-optimizer, \
                     --micro-batch-size 1 and --seq-length 4096 where nothing else is given"
                ));
            }
            None => self.settings.unknown_model = Some(text.to_owned()),
        }
    }

    fn finish(self) -> Settings {
        let Self { mut settings, model, per_node, nodes, sequence, prompts, samples } = self;
        let mut flags = model;
        if let Some(sequence) = sequence {
            flags.extend(["--seq-length".to_owned(), sequence.to_string()]);
        }
        if let Some(prompts) = prompts {
            let batch = prompts.saturating_mul(samples.unwrap_or(1));
            flags.extend(["--global-batch-size".to_owned(), batch.to_string()]);
        }
        flags.append(&mut settings.flags);
        settings.flags = flags;
        settings.gpus =
            per_node.zip(nodes.unwrap_or(Some(1))).map(|(devices, nodes)| devices.saturating_mul(nodes));
        settings
    }
}

impl Settings {
    /// `line` about a flag, with the setting's name in place of the flag's.
    pub fn renamed(&self, line: &str) -> String {
        let (flag, rest) = line.split_at(line.find([':', ' ']).unwrap_or(line.len()));
        match self.origins.get(flag) {
            Some(origin) => format!("{origin}{rest}"),
            None => line.to_owned(),
        }
    }

    /// `error` about a flag, with the setting that the flag comes from.
    pub fn explain(&self, error: ScriptError) -> ScriptError {
        if let (ScriptError::Missing { .. }, Some(id)) = (&error, &self.unknown_model) {
            return ScriptError::UnknownModel { id: id.clone() };
        }
        match error.flag().and_then(|flag| self.origins.get(flag)) {
            Some(setting) => ScriptError::Setting { setting: setting.clone(), error: Box::new(error) },
            None => error,
        }
    }
}

fn is_true(text: &str) -> bool {
    matches!(text, "true" | "True" | "TRUE" | "yes" | "on")
}

fn is_false(text: &str) -> bool {
    matches!(text, "false" | "False" | "FALSE" | "no" | "off")
}
