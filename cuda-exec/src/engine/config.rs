//! How an engine is set up, and what a rank needs of one.

use bagualu_core::cost::LayerModel;
use bagualu_core::schedule::{Event, most_in_flight};
use bagualu_core::stage::StageModel;

use crate::device::ALIGNMENT;
use crate::pool::PoolConfig;

/// How an engine is set up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EngineConfig {
    /// Pinned memory.
    pub pool: PoolConfig,
    /// Tensors that may be out at once.
    pub slots: u32,
    /// Units (micro-batch, chunk) of one iteration.
    pub units: u32,
    /// Reloads due at once, bytes: how far copies in run ahead of backward. One is due whatever its size.
    pub window_bytes: u64,
    /// Reloads due at once.
    pub window_tensors: u32,
}

impl EngineConfig {
    /// `cap_bytes` of pinned memory for an iteration of `units`; 4,096 tensors, and reloads a quarter of the cap ahead.
    pub const fn new(cap_bytes: u64, units: u32) -> Self {
        let pool = PoolConfig { cap_bytes, slab_bytes: 0 };
        Self { pool, slots: 4_096, units, window_bytes: cap_bytes / 4, window_tensors: 64 }
    }

    /// For all that the planner may offload at once on a rank: the stage's host bytes, and what rounding to
    /// [`ALIGNMENT`] adds for each tensor in flight.
    pub fn for_rank(stage: &StageModel<'_>, events: &[Event]) -> Self {
        let most = |model: &LayerModel<'_>| model.tensors.iter().filter(|tensor| tensor.offload).count();
        let layer = stage.types.iter().map(most).max().unwrap_or(0);
        let layers = stage.chunks.iter().map(|layers| layers.len()).max().unwrap_or(0);
        let slots = most_in_flight(events).saturating_mul(layers).saturating_mul(layer);
        let slots = u32::try_from(slots).unwrap_or(MOST_SLOTS).clamp(1, MOST_SLOTS);
        let rounding = u64::from(slots) * ALIGNMENT;
        let units = u32::try_from(events.len() / 2).unwrap_or(u32::MAX);
        Self { slots, ..Self::new(stage.host_bytes.saturating_add(rounding), units) }
    }
}

/// Slots of [`EngineConfig::for_rank`] at most.
const MOST_SLOTS: u32 = 1 << 16;
