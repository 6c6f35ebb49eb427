//! The measurements. Times are wall-clock, from an idle device to an idle device; what is compared is measured in turn.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bagualu_exec::device::{Device, DeviceSlice, PinnedSlice, Stream, StreamUse};
use bagualu_exec::engine::{Engine, EngineConfig, Key};
use bagualu_exec::fp8::{Block, Cast, CastShape, Format, Overflow, Scaling, Source};

use crate::Bench;
use crate::json::Object;

/// Measurements of each side; the median counts.
const ROUNDS: usize = 9;
/// Tensors that the bytes of a copy are divided into.
const TENSORS: u64 = 8;

/// Copies out and in by the engine (reservation, events, tickets) against plain pinned copies of the same bytes.
pub fn copies(bench: &Bench, bytes: u64) -> Result<Object, String> {
    let each = bytes / TENSORS;
    let stream = OwnStream::new(bench, StreamUse::CopyOut)?;
    let idle = OwnStream::new(bench, StreamUse::Compute)?;
    let tensors =
        (0..TENSORS).map(|seed| Memory::filled(bench, each, seed)).collect::<Result<Vec<_>, _>>()?;
    let pinned = (0..TENSORS).map(|_| Pinned::new(bench, each)).collect::<Result<Vec<_>, _>>()?;
    let mut engine = engine(bench, bytes)?;

    let (mut plain, mut ours) = ([Vec::new(), Vec::new()], [Vec::new(), Vec::new()]);
    for _ in 0..ROUNDS {
        plain[0].push(timed(|| {
            for (from, to) in tensors.iter().zip(&pinned) {
                // SAFETY: both live until the stream has run empty, which is waited for here.
                unsafe { bench.device.copy_out(from.slice, to.slice, stream.stream) }.map_err(say)?;
            }
            bench.device.synchronize(stream.stream).map_err(say)
        })?);
        plain[1].push(timed(|| {
            for (to, from) in tensors.iter().zip(&pinned) {
                // SAFETY: as above.
                unsafe { bench.device.copy_in(from.slice, to.slice, stream.stream) }.map_err(say)?;
            }
            bench.device.synchronize(stream.stream).map_err(say)
        })?);
        let mut tickets = Vec::new();
        ours[0].push(timed(|| {
            for (tensor, memory) in (0..).zip(&tensors) {
                let reserved = engine.reserve(Key { unit: 0, layer: 0, tensor }, each).map_err(say)?;
                // SAFETY: the tensor lives, unchanged, until the engine is drained.
                tickets.push(unsafe { engine.offload(memory.slice, idle.stream, reserved) }.map_err(say)?);
            }
            engine.block_until_released(bytes).map_err(say)
        })?);
        while engine.poll_copied_out().map_err(say)?.is_some() {}
        ours[1].push(timed(|| {
            for (ticket, memory) in tickets.iter().zip(&tensors) {
                // SAFETY: the memory is used by nothing else until the consumer has waited.
                unsafe { engine.reload(ticket, memory.slice, None) }.map_err(say)?;
            }
            for ticket in tickets.drain(..) {
                engine.wait(ticket, idle.stream).map_err(say)?;
            }
            bench.device.synchronize(idle.stream).map_err(say)
        })?);
    }
    engine.drain().map_err(say)?;

    let mut result = Object::default();
    result.number("bytes", bytes).number("tensors", TENSORS);
    for (direction, (plain, ours)) in ["out", "in"].into_iter().zip(plain.iter_mut().zip(&mut ours)) {
        let (plain, ours) = (median(plain), median(ours));
        let mut one = Object::default();
        one.number("plain_bytes_per_s", rate(bytes, plain)).number("engine_bytes_per_s", rate(bytes, ours));
        one.ratio("engine_to_plain", quotient(plain, ours));
        result.raw(direction, &one.finish());
    }
    Ok(result)
}

