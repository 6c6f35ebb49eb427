//! Settings of other programs to Megatron's flags: the fields of its `TransformerConfig`, NeMo, Megatron-Bridge,
//! ms-swift, verl, and its own YAML files. One table says which field is which flag; a field that is not in
//! it is the flag of the same name.

mod defaults;
mod table;
mod values;

use std::collections::BTreeMap;

use crate::Preset;
use crate::script::{FLAGS, ScriptError, config_flags, without_precision};
pub(crate) use defaults::{MS_SWIFT, Program};
use table::Means::{self, Differs, Flag, Harmless, Not};
use table::{ADAPTERS, LOOP_FIELDS, LOOP_SECTIONS, OTHER_SECTIONS, OUTER_SECTIONS, matters, means};
use values::{backend, element_type, is_false, is_true};

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

/// Turns settings of `program`, or of the one that they are recognisably for, into flags. Of two settings of one
/// flag the last counts, after those of sections around the model; `false` and null take earlier ones back.
pub(crate) fn settings(list: &[Setting], program: Option<&'static Program>) -> Settings {
    let list: Vec<_> = list.iter().map(Setting::unwrapped).collect();
    let mut reader = Reader { program: program.or_else(|| defaults::program(&list)), ..Reader::default() };
    let (outer, inner): (Vec<_>, Vec<_>) = list.iter().partition(|setting| setting.in_any(OUTER_SECTIONS));
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
    program: Option<&'static Program>,
    /// Where the sizes come from if nothing else gives them.
    checkpoint: Option<String>,
    model: Vec<String>,
    /// Flags in the order of their last settings, with their values.
    flags: Vec<(String, Vec<String>)>,
    /// What the last setting of each flag said; `None` for null.
    said: BTreeMap<String, (String, Option<String>)>,
    /// Fields that were read of a section whose others are not.
    read: BTreeMap<String, Vec<String>>,
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
        let means = means(field);
        if matches!(means, Means::Samples) {
            // The samples of a prompt are a setting of the rollout, whose others are not the training's.
            let samples = setting.value.text().and_then(|text| text.parse().ok());
            if let Some(samples) = samples.filter(|_| setting.in_any(&["rollout"])) {
                self.samples = self.samples.or(Some(samples));
                self.read_of_section(setting);
            }
            return;
        }
        if self.is_swift() && field == "load" {
            // A checkpoint of Megatron's has the sizes beside it.
            self.checkpoint = setting.value.text();
        }
        let is_section = |sections: &[&str]| sections.contains(&field.to_ascii_lowercase().as_str());
        let of_the_loop = || setting.in_any(&LOOP_SECTIONS) && LOOP_FIELDS.contains(&field);
        if setting.in_any(&ADAPTERS) {
            if setting.value != Value::Null {
                self.once(setting, "training of all parameters is modelled", true);
            }
        } else if setting.in_any(OTHER_SECTIONS) || is_section(OTHER_SECTIONS) {
            self.once(setting, "", false);
        } else if !setting.in_any(OUTER_SECTIONS) && !is_section(OUTER_SECTIONS) {
            self.field(setting, means);
        } else if let ([.., section, _], Value::Text(name)) = (&setting.path[..], &setting.value)
            && section == "optim"
            && field == "name"
        {
            self.read_of_section(setting);
            self.optimizer(setting, &name.to_ascii_lowercase());
        } else if setting.path.len() > 1 && (matters(field) || of_the_loop()) {
            self.read_of_section(setting);
            self.field(setting, means);
        } else {
            self.once(setting, "", false);
        }
    }

    fn is_swift(&self) -> bool {
        self.program.is_some_and(|program| program.name == MS_SWIFT.name)
    }

    /// The section around `setting` that says what it is of.
    fn section(setting: &Setting) -> String {
        let sections = [&ADAPTERS[..], OTHER_SECTIONS, OUTER_SECTIONS].concat();
        let at = setting.path.iter().position(|part| sections.contains(&part.to_ascii_lowercase().as_str()));
        setting.path[..at.map_or(setting.path.len(), |at| at + 1)].join(".")
    }

    fn read_of_section(&mut self, setting: &Setting) {
        let fields = self.read.entry(Self::section(setting)).or_default();
        if !fields.iter().any(|field| field == setting.field()) {
            fields.push(setting.field().to_owned());
        }
    }

    /// One line for a section, however many settings it has.
    fn once(&mut self, setting: &Setting, what: &str, warn: bool) {
        let name = Self::section(setting);
        let (list, line) = match warn {
            true => (&mut self.settings.warnings, format!("{name}: {what}")),
            false => (&mut self.settings.ignored, name),
        };
        if !list.contains(&line) {
            list.push(line);
        }
    }

    fn field(&mut self, setting: &Setting, means: Means) {
        let Some(text) = &setting.value.text() else { return self.unset(setting, means) };
        let number = || text.trim().parse::<u64>().ok();
        let is = |word: &str| text.to_ascii_lowercase().contains(word);
        match means {
            Means::SameName => self.same_name(setting, text),
            Flag(flag) => self.flag(setting, flag, text),
            Means::Type(flag) => self.flag(setting, flag, &element_type(text)),
            Means::Backend(flag) => self.flag(setting, flag, &backend(text)),
            Not(flag) => self.flag(setting, flag, if is_false(text) { "true" } else { "false" }),
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
            Means::Strategy if is("fsdp") => self.flag(setting, "--use-megatron-fsdp", "true"),
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
            Differs(_) | Harmless | Means::Samples | Means::Strategy => {
                self.settings.ignored.push(setting.shown());
            }
        }
    }

    /// Null stands for the default: what was said before does not count.
    fn unset(&mut self, setting: &Setting, means: Means) {
        match means {
            Flag(flag) | Not(flag) | Means::Type(flag) | Means::Backend(flag) => {
                self.say(setting, flag, None)
            }
            Means::KvGroups => {
                self.say(setting, "--group-query-attention", None);
                self.say(setting, "--num-query-groups", None);
            }
            Means::Norm => self.say(setting, "--normalization", None),
            Means::SameName => self.say(setting, &same_flag(setting), None),
            _ => {}
        }
    }

    fn same_name(&mut self, setting: &Setting, text: &str) {
        let flag = same_flag(setting);
        let one = flag == "--moe-layer-freq";
        match &setting.value {
            Value::List(values) if one => self.flag(setting, &flag, &format!("[{}]", values.join(","))),
            Value::List(values) => self.many(setting, &flag, values),
            // Megatron's tests write lists as text too.
            _ if text.starts_with('[') && !one => {
                self.many(setting, &flag, &[text.trim_matches(['[', ']']).to_owned()]);
            }
            _ => self.flag(setting, &flag, text),
        }
    }

    /// A flag with several values, which may stand in one text.
    fn many(&mut self, setting: &Setting, flag: &str, values: &[String]) {
        let values = values
            .iter()
            .flat_map(|value| value.split([' ', ',']))
            .map(|value| value.trim_matches(['"', '\'']));
        let values: Vec<_> =
            values.filter(|value| !value.is_empty() && !value.starts_with("--")).map(str::to_owned).collect();
        self.say(setting, flag, Some((values.join(","), values)));
    }

    /// `true` stands for a switch.
    fn flag(&mut self, setting: &Setting, flag: &str, text: &str) {
        let is_switch = FLAGS.iter().any(|known| known.name == flag && known.value.is_none());
        let values = match () {
            () if is_true(text) => Vec::new(),
            // A switch of the model or the program around it is taken back, too.
            () if is_false(text) && is_switch => vec!["false".to_owned()],
            () if is_false(text) => return self.say(setting, flag, None),
            () => vec![text.to_owned()],
        };
        self.say(setting, flag, Some((text.to_ascii_lowercase(), values)));
    }

    /// Sets a flag or takes it back, in place of what was said of it before.
    fn say(&mut self, setting: &Setting, flag: &str, value: Option<(String, Vec<String>)>) {
        let shown = setting.shown();
        let (text, values) = value.unzip();
        let before = self.said.insert(flag.to_owned(), (shown.clone(), text.clone()));
        if let (Some((other, Some(earlier))), Some(text)) = (before, &text)
            && other != shown
            && earlier != *text
        {
            self.settings
                .warnings
                .push(format!("{other} is {earlier} and {shown} is {text}: the latter is taken"));
        }
        self.flags.retain(|(known, _)| known != flag);
        self.flags.extend(values.map(|values| (flag.to_owned(), values)));
        self.settings.origins.insert(flag.to_owned(), shown);
    }

    /// NeMo's names; its distributed optimizers divide their state as Megatron's does.
    fn optimizer(&mut self, setting: &Setting, name: &str) {
        match name {
            "distributed_fused_adam" | "mcore_distributed_optim" => {
                self.flag(setting, "--use-distributed-optimizer", "true");
            }
            "sgd" | "lion" | "muon" => self.flag(setting, "--optimizer", name),
            "adam" | "adamw" | "fused_adam" | "megatron_fused_adam" => {}
            _ => {
                let shown = setting.shown();
                self.settings.warnings.push(format!("{shown} {name}: the state of Adam is modelled"));
            }
        }
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
        let Self {
            mut settings,
            program,
            checkpoint,
            model,
            flags,
            read,
            per_node,
            nodes,
            sequence,
            prompts,
            samples,
            ..
        } = self;
        let sized = model.is_empty();
        let mut words = model;
        if let Some(program) = program {
            let given = |flag: &str| flags.iter().any(|(name, _)| name == flag);
            let with_experts = given("--num-experts") || words.iter().any(|word| word == "--num-experts");
            let (assumed, note) = program.assumed(sized, with_experts, given);
            words.extend(assumed);
            settings.warnings.extend(note);
        }
        if let Some(sequence) = sequence {
            words.extend(["--seq-length".to_owned(), sequence.to_string()]);
        }
        if let Some(prompts) = prompts {
            let batch = prompts.saturating_mul(samples.unwrap_or(1));
            words.extend(["--global-batch-size".to_owned(), batch.to_string()]);
        }
        let own: Vec<_> =
            flags.into_iter().flat_map(|(name, values)| [vec![name], values].concat()).collect();
        settings.flags = without_precision(&words, &own).cloned().collect();
        settings.flags.extend(own);
        settings.unknown_model = settings.unknown_model.or(checkpoint);
        for name in &mut settings.ignored {
            if let Some(fields) = read.get(name) {
                *name = format!("{name} (but {})", fields.join(", "));
            }
        }
        settings.gpus =
            per_node.zip(nodes.unwrap_or(Some(1))).map(|(devices, nodes)| devices.saturating_mul(nodes));
        settings
    }
}

/// The flag of a field's own name.
fn same_flag(setting: &Setting) -> String {
    format!("--{}", setting.field().trim_start_matches('-').replace('_', "-"))
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
