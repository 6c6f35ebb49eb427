//! The activation cost model (§IV-A): layer types whose bytes and times are linear in the routed rows.
//!
//! A [`LayerModel`] at a row count is a [`Layer`], the input of Algorithm 2. The byte curve of a
//! micro-batch is in [`curve`](crate::curve).

use core::fmt;

use crate::fingerprint::Fingerprint;
use crate::layer::{CastTimes, CopyTimes, Group, Layer, LayerError, Op, Resource, Tensor};
use crate::limits::{MAX_OPS, MAX_TENSORS};
use crate::roofline::Knee;
use crate::set::Set;

/// Bytes that grow with the rows: fixed + per_row · N.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Bytes {
    /// Bytes whatever the rows.
    pub fixed: u64,
    /// Bytes per routed row.
    pub per_row: u64,
}

impl Bytes {
    /// A fixed number of bytes.
    pub const fn fixed(fixed: u64) -> Self {
        Self { fixed, per_row: 0 }
    }

    /// Bytes per routed row.
    pub const fn per_row(per_row: u64) -> Self {
        Self { fixed: 0, per_row }
    }

    /// Bytes at `rows`; `None` past `u64`.
    pub const fn at(self, rows: u32) -> Option<u64> {
        match self.per_row.checked_mul(rows as u64) {
            Some(scaled) => self.fixed.checked_add(scaled),
            None => None,
        }
    }
}

/// A time that grows with the rows: fixed + per_row · N, the latter in picoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Time {
    /// Nanoseconds whatever the rows.
    pub fixed_ns: u64,
    /// Picoseconds per routed row.
    pub per_row_ps: u64,
}

impl Time {
    /// Nanoseconds at `rows`, rounded up; `None` past `u64`.
    pub const fn at(self, rows: u32) -> Option<u64> {
        match self.per_row_ps.checked_mul(rows as u64) {
            Some(ps) => self.fixed_ns.checked_add(ps.div_ceil(1_000)),
            None => None,
        }
    }
}

/// The rooflines of a device's mitigations. The two copy directions, and the two casts, differ.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Rooflines {
    /// Device→host copies.
    pub copy_out: Knee,
    /// Host→device copies.
    pub copy_in: Knee,
    /// Casts to the narrow format; bytes are those of the tensor.
    pub cast: Knee,
    /// Casts back.
    pub uncast: Knee,
}

impl Rooflines {
    /// The same device with nothing offered for offloading.
    pub const fn without_copies(self) -> Self {
        let none = Knee { size_bytes: 0, bytes_per_s: 0 };
        Self { copy_out: none, copy_in: none, ..self }
    }
}

/// A tensor of a layer type.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TensorModel {
    /// Device bytes while kept.
    pub bytes: Bytes,
    /// Always kept and counted (see [`Tensor::block_input`]).
    pub block_input: bool,
    /// Whether it may be offloaded.
    pub offload: bool,
    /// Bytes in the narrow format, where it may be quantised (never an index, a mask or a parameter).
    pub quantized: Option<Bytes>,
    /// The tensor that this is a cast copy of.
    pub source: Option<u8>,
}

/// An operator of a layer type.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OpModel {
    /// Tensors it reads.
    pub reads: Set,
    /// Tensors it makes.
    pub makes: Set,
    /// Tensors it saves for its backward.
    pub saves: Set,
    /// Forward time.
    pub forward: Time,
    /// Backward time.
    pub backward: Time,
    /// What it occupies.
    pub resource: Resource,
    /// The group of its collective, if it runs one.
    pub collective: Option<Group>,
    /// Bytes needed only while its forward runs, saved tensors not included.
    pub forward_work: Bytes,
    /// Bytes needed only while its backward runs, tensors re-made for it not included.
    pub backward_work: Bytes,
}

/// A layer type: what Megatron runs and saves for one layer, as a function of the rows.
#[derive(Clone, Copy, Debug)]
pub struct LayerModel<'a> {
    /// Its tensors.
    pub tensors: &'a [TensorModel],
    /// Its operators in program order.
    pub ops: &'a [OpModel],
    /// Tensors that exist only because of routed rows: what a whole-MoE recompute by the group drops.
    pub moe: Set,
    /// Operators that this rank alone may run in row chunks, one after another: its experts' own.
    pub experts: Set,
    /// Whether its rows come from a router (a dense layer's cost does not depend on the rows).
    pub routed: bool,
}

/// Where [`LayerModel::at`] puts its result.
#[derive(Clone, Debug)]
pub struct LayerStorage {
    tensors: [Tensor; MAX_TENSORS],
    ops: [Op; MAX_OPS],
}

