//! A reader for Megatron launch scripts, as people write them.
//!
//! It follows variables, defaults, arrays, arithmetic, functions and conditions that can be decided, finds
//! the command that starts the training, and reads shapes and distribution from its flags. Nothing is ever
//! executed: command substitutions and variables of the environment are unknown, and only an unknown value
//! in a flag that matters is an error. Variables that the script does not set count as unset in tests and
//! defaults. Input, expansion and nesting are bounded, whatever the bytes.

mod arithmetic;
mod build;
mod decimal;
mod distribution;
mod effects;
mod error;
mod expand;
mod flags;
mod launcher;
mod lexer;
mod parser;
mod pattern;
mod settings;
mod shell;
mod to_flags;

pub use error::ScriptError;
pub(crate) use expand::sanitize;
pub(crate) use flags::changes_memory;
pub use flags::{FLAGS, Flag};
pub(crate) use to_flags::config_flags;
pub use to_flags::to_flags;

use crate::fields::Settings;
use crate::settings::ActivationSettings;
use crate::{ModelConfig, Parallelism};
use build::Reader;
use expand::{Environment, Variable};
use flags::Flags;
use shell::{Command, Shell};

/// Longest script, bytes.
pub const MAX_INPUT: usize = 1 << 18;

/// What a launch says about memory.
#[derive(Clone, Debug, PartialEq)]
pub struct Launch {
    /// The shape.
    pub config: ModelConfig,
    /// The distribution.
    pub parallelism: Parallelism,
    /// Its own settings of activation memory, which the plan replaces.
    pub settings: ActivationSettings,
    /// Line of the command, 0 where flags were given directly.
    pub line: u32,
    /// Flags that cannot change memory.
    pub ignored: Vec<String>,
    /// Recompute and offload settings that the plan replaces.
    pub replaced: Vec<String>,
    /// What may change memory and is not modelled, or could not be read.
    pub warnings: Vec<String>,
}

/// What the user gives beside the script.
#[derive(Clone, Debug, Default)]
pub struct Given {
    /// The script's arguments: `$1` and on.
    pub arguments: Vec<String>,
    /// Variables of its environment.
    pub variables: Vec<(String, String)>,
    /// Megatron flags that are added behind the script's own and so override them.
    pub flags: Vec<String>,
    /// Devices, where the launcher does not say or says something else.
    pub gpus: Option<u64>,
}

/// Reads a launch script.
pub fn parse(text: &[u8]) -> Result<Launch, ScriptError> {
    parse_with(text, &Given::default())
}

/// Reads a launch script, with what the user gives beside it.
pub fn parse_with(text: &[u8], given: &Given) -> Result<Launch, ScriptError> {
    if text.len() > MAX_INPUT {
        return Err(ScriptError::TooLong { limit: MAX_INPUT });
    }
    let text = sanitize(&String::from_utf8_lossy(text));
    let mut shell = Shell::default();
    for (name, value) in &given.variables {
        shell.environment.variables.insert(name.clone(), Variable::Scalar(sanitize(value)));
    }
    shell.environment.arguments = given.arguments.iter().map(|argument| sanitize(argument)).collect();
    launcher::slurm(&text, &mut shell.environment);
    shell.read(&text)?;
    let Shell { environment, launches, mut warnings, .. } = shell;
    let command = match launches.first() {
        Some(command) => command.clone(),
        None => flags_in_variables(&environment, &mut warnings).ok_or(ScriptError::NoLaunch)?,
    };
    if launches.len() > 1 {
        let (count, line) = (launches.len(), command.line);
        warnings.push(format!("{count} different training commands; the first, in line {line}, is taken"));
    }
    let (launcher, words) = launcher::split(&command.words);
    let (settings, words) = launcher::settings(launcher, words);
    let gpus = match given.gpus.or(settings.gpus) {
        Some(gpus) => gpus,
        None => launcher::devices(launcher, &environment).map_err(|text| ScriptError::Devices { text })?,
    };
    let mut launch = build_from(&settings, &words, &given.flags, gpus, &environment)?;
    launch.line = command.line;
    warnings.append(&mut launch.warnings);
    launch.warnings = warnings;
    Ok(launch)
}

