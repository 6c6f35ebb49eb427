use core::fmt;

use crate::load::MAX_EXPERTS;

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
            Self::Syntax { message } => write!(f, "{message}; see docs/formats.md for the trace formats"),
            Self::Header { column, found, expected } => {
                write!(f, "line 1, column {column}: \"{found}\"; the header needs {expected} here")
            }
            Self::Width { line, found, expected } => {
                write!(f, "line {line}: {found} fields; the header has {expected}")
            }
            Self::Number { place, field, value } => {
                write!(f, "{place}, {field}: \"{value}\"; a whole number below 2^32 is needed")
            }
            Self::Repeated { line, key } => write!(f, "line {line}: {key} is there twice; remove one"),
            Self::Missing { key, needed } => write!(f, "{key} is missing; {needed}"),
            Self::NoRows { place } => {
                write!(f, "{place}: no expert received a row; at least one count above 0 is needed")
            }
            Self::TooManyExperts { count } => write!(f, "{count} experts; at most {MAX_EXPERTS} are read"),
            Self::Model { asked: None, models } => {
                write!(f, "the trace holds several models; choose one of {}", models.join(", "))
            }
            Self::Model { asked: Some(asked), models } => {
                write!(f, "the trace holds no model \"{asked}\"; choose one of {}", models.join(", "))
            }
        }
    }
}

impl core::error::Error for TraceError {}
