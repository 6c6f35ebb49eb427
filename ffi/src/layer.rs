//! Tensors, operators and layers as C describes them.
//!
//! Structs that stand in arrays have no `struct_size`: they never change.

use bagualu_core::cost::{Bytes, OpModel, Rooflines, TensorModel, Time};
use bagualu_core::layer::{CastTimes, Collectives, CopyTimes, Group, LayerPlan, Op, Resource, Tensor};
use bagualu_core::limits::MAX_TENSORS;
use bagualu_core::roofline::Knee;
use bagualu_core::set::Set;

use crate::arguments::{check_reserved, elements, out, room};
use crate::boundary::boundary;
use crate::status::{Failure, bagualu_status};

/// What is done with a saved tensor between forward and backward.
#[repr(u32)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum bagualu_strategy {
    /// Its bytes stay on the device.
    Keep = 0,
    /// Dropped; its producer runs again before backward.
    Recompute = 1,
    /// Copied to the host, and back before backward.
    Offload = 2,
    /// Held in a narrower format, and cast back before backward.
    Quantize = 3,
}

/// What an operator occupies while it runs.
#[repr(u32)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum bagualu_resource {
    /// The device's compute units.
    Compute = 0,
    /// The links between devices.
    Communication = 1,
    /// The device-to-host copy engine.
    CopyOut = 2,
    /// The host-to-device copy engine.
    CopyIn = 3,
}

/// The ranks that meet in a collective. Sets of groups have bit `1 << (group - 1)`.
#[repr(u32)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum bagualu_group {
    /// No collective.
    None = 0,
    /// Expert parallel.
    Ep = 1,
    /// Tensor parallel, sequence parallel included.
    Tp = 2,
    /// Context parallel.
    Cp = 3,
    /// Pipeline parallel.
    Pp = 4,
}

/// Always kept and counted: block inputs, RNG state, the routing's layout.
pub const BAGUALU_TENSOR_BLOCK_INPUT: u32 = 1;
/// The tensor may be offloaded.
pub const BAGUALU_TENSOR_OFFLOAD: u32 = 2;
/// The tensor may be quantised: never an index, a mask or a parameter.
pub const BAGUALU_TENSOR_QUANTIZE: u32 = 4;
/// The tensor is a cast copy of the one that `source` names.
pub const BAGUALU_TENSOR_HAS_SOURCE: u32 = 8;

/// Bytes: fixed + per_row · rows.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct bagualu_bytes {
    /// Bytes whatever the rows.
    pub fixed: u64,
    /// Bytes for each routed row.
    pub per_row: u64,
}

/// A time: fixed_ns + per_row_ps · rows / 1000, rounded up.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct bagualu_time {
    /// Nanoseconds whatever the rows.
    pub fixed_ns: u64,
    /// Picoseconds for each routed row.
    pub per_row_ps: u64,
}

/// A roofline: a transfer takes max(size, size_bytes) / bytes_per_s.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct bagualu_knee {
    /// Bytes below which the launch dominates.
    pub size_bytes: u64,
    /// Bytes per second; 0: the device cannot do this.
    pub bytes_per_s: u64,
}

/// The rooflines of a device's copies and casts.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct bagualu_rooflines {
    /// Device to host.
    pub copy_out: bagualu_knee,
    /// Host to device.
    pub copy_in: bagualu_knee,
    /// To the narrow format; bytes are the tensor's.
    pub cast: bagualu_knee,
    /// Back.
    pub uncast: bagualu_knee,
}

/// A tensor of a layer type: one storage.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct bagualu_tensor_type {
    /// Device bytes while it is kept.
    pub bytes: bagualu_bytes,
    /// Device bytes while it is quantised, scales included (`BAGUALU_TENSOR_QUANTIZE`).
    pub quantized: bagualu_bytes,
    /// `BAGUALU_TENSOR_…`, or-ed.
    pub flags: u32,
    /// Index of the tensor that this is a cast copy of (`BAGUALU_TENSOR_HAS_SOURCE`).
    pub source: u32,
}