impl LayerStorage {
    /// Empty storage.
    pub const fn new() -> Self {
        const TENSOR: Tensor = Tensor { bytes: 0, block_input: false, copy: None, cast: None, source: None };
        const OP: Op =
            Op { reads: Set::EMPTY, makes: Set::EMPTY, saves: Set::EMPTY, forward_ns: 0, collective: None };
        Self { tensors: [TENSOR; MAX_TENSORS], ops: [OP; MAX_OPS] }
    }
}

impl Default for LayerStorage {
    fn default() -> Self {
        Self::new()
    }
}

impl LayerModel<'_> {
    /// The layer at `rows`, on a device with these rooflines.
    pub fn at<'s>(
        &self,
        rows: u32,
        rooflines: &Rooflines,
        storage: &'s mut LayerStorage,
    ) -> Result<Layer<'s>, CostError> {
        self.at_without(rows, rooflines, Set::EMPTY, storage)
    }

    /// The layer at `rows` with the tensors in `remade` re-made in any case, by a decision made elsewhere:
    /// they hold nothing, and are there when another tensor is recomputed from them.
    pub fn at_without<'s>(
        &self,
        rows: u32,
        rooflines: &Rooflines,
        remade: Set,
        storage: &'s mut LayerStorage,
    ) -> Result<Layer<'s>, CostError> {
        if self.tensors.len() > MAX_TENSORS {
            return Err(LayerError::TooManyTensors { count: self.tensors.len() }.into());
        }
        if self.ops.len() > MAX_OPS {
            return Err(LayerError::TooManyOps { count: self.ops.len() }.into());
        }
        for (index, (model, tensor)) in self.tensors.iter().zip(&mut storage.tensors).enumerate() {
            *tensor = model.at(rows, rooflines).ok_or(CostError::TensorOverflow { tensor: index, rows })?;
            if remade.contains(index) {
                *tensor = Tensor { block_input: true, ..Tensor::default() };
            }
        }
        for (index, (model, op)) in self.ops.iter().zip(&mut storage.ops).enumerate() {
            *op = Op {
                reads: model.reads,
                makes: model.makes,
                saves: model.saves - remade,
                forward_ns: model.forward.at(rows).ok_or(CostError::OpOverflow { op: index, rows })?,
                collective: model.collective,
            };
        }
        let storage = &*storage;
        Ok(Layer::new(&storage.tensors[..self.tensors.len()], &storage.ops[..self.ops.len()])?)
    }

    /// Folds the layer type into a fingerprint.
    pub fn fold(&self, fingerprint: Fingerprint) -> Fingerprint {
        let mut f = fingerprint.with_all([self.moe.bits(), self.experts.bits(), self.routed.into()]);
        for t in self.tensors {
            let narrow = t.quantized.map_or([u64::MAX; 2], |q| [q.fixed, q.per_row]);
            let source = t.source.map_or(u64::MAX, u64::from);
            let own = [t.bytes.fixed, t.bytes.per_row, t.block_input.into(), t.offload.into(), source];
            f = f.with_all(own.into_iter().chain(narrow));
        }
        for op in self.ops {
            let group = op.collective.map_or(u64::MAX, |g| g as u64);
            let sets = [op.reads.bits(), op.makes.bits(), op.saves.bits(), op.resource as u64, group];
            let times = [op.forward, op.backward].into_iter().flat_map(|t| [t.fixed_ns, t.per_row_ps]);
            let work = [op.forward_work, op.backward_work].into_iter().flat_map(|b| [b.fixed, b.per_row]);
            f = f.with_all(sets.into_iter().chain(times).chain(work));
        }
        f
    }

    /// Sum of forward and of backward times at `rows`, ns.
    pub fn times(&self, rows: u32) -> Result<(u64, u64), CostError> {
        let mut sum = (0u64, 0u64);
        for (index, op) in self.ops.iter().enumerate() {
            let overflow = CostError::OpOverflow { op: index, rows };
            let forward = op.forward.at(rows).and_then(|ns| sum.0.checked_add(ns));
            let backward = op.backward.at(rows).and_then(|ns| sum.1.checked_add(ns));
            sum = (forward.ok_or(overflow)?, backward.ok_or(overflow)?);
        }
        Ok(sum)
    }

    /// The largest work of one operator at `rows` in (forward, backward): operators of one micro-batch
    /// run one after another.
    pub fn work(&self, rows: u32) -> Result<(u64, u64), CostError> {
        let mut most = (0u64, 0u64);
        for (index, op) in self.ops.iter().enumerate() {
            let overflow = CostError::OpOverflow { op: index, rows };
            most.0 = most.0.max(op.forward_work.at(rows).ok_or(overflow)?);
            most.1 = most.1.max(op.backward_work.at(rows).ok_or(overflow)?);
        }
        Ok(most)
    }
}

