//! Bytes that do not change during training: weights, gradients, optimizer state, buffers.

use crate::params::Parameters;
use crate::shape::Shape;
use crate::{GradientType, ModelError, Parallelism, Precision, assumptions};

/// Static device bytes of one rank, by part.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StaticBytes {
    /// Parameters in the run's precision.
    pub weights: u64,
    /// The gradient buffer.
    pub gradients: u64,
    /// Optimizer state: FP32 main parameters (BF16 runs) and Adam's two moments.
    pub optimizer: u64,
    /// Pipeline messages on their way.
    pub buffers: u64,
}

impl StaticBytes {
    /// All parts.
    pub fn total(&self) -> u64 {
        [self.weights, self.gradients, self.optimizer, self.buffers].into_iter().fold(0, u64::saturating_add)
    }

    /// Static bytes of a rank that holds `parameters` and whose largest message has so many hidden states.
    pub(crate) fn new(
        parameters: &Parameters,
        parallelism: &Parallelism,
        shape: &Shape,
        message: u128,
    ) -> Result<Self, ModelError> {
        let all = u128::from(parameters.total());
        let experts = u128::from(parameters.experts);
        let gradient = match (parallelism.precision, parallelism.gradients) {
            (Precision::Bf16, GradientType::Bf16) => 2,
            _ => 4,
        };
        let state = match parallelism.precision {
            Precision::Bf16 => 4 + 4 + 4,
            Precision::Fp32 => 4 + 4,
        };
        // Experts have replicas of their own: only those divide their state.
        let (dp, expert_dp) = match parallelism.distributed_optimizer {
            // Ranks of context parallel hold the same parameters and share in dividing their state.
            true => (parallelism.dp() * parallelism.cp, parallelism.expert_dp()),
            false => (1, 1),
        };
        let optimizer =
            (state * (all - experts)).div_ceil(dp.into()) + (state * experts).div_ceil(expert_dp.into());
        let messages = if parallelism.pp > 1 { u128::from(assumptions::RECEIVE_BUFFERS) } else { 0 };
        let fit = |what, bytes: u128| u64::try_from(bytes).map_err(|_| ModelError::Overflow { what });
        Ok(Self {
            weights: fit("weights", shape.e * all)?,
            gradients: fit("gradients", gradient * all)?,
            optimizer: fit("optimizer state", optimizer)?,
            buffers: fit("buffers", messages * message * shape.hidden())?,
        })
    }
}