/// An operator of a layer type. Sets of tensors have bit `1 << index`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct bagualu_op_type {
    /// Tensors it reads.
    pub reads: u64,
    /// Tensors it makes.
    pub makes: u64,
    /// Tensors it saves for its backward.
    pub saves: u64,
    /// Forward time.
    pub forward: bagualu_time,
    /// Backward time.
    pub backward: bagualu_time,
    /// Bytes needed only while its forward runs.
    pub forward_work: bagualu_bytes,
    /// Bytes needed only while its backward runs.
    pub backward_work: bagualu_bytes,
    /// What it occupies, a `bagualu_resource`.
    pub resource: u32,
    /// The group of its collective, a `bagualu_group`.
    pub collective: u32,
}

/// A layer type: what one layer runs and saves, as a function of its routed rows.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct bagualu_layer_type {
    /// Its tensors; read during the call.
    pub tensors: *const bagualu_tensor_type,
    /// How many.
    pub tensor_count: usize,
    /// Its operators in program order; read during the call.
    pub ops: *const bagualu_op_type,
    /// How many.
    pub op_count: usize,
    /// The set of tensors that exist only because of routed rows.
    pub moe: u64,
    /// The set of operators that are the rank's own experts' (bit `1 << index`).
    pub experts: u64,
    /// 1 if its rows come from a router, else 0.
    pub routed: u32,
    /// 0.
    pub reserved: u32,
}

/// A tensor of a layer at known rows.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct bagualu_tensor {
    /// Device bytes while it is kept.
    pub bytes: u64,
    /// Copy to the host, ns (`BAGUALU_TENSOR_OFFLOAD`).
    pub copy_out_ns: u64,
    /// Copy back, ns.
    pub copy_in_ns: u64,
    /// Cast to the narrow format, ns (`BAGUALU_TENSOR_QUANTIZE`).
    pub cast_ns: u64,
    /// Cast back, ns.
    pub uncast_ns: u64,
    /// Device bytes while it is quantised, scales included.
    pub quantized_bytes: u64,
    /// `BAGUALU_TENSOR_…`, or-ed.
    pub flags: u32,
    /// Index of the tensor that this is a cast copy of (`BAGUALU_TENSOR_HAS_SOURCE`).
    pub source: u32,
}

/// An operator of a layer at known rows. Sets of tensors have bit `1 << index`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct bagualu_op {
    /// Tensors it reads.
    pub reads: u64,
    /// Tensors it makes.
    pub makes: u64,
    /// Tensors it saves for its backward.
    pub saves: u64,
    /// Forward time, ns: what running it again costs.
    pub forward_ns: u64,
    /// The group of its collective, a `bagualu_group`.
    pub collective: u32,
    /// 0.
    pub reserved: u32,
}

/// One layer of a selection, at known rows.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct bagualu_layer {
    /// Its tensors; read during the call.
    pub tensors: *const bagualu_tensor,
    /// How many.
    pub tensor_count: usize,
    /// Its operators; read during the call.
    pub ops: *const bagualu_op,
    /// How many.
    pub op_count: usize,
}

/// A strategy for each saved tensor of a layer, as three sets (bit `1 << index`); a tensor in none of them is kept.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct bagualu_layer_plan {
    /// Tensors recomputed.
    pub recompute: u64,
    /// Tensors offloaded.
    pub offload: u64,
    /// Tensors quantised.
    pub quantize: u64,
}

/// Writes the `bagualu_strategy` of the first `count` tensors of a layer into `strategies`, one byte each.
///
/// Thread-safe.
///
/// # Safety
/// - `plan` is NULL or a plan; `strategies` is NULL or has room for `count`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bagualu_layer_plan_strategies(
    plan: *const bagualu_layer_plan,
    strategies: *mut u8,
    count: usize,
) -> bagualu_status {
    boundary(|| {
        // SAFETY: the contract of this function.
        let (plan, strategies) =
            unsafe { (elements(plan, 1, "plan")?, room(strategies, count, "strategies")?) };
        if count > MAX_TENSORS {
            return Err(Failure::new(
                bagualu_status::Count,
                format!("count is {count}; a layer has at most {MAX_TENSORS} tensors"),
            ));
        }
        let plan: LayerPlan = plan[0].into();
        strategies.write((0..count).map(|tensor| plan.strategy(tensor) as u8));
        Ok(())
    })
}