/// Casts to FP8 and back against a copy on the device, all three in bytes read and written.
pub fn casts(bench: &Bench, bytes: u64) -> Result<Object, String> {
    let mut result = Object::default();
    let Some(copy_within) = &bench.copy_within else {
        result.text("not_run", "no copy on the device to compare with");
        return Ok(result);
    };
    // The rows of a hidden size of 4096, and the planner's blocks.
    let shape = CastShape::new(bytes / 2 / 4096, 4096, Scaling::Blocks(Block::default()), Source::Bf16);
    let shape = shape.map_err(say)?;
    let (wide, narrow, blocks) =
        (shape.source_bytes() as u64, shape.elements() as u64, shape.scales() as u64 * 4);
    let (from, to) = (Memory::filled(bench, wide, 1)?, Memory::new(bench, wide)?);
    let (values, scales) = (Memory::new(bench, narrow)?, Memory::new(bench, blocks)?);
    let stream = OwnStream::new(bench, StreamUse::Compute)?;
    let done = || bench.device.synchronize(stream.stream).map_err(say);
    // What is submitted lives until `done` has returned.
    let copy = || {
        copy_within(from.slice, to.slice, stream.stream).map_err(say)?;
        done()
    };
    for format in Format::ALL {
        let cast = Cast { shape, format, overflow: Overflow::Saturate };
        let quantize = || {
            // SAFETY: as said.
            unsafe { bench.device.quantize(&cast, from.slice, values.slice, scales.slice, stream.stream) }
                .map_err(say)?;
            done()
        };
        let dequantize = || {
            // SAFETY: as said.
            unsafe { bench.device.dequantize(&cast, values.slice, scales.slice, to.slice, stream.stream) }
                .map_err(say)?;
            done()
        };
        // The first cast loads the kernels.
        quantize()?;
        let (mut copied, mut out, mut back) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            copied.push(timed(copy)?);
            out.push(timed(quantize)?);
            back.push(timed(dequantize)?);
        }
        let moved = wide + narrow + blocks;
        let [copied, out, back] = [(2 * wide, copied), (moved, out), (moved, back)]
            .map(|(bytes, mut times)| rate(bytes, median(&mut times)));
        let mut one = Object::default();
        one.number("copy_bytes_per_s", copied).number("quantize_bytes_per_s", out);
        one.number("dequantize_bytes_per_s", back);
        one.ratio("quantize_to_copy", out as f64 / copied as f64);
        one.ratio("dequantize_to_copy", back as f64 / copied as f64);
        result.raw(&format!("{format:?}").to_lowercase(), &one.finish());
    }
    result.number("bytes", wide);
    Ok(result)
}

/// Copies out beside matrix products, against the products alone.
pub fn overlap(bench: &Bench, bytes: u64) -> Result<Object, String> {
    let mut result = Object::default();
    let Some(products) = &bench.products else {
        result.text("not_run", "no matrix product is at hand for this device");
        return Ok(result);
    };
    let products = match products(bench) {
        Ok(products) => products,
        Err(reason) => {
            result.text("not_run", &reason);
            return Ok(result);
        }
    };
    let each = bytes / TENSORS;
    let compute = OwnStream::new(bench, StreamUse::Compute)?;
    let idle = OwnStream::new(bench, StreamUse::Compute)?;
    let tensors =
        (0..TENSORS).map(|seed| Memory::filled(bench, each, seed)).collect::<Result<Vec<_>, _>>()?;
    let raw = bench.device.raw_stream(compute.stream).map_err(say)?;
    let mut engine = engine(bench, bytes)?;
    let run = |count| {
        timed(|| {
            products.submit(raw, count)?;
            bench.device.synchronize(compute.stream).map_err(say)
        })
    };
    let mut copy = |count: u32| {
        // The time until the products are done, not the copies.
        let mut until_computed = Duration::ZERO;
        let all = timed(|| {
            let start = Instant::now();
            products.submit(raw, count)?;
            let mut tickets = Vec::new();
            for (tensor, memory) in (0..).zip(&tensors) {
                let reserved = engine.reserve(Key { unit: 0, layer: 0, tensor }, each).map_err(say)?;
                // SAFETY: the tensor lives, unchanged, until the engine is drained.
                tickets.push(unsafe { engine.offload(memory.slice, idle.stream, reserved) }.map_err(say)?);
            }
            bench.device.synchronize(compute.stream).map_err(say)?;
            until_computed = start.elapsed();
            engine.block_until_released(bytes).map_err(say)?;
            tickets.drain(..).try_for_each(|ticket| engine.cancel(ticket)).map_err(say)
        })?;
        while engine.poll_copied_out().map_err(say)?.is_some() {}
        Ok::<_, String>((until_computed, all))
    };
    // The first of each loads kernels and pins memory.
    run(1)?;
    copy(0)?;
    let (one, copies) = (run(1)?, copy(0)?.1);
    // Products for half as long again as the copies take.
    let count = 1 + (copies.as_nanos() * 3 / 2 / one.as_nanos().max(1)).min(10_000) as u32;
    let (mut alone, mut beside, mut both) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        alone.push(run(count)?);
        let (computed, all) = copy(count)?;
        beside.push(computed);
        both.push(all);
    }
    let (alone, beside, both) = (median(&mut alone), median(&mut beside), median(&mut both));
    result.number("bytes", bytes).number("products", count.into());
    result.number("copies_ns", nanoseconds(copies)).number("products_ns", nanoseconds(alone));
    result.number("products_beside_copies_ns", nanoseconds(beside)).number("both_ns", nanoseconds(both));
    result.ratio("beside_to_alone", quotient(beside, alone));
    Ok(result)
}

