//! What one pipeline rank runs, and the bytes that follow from it: floor, g, full and work (design §2).

use core::fmt;

use crate::cost::{Bytes, CostError, LayerModel, LayerStorage, Rooflines};
use crate::fingerprint::Fingerprint;
use crate::floor::{full_recompute, recomputable, strongest_local};
use crate::layer::{Collectives, Layer};
use crate::limits::MAX_LAYERS;
use crate::set::Set;

/// A pipeline rank: its layers, its device and its loads. Equal on all ranks of an expert-parallel group.
#[derive(Clone, Copy, Debug)]
pub struct StageModel<'a> {
    /// Layer types.
    pub types: &'a [LayerModel<'a>],
    /// The type of each layer of each model chunk.
    pub chunks: &'a [&'a [u16]],
    /// The device's mitigation times.
    pub rooflines: Rooflines,
    /// N when balanced, T·k·etp.
    pub balanced_rows: u32,
    /// D: device bytes less static bytes and margin.
    pub device_bytes: u64,
    /// Host bytes for offloaded tensors.
    pub host_bytes: u64,
    /// Whether a forward and a backward run together (fused dual-batch execution): then their work adds.
    pub fused: bool,
}

/// Which recomputations with collectives a layer runs whatever its budget.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub enum Recompute {
    /// None: all decisions are local.
    Local,
    /// The whole MoE module, decided by its group for this micro-batch.
    WholeMoe,
    /// The MoE module and everything else whose recomputation needs a collective: a static setting, equal
    /// on all ranks.
    Full,
}

/// Bytes of one chunk or layer under some decision.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Held {
    /// On the device.
    pub bytes: u64,
    /// In the host pool.
    pub host_bytes: u64,
}

impl Held {
    /// The sum of two.
    pub fn plus(self, other: Self) -> Result<Self, StageError> {
        let bytes = self.bytes.checked_add(other.bytes);
        match (bytes, self.host_bytes.checked_add(other.host_bytes)) {
            (Some(bytes), Some(host_bytes)) => Ok(Self { bytes, host_bytes }),
            _ => Err(StageError::Overflow),
        }
    }
}

/// [`Held`] as a line in the rows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct HeldLine {
    /// On the device.
    pub bytes: Bytes,
    /// In the host pool.
    pub host_bytes: Bytes,
}

impl HeldLine {
    /// The line at `rows`.
    pub fn at(self, rows: u32) -> Result<Held, StageError> {
        match (self.bytes.at(rows), self.host_bytes.at(rows)) {
            (Some(bytes), Some(host_bytes)) => Ok(Held { bytes, host_bytes }),
            _ => Err(StageError::Overflow),
        }
    }
}

fn add_lines(lines: impl Iterator<Item = Bytes>) -> Result<Bytes, StageError> {
    let mut sum = Bytes::default();
    for line in lines {
        let fixed = sum.fixed.checked_add(line.fixed);
        let per_row = sum.per_row.checked_add(line.per_row);
        match (fixed, per_row) {
            (Some(fixed), Some(per_row)) => sum = Bytes { fixed, per_row },
            _ => return Err(StageError::Overflow),
        }
    }
    Ok(sum)
}

impl<'a> StageModel<'a> {
    /// Checks that every layer names a type, chunks fit [`MAX_LAYERS`], experts are operators of their type,
    /// rows are bounded and positive.
    pub fn check(&self) -> Result<(), StageError> {
        for (chunk, layers) in self.chunks.iter().enumerate() {
            if layers.len() > MAX_LAYERS {
                return Err(StageError::TooManyLayers { chunk, count: layers.len() });
            }
            for (layer, &kind) in layers.iter().enumerate() {
                if kind as usize >= self.types.len() {
                    return Err(StageError::NoSuchType { chunk, layer, kind });
                }
            }
        }
        for (kind, model) in self.types.iter().enumerate() {
            if let Some(op) = (model.experts - Set::first(model.ops.len())).last() {
                return Err(StageError::NoSuchExpert { kind: kind as u16, op });
            }
            check_rows(kind as u16, model)?;
        }
        if self.balanced_rows == 0 { Err(StageError::NoRows) } else { Ok(()) }
    }

