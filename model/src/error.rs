//! Why a model cannot be built.

use std::fmt;

/// Why a configuration is refused.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ModelError {
    /// A value outside its range.
    OutOfRange {
        /// The field.
        field: &'static str,
        /// Its value.
        value: u64,
        /// Smallest value allowed.
        least: u64,
        /// Largest value allowed.
        most: u64,
    },
    /// A value that must divide evenly and does not.
    NotDivisible {
        /// The field that is divided.
        field: &'static str,
        /// Its value.
        value: u64,
        /// What divides it.
        by: &'static str,
        /// The divisor.
        divisor: u64,
        /// What to change.
        fix: &'static str,
    },
    /// Layers that the virtual stages cannot share equally.
    Uneven {
        /// Transformer layers.
        layers: u32,
        /// What is shared: embedding and loss too where they count.
        counted: u32,
        /// Pipeline ranks.
        pp: u32,
        /// V.
        chunks: u32,
        /// A layout that does it, if there is one without empty stages.
        layout: Option<String>,
    },
    /// A combination that Megatron refuses or that is not modelled.
    Unsupported {
        /// The field.
        field: &'static str,
        /// Its value.
        value: String,
        /// The rule.
        rule: &'static str,
        /// What to change.
        fix: &'static str,
    },
    /// A size that passes 2^64.
    Overflow {
        /// What was computed.
        what: &'static str,
    },
    /// No preset of that name.
    NoSuchName {
        /// `model` or `device`.
        field: &'static str,
        /// The name given.
        value: String,
        /// The names there are.
        known: String,
    },
}

impl fmt::Display for ModelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OutOfRange { field, value, least, most } => {
                write!(f, "{field} is {value}; give a value from {least} to {most}")
            }
            Self::NotDivisible { field, value, by, divisor, fix } => {
                write!(f, "{field} is {value}, which {by} = {divisor} does not divide; {fix}")
            }
            Self::Uneven { layers, counted, pp, chunks, layout } => {
                write!(f, "layers is {layers}")?;
                if counted != layers {
                    write!(f, " ({counted} with the embedding or the loss that counts as one)")?;
                }
                let stages = u64::from(*pp) * u64::from(*chunks);
                write!(f, ", which pp·chunks = {stages} does not divide; change PP or V")?;
                match layout {
                    Some(layout) => {
                        write!(f, ", or list the stages, as in --pipeline-model-parallel-layout {layout:?}")
                    }
                    None => write!(f, ": there are fewer layers than stages"),
                }
            }
            Self::Unsupported { field, value, rule, fix } => write!(f, "{field} is {value}: {rule}; {fix}"),
            Self::Overflow { what } => {
                write!(
                    f,
                    "{what} is too large to be counted (2^64 bytes or picoseconds, 2^32 rows or tokens); give smaller sizes"
                )
            }
            Self::NoSuchName { field, value, known } => {
                write!(f, "{field} is {value:?}, which is not a preset; give one of {known}")
            }
        }
    }
}

impl std::error::Error for ModelError {}