impl TensorModel {
    fn at(&self, rows: u32, rooflines: &Rooflines) -> Option<Tensor> {
        let bytes = self.bytes.at(rows)?;
        let copy = CopyTimes { out_ns: rooflines.copy_out.ns(bytes), in_ns: rooflines.copy_in.ns(bytes) };
        let cast = match self.quantized {
            None => None,
            Some(quantized) => Some(CastTimes {
                cast_ns: rooflines.cast.ns(bytes),
                uncast_ns: rooflines.uncast.ns(bytes),
                bytes: quantized.at(rows)?,
            }),
        };
        // A device without a copy engine has bandwidth 0: then nothing is offered, rather than at u64::MAX.
        let copy = (self.offload && copy.out_ns != u64::MAX && copy.in_ns != u64::MAX).then_some(copy);
        let cast = cast.filter(|c| c.cast_ns != u64::MAX && c.uncast_ns != u64::MAX);
        Some(Tensor { bytes, block_input: self.block_input, copy, cast, source: self.source })
    }
}

/// Why a layer type cannot be evaluated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum CostError {
    /// The layer itself is refused.
    Layer(LayerError),
    /// A tensor's bytes at these rows pass `u64`.
    TensorOverflow {
        /// The tensor.
        tensor: usize,
        /// The rows.
        rows: u32,
    },
    /// An operator's time or work at these rows passes `u64`.
    OpOverflow {
        /// The operator.
        op: usize,
        /// The rows.
        rows: u32,
    },
}

impl From<LayerError> for CostError {
    fn from(error: LayerError) -> Self {
        Self::Layer(error)
    }
}

impl fmt::Display for CostError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Layer(error) => error.fmt(f),
            Self::TensorOverflow { tensor, rows } => {
                write!(f, "the bytes of tensor {tensor} at {rows} rows pass 2^64")
            }
            Self::OpOverflow { op, rows } => {
                write!(f, "the time or work of operator {op} at {rows} rows passes 2^64")
            }
        }
    }
}

impl core::error::Error for CostError {}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOFLINES: Rooflines = Rooflines {
        copy_out: Knee { size_bytes: 1_000, bytes_per_s: 1_000_000_000 },
        copy_in: Knee { size_bytes: 1_000, bytes_per_s: 2_000_000_000 },
        cast: Knee { size_bytes: 0, bytes_per_s: 0 },
        uncast: Knee { size_bytes: 0, bytes_per_s: 1_000_000_000 },
    };

    fn op(reads: Set, makes: Set, saves: Set) -> OpModel {
        OpModel {
            reads,
            makes,
            saves,
            forward: Time { fixed_ns: 5, per_row_ps: 1_500 },
            backward: Time { fixed_ns: 7, per_row_ps: 1 },
            resource: Resource::Compute,
            collective: None,
            forward_work: Bytes::per_row(3),
            backward_work: Bytes::fixed(11),
        }
    }

    #[test]
    fn a_layer_type_is_evaluated_at_its_rows() {
        let tensors = [
            TensorModel { bytes: Bytes::fixed(64), block_input: true, ..Default::default() },
            TensorModel {
                bytes: Bytes { fixed: 10, per_row: 100 },
                offload: true,
                quantized: Some(Bytes::per_row(52)),
                ..Default::default()
            },
        ];
        let ops = [op(Set::one(0), Set::one(1), Set::one(1))];
        let model =
            LayerModel { tensors: &tensors, ops: &ops, moe: Set::one(1), experts: Set::EMPTY, routed: true };
        let mut storage = LayerStorage::new();
        let layer = model.at(3, &ROOFLINES, &mut storage).expect("a layer");
        assert_eq!(layer.full_bytes(), 64 + 310);
        assert_eq!(layer.ops()[0].forward_ns, 10);
        assert_eq!(layer.tensors()[1].copy, Some(CopyTimes { out_ns: 1_000, in_ns: 500 }));
        assert_eq!(layer.tensors()[1].cast, None, "no cast without a cast bandwidth");
        assert_eq!(model.times(3), Ok((10, 8)));
        assert_eq!(model.work(3), Ok((9, 11)));
    }

    #[test]
    fn overflow_is_an_error() {
        let tensors = [TensorModel { bytes: Bytes::per_row(u64::MAX / 2), ..Default::default() }];
        let (moe, experts) = (Set::EMPTY, Set::EMPTY);
        let model = LayerModel { tensors: &tensors, ops: &[], moe, experts, routed: true };
        let mut storage = LayerStorage::new();
        let error = model.at(3, &ROOFLINES, &mut storage).expect_err("past u64");
        assert_eq!(error, CostError::TensorOverflow { tensor: 0, rows: 3 });
    }
}
