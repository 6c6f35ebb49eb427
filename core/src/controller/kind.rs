//! What the controller keeps of a layer type, so that no gate has to evaluate a whole layer.

use crate::cost::{Bytes, LayerModel, LayerStorage};
use crate::layer::{Layer, LayerPlan};
use crate::provision::Provision;
use crate::set::Set;
use crate::stage::{Held, HeldLine, Recompute, StageError, StageModel};

/// One layer type under a provision.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Kind {
    saved: Set,
    block_inputs: Set,
    /// Tensors recomputed where the group recomputes the MoE module, and where everything is.
    whole_moe: Set,
    full: Set,
    full_bytes: Bytes,
    /// What the operators before the gate need: all that does not grow with the rows.
    pub(super) before_gate_bytes: u64,
    /// g at R*: no layer whose gate has not run is planned below it.
    pub(super) floor: Held,
}

/// Fills the storage for a stage's layer types.
pub(super) fn fill(
    stage: &StageModel<'_>,
    provision: &Provision,
    kinds: &mut [Kind],
    storage: &mut LayerStorage,
) -> Result<(), StageError> {
    for (index, (model, kind)) in stage.types.iter().zip(kinds).enumerate() {
        let index = index as u16;
        let line: HeldLine = stage.least_line(index, provision.recompute, storage)?;
        let whole_moe = stage.forced(index, Recompute::WholeMoe, storage)?;
        let full = stage.forced(index, Recompute::Full, storage)?;
        let full_bytes = stage.full_line(index, storage)?;
        let layer = stage.layer(index, 0, Recompute::Local, storage)?;
        let rows = if model.routed { provision.row_threshold } else { 0 };
        *kind = Kind {
            saved: layer.saved(),
            block_inputs: layer.block_inputs(),
            whole_moe,
            full,
            full_bytes,
            before_gate_bytes: before_gate(model, &layer)?,
            floor: line.at(rows)?,
        };
    }
    Ok(())
}

/// Everything of a layer at 0 rows, and its hungriest operator there. At most the layer's floor and W, so
/// that waiting for copies always lets it start.
fn before_gate(model: &LayerModel<'_>, layer: &Layer<'_>) -> Result<u64, StageError> {
    let (forward, _) = model.work(0)?;
    layer.full_bytes().checked_add(forward).ok_or(StageError::Overflow)
}

/// Σ floor of a chunk's layers: what its units' budget keeps for them.
pub(super) fn floor(stage: &StageModel<'_>, kinds: &[Kind], chunk: usize) -> Result<Held, StageError> {
    stage.chunks[chunk].iter().try_fold(Held::default(), |sum, &kind| sum.plus(kinds[kind as usize].floor))
}

impl Kind {
    /// Tensors recomputed whatever the budget.
    pub(super) fn forced(&self, recompute: Recompute) -> Set {
        match recompute {
            Recompute::Local => Set::EMPTY,
            Recompute::WholeMoe => self.whole_moe,
            Recompute::Full => self.full,
        }
    }

    /// Bytes with nothing mitigated.
    pub(super) fn full(&self, rows: u32) -> Option<u64> {
        self.full_bytes.at(rows)
    }

    /// Tensors that have a strategy.
    pub(super) fn saved(&self) -> Set {
        self.saved
    }

    /// What a plan holds at `rows`.
    pub(super) fn held(
        &self,
        model: &LayerModel<'_>,
        plan: &LayerPlan,
        rows: u32,
    ) -> Result<Held, StageError> {
        let kept = (self.saved - plan.recompute - plan.offload - plan.quantize) | self.block_inputs;
        let narrow = plan.quantize.iter().map(|t| model.tensors[t].quantized.unwrap_or_default());
        Ok(Held {
            bytes: sum_at(kept.iter().map(|t| model.tensors[t].bytes).chain(narrow), rows)?,
            host_bytes: bytes_at(model, plan.offload, rows)?,
        })
    }
}

/// Σ bytes of the tensors in `set` at `rows`.
pub(super) fn bytes_at(model: &LayerModel<'_>, set: Set, rows: u32) -> Result<u64, StageError> {
    sum_at(set.iter().map(|t| model.tensors[t].bytes), rows)
}

fn sum_at(mut lines: impl Iterator<Item = Bytes>, rows: u32) -> Result<u64, StageError> {
    let sum = lines.try_fold(0u64, |sum, line| line.at(rows).and_then(|b| sum.checked_add(b)));
    sum.ok_or(StageError::Overflow)
}
