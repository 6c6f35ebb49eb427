//! The status of every error of the crates below, and its message as it is.

use bagualu_core::budget::BudgetError;
use bagualu_core::controller::ControllerError;
use bagualu_core::cost::CostError;
use bagualu_core::group::GroupError;
use bagualu_core::interleave::InterleaveError;
use bagualu_core::layer::LayerError;
use bagualu_core::ledger::LedgerError;
use bagualu_core::mitigate::MitigateError;
use bagualu_core::planner::PlannerError;
use bagualu_core::provision::ProvisionError;
use bagualu_core::schedule::ScheduleError;
use bagualu_core::stage::StageError;
use bagualu_exec::collective::{CollectiveError, Disagreement};
use bagualu_exec::device::DeviceError;
use bagualu_exec::engine::EngineError;
use bagualu_exec::fp8::CastError;
use bagualu_exec::rank::RankError;
use bagualu_exec::store::{OpenError, StoreError};

use super::{Failure, bagualu_status};

impl From<ScheduleError> for Failure {
    fn from(error: ScheduleError) -> Self {
        let status = match error {
            ScheduleError::OutTooShort { .. } => bagualu_status::BufferTooSmall,
            _ => bagualu_status::BadSchedule,
        };
        Self::new(status, error.to_string())
    }
}

impl From<LayerError> for Failure {
    fn from(error: LayerError) -> Self {
        let status = match error {
            LayerError::TooManyTensors { .. } | LayerError::TooManyOps { .. } => bagualu_status::Count,
            LayerError::Overflow { .. } | LayerError::OpOverflow { .. } => bagualu_status::Overflow,
            _ => bagualu_status::BadLayer,
        };
        Self::new(status, error.to_string())
    }
}

impl From<CostError> for Failure {
    fn from(error: CostError) -> Self {
        match error {
            CostError::Layer(error) => error.into(),
            error => Self::new(bagualu_status::Overflow, error.to_string()),
        }
    }
}

impl From<StageError> for Failure {
    fn from(error: StageError) -> Self {
        let status = match error {
            StageError::Cost(error) => return error.into(),
            StageError::TooManyLayers { .. } => bagualu_status::Count,
            StageError::NoSuchLayer { .. } | StageError::NoSuchKind { .. } => bagualu_status::NoSuchIndex,
            StageError::Overflow => bagualu_status::Overflow,
            _ => bagualu_status::BadStage,
        };
        Self::new(status, error.to_string())
    }
}

impl From<BudgetError> for Failure {
    fn from(error: BudgetError) -> Self {
        let status = match error {
            BudgetError::Infeasible { needed, capacity } => {
                return Self::short(bagualu_status::Infeasible, &error, needed, capacity);
            }
            BudgetError::OutOfOrder { .. } => bagualu_status::OutOfOrder,
            BudgetError::NotInFlight { .. } => bagualu_status::NotInFlight,
            BudgetError::Overflow => bagualu_status::Overflow,
            _ => bagualu_status::BadSchedule,
        };
        Self::new(status, error.to_string())
    }
}

impl From<LedgerError> for Failure {
    fn from(error: LedgerError) -> Self {
        let status = match error {
            LedgerError::Starved { needed, available } => {
                return Self::short(bagualu_status::Starved, &error, needed, available);
            }
            LedgerError::NoSuchUnit { .. } => bagualu_status::NoSuchIndex,
            LedgerError::NotPending { .. } => bagualu_status::NotPending,
            LedgerError::StillLeaving { .. } => bagualu_status::StillLeaving,
            _ => bagualu_status::Overflow,
        };
        Self::new(status, error.to_string())
    }
}

impl From<MitigateError> for Failure {
    fn from(error: MitigateError) -> Self {
        let status = match error {
            MitigateError::Infeasible { least, limit } => {
                return Self::short(bagualu_status::Infeasible, &error, least, limit);
            }
            MitigateError::HostInfeasible { least, limit } => {
                return Self::short(bagualu_status::HostInfeasible, &error, least, limit);
            }
            MitigateError::HostUndecided { .. } => bagualu_status::Undecided,
            MitigateError::OutOfCandidates { .. } => bagualu_status::OutOfCandidates,
            MitigateError::PlansTooShort { .. } => bagualu_status::BufferTooSmall,
            MitigateError::Refused { .. } => bagualu_status::InvalidValue,
            MitigateError::Overflow => bagualu_status::Overflow,
            _ => bagualu_status::Count,
        };
        Self::new(status, error.to_string())
    }
}

impl From<PlannerError> for Failure {
    fn from(error: PlannerError) -> Self {
        match error {
            PlannerError::Mitigate(error) => error.into(),
            PlannerError::Stage(error) => error.into(),
            error => Self::new(bagualu_status::InvalidValue, error.to_string()),
        }
    }
}

impl From<ProvisionError> for Failure {
    fn from(error: ProvisionError) -> Self {
        match error {
            ProvisionError::Infeasible { needed, available, .. } => {
                Self::short(bagualu_status::Infeasible, &error, needed, available)
            }
            ProvisionError::Stage(error) => error.into(),
            ProvisionError::Budget(error) => error.into(),
            error => Self::new(bagualu_status::BadSchedule, error.to_string()),
        }
    }
}

impl From<ControllerError> for Failure {
    fn from(error: ControllerError) -> Self {
        let status = match error {
            ControllerError::Schedule(error) => return error.into(),
            ControllerError::Stage(error) => return error.into(),
            ControllerError::Budget(error) => return error.into(),
            ControllerError::Ledger(error) => return error.into(),
            ControllerError::Planner(error) => return error.into(),
            ControllerError::OutOfOrder { .. } => bagualu_status::OutOfOrder,
            ControllerError::NoSuchLayer { .. } => bagualu_status::NoSuchIndex,
            _ => bagualu_status::BadStage,
        };
        Self::new(status, error.to_string())
    }
}

