//! The layer type of the pipeline rank, what its operators compute on the host device, and what they should.

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bagualu_core::cost::{Bytes, OpModel, TensorModel, Time};
use bagualu_core::layer::{Group, Resource};
use bagualu_core::narrow::{SCALE_BLOCK, row_bytes};
use bagualu_core::set::Set;
use bagualu_exec::device::{Device, DeviceSlice, Stream};
use bagualu_exec::fp8::{Block, Cast, CastShape, Format, Overflow, Scaling, Source};
use bagualu_exec::recompute::{Again, HookError};

/// Bytes of a routed row of each tensor of the MoE module.
pub const ROW: u64 = 64;
pub const BALANCED: u32 = 256;
pub const X: u64 = 4_096;

pub const X_IN: usize = 0;
pub const LN: usize = 1;
pub const ATTENTION: usize = 2;
pub const ROUTING: usize = 3;
pub const DISPATCHED: usize = 4;
pub const FC1: usize = 5;
pub const ACT: usize = 6;
pub const FIXED: [u64; 4] = [X, X, 2 * X, 512];
/// By operator: what it reads first, and what it makes.
pub const MAKES: [(usize, usize); 6] = [
    (X_IN, LN),
    (LN, ATTENTION),
    (ATTENTION, ROUTING),
    (ATTENTION, DISPATCHED),
    (DISPATCHED, FC1),
    (FC1, ACT),
];

pub fn tensors() -> [TensorModel; 7] {
    let fixed =
        |bytes, offload| TensorModel { bytes: Bytes::fixed(bytes), offload, ..TensorModel::default() };
    let routed = TensorModel { bytes: Bytes::per_row(ROW), offload: true, ..TensorModel::default() };
    let narrow = |numbers| row_bytes(numbers).expect("small");
    [
        TensorModel { block_input: true, ..fixed(FIXED[X_IN], false) },
        TensorModel { quantized: Some(Bytes::fixed(narrow(X / 2))), ..fixed(FIXED[LN], true) },
        fixed(FIXED[ATTENTION], true),
        TensorModel { block_input: true, ..fixed(FIXED[ROUTING], false) },
        TensorModel { quantized: Some(Bytes::per_row(narrow(ROW / 2))), ..routed },
        routed,
        TensorModel { quantized: Some(Bytes::per_row(narrow(ROW / 2))), ..routed },
    ]
}

pub fn ops() -> [OpModel; 7] {
    let set = |tensors: &[usize]| tensors.iter().copied().collect::<Set>();
    let op = |reads: &[usize], makes: &[usize], saves: &[usize], work: Bytes| OpModel {
        reads: set(reads),
        makes: set(makes),
        saves: set(saves),
        forward: Time { fixed_ns: 2_000, per_row_ps: 10 * work.per_row },
        backward: Time { fixed_ns: 4_000, per_row_ps: 20 * work.per_row },
        resource: Resource::Compute,
        collective: None,
        forward_work: work,
        backward_work: work,
    };
    [
        op(&[X_IN], &[LN], &[X_IN], Bytes::fixed(256)),
        op(&[LN], &[ATTENTION], &[LN], Bytes::fixed(1_024)),
        op(&[ATTENTION], &[ROUTING], &[ATTENTION], Bytes::fixed(256)),
        OpModel {
            collective: Some(Group::Ep),
            resource: Resource::Communication,
            ..op(&[ATTENTION, ROUTING], &[DISPATCHED], &[ROUTING], Bytes::per_row(16))
        },
        op(&[DISPATCHED], &[FC1], &[DISPATCHED], Bytes::per_row(32)),
        op(&[FC1], &[ACT], &[FC1], Bytes::per_row(16)),
        op(&[ACT], &[], &[ACT], Bytes::per_row(ROW)),
    ]
}

#[derive(Debug, Default)]
pub struct Checks {
    pub done: AtomicU64,
    pub wrong: AtomicU64,
    pub hooks: AtomicU64,
}

/// How a tensor of BF16 is cast: each row a block.
pub fn cast_of(tensor: usize, bytes: u64) -> Option<Cast> {
    let columns = match tensor {
        LN => X / 2,
        DISPATCHED | ACT => ROW / 2,
        _ => return None,
    };
    let scaling = Scaling::Blocks(Block { rows: 1, columns: SCALE_BLOCK as u32 });
    let shape = CastShape::new(bytes / 2 / columns, columns, scaling, Source::Bf16).expect("a shape");
    Some(Cast { shape, format: Format::E4m3, overflow: Overflow::Saturate })
}

/// `parts` equal runs of `first..end`; the last is what is left.
pub fn ranges(first: u32, end: u32, parts: u32) -> impl Iterator<Item = (u32, u32)> {
    let size = (end - first).div_ceil(parts.max(1)).max(1);
    (0..parts.max(1)).map(move |part| {
        let from = (first + part * size).min(end);
        (from, (from + size).min(end))
    })
}