    /// The layer type of one layer.
    pub fn layer_type(&self, chunk: usize, layer: usize) -> Result<&LayerModel<'a>, StageError> {
        let kind = self.chunks.get(chunk).and_then(|layers| layers.get(layer));
        kind.and_then(|&kind| self.types.get(kind as usize)).ok_or(StageError::NoSuchLayer { chunk, layer })
    }

    fn of_kind(&self, kind: u16) -> Result<&LayerModel<'a>, StageError> {
        self.types.get(kind as usize).ok_or(StageError::NoSuchKind { kind })
    }

    /// A layer type at `rows`, as the selection under `recompute` sees it
    /// ([`LayerModel::at_without`] what is recomputed in any case).
    pub fn layer<'s>(
        &self,
        kind: u16,
        rows: u32,
        recompute: Recompute,
        storage: &'s mut LayerStorage,
    ) -> Result<Layer<'s>, StageError> {
        let model = self.of_kind(kind)?;
        let forced = self.forced(kind, recompute, storage)?;
        Ok(model.at_without(rows, &self.rooflines, forced, storage)?)
    }

    /// Tensors of a layer type that `recompute` recomputes whatever the budget.
    pub fn forced(
        &self,
        kind: u16,
        recompute: Recompute,
        storage: &mut LayerStorage,
    ) -> Result<Set, StageError> {
        let model = self.of_kind(kind)?;
        if recompute == Recompute::Local {
            return Ok(Set::EMPTY);
        }
        let layer = model.at(0, &self.rooflines, storage)?;
        let remade = recomputable(&layer, Collectives::ALL) & layer.saved();
        Ok(match recompute {
            // The MoE module too, so that a split dispatch leaves nothing of its rows behind.
            Recompute::Full => (remade - recomputable(&layer, Collectives::NONE)) | (remade & model.moe),
            _ => remade & model.moe,
        })
    }

    /// floor(v) of a chunk's units: full recomputation, whatever the rows.
    pub fn floor(&self, chunk: usize, storage: &mut LayerStorage) -> Result<u64, StageError> {
        let sum = self.sum(chunk, |stage, kind| {
            let layer = stage.of_kind(kind)?.at(stage.balanced_rows, &stage.rooflines, storage)?;
            Ok(Held { bytes: full_recompute(&layer).bytes, host_bytes: 0 })
        })?;
        Ok(sum.bytes)
    }

    /// g of a chunk's units: the strongest local strategies at `rows`, on top of `recompute`.
    pub fn least(
        &self,
        chunk: usize,
        rows: u32,
        recompute: Recompute,
        storage: &mut LayerStorage,
    ) -> Result<Held, StageError> {
        self.sum(chunk, |stage, kind| stage.least_of_type(kind, rows, recompute, storage))
    }

    /// g of one layer type at `rows`.
    pub fn least_of_type(
        &self,
        kind: u16,
        rows: u32,
        recompute: Recompute,
        storage: &mut LayerStorage,
    ) -> Result<Held, StageError> {
        self.least_line(kind, recompute, storage)?.at(rows)
    }

    /// g of one layer type as a line in the rows. Where quantising is the strongest choice at balanced
    /// rows it is taken at all rows, so that g stays a line.
    pub fn least_line(
        &self,
        kind: u16,
        recompute: Recompute,
        storage: &mut LayerStorage,
    ) -> Result<HeldLine, StageError> {
        let forced = self.forced(kind, recompute, storage)?;
        let layer = self.layer(kind, self.balanced_rows, recompute, storage)?;
        let plan = strongest_local(&layer, Collectives::NONE).plan;
        let tensors = self.types[kind as usize].tensors;
        let kept =
            (layer.saved() | layer.block_inputs()) - forced - plan.recompute - plan.offload - plan.quantize;
        let narrow = plan.quantize.iter().filter_map(|t| tensors[t].quantized);
        let held = kept.iter().map(|t| tensors[t].bytes).chain(narrow);
        Ok(HeldLine {
            bytes: add_lines(held)?,
            host_bytes: add_lines(plan.offload.iter().map(|t| tensors[t].bytes))?,
        })
    }

    /// full of one layer type as a line in the rows.
    pub fn full_line(&self, kind: u16, storage: &mut LayerStorage) -> Result<Bytes, StageError> {
        let layer = self.layer(kind, self.balanced_rows, Recompute::Local, storage)?;
        let tensors = self.types[kind as usize].tensors;
        add_lines((layer.saved() | layer.block_inputs()).iter().map(|t| tensors[t].bytes))
    }

    /// full(v) of a chunk's units with every layer at `rows`.
    pub fn full(&self, chunk: usize, rows: u32, storage: &mut LayerStorage) -> Result<u64, StageError> {
        let sum = self.sum(chunk, |stage, kind| {
            let layer = stage.of_kind(kind)?.at(rows, &stage.rooflines, storage)?;
            Ok(Held { bytes: layer.full_bytes(), host_bytes: 0 })
        })?;
        Ok(sum.bytes)
    }

    /// W: the most bytes that operators need while they run, with at most `rows` in a layer.
    ///
    /// One layer's tensors that are not held between (being offloaded, dropped, or re-made for backward:
    /// at most all but its block inputs) and its hungriest operator; twice where F and B run together.
    pub fn work(&self, rows: u32, storage: &mut LayerStorage) -> Result<u64, StageError> {
        let mut most = 0;
        for &kind in self.chunks.iter().flat_map(|layers| layers.iter()) {
            most = most.max(self.work_of_type(kind, rows, storage)?);
        }
        if self.fused { most.checked_mul(2).ok_or(StageError::Overflow) } else { Ok(most) }
    }

    /// The work of one layer of a type, as in [`work`](Self::work).
    pub fn work_of_type(&self, kind: u16, rows: u32, storage: &mut LayerStorage) -> Result<u64, StageError> {
        let model = self.of_kind(kind)?;
        let (forward, backward) = model.work(rows)?;
        let layer = model.at(rows, &self.rooflines, storage)?;
        let passing = layer.full_bytes() - layer.bytes(layer.block_inputs());
        passing.checked_add(forward.max(backward)).ok_or(StageError::Overflow)
    }

    /// A fingerprint of everything that decisions depend on.
    pub fn fingerprint(&self) -> u64 {
        let Rooflines { copy_out, copy_in, cast, uncast } = self.rooflines;
        let knees = [copy_out, copy_in, cast, uncast].into_iter().flat_map(|k| [k.size_bytes, k.bytes_per_s]);
        let mut f = Fingerprint::new()
            .with(self.balanced_rows.into())
            .with(self.device_bytes)
            .with(self.host_bytes)
            .with(self.fused.into())
            .with_all(knees);
        for layers in self.chunks {
            f = f.with_all(layers.iter().map(|&kind| kind.into()));
        }
        self.types.iter().fold(f, |f, model| model.fold(f)).value()
    }

    fn sum(
        &self,
        chunk: usize,
        mut held: impl FnMut(&Self, u16) -> Result<Held, StageError>,
    ) -> Result<Held, StageError> {
        let layers = self.chunks.get(chunk).ok_or(StageError::NoSuchLayer { chunk, layer: 0 })?;
        let mut sum = Held::default();
        // A chunk is mostly one type repeated: evaluate each run once.
        for run in layers.chunk_by(|a, b| a == b) {
            let one = held(self, run[0])?;
            let times = run.len() as u64;
            let bytes = one.bytes.checked_mul(times).and_then(|b| sum.bytes.checked_add(b));
            let host = one.host_bytes.checked_mul(times).and_then(|b| sum.host_bytes.checked_add(b));
            match (bytes, host) {
                (Some(bytes), Some(host_bytes)) => sum = Held { bytes, host_bytes },
                _ => return Err(StageError::Overflow),
            }
        }
        Ok(sum)
    }
}

