//! What a model and its distribution are read from, whichever format it is in.
//!
//! Every format ends in Megatron's flags, read by the reader of launch scripts ([`crate::script`]), so that
//! flags given beside a file override it in the same way everywhere. Nothing is executed; input, nesting and
//! expansion are bounded.

mod error;
mod hugging_face;
mod json;
mod kind;
mod list;
mod yaml;

pub use error::{ConfigError, ListError, ReadError, YamlError};
pub use hugging_face::{DEFAULT_SEQ, HuggingFace};

use crate::fields;
use crate::script::{
    Given, Launch, MAX_INPUT, config_flags, from_flags, from_flags_over, from_settings, parse_with, sanitize,
};

/// The format of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Format {
    /// A launch script.
    Script,
    /// Hugging Face's `config.json`.
    HuggingFace,
    /// A run's YAML: Megatron's tests and `--yaml-cfg`, NeMo and Megatron-Bridge, ms-swift.
    Yaml,
    /// Flags, without what launches them.
    Flags,
}

/// Names of the formats.
pub const FORMATS: [(&str, Format); 4] = [
    ("script", Format::Script),
    ("hf", Format::HuggingFace),
    ("yaml", Format::Yaml),
    ("flags", Format::Flags),
];

impl Format {
    /// The format called `name` in [`FORMATS`].
    pub fn named(name: &str) -> Option<Self> {
        FORMATS.into_iter().find(|(known, _)| *known == name).map(|(_, format)| format)
    }

    /// The format that the first line decides which is neither empty nor a comment: `{` begins a
    /// `config.json`, `--` a list of flags, `---` or a name and a colon YAML; anything else is a script, and
    /// so is what begins with `#!`.
    pub fn of(text: &[u8]) -> Self {
        let text = without_mark(text).trim_ascii_start();
        if text.starts_with(b"#!") {
            return Self::Script;
        }
        let mut lines = text.split(|&b| b == b'\n').map(<[u8]>::trim_ascii);
        let Some(line) = lines.find(|line| !line.is_empty() && !line.starts_with(b"#")) else {
            return Self::Script;
        };
        match line {
            [b'{', ..] => Self::HuggingFace,
            b"---" | [b'-', b'-', b'-', b' ', ..] | [b'%', b'Y', b'A', b'M', b'L', ..] => Self::Yaml,
            _ if names_a_value(line) => Self::Yaml,
            [b'-', b'-', ..] => Self::Flags,
            _ => Self::Script,
        }
    }
}

/// Whether a line is `name:` or `name: value`.
fn names_a_value(line: &[u8]) -> bool {
    let Some(colon) = line.iter().position(|&b| b == b':') else { return false };
    let is_name = |b: &u8| b.is_ascii_alphanumeric() || b"_-.\"'".contains(b);
    colon > 0 && line[..colon].iter().all(is_name) && line.get(colon + 1).is_none_or(u8::is_ascii_whitespace)
}

/// Reads a file in `format`, or in the one that its content decides.
pub fn read(text: &[u8], format: Option<Format>, given: &Given) -> Result<Launch, ReadError> {
    if text.len() > MAX_INPUT {
        return Err(ReadError::TooLong { limit: MAX_INPUT });
    }
    let text = without_mark(text);
    let format = format.unwrap_or_else(|| Format::of(text));
    if format == Format::Script {
        return Ok(parse_with(text, given)?);
    }
    if !given.arguments.is_empty() {
        return Err(ReadError::OnlyForScripts { option: "--arg" });
    }
    if !given.variables.is_empty() {
        return Err(ReadError::OnlyForScripts { option: "--env" });
    }
    let plain = || sanitize(&String::from_utf8_lossy(text));
    match format {
        Format::HuggingFace => config_json(text, given),
        Format::Yaml => yaml_file(&plain(), given),
        Format::Script | Format::Flags => {
            let words = list::words(&plain())?;
            let gpus = given.gpus.ok_or(ReadError::NoGpus)?;
            Ok(from_flags(&[words, given.flags.clone()].concat(), gpus)?)
        }
    }
}

/// A `config.json` says nothing of the run: flags beside it do, over assumptions that are named.
fn config_json(text: &[u8], given: &Given) -> Result<Launch, ReadError> {
    let HuggingFace { config, ignored, mut warnings } = HuggingFace::parse(text)?;
    let gpus = given.gpus.ok_or(ReadError::NoGpus)?;
    let mut flags = config_flags(&config);
    flags.extend(["--bf16", "--micro-batch-size", "1"].map(str::to_owned));
    let is_given = |name: &str| given.flags.iter().any(|flag| flag == name);
    let mut assumed = Vec::new();
    if !is_given("--bf16") && !is_given("--fp16") {
        assumed.push("--bf16".to_owned());
    }
    if !is_given("--seq-length") {
        assumed.push(format!("--seq-length {DEFAULT_SEQ}"));
    }
    if !is_given("--micro-batch-size") {
        assumed.push("--micro-batch-size 1".to_owned());
    }
    if !assumed.is_empty() {
        let assumed = assumed.join(", ");
        warnings.push(format!("assumed, since a config.json does not describe a run: {assumed}"));
    }
    let mut launch = from_flags_over(&flags, &given.flags, gpus)?;
    launch.ignored.splice(0..0, ignored);
    launch.warnings.splice(0..0, warnings);
    Ok(launch)
}

fn yaml_file(text: &str, given: &Given) -> Result<Launch, ReadError> {
    let settings = fields::settings(&yaml::settings(text)?, None);
    let gpus = given.gpus.or(settings.gpus).ok_or(ReadError::NoGpus)?;
    Ok(from_settings(&settings, &given.flags, gpus)?)
}

/// The text behind a byte order mark.
fn without_mark(text: &[u8]) -> &[u8] {
    text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text)
}
