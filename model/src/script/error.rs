//! Why a launch script cannot be read.

use std::fmt;

use super::flags::value_of;

/// Why a launch script cannot be read.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ScriptError {
    /// More bytes than any launch script has.
    TooLong {
        /// The limit.
        limit: usize,
    },
    /// Expansions that grow without end.
    TooMuch {
        /// The limit, in bytes of expansion.
        limit: u64,
    },
    /// Statements or expansions nested too deeply.
    TooDeep {
        /// The line, 0 where it is not known.
        line: u32,
        /// The limit.
        limit: u32,
    },
    /// A quote or bracket without its end.
    Unterminated {
        /// The line it begins on.
        line: u32,
        /// What is open.
        what: &'static str,
    },
    /// No command with a training's flags.
    NoLaunch,
    /// The number of devices is not in the launcher.
    Devices {
        /// What stands there instead, empty where nothing does.
        text: String,
    },
    /// A needed flag is not given.
    Missing {
        /// The flag.
        flag: &'static str,
    },
    /// A needed flag is not given, unless in words that are known only when the script runs.
    Hidden {
        /// The flag.
        flag: &'static str,
        /// The words as they are written.
        text: String,
    },
    /// A needed flag's value is known only when the script runs.
    Unknown {
        /// The flag.
        flag: &'static str,
        /// The value as it is written.
        text: String,
    },
    /// Two flags that Megatron does not take together.
    Conflict {
        /// One.
        flag: &'static str,
        /// The other.
        other: &'static str,
        /// Why not.
        rule: &'static str,
    },
    /// A flag that Megatron takes only with another.
    Needs {
        /// The flag.
        flag: &'static str,
        /// The one that is missing.
        other: &'static str,
    },
    /// A flag's value is not what it should be.
    BadValue {
        /// The flag.
        flag: &'static str,
        /// The value.
        value: String,
        /// What it should be.
        expected: &'static str,
    },
    /// A pipeline layout whose stages are no multiple of the pipeline's ranks.
    Stages {
        /// Stages that it lists.
        stages: usize,
        /// Pipeline ranks.
        pp: u32,
    },
    /// A flag whose effect on memory is not modelled.
    NotModelled {
        /// The flag.
        flag: &'static str,
    },
    /// Sizes are not given, only a model that is no preset.
    UnknownModel {
        /// Its name.
        id: String,
    },
    /// A setting of another program's that stands for a flag.
    Setting {
        /// Where it stands.
        setting: String,
        /// What is wrong with the flag.
        error: Box<Self>,
    },
}

impl ScriptError {
    /// The flag that is wrong, where it is one.
    pub(crate) fn flag(&self) -> Option<&'static str> {
        match self {
            Self::Missing { flag }
            | Self::Hidden { flag, .. }
            | Self::Unknown { flag, .. }
            | Self::BadValue { flag, .. }
            | Self::NotModelled { flag } => Some(flag),
            _ => None,
        }
    }
}

impl fmt::Display for ScriptError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong { limit } => {
                write!(f, "the script has more than {limit} bytes; give the launch script itself")
            }
            Self::TooMuch { limit } => write!(
                f,
                "the script's variables expand to more than {limit} bytes; shorten its loops or give the flags \
                 directly"
            ),
            Self::TooDeep { line: 0, limit } => {
                write!(f, "more than {limit} levels of nested calls or expansions; give the flags directly")
            }
            Self::TooDeep { line, limit } => {
                write!(f, "line {line}: more than {limit} levels of nesting; give the flags directly")
            }
            Self::Unterminated { line, what } => write!(f, "line {line}: {what} has no end; close it"),
            Self::NoLaunch => write!(
                f,
                "no command of the script has a training's flags (--num-layers, --hidden-size, …); give the \
                 script that calls pretrain_gpt.py, its arguments (--arg), or the flags directly"
            ),
            Self::Devices { text } if text.is_empty() => {
                write!(f, "the script's launcher does not say how many devices it starts; give --gpus N")
            }
            Self::Devices { text } => write!(
                f,
                "the number of devices is {text:?}, which is known only when the script runs; give --gpus N"
            ),
            Self::Unknown { flag, text } if text.starts_with("$((") => write!(
                f,
                "{flag} is {text:?}, which has no value: a division by zero, an overflow, or a variable known \
                 only when the script runs; give {flag} VALUE beside the script, or --env NAME=VALUE for a variable"
            ),
            Self::Missing { flag: flag @ "--vocab-size" } => write!(
                f,
                "{flag} is missing, since the tokenizer decides it when the script runs; give {flag} N beside it"
            ),
            Self::Missing { flag } => {
                let value = value_of(flag).unwrap_or("VALUE");
                write!(f, "{flag} is missing; add it to the script or give {flag} {value} beside it")
            }
            Self::Hidden { flag, text } => write!(
                f,
                "{flag} is missing, unless it is in {text}, which is known only when the script runs; write the flags \
                 out in its place, give --env NAME=VALUE for a variable or --arg VALUE for an argument, or {flag} N \
                 beside the script"
            ),
            Self::Unknown { flag, text } => write!(
                f,
                "{flag} is {text:?}, which is known only when the script runs; give {flag} VALUE beside the \
                 script, or --env NAME=VALUE for a variable"
            ),
            Self::Conflict { flag, other, rule } => {
                write!(f, "{flag} is given with {other}, {rule}; leave one of them out")
            }
            Self::Needs { flag, other } => {
                write!(f, "{flag} is given without {other}, which Megatron asks for with it; add {other}")
            }
            Self::BadValue { flag, value, expected } => {
                write!(f, "{flag} is {value:?}; give {expected}")
            }
            Self::Stages { stages, pp } => write!(
                f,
                "--pipeline-model-parallel-layout lists {stages} stages for --pipeline-model-parallel-size {pp}; list \
                 {pp}, or a multiple of it, with | between them"
            ),
            Self::NotModelled { flag } => {
                write!(f, "{flag} is not modelled yet; plan a run without it")
            }
            Self::UnknownModel { id } => write!(
                f,
                "the model is {id:?}, which is not a preset, and its sizes are not given; give the model's \
                 config.json and this run's flags beside it"
            ),
            Self::Setting { setting, error } => write!(f, "{setting}: {error}"),
        }
    }
}

impl std::error::Error for ScriptError {}