/// What grows with the rows must be something that a whole-MoE recompute drops: else no split of the
/// dispatch bounds it.
fn check_rows(kind: u16, model: &LayerModel<'_>) -> Result<(), StageError> {
    let saved = model.ops.iter().fold(Set::EMPTY, |set, op| set | op.saves);
    let unbounded = model.tensors.iter().enumerate().position(|(index, tensor)| {
        let grows = tensor.bytes.per_row > 0 || tensor.quantized.is_some_and(|q| q.per_row > 0);
        let stays = tensor.block_input || (saved.contains(index) && !model.moe.contains(index));
        grows && stays
    });
    match unbounded {
        Some(tensor) => Err(StageError::Unbounded { kind, tensor }),
        None => Ok(()),
    }
}

/// Why a stage is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum StageError {
    /// A layer type cannot be evaluated.
    Cost(CostError),
    /// More layers in a chunk than [`MAX_LAYERS`].
    TooManyLayers {
        /// The chunk.
        chunk: usize,
        /// Its layers.
        count: usize,
    },
    /// A layer names a type that does not exist.
    NoSuchType {
        /// The chunk.
        chunk: usize,
        /// The layer.
        layer: usize,
        /// The type it names.
        kind: u16,
    },
    /// A call names a chunk or layer that does not exist.
    NoSuchLayer {
        /// The chunk.
        chunk: usize,
        /// The layer.
        layer: usize,
    },
    /// A call names a layer type that does not exist.
    NoSuchKind {
        /// The layer type.
        kind: u16,
    },
    /// `experts` names an operator that its layer type does not have.
    NoSuchExpert {
        /// The layer type.
        kind: u16,
        /// The operator.
        op: usize,
    },
    /// A saved tensor grows with the rows and is outside `moe`, or a block input grows with them.
    Unbounded {
        /// The layer type.
        kind: u16,
        /// The tensor.
        tensor: usize,
    },
    /// The balanced rows are 0.
    NoRows,
    /// The sum of bytes passes `u64`.
    Overflow,
}

