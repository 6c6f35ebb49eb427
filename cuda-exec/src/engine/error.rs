//! Why the engine refuses a call.

use std::fmt;

use crate::device::DeviceError;
use crate::pool::{PoolError, PoolFull};

/// Why the engine refuses a call.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum EngineError {
    /// The pinned pool is full: an answer for the planner.
    Full(PoolFull),
    /// Every place for a tensor is taken.
    NoSlot {
        /// Places there are.
        slots: u32,
    },
    /// The unit is none that the engine was configured for.
    NoSuchUnit {
        /// The unit.
        unit: u32,
        /// Units there are.
        units: u32,
    },
    /// The ticket was waited for or cancelled before, or belongs to another engine.
    Stale {
        /// The ticket's slot.
        slot: u32,
    },
    /// The call does not fit the state of the ticket.
    OutOfOrder {
        /// The call.
        call: &'static str,
        /// What it needs.
        needs: &'static str,
    },
    /// The memory named is not as long as the tensor, or longer than what was reserved for it.
    Length {
        /// The tensor's bytes, or those reserved.
        tensor: u64,
        /// Bytes named.
        named: u64,
    },
    /// The copy-outs under way, if any, are of fewer bytes in all: waiting would not free as many.
    NothingLeaving {
        /// Bytes to be freed.
        bytes: u64,
    },
    /// The device refused before anything was under way; the engine goes on.
    Device(DeviceError),
    /// Copies were lost. The engine takes no more work, and keeps its host memory: end the iteration, drop the engine.
    /// Device memory of its copies under way stays until the device ends.
    Lost(DeviceError),
}

impl From<PoolError> for EngineError {
    fn from(error: PoolError) -> Self {
        match error {
            PoolError::Full(full) => Self::Full(full),
            PoolError::Device(error) => Self::Device(error),
        }
    }
}

impl fmt::Display for EngineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full(full) => full.fmt(f),
            Self::NoSlot { slots } => {
                write!(f, "all {slots} places for offloaded tensors are taken; raise `slots`")
            }
            Self::NoSuchUnit { unit, units } => {
                write!(f, "unit {unit} of {units}; units count from 0, and `units` says how many there are")
            }
            Self::Stale { slot } => {
                write!(
                    f,
                    "the ticket of slot {slot} was used up before; wait for a ticket once, on its own engine"
                )
            }
            Self::OutOfOrder { call, needs } => write!(f, "{call} needs {needs}"),
            Self::Length { tensor, named } => {
                write!(f, "the tensor has {tensor} bytes and the memory named {named}; give as many")
            }
            Self::NothingLeaving { bytes } => {
                write!(f, "{bytes} bytes are to be freed, and too few copy-outs are under way to free them")
            }
            Self::Device(error) => error.fmt(f),
            Self::Lost(error) => {
                write!(f, "copies were lost ({error}); end the iteration and open a new engine")
            }
        }
    }
}

impl std::error::Error for EngineError {}
