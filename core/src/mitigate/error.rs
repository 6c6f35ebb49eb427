//! Why nothing was selected.

use core::fmt;

use super::Refused;
use crate::limits::{MAX_CLASSES, MAX_EDGES, MAX_LAYERS};

/// Why nothing was selected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum MitigateError {
    /// No configuration is within the device limit.
    Infeasible {
        /// The fewest device bytes that any configuration holds.
        least: u64,
        /// The limit.
        limit: u64,
    },
    /// The device limit can be met, but not within the host limit.
    HostInfeasible {
        /// Every configuration within the device limit holds at least these host bytes.
        least: u64,
        /// The limit.
        limit: u64,
    },
    /// Nothing within both limits was found, nor was it proven that there is nothing.
    HostUndecided {
        /// The fewest host bytes found within the device limit.
        found: u64,
        /// The limit.
        limit: u64,
    },
    /// A greedy rule ran out of candidates; an exact selection may still exist.
    OutOfCandidates {
        /// Device bytes that it reached.
        reached: u64,
        /// The limit.
        limit: u64,
    },
    /// More layers than [`MAX_LAYERS`].
    TooManyLayers {
        /// How many.
        count: usize,
    },
    /// Fewer plans than layers.
    PlansTooShort {
        /// How many plans.
        plans: usize,
        /// How many layers.
        layers: usize,
    },
    /// Fewer picks than classes.
    PicksTooShort {
        /// How many picks.
        picks: usize,
        /// How many classes.
        classes: usize,
    },
    /// No room for a front.
    FrontFull {
        /// Points that fit.
        capacity: usize,
    },
    /// More classes than [`MAX_CLASSES`].
    TooManyClasses {
        /// How many.
        count: usize,
    },
    /// More points in one class than an index holds.
    TooManyPoints {
        /// The class.
        class: usize,
        /// How many.
        count: usize,
    },
    /// A class has no point.
    EmptyClass {
        /// The class.
        class: usize,
    },
    /// A class's points are not in increasing order of bytes and decreasing order of added time.
    Unsorted {
        /// The class.
        class: usize,
    },
    /// The fronts have more hull edges than [`MAX_EDGES`].
    TooManyEdges,
    /// A plan cannot be run.
    Refused {
        /// The layer.
        layer: usize,
        /// Why.
        refused: Refused,
    },
    /// The sum of bytes or times over the layers passes `u64`.
    Overflow,
}

impl fmt::Display for MitigateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Infeasible { least, limit } => {
                write!(f, "the layers hold at least {least} device bytes, above the limit of {limit}; ")?;
                write!(f, "raise it by {}", least.saturating_sub(*limit))
            }
            Self::HostInfeasible { least, limit } => {
                write!(f, "the device limit needs {least} host bytes, above the host limit of {limit}; ")?;
                write!(f, "raise it by {} or raise the device limit", least.saturating_sub(*limit))
            }
            Self::HostUndecided { found, limit } => {
                write!(f, "nothing within the host limit of {limit} bytes was found (least {found}); ")?;
                write!(f, "raise the host limit or the node limit")
            }
            Self::OutOfCandidates { reached, limit } => {
                write!(f, "the greedy rule stopped at {reached} device bytes, above the limit of {limit}; ")?;
                write!(f, "use the exact selector")
            }
            Self::TooManyLayers { count } => {
                write!(
                    f,
                    "{count} layers; this build takes {MAX_LAYERS}; build with BAGUALU_MAX_LAYERS={count}"
                )
            }
            Self::PlansTooShort { plans, layers } => {
                write!(f, "{plans} plans for {layers} layers; give one plan per layer")
            }
            Self::PicksTooShort { picks, classes } => {
                write!(f, "{picks} picks for {classes} classes; give one pick per class")
            }
            Self::FrontFull { capacity } => {
                write!(f, "a front does not fit into the {capacity} points left; give more storage")
            }
            Self::TooManyClasses { count } => {
                write!(f, "{count} independent parts; this build takes {MAX_CLASSES} (BAGUALU_MAX_CLASSES)")
            }
            Self::TooManyPoints { class, count } => {
                write!(f, "class {class} has {count} points; give at most {}", u16::MAX)
            }
            Self::EmptyClass { class } => write!(f, "class {class} has no point; give it one"),
            Self::Unsorted { class } => {
                write!(f, "the points of class {class} are out of order; sort by bytes, drop dominated ones")
            }
            Self::TooManyEdges => {
                write!(f, "the hulls have more than {MAX_EDGES} edges (BAGUALU_MAX_EDGES); thin the fronts")
            }
            Self::Refused { layer, refused } => write!(f, "layer {layer}: {refused}"),
            Self::Overflow => {
                write!(f, "the sum of bytes or times over the layers passes 2^64; give smaller layers")
            }
        }
    }
}

impl core::error::Error for MitigateError {}