/// Runs an operator again, from what the hook is given alone.
pub fn again_of(device: &Arc<dyn Device>, seed: u64, again: &Again<'_>) -> Result<(), HookError> {
    let payload = seed ^ again.op as u64;
    if again.payload != payload || again.rng != payload.to_le_bytes() {
        return Err(format!("{again:?} was given another's payload").into());
    }
    let (reads, makes) = MAKES[again.op];
    let (Some(from), Some(out)) = (again.tensor(reads), again.tensor(makes)) else {
        return Err(format!("{again:?} lacks its tensors").into());
    };
    let (part, parts) = again.part.unwrap_or((0, 1));
    let (first, end) = ranges(0, again.rows, parts).nth(part as usize).ok_or("no such part")?;
    let routed = |tensor: usize, memory: DeviceSlice| {
        let bytes = if tensor >= DISPATCHED { u64::from(end - first) * ROW } else { memory.bytes() };
        memory.part(0, bytes).ok_or("a tensor is too short")
    };
    let first = if makes == DISPATCHED { first } else { 0 };
    let operator =
        Operator::Map { op: again.op, from: routed(reads, from)?, first, out: routed(makes, out)? };
    launch(&**device, again.stream, operator);
    Ok(())
}

/// Work of the compute stream.
pub enum Operator {
    Input {
        seed: u64,
        out: DeviceSlice,
    },
    /// `out[i] = f(from[first + i])`, rows counted from `first`, `from` taken round and round.
    Map {
        op: usize,
        from: DeviceSlice,
        first: u32,
        out: DeviceSlice,
    },
    Check {
        seed: u64,
        tensor: usize,
        start: u32,
        memory: DeviceSlice,
        checks: Arc<Checks>,
    },
}

pub fn launch(device: &dyn Device, stream: Stream, operator: Operator) {
    let data = Box::into_raw(Box::new(operator)).cast::<c_void>();
    // SAFETY: `call` takes the box, once; what the operator names lives as the store's contract has it.
    if unsafe { device.launch(call, data, stream) }.is_err() {
        // SAFETY: the device refused, so it does not call.
        drop(unsafe { Box::from_raw(data.cast::<Operator>()) });
    }
}

unsafe extern "C-unwind" fn call(data: *mut c_void) {
    // SAFETY: the box of `launch`, called once.
    match *unsafe { Box::from_raw(data.cast::<Operator>()) } {
        Operator::Input { seed, out } => input(seed, numbers(out)),
        Operator::Map { op, from, first, out } => map(op, numbers(from), first, numbers(out)),
        Operator::Check { seed, tensor, start, memory, checks } => {
            let found = numbers(memory);
            let expected = expected(seed, tensor, start, found.len());
            checks.done.fetch_add(1, Ordering::Relaxed);
            checks.wrong.fetch_add(u64::from(*found != expected[..]), Ordering::Relaxed);
        }
    }
}

/// A tensor as BF16 numbers, by their bits.
pub fn numbers(of: DeviceSlice) -> &'static mut [u16] {
    if of.bytes() == 0 {
        return &mut [];
    }
    let start = std::ptr::with_exposed_provenance_mut(of.address() as usize);
    // SAFETY: device memory of the host is this process's; the operators of one stream use it one after another, and
    // operators write only what they make.
    unsafe { std::slice::from_raw_parts_mut(start, of.bytes() as usize / 2) }
}

/// Whole numbers of −7 to 7, which FP8 keeps exactly.
pub fn number(value: u64) -> u16 {
    let value = (value % 15) as i32 - 7;
    ((value as f32).to_bits() >> 16) as u16
}

pub fn input(seed: u64, out: &mut [u16]) {
    for (i, out) in out.iter_mut().enumerate() {
        *out = number((seed ^ i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40);
    }
}

pub fn map(op: usize, from: &[u16], first: u32, out: &mut [u16]) {
    let skip = first as usize * ROW as usize / 2;
    for (i, out) in out.iter_mut().enumerate() {
        let read = from.get((skip + i) % from.len().max(1)).copied().unwrap_or(0);
        let value = f32::from_bits(u32::from(read) << 16) as i32 + 7;
        *out = number(value as u64 * 2 + op as u64 + 1);
    }
}

/// A tensor from scratch: `len` numbers from row `start` on.
pub fn expected(seed: u64, tensor: usize, start: u32, len: usize) -> Vec<u16> {
    let mut made = vec![0; X as usize / 2];
    input(seed, &mut made);
    if tensor == X_IN {
        return made;
    }
    for tensor_made in chain(tensor) {
        let (op, routed) = (tensor_made - 1, tensor_made >= DISPATCHED);
        let (length, first) = match (routed, tensor_made) {
            (false, _) => (FIXED[tensor_made] as usize / 2, 0),
            (true, DISPATCHED) => (len, start),
            (true, _) => (len, 0),
        };
        let mut out = vec![0; length];
        map(op, &made, first, &mut out);
        made = out;
    }
    made
}

/// The tensors that are made on the way to one.
pub fn chain(tensor: usize) -> impl Iterator<Item = usize> {
    (LN..=tensor).filter(move |&made| made != ROUTING || tensor == ROUTING)
}
