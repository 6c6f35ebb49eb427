//! Why a file cannot be read.

use std::fmt;

use crate::script::ScriptError;

/// Why a file, of whichever format, cannot be read.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ReadError {
    /// What the flags in it say.
    Flags(ScriptError),
    /// What the keys of a Hugging Face config say.
    Config(ConfigError),
    /// It is not YAML that is understood here.
    Yaml(YamlError),
    /// It is no list of flags.
    List(ListError),
    /// More bytes than any such file has.
    TooLong {
        /// The limit.
        limit: usize,
    },
    /// Nothing says how many devices there are.
    NoGpus,
    /// Something is given that only a script takes.
    OnlyForScripts {
        /// The option.
        option: &'static str,
    },
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flags(error) => error.fmt(f),
            Self::Config(error) => error.fmt(f),
            Self::Yaml(error) => error.fmt(f),
            Self::List(error) => error.fmt(f),
            Self::TooLong { limit } => write!(f, "it has more than {limit} bytes; give a smaller file"),
            Self::NoGpus => write!(f, "the number of devices is not given; give --gpus N"),
            Self::OnlyForScripts { option } => {
                write!(
                    f,
                    "{option} is given and this is no launch script; drop {option}, or give --format script"
                )
            }
        }
    }
}

impl std::error::Error for ReadError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Flags(error) => Some(error),
            Self::Config(error) => Some(error),
            Self::Yaml(error) => Some(error),
            Self::List(error) => Some(error),
            _ => None,
        }
    }
}

impl From<ScriptError> for ReadError {
    fn from(error: ScriptError) -> Self {
        Self::Flags(error)
    }
}

impl From<ConfigError> for ReadError {
    fn from(error: ConfigError) -> Self {
        Self::Config(error)
    }
}

impl From<YamlError> for ReadError {
    fn from(error: YamlError) -> Self {
        Self::Yaml(error)
    }
}

impl From<ListError> for ReadError {
    fn from(error: ListError) -> Self {
        Self::List(error)
    }
}

/// Why a Hugging Face `config.json` cannot be read.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ConfigError {
    /// It is not one JSON object.
    Syntax {
        /// The parser's words.
        text: String,
    },
    /// A model type that is not known, without the keys by which any decoder could be modelled.
    UnknownType {
        /// The type, empty where none is given.
        name: String,
        /// The types there are.
        known: String,
    },
    /// A needed key is not there, or null.
    Missing {
        /// The key.
        key: &'static str,
    },
    /// A key that is not known and speaks of experts.
    UnknownExperts {
        /// The key, with those that it is in.
        key: String,
        /// Its value.
        value: String,
    },
    /// A key's value is not what it should be.
    BadValue {
        /// The key.
        key: &'static str,
        /// The value.
        value: String,
        /// What it should be.
        expected: String,
    },
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Syntax { text } => write!(f, "not a JSON object: {text}; give the model's config.json"),
            Self::UnknownType { name, known } if name.is_empty() => write!(
                f,
                "no model_type, and not the keys of a decoder (hidden_size, num_hidden_layers, \
                 num_attention_heads, vocab_size); give the config.json of one of {known}"
            ),
            Self::UnknownType { name, known } => write!(
                f,
                "model_type is {name:?}, which is not known, and the keys of a decoder (hidden_size, \
                 num_hidden_layers, num_attention_heads, vocab_size) are not all there; give the config.json of one \
                 of {known}"
            ),
            Self::Missing { key } => write!(f, "{key} is missing; add it to the config.json"),
            Self::UnknownExperts { key, value } => write!(
                f,
                "{key} is {value}, a key of experts that is not known; drop it if it changes no size, or give the \
                 model by Megatron's flags (--num-experts …)"
            ),
            Self::BadValue { key, value, expected } => write!(f, "{key} is {value}; give {expected}"),
        }
    }
}

impl std::error::Error for ConfigError {}

/// Why YAML cannot be read.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum YamlError {
    /// It is not YAML.
    Syntax {
        /// The line.
        line: usize,
        /// The parser's words.
        text: String,
    },
    /// It has no names with values.
    NotAMapping,
    /// More than one document.
    Documents {
        /// The line of the second.
        line: usize,
    },
    /// Nested too deeply, aliases included.
    TooDeep {
        /// The line.
        line: usize,
        /// The limit.
        limit: usize,
    },
    /// More settings than any run has, aliases expanded.
    TooMuch {
        /// The limit.
        limit: usize,
    },
    /// More text than any run's settings have, aliases expanded.
    TooLong {
        /// The limit, bytes.
        limit: usize,
    },
    /// An alias of something that is not complete.
    Alias {
        /// The line.
        line: usize,
    },
    /// A key that stands twice in a mapping.
    Twice {
        /// The line of the second.
        line: usize,
        /// The key.
        key: String,
    },
    /// A key that is a list or a mapping.
    Key {
        /// The line.
        line: usize,
    },
}

impl fmt::Display for YamlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Syntax { line, text } => write!(f, "line {line}: not YAML: {text}; correct it"),
            Self::NotAMapping => {
                write!(
                    f,
                    "it sets nothing (no name: value at its top); give a run's YAML, or another --format"
                )
            }
            Self::Documents { line } => write!(f, "line {line}: a second document; give a file of one"),
            Self::TooDeep { line, limit } => {
                write!(f, "line {line}: more than {limit} levels of nesting; give a run's own settings")
            }
            Self::TooMuch { limit } => {
                write!(f, "more than {limit} settings, aliases expanded; give a run's own settings")
            }
            Self::TooLong { limit } => write!(
                f,
                "more than {limit} bytes of names and values, aliases expanded; give a run's own settings"
            ),
            Self::Alias { line } => {
                write!(f, "line {line}: an alias inside of what it stands for; write its value instead")
            }
            Self::Twice { line, key } => write!(f, "line {line}: {key:?} is set twice; keep one"),
            Self::Key { line } => {
                write!(f, "line {line}: a name that is a list or mapping; give a plain name")
            }
        }
    }
}

impl std::error::Error for YamlError {}

/// Why a list of flags cannot be read.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ListError {
    /// A quote without its end.
    Unterminated {
        /// The line it begins on.
        line: u32,
        /// The quote.
        quote: char,
    },
    /// The first word is no flag.
    NoFlag {
        /// The word.
        word: String,
    },
}

impl fmt::Display for ListError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unterminated { line, quote } => {
                write!(f, "line {line}: the quote {quote} has no end; close it")
            }
            Self::NoFlag { word } => {
                write!(
                    f,
                    "it begins with {word:?}; give a list of flags (--num-layers …), or another --format"
                )
            }
        }
    }
}

impl std::error::Error for ListError {}