/// Writes the strategy of one tensor, a `bagualu_strategy`.
///
/// Thread-safe.
///
/// # Safety
/// - `plan` is NULL or a plan; `strategy` is NULL or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bagualu_layer_plan_strategy(
    plan: *const bagualu_layer_plan,
    tensor: usize,
    strategy: *mut u32,
) -> bagualu_status {
    boundary(|| {
        // SAFETY: the contract of this function.
        let (plan, out) = unsafe { (elements(plan, 1, "plan")?, out(strategy, "strategy")?) };
        if tensor >= MAX_TENSORS {
            return Err(Failure::index("tensor", tensor, MAX_TENSORS));
        }
        out.set(LayerPlan::from(plan[0]).strategy(tensor) as u32);
        Ok(())
    })
}

impl From<bagualu_layer_plan> for LayerPlan {
    fn from(plan: bagualu_layer_plan) -> Self {
        let bagualu_layer_plan { recompute, offload, quantize } = plan;
        let set = Set::from_bits;
        Self { recompute: set(recompute), offload: set(offload), quantize: set(quantize) }
    }
}

impl From<LayerPlan> for bagualu_layer_plan {
    fn from(plan: LayerPlan) -> Self {
        let LayerPlan { recompute, offload, quantize } = plan;
        Self { recompute: recompute.bits(), offload: offload.bits(), quantize: quantize.bits() }
    }
}

impl From<bagualu_bytes> for Bytes {
    fn from(bytes: bagualu_bytes) -> Self {
        Self { fixed: bytes.fixed, per_row: bytes.per_row }
    }
}

impl From<Bytes> for bagualu_bytes {
    fn from(bytes: Bytes) -> Self {
        Self { fixed: bytes.fixed, per_row: bytes.per_row }
    }
}

impl From<bagualu_time> for Time {
    fn from(time: bagualu_time) -> Self {
        Self { fixed_ns: time.fixed_ns, per_row_ps: time.per_row_ps }
    }
}

impl From<Time> for bagualu_time {
    fn from(time: Time) -> Self {
        Self { fixed_ns: time.fixed_ns, per_row_ps: time.per_row_ps }
    }
}

impl From<bagualu_rooflines> for Rooflines {
    fn from(rooflines: bagualu_rooflines) -> Self {
        let bagualu_rooflines { copy_out, copy_in, cast, uncast } = rooflines;
        let knee = |k: bagualu_knee| Knee { size_bytes: k.size_bytes, bytes_per_s: k.bytes_per_s };
        Self { copy_out: knee(copy_out), copy_in: knee(copy_in), cast: knee(cast), uncast: knee(uncast) }
    }
}

impl TryFrom<&bagualu_tensor_type> for TensorModel {
    type Error = Failure;

    fn try_from(tensor: &bagualu_tensor_type) -> Result<Self, Failure> {
        let flags = Flags::new(tensor.flags, tensor.source)?;
        Ok(Self {
            bytes: tensor.bytes.into(),
            block_input: flags.has(BAGUALU_TENSOR_BLOCK_INPUT),
            offload: flags.has(BAGUALU_TENSOR_OFFLOAD),
            quantized: flags.has(BAGUALU_TENSOR_QUANTIZE).then(|| tensor.quantized.into()),
            source: flags.source(),
        })
    }
}

impl TryFrom<&bagualu_tensor> for Tensor {
    type Error = Failure;

    fn try_from(tensor: &bagualu_tensor) -> Result<Self, Failure> {
        let flags = Flags::new(tensor.flags, tensor.source)?;
        let copy = CopyTimes { out_ns: tensor.copy_out_ns, in_ns: tensor.copy_in_ns };
        let bagualu_tensor { cast_ns, uncast_ns, quantized_bytes: bytes, .. } = *tensor;
        Ok(Self {
            bytes: tensor.bytes,
            block_input: flags.has(BAGUALU_TENSOR_BLOCK_INPUT),
            copy: flags.has(BAGUALU_TENSOR_OFFLOAD).then_some(copy),
            cast: flags.has(BAGUALU_TENSOR_QUANTIZE).then_some(CastTimes { cast_ns, uncast_ns, bytes }),
            source: flags.source(),
        })
    }
}

/// A tensor's flags, all of them known, and the source that they speak of.
struct Flags {
    bits: u32,
    source: u8,
}

impl Flags {
    fn new(bits: u32, source: u32) -> Result<Self, Failure> {
        if bits > 15 {
            return Err(Failure::value("flags", bits, "or BAGUALU_TENSOR_… together"));
        }
        let source = match u8::try_from(source) {
            Ok(source) => source,
            Err(_) if bits & BAGUALU_TENSOR_HAS_SOURCE == 0 => 0,
            Err(_) => return Err(Failure::index("source", source as usize, MAX_TENSORS)),
        };
        Ok(Self { bits, source })
    }