impl From<CostError> for StageError {
    fn from(error: CostError) -> Self {
        Self::Cost(error)
    }
}

impl fmt::Display for StageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cost(error) => error.fmt(f),
            Self::TooManyLayers { chunk, count } => write!(
                f,
                "chunk {chunk} has {count} layers; this build takes {MAX_LAYERS}: give more pipeline ranks (PP) or virtual \
                 stages (V), or build with BAGUALU_MAX_LAYERS={count}"
            ),
            Self::NoSuchType { chunk, layer, kind } => {
                write!(f, "layer {layer} of chunk {chunk} names layer type {kind}, which does not exist")
            }
            Self::NoSuchLayer { chunk, layer } => write!(f, "there is no layer {layer} in chunk {chunk}"),
            Self::NoSuchKind { kind } => write!(f, "there is no layer type {kind}"),
            Self::NoSuchExpert { kind, op } => {
                write!(f, "`experts` of layer type {kind} names operator {op}, which does not exist")
            }
            Self::Unbounded { kind, tensor } => write!(
                f,
                "tensor {tensor} of layer type {kind} grows with the rows, and no recompute of the MoE module drops \
                 it; name it in `moe`, and let no block input grow"
            ),
            Self::NoRows => write!(f, "balanced_rows is 0; it is T·k·etp and at least 1"),
            Self::Overflow => write!(f, "the sum of a stage's bytes passes 2^64"),
        }
    }
}

impl core::error::Error for StageError {}
