use core::fmt;

use bagualu_core::controller::ControllerError;
use bagualu_core::group::GroupError;
use bagualu_core::mitigate::Refused;
use bagualu_core::provision::ProvisionError;
use bagualu_core::stage::StageError;

/// Why a micro-batch was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Reason {
    /// The controller refused.
    Controller(ControllerError),
    /// The group's rule refused.
    Group(GroupError),
    /// The layer type has no costs at these rows.
    Stage(StageError),
    /// The plan does not suit its layer.
    Plan(Refused),
    /// A layer waits for copies and none is under way: what Theorem 2 of design §6 excludes.
    EndlessWait,
}

impl From<ControllerError> for Reason {
    fn from(error: ControllerError) -> Self {
        Self::Controller(error)
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Controller(error) => error.fmt(f),
            Self::Group(error) => error.fmt(f),
            Self::Stage(error) => error.fmt(f),
            Self::Plan(error) => error.fmt(f),
            Self::EndlessWait => write!(f, "a layer waits for copies and none is under way"),
        }
    }
}

/// Why a job cannot run under the controller at all.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ControlError {
    /// A pipeline rank cannot be provisioned.
    Provision {
        /// The pipeline rank.
        stage: usize,
        /// Why.
        error: ProvisionError,
    },
    /// The controller refuses to start.
    Controller {
        /// The pipeline rank.
        stage: usize,
        /// Why.
        error: ControllerError,
    },
}

impl fmt::Display for ControlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Provision { stage, error } => write!(f, "pipeline rank {stage}: {error}"),
            Self::Controller { stage, error } => write!(f, "pipeline rank {stage}: {error}"),
        }
    }
}

impl core::error::Error for ControlError {}
