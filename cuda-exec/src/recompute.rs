//! Recompute hooks: operators that run again before backward (§IV-B; design §5).
//!
//! What a plan recomputes is dropped after the forward. When recovery reaches it, its producer runs again: a
//! [`Hook`] of the program's, called with what the program left for it at the forward (a payload and the
//! state of the random numbers) and with the tensors. Inputs may themselves have been dropped: then their producers
//! run before, each once. Hooks submit work to the stream they are given and return; nothing waits.

use std::error::Error;
use std::fmt;

use bagualu_core::cost::{CostError, LayerModel, LayerStorage, Rooflines};
use bagualu_core::set::Set;

use crate::device::{DeviceSlice, Stream};

/// Runs one operator of a layer again.
pub trait Hook {
    /// Submits the operator to [`Again::stream`]. An error ends the recovery of the layer and is handed on.
    fn run(&mut self, again: &Again<'_>) -> Result<(), HookError>;
}

impl<F: FnMut(&Again<'_>) -> Result<(), HookError>> Hook for F {
    fn run(&mut self, again: &Again<'_>) -> Result<(), HookError> {
        self(again)
    }
}

/// What a hook may fail with.
pub type HookError = Box<dyn Error + Send + Sync>;

/// A hook for programs whose plans recompute nothing: it fails when called.
#[derive(Clone, Copy, Debug)]
pub struct NoHook;

impl Hook for NoHook {
    fn run(&mut self, again: &Again<'_>) -> Result<(), HookError> {
        Err(format!("operator {} of layer {} is to run again, and no hook was given", again.op, again.layer)
            .into())
    }
}

/// An operator that is to run again.
#[derive(Clone, Copy)]
pub struct Again<'a> {
    /// The unit.
    pub unit: u32,
    /// Its layer.
    pub layer: usize,
    /// The operator of the layer's type.
    pub op: usize,
    /// The layer's rows.
    pub rows: u32,
    /// Which part of a split dispatch, and how many there are; `None` for the whole layer.
    pub part: Option<(u32, u32)>,
    /// What was left for it at the forward; 0 where nothing was.
    pub payload: u64,
    /// State of the random numbers at the forward; empty where none was left.
    pub rng: &'a [u8],
    /// Where the work goes.
    pub stream: Stream,
    pub(crate) tensors: &'a dyn Fn(usize) -> Option<DeviceSlice>,
}

impl Again<'_> {
    /// Where a saved tensor of the layer lies now: an input that is back, or an output to be written. `None` for a
    /// tensor that is not saved: what the operator needs of those is between the hooks themselves.
    pub fn tensor(&self, tensor: usize) -> Option<DeviceSlice> {
        (self.tensors)(tensor)
    }
}

impl fmt::Debug for Again<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { unit, layer, op, rows, part, payload, .. } = self;
        write!(
            f,
            "Again {{ unit: {unit}, layer: {layer}, op: {op}, rows: {rows}, part: {part:?}, payload: {payload} }}"
        )
    }
}

/// In which order the operators of a layer type run again.
#[derive(Clone, Debug)]
pub(crate) struct Order {
    /// All operators, producers first.
    ops: Vec<usize>,
    /// Tensors that are stored somewhere: saved ones and block inputs.
    pub tracked: Set,
    /// Saved tensors that only operators on routed rows touch: with a split dispatch they exist part by part.
    pub routed_only: Set,
}

impl Order {
    pub fn new(
        model: &LayerModel<'_>,
        rooflines: &Rooflines,
        storage: &mut LayerStorage,
    ) -> Result<Self, CostError> {
        let layer = model.at(0, rooflines, storage)?;
        let is_routed = |op: &bagualu_core::cost::OpModel| {
            let scaled = op.forward.per_row_ps | op.backward.per_row_ps;
            let work = op.forward_work.per_row | op.backward_work.per_row;
            !((op.reads | op.makes | op.saves) & model.moe).is_empty() || scaled | work != 0
        };
        let elsewhere = model.ops.iter().filter(|op| !is_routed(op));
        let elsewhere = elsewhere.fold(Set::EMPTY, |all, op| all | op.reads | op.makes | op.saves);
        Ok(Self {
            ops: layer.order().collect(),
            tracked: layer.saved() | layer.block_inputs(),
            routed_only: layer.saved() - elsewhere,
        })
    }

    /// The operators that must run again for `wanted`: the producers of what is recomputed, and of what these read
    /// and nobody stores. What is in `there` needs no producer.
    pub fn closure(&self, model: &LayerModel<'_>, recompute: Set, wanted: Set, there: Set) -> Set {
        let stored = (self.tracked - recompute) | there;
        let mut demanded = (wanted & recompute) - there;
        let mut again = Set::EMPTY;
        for &op in self.ops.iter().rev() {
            let model = &model.ops[op];
            if !(model.makes & demanded).is_empty() {
                demanded |= model.reads - stored;
                again.insert(op);
            }
        }
        again
    }

    /// The operator that runs in the `place`-th place, producers first.
    pub fn nth(&self, place: usize) -> Option<usize> {
        self.ops.get(place).copied()
    }
}