fn engine(bench: &Bench, bytes: u64) -> Result<Engine, String> {
    let cap = bytes.saturating_mul(2);
    let mut engine = Engine::new(Arc::clone(&bench.device), EngineConfig::new(cap, 1)).map_err(say)?;
    engine.warm(bytes).map_err(say)?;
    Ok(engine)
}

/// Runs `work` and says how long it took.
fn timed(work: impl FnOnce() -> Result<(), String>) -> Result<Duration, String> {
    let start = Instant::now();
    work()?;
    Ok(start.elapsed())
}

fn median(times: &mut [Duration]) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

fn quotient(over: Duration, under: Duration) -> f64 {
    over.as_secs_f64() / under.as_secs_f64()
}

/// Bytes per second.
fn rate(bytes: u64, time: Duration) -> u64 {
    let rate = u128::from(bytes) * 1_000_000_000 / time.as_nanos().max(1);
    u64::try_from(rate).unwrap_or(u64::MAX)
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn say(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// Device memory. Given back when it is dropped: after the streams that use it have run empty.
pub struct Memory {
    device: Arc<dyn Device>,
    pub slice: DeviceSlice,
}

impl Memory {
    pub fn new(bench: &Bench, bytes: u64) -> Result<Self, String> {
        let slice = bench.device.allocate(bytes).map_err(say)?;
        Ok(Self { device: Arc::clone(&bench.device), slice })
    }

    /// With BF16 numbers below 2 of `seed`: what is multiplied and cast should not be zeros, which are faster.
    pub fn filled(bench: &Bench, bytes: u64, seed: u64) -> Result<Self, String> {
        let memory = Self::new(bench, bytes)?;
        let piece = bytes.min(8 << 20);
        let pinned = Pinned::new(bench, piece)?;
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        for number in pinned.as_mut_slice().chunks_exact_mut(2) {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            // Any sign and significand; an exponent from 2^-7 to 2^0.
            let bits = (state as u16 & 0x807f) | (120 + (state >> 32) as u16 % 8) << 7;
            number.copy_from_slice(&bits.to_ne_bytes());
        }
        let stream = OwnStream::new(bench, StreamUse::CopyIn)?;
        let mut at = 0;
        while at < bytes {
            let long = piece.min(bytes - at);
            let (to, from) = (memory.slice.part(at, long), pinned.slice.part(0, long));
            let (to, from) =
                (to.ok_or("a part outside its memory")?, from.ok_or("a part outside its memory")?);
            // SAFETY: both live until the stream has run empty, below.
            unsafe { bench.device.copy_in(from, to, stream.stream) }.map_err(say)?;
            at += long;
        }
        bench.device.synchronize(stream.stream).map_err(say)?;
        Ok(memory)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: a whole allocation, given back once, and the streams that use it have run empty.
        let _ = unsafe { self.device.free(self.slice) };
    }
}

/// Pinned memory, as [`Memory`].
struct Pinned {
    device: Arc<dyn Device>,
    slice: PinnedSlice,
}

impl Pinned {
    fn new(bench: &Bench, bytes: u64) -> Result<Self, String> {
        let slice = bench.device.allocate_pinned(bytes).map_err(say)?;
        let pinned = Self { device: Arc::clone(&bench.device), slice };
        // Its pages are there before a copy is timed.
        pinned.as_mut_slice().fill(0);
        Ok(pinned)
    }

    #[allow(
        clippy::mut_from_ref,
        reason = "nothing else of this program refers to it while no copy is under way"
    )]
    fn as_mut_slice(&self) -> &mut [u8] {
        // SAFETY: pinned memory of that many bytes, readable by the processor, and no copy of it is under way.
        unsafe { std::slice::from_raw_parts_mut(self.slice.as_mut_ptr(), self.slice.bytes() as usize) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // SAFETY: as for `Memory`.
        let _ = unsafe { self.device.free_pinned(self.slice) };
    }
}

/// A stream that ends with its scope, after its work.
struct OwnStream {
    device: Arc<dyn Device>,
    stream: Stream,
}

impl OwnStream {
    fn new(bench: &Bench, use_for: StreamUse) -> Result<Self, String> {
        let stream = bench.device.create_stream(use_for).map_err(say)?;
        Ok(Self { device: Arc::clone(&bench.device), stream })
    }
}

impl Drop for OwnStream {
    fn drop(&mut self) {
        let _ = self.device.synchronize(self.stream);
        let _ = self.device.destroy_stream(self.stream);
    }
}