/// The flags of a script that another one sources: those in its variables, in the order of their names.
fn flags_in_variables(environment: &Environment, warnings: &mut Vec<String>) -> Option<Command> {
    let (mut words, mut names) = (Vec::new(), Vec::new());
    for (name, variable) in &environment.variables {
        let values = match variable {
            Variable::Scalar(value) => value.split_whitespace().map(str::to_owned).collect(),
            Variable::Array(values) => values.clone(),
        };
        let Some(start) = values.iter().position(|word| word.starts_with("--")) else { continue };
        if values.iter().any(|word| FLAGS.iter().any(|flag| flag.name == word)) {
            words.extend_from_slice(&values[start..]);
            names.push(format!("${name}"));
        }
    }
    if names.is_empty() {
        return None;
    }
    warnings.push(format!("no training command; the flags in {} are taken", names.join(", ")));
    Some(Command { line: 0, words })
}

/// Reads Megatron flags that are given directly, for `gpus` devices.
pub fn from_flags(flags: &[String], gpus: u64) -> Result<Launch, ScriptError> {
    build(&[], flags, gpus, &Environment::default())
}

/// Reads Megatron flags over those of a preset or config.
pub fn from_flags_over(base: &[String], flags: &[String], gpus: u64) -> Result<Launch, ScriptError> {
    build(base, flags, gpus, &Environment::default())
}

/// Reads settings of another program, for `gpus` devices; Megatron's flags override them.
pub(crate) fn from_settings(settings: &Settings, flags: &[String], gpus: u64) -> Result<Launch, ScriptError> {
    build_from(settings, &[], flags, gpus, &Environment::default())
}

fn build_from(
    settings: &Settings,
    words: &[String],
    overrides: &[String],
    gpus: u64,
    environment: &Environment,
) -> Result<Launch, ScriptError> {
    let words = [&settings.flags, words].concat();
    let mut launch = build(&words, overrides, gpus, environment).map_err(|error| settings.explain(error))?;
    for (lines, more) in
        [(&mut launch.warnings, &settings.warnings), (&mut launch.ignored, &settings.ignored)]
    {
        let renamed = lines.iter().map(|line| settings.renamed(line));
        *lines = more.iter().map(|line| environment.shown(line)).chain(renamed).collect();
    }
    Ok(launch)
}

fn build(
    words: &[String],
    overrides: &[String],
    gpus: u64,
    environment: &Environment,
) -> Result<Launch, ScriptError> {
    let words = without_precision(words, overrides);
    let words: Vec<String> = words.cloned().chain(overrides.iter().map(|word| sanitize(word))).collect();
    let flags = Flags::new(&words, environment);
    let reader = Reader { flags: &flags, environment };
    let config = reader.config().map_err(|error| flags.hidden(error))?;
    let parallelism = reader.parallelism(gpus, config.layers).map_err(|error| flags.hidden(error))?;
    let settings = reader.settings()?;
    let dispatcher = reader.dispatcher(&config, &parallelism)?;
    let shared_overlap = reader.shared_overlap(&parallelism)?;
    let Flags { ignored, replaced, mut warnings, .. } = flags;
    warnings.extend(dispatcher.into_iter().chain(shared_overlap));
    Ok(Launch { config, parallelism, settings, line: 0, ignored, replaced, warnings })
}

/// `words` without the precision that `over` replaces: the two switches have no value that the last could win by.
pub(crate) fn without_precision<'a>(
    words: &'a [String],
    over: &[String],
) -> impl Iterator<Item = &'a String> {
    const PRECISIONS: [&str; 2] = ["--bf16", "--fp16"];
    let replaced = over.iter().any(|word| PRECISIONS.contains(&word.as_str()));
    words.iter().filter(move |word| !(replaced && PRECISIONS.contains(&word.as_str())))
}
