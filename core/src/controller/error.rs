//! Why the controller refuses a call.

use core::fmt;

use crate::budget::BudgetError;
use crate::ledger::LedgerError;
use crate::planner::PlannerError;
use crate::schedule::ScheduleError;
use crate::stage::StageError;

/// Why the controller refuses a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ControllerError {
    /// The call does not follow the schedule, or the order in the module's documentation.
    OutOfOrder {
        /// The call.
        call: &'static str,
    },
    /// A storage slice is too short.
    StorageTooShort {
        /// Which.
        field: &'static str,
        /// Elements needed.
        needed: usize,
        /// Elements given.
        available: usize,
    },
    /// The schedule and the stage have different numbers of model chunks.
    Chunks {
        /// The schedule's.
        pipeline: usize,
        /// The stage's.
        stage: usize,
    },
    /// There is no such layer.
    NoSuchLayer {
        /// The unit.
        unit: u32,
        /// The layer.
        layer: usize,
    },
    /// The schedule is refused.
    Schedule(ScheduleError),
    /// The stage is refused.
    Stage(StageError),
    /// The budget refuses.
    Budget(BudgetError),
    /// The ledger refuses.
    Ledger(LedgerError),
    /// Nothing could be planned.
    Planner(PlannerError),
}

impl From<StageError> for ControllerError {
    fn from(error: StageError) -> Self {
        Self::Stage(error)
    }
}

impl From<BudgetError> for ControllerError {
    fn from(error: BudgetError) -> Self {
        Self::Budget(error)
    }
}

impl From<LedgerError> for ControllerError {
    fn from(error: LedgerError) -> Self {
        Self::Ledger(error)
    }
}

impl From<PlannerError> for ControllerError {
    fn from(error: PlannerError) -> Self {
        Self::Planner(error)
    }
}

impl fmt::Display for ControllerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OutOfOrder { call } => {
                write!(f, "{call} is not the call that the schedule has next; see the order in `controller`")
            }
            Self::StorageTooShort { field, needed, available } => {
                write!(f, "storage `{field}` has {available} elements; this rank needs {needed}")
            }
            Self::Chunks { pipeline, stage } => {
                write!(f, "the schedule has {pipeline} model chunks and the stage {stage}; give the same")
            }
            Self::NoSuchLayer { unit, layer } => write!(f, "unit {unit} has no layer {layer}"),
            Self::Schedule(error) => error.fmt(f),
            Self::Stage(error) => error.fmt(f),
            Self::Budget(error) => error.fmt(f),
            Self::Ledger(error) => error.fmt(f),
            Self::Planner(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for ControllerError {}
