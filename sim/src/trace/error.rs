use core::fmt;

use crate::load::MAX_EXPERTS;
use crate::text::{list, message as cut, value as quoted};

/// Characters shown of what a reader says or needs.
const MESSAGE_CHARS: usize = 240;

/// Why a trace is refused.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum TraceError {
    /// The file has no micro-batch.
    Empty,
    /// The text is not of its format at all.
    Syntax {
        /// What the reader says.
        message: String,
    },
    /// A column has the wrong name.
    Header {
        /// Its number, from 1.
        column: usize,
        /// Its name.
        found: String,
        /// What it should be.
        expected: String,
    },
    /// A line has more or fewer fields than the header.
    Width {
        /// From 1.
        line: u64,
        /// Fields found.
        found: usize,
        /// Fields of the header.
        expected: usize,
    },
    /// A field is not a whole number below 2^32.
    Number {
        /// Where: a line or a JSON path.
        place: String,
        /// The column or key.
        field: String,
        /// The text there.
        value: String,
    },
    /// The same micro-batch and layer (or expert) twice.
    Repeated {
        /// The line of the second one.
        line: u64,
        /// What is there twice.
        key: String,
    },
    /// Something is missing between what is there.
    Missing {
        /// What.
        key: String,
        /// What is needed.
        needed: String,
    },
    /// No expert received a row.
    NoRows {
        /// Where.
        place: String,
    },
    /// More experts than [`MAX_EXPERTS`].
    TooManyExperts {
        /// How many.
        count: usize,
    },
    /// The file holds several models and none, or an unknown one, was chosen.
    Model {
        /// What was asked for.
        asked: Option<String>,
        /// The models of the file.
        models: Vec<String>,
    },
}

impl fmt::Display for TraceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => write!(f, "the trace has no micro-batch; at least one is needed"),
            Self::Syntax { message } => {
                write!(f, "{}; see docs/formats.md for the trace formats", cut(message, MESSAGE_CHARS))
            }
            Self::Header { column, found, expected } => {
                write!(f, "line 1, column {column}: {}; the header needs {expected} here", quoted(found))
            }
            Self::Width { line, found, expected } => {
                write!(f, "line {line}: {found} fields; the header has {expected}")
            }
            Self::Number { place, field, value } => {
                write!(f, "{place}, {field}: {}; a whole number below 2^32 is needed", quoted(value))
            }
            Self::Repeated { line, key } => {
                write!(f, "line {line}: {} is there twice; remove one", cut(key, MESSAGE_CHARS))
            }
            Self::Missing { key, needed } => {
                write!(f, "{} is missing; {}", cut(key, MESSAGE_CHARS), cut(needed, MESSAGE_CHARS))
            }
            Self::NoRows { place } => {
                write!(f, "{place}: no expert received a row; at least one count above 0 is needed")
            }
            Self::TooManyExperts { count } => write!(f, "{count} experts; at most {MAX_EXPERTS} are read"),
            Self::Model { asked: None, models } => {
                write!(f, "the trace holds several models; choose one of {}", list(models))
            }
            Self::Model { asked: Some(asked), models } => {
                write!(f, "the trace holds no model {}; choose one of {}", quoted(asked), list(models))
            }
        }
    }
}

impl core::error::Error for TraceError {}