    fn has(&self, flag: u32) -> bool {
        self.bits & flag != 0
    }

    fn source(&self) -> Option<u8> {
        self.has(BAGUALU_TENSOR_HAS_SOURCE).then_some(self.source)
    }
}

impl TryFrom<&bagualu_op_type> for OpModel {
    type Error = Failure;

    fn try_from(op: &bagualu_op_type) -> Result<Self, Failure> {
        Ok(Self {
            reads: Set::from_bits(op.reads),
            makes: Set::from_bits(op.makes),
            saves: Set::from_bits(op.saves),
            forward: op.forward.into(),
            backward: op.backward.into(),
            resource: resource(op.resource)?,
            collective: collective(op.collective)?,
            forward_work: op.forward_work.into(),
            backward_work: op.backward_work.into(),
        })
    }
}

impl TryFrom<&bagualu_op> for Op {
    type Error = Failure;

    fn try_from(op: &bagualu_op) -> Result<Self, Failure> {
        check_reserved("ops", op.reserved)?;
        Ok(Self {
            reads: Set::from_bits(op.reads),
            makes: Set::from_bits(op.makes),
            saves: Set::from_bits(op.saves),
            forward_ns: op.forward_ns,
            collective: collective(op.collective)?,
        })
    }
}

pub(crate) fn resource(number: u32) -> Result<Resource, Failure> {
    Ok(match number {
        0 => Resource::Compute,
        1 => Resource::Communication,
        2 => Resource::CopyOut,
        3 => Resource::CopyIn,
        _ => return Err(Failure::value("resource", number, "give a bagualu_resource, 0 to 3")),
    })
}

fn collective(number: u32) -> Result<Option<Group>, Failure> {
    Ok(match number {
        0 => None,
        1 => Some(Group::Ep),
        2 => Some(Group::Tp),
        3 => Some(Group::Cp),
        4 => Some(Group::Pp),
        _ => return Err(Failure::value("collective", number, "give a bagualu_group, 0 to 4")),
    })
}

/// The number of a collective's group in C.
pub(crate) fn group_number(group: Option<Group>) -> u32 {
    group.map_or(0, |group| group as u32 + 1)
}

pub(crate) fn collectives(bits: u32) -> Result<Collectives, Failure> {
    if bits > 0b1111 {
        let fix = "or 1 << (group - 1) of the groups together; 0 allows none";
        return Err(Failure::value("allow_collectives", bits, fix));
    }
    let groups = [Group::Ep, Group::Tp, Group::Cp, Group::Pp];
    let allowed = groups.into_iter().filter(|&group| bits >> group as u32 & 1 == 1);
    Ok(allowed.fold(Collectives::NONE, Collectives::with))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_core() {
        use bagualu_core::layer::Strategy;
        let strategies = [
            (bagualu_strategy::Keep, Strategy::Keep),
            (bagualu_strategy::Recompute, Strategy::Recompute),
            (bagualu_strategy::Offload, Strategy::Offload),
            (bagualu_strategy::Quantize, Strategy::Quantize),
        ];
        for (c, core) in strategies {
            assert_eq!(c as u32, core as u32);
        }
        for number in 0..4 {
            assert_eq!(resource(number).map(|r| r as u32), Ok(number));
            assert_eq!(group_number(collective(number + 1).expect("known")), number + 1);
        }
        assert_eq!(collective(bagualu_group::None as u32), Ok(None));
        assert!(resource(4).is_err() && collective(5).is_err());
        assert_eq!(collectives(0b1111), Ok(Collectives::ALL));
        assert_eq!(collectives(0b10), Ok(Collectives::NONE.with(Group::Tp)));
    }

    #[test]
    fn flags_are_known_and_sources_are_indices() {
        let tensor =
            |flags, source| Tensor::try_from(&bagualu_tensor { flags, source, ..Default::default() });
        assert!(tensor(16, 0).is_err());
        assert!(tensor(BAGUALU_TENSOR_HAS_SOURCE, 256).is_err());
        assert_eq!(tensor(0, u32::MAX).map(|t| t.source), Ok(None));
        assert_eq!(tensor(BAGUALU_TENSOR_HAS_SOURCE, 3).map(|t| t.source), Ok(Some(3)));
    }
}