impl From<InterleaveError> for Failure {
    fn from(error: InterleaveError) -> Self {
        let status = match error {
            InterleaveError::Infeasible { needed_bytes, available_bytes } => {
                return Self::short(bagualu_status::Infeasible, &error, needed_bytes, available_bytes);
            }
            InterleaveError::TooLong { .. } | InterleaveError::StorageTooSmall { .. } => {
                bagualu_status::Count
            }
            InterleaveError::BaseOverflow { .. } | InterleaveError::Overflow { .. } => {
                bagualu_status::Overflow
            }
            _ => bagualu_status::BadOrder,
        };
        Self::new(status, error.to_string())
    }
}

impl From<GroupError> for Failure {
    fn from(error: GroupError) -> Self {
        let status = match error {
            GroupError::Budget(error) => return error.into(),
            GroupError::Stage(error) => return error.into(),
            GroupError::RowsOverflow { .. } => bagualu_status::Overflow,
            GroupError::Mismatch { .. } | GroupError::ProfileLength { .. } => bagualu_status::Disagreement,
            _ => bagualu_status::InvalidValue,
        };
        Self::new(status, error.to_string())
    }
}

impl From<Disagreement> for Failure {
    fn from(error: Disagreement) -> Self {
        match error {
            Disagreement::Group(error) => error.into(),
            Disagreement::Collective(error) => error.into(),
            error => Self::new(bagualu_status::Disagreement, error.to_string()),
        }
    }
}

impl From<CollectiveError> for Failure {
    fn from(error: CollectiveError) -> Self {
        let status = match error {
            CollectiveError::Device(error) => return error.into(),
            CollectiveError::TimedOut { .. } => bagualu_status::TimedOut,
            CollectiveError::Left { .. } => bagualu_status::RankLeft,
            CollectiveError::Broken => bagualu_status::GroupBroken,
            CollectiveError::Length { .. } => bagualu_status::Disagreement,
            CollectiveError::Rank { .. } => bagualu_status::InvalidValue,
            _ => bagualu_status::Driver,
        };
        Self::new(status, error.to_string())
    }
}

impl From<DeviceError> for Failure {
    fn from(error: DeviceError) -> Self {
        let status = match error {
            DeviceError::OutOfMemory { bytes, free } => {
                return Self::short(bagualu_status::OutOfMemory, &error, bytes, free);
            }
            DeviceError::Absent { .. } => bagualu_status::DeviceAbsent,
            DeviceError::NoSuchDevice { .. } => bagualu_status::NoSuchDevice,
            DeviceError::OutOfPinnedMemory { .. } => bagualu_status::OutOfPinnedMemory,
            DeviceError::NoSuchHandle { .. } => bagualu_status::NoSuchStream,
            DeviceError::Mismatch { .. } => bagualu_status::Mismatch,
            DeviceError::Unsupported { .. } => bagualu_status::Unsupported,
            DeviceError::Lost { .. } => bagualu_status::Lost,
            _ => bagualu_status::Driver,
        };
        Self::new(status, error.to_string())
    }
}

impl From<EngineError> for Failure {
    fn from(error: EngineError) -> Self {
        let status = match error {
            EngineError::Device(error) => return error.into(),
            EngineError::Full(full) => {
                return Self::short(bagualu_status::PoolFull, &error, full.needed, full.free);
            }
            EngineError::NoSlot { .. } => bagualu_status::NoSlot,
            EngineError::NoSuchUnit { .. } => bagualu_status::NoSuchIndex,
            EngineError::Stale { .. } => bagualu_status::TicketSpent,
            EngineError::OutOfOrder { .. } => bagualu_status::TicketState,
            EngineError::Length { .. } => bagualu_status::Mismatch,
            EngineError::NothingLeaving { .. } => bagualu_status::NothingLeaving,
            _ => bagualu_status::Lost,
        };
        Self::new(status, error.to_string())
    }
}

impl From<CastError> for Failure {
    fn from(error: CastError) -> Self {
        Self::new(bagualu_status::BadCast, error.to_string())
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        let status = match error {
            StoreError::Engine(error) => return error.into(),
            StoreError::Device(error) => return error.into(),
            StoreError::NoSuchLayer { .. } => bagualu_status::NoSuchIndex,
            StoreError::OutOfOrder { .. } => bagualu_status::OutOfOrder,
            StoreError::Overflow { .. } => bagualu_status::Overflow,
            StoreError::Hook { .. } => bagualu_status::Hook,
            _ => bagualu_status::BadTensor,
        };
        Self::new(status, error.to_string())
    }
}

impl From<RankError> for Failure {
    fn from(error: RankError) -> Self {
        let status = match error {
            RankError::Controller(error) => return error.into(),
            RankError::Store(error) => return error.into(),
            RankError::Idle { .. } => bagualu_status::OutOfOrder,
            RankError::Waits { .. } => bagualu_status::Waits,
            _ => bagualu_status::BadTensor,
        };
        Self::new(status, error.to_string())
    }
}

impl From<OpenError> for Failure {
    fn from(error: OpenError) -> Self {
        let status = match error {
            OpenError::Stage(error) => return error.into(),
            OpenError::Schedule(error) => return error.into(),
            _ => bagualu_status::InvalidValue,
        };
        Self::new(status, error.to_string())
    }
}
