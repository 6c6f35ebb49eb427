//! What a store needs to be opened.

use std::error::Error;
use std::fmt;

use bagualu_core::schedule::{Event, Pipeline, ScheduleError};
use bagualu_core::stage::{StageError, StageModel};

use crate::device::ALIGNMENT;
use crate::engine::{Engine, EngineConfig};

/// That an engine has what the planner counts on: what it lacks would be missed in the middle of an iteration.
pub(super) fn check_engine(
    engine: &Engine,
    stage: &StageModel<'_>,
    pipeline: &Pipeline,
) -> Result<(), OpenError> {
    let units = pipeline.units().map_err(OpenError::Schedule)?;
    let mut events = vec![Event::Forward(0); 2 * units as usize];
    pipeline.events(&mut events).map_err(OpenError::Schedule)?;
    let needed = EngineConfig::for_rank(stage, &events);
    let (cap, needed_bytes) = (engine.usage().pool.cap, needed.pool.cap_bytes / ALIGNMENT * ALIGNMENT);
    if cap < needed_bytes {
        return Err(OpenError::PoolTooSmall { cap, host_bytes: stage.host_bytes, needed: needed_bytes });
    }
    let given = engine.config();
    for (what, given, needed) in [("slots", given.slots, needed.slots), ("units", given.units, needed.units)]
    {
        if given < needed {
            return Err(OpenError::EngineTooSmall { what, given, needed });
        }
    }
    Ok(())
}

/// Why no store can be opened.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum OpenError {
    /// The stage is refused.
    Stage(StageError),
    /// The schedule is refused.
    Schedule(ScheduleError),
    /// The pinned pool could not hold what the planner may offload.
    PoolTooSmall {
        /// Its cap, bytes.
        cap: u64,
        /// The planner's host bytes.
        host_bytes: u64,
        /// These, and what rounding to [`ALIGNMENT`](crate::device::ALIGNMENT) adds for each tensor that may be out at once.
        needed: u64,
    },
    /// The engine has fewer places for tensors, or units, than the schedule needs.
    EngineTooSmall {
        /// The field of [`EngineConfig`](crate::engine::EngineConfig).
        what: &'static str,
        /// What it is.
        given: u32,
        /// What it is to be at least.
        needed: u32,
    },
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stage(error) => error.fmt(f),
            Self::Schedule(error) => error.fmt(f),
            Self::PoolTooSmall { cap, host_bytes, needed } => write!(
                f,
                "the pinned pool is capped at {cap} bytes and the planner may offload {host_bytes}, which take up to \
                 {needed}; raise `cap_bytes`, or lower the stage's host bytes"
            ),
            Self::EngineTooSmall { what, given, needed } => {
                write!(f, "the engine has {given} {what} and the schedule needs {needed}; raise `{what}`")
            }
        }
    }
}

impl Error for OpenError {}
