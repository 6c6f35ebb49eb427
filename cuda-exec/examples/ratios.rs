//! Speed of the host device, as ratios measured in turn in one run.
//!
//! `cargo run --release -p bagualu-exec --example ratios [ROUNDS]`
//!
//! - Copies: the time of `memcpy` over that of a copy on a stream, submission and waiting included, for the same bytes.
//! - Hidden copies: how much longer a compute loop takes when the copies of a micro-batch run beside it, until both have ended.
//!   This needs a free core.
//!
//! Each figure is of the fastest of the rounds of its kind, which are short and many: on a machine with other work, that is what
//! comes closest to none.

use std::hint::black_box;
use std::ptr;
use std::time::{Duration, Instant};

use bagualu_exec::device::{Device, DeviceError, DeviceSlice, PinnedSlice, Stream, StreamUse};
use bagualu_exec::host::{HostConfig, HostDevice};

type Failure = Box<dyn std::error::Error>;

const COPY: u64 = 16 << 20;
/// Tensors that are offloaded beside the compute loop.
const TENSOR: u64 = 1 << 20;
const TENSORS: u64 = 8;

fn main() -> Result<(), Failure> {
    let rounds = std::env::args().nth(1).map_or(Ok(400), |rounds| rounds.parse::<u32>())?.max(1);
    let device = HostDevice::open(HostConfig::default())?;
    let out = device.create_stream(StreamUse::CopyOut)?;
    let compute = device.create_stream(StreamUse::Compute)?;
    let (memory, pinned) = (device.allocate(COPY)?, device.allocate_pinned(COPY)?);
    touch(memory.address(), COPY);
    touch(pinned.address(), COPY);
    println!("{rounds} rounds, the fastest of each");
    copies(&device, out, memory, pinned, rounds)?;
    hidden(&device, [compute, out], memory, pinned, rounds)?;
    Ok(())
}

fn copies(
    device: &HostDevice,
    stream: Stream,
    memory: DeviceSlice,
    pinned: PinnedSlice,
    rounds: u32,
) -> Result<(), Failure> {
    let (mut plain_out, mut plain_in) = (Duration::MAX, Duration::MAX);
    let (mut copy_out, mut copy_in) = (Duration::MAX, Duration::MAX);
    for _ in 0..rounds {
        plain_out = plain_out.min(timed(|| memcpy(memory.address(), pinned.address()))?);
        // SAFETY: both live until the stream has run empty, here and below.
        let there = || unsafe { device.copy_out(memory, pinned, stream) };
        copy_out = copy_out.min(timed(|| there().and_then(|()| device.synchronize(stream)))?);
        plain_in = plain_in.min(timed(|| memcpy(pinned.address(), memory.address()))?);
        // SAFETY: as above.
        let back = || unsafe { device.copy_in(pinned, memory, stream) };
        copy_in = copy_in.min(timed(|| back().and_then(|()| device.synchronize(stream)))?);
    }
    for (name, plain, copy) in [("copy_out", plain_out, copy_out), ("copy_in", plain_in, copy_in)] {
        println!(
            "{name}: {:.2} of memcpy ({:.1} and {:.1} GB/s, {} MiB)",
            plain.as_secs_f64() / copy.as_secs_f64(),
            gigabytes(copy),
            gigabytes(plain),
            COPY >> 20,
        );
    }
    Ok(())
}

fn hidden(
    device: &HostDevice,
    [compute, out]: [Stream; 2],
    memory: DeviceSlice,
    pinned: PinnedSlice,
    rounds: u32,
) -> Result<(), Failure> {
    let part = |i: u64| memory.part(i * TENSOR, TENSOR).zip(pinned.part(i * TENSOR, TENSOR));
    let offload = || -> Result<(), DeviceError> {
        for (from, to) in (0..TENSORS).filter_map(part) {
            // SAFETY: both live until the streams have run empty.
            unsafe { device.copy_out(from, to, out) }?;
        }
        Ok(())
    };
    let both = || device.synchronize(compute).and_then(|()| device.synchronize(out));
    let copy = || timed(|| offload().and_then(|()| both()));
    let mut copying = copy()?;
    for _ in 0..rounds {
        copying = copying.min(copy()?);
    }
    // Operators that take twice as long as the copies do.
    let products = products_for(copying * 2)?;
    let (mut without, mut with) = (Duration::MAX, Duration::MAX);
    for _ in 0..rounds {
        let run = || device.run(compute, move || multiply(products));
        without = without.min(timed(|| run().and_then(|()| both()))?);
        with = with.min(timed(|| run().and_then(|()| offload()).and_then(|()| both()))?);
    }
    println!(
        "hidden copies: {:+.1} % of a compute loop of {:.2} ms beside {} MiB copied out, {:.2} ms by themselves",
        (with.as_secs_f64() / without.as_secs_f64() - 1.0) * 100.0,
        without.as_secs_f64() * 1e3,
        (TENSORS * TENSOR) >> 20,
        copying.as_secs_f64() * 1e3,
    );
    Ok(())
}

fn timed(work: impl FnOnce() -> Result<(), DeviceError>) -> Result<Duration, DeviceError> {
    let begin = Instant::now();
    work()?;
    Ok(begin.elapsed())
}

fn gigabytes(time: Duration) -> f64 {
    COPY as f64 / time.as_secs_f64() / 1e9
}

fn memcpy(from: u64, to: u64) -> Result<(), DeviceError> {
    let from: *const u8 = ptr::with_exposed_provenance(from as usize);
    let to: *mut u8 = ptr::with_exposed_provenance_mut(to as usize);
    // SAFETY: two mappings of this length, in use by nobody else now.
    unsafe { ptr::copy_nonoverlapping(from, to, COPY as usize) };
    Ok(())
}

/// Writes to every page, so that none is fresh when it is timed.
fn touch(address: u64, bytes: u64) {
    let start: *mut u8 = ptr::with_exposed_provenance_mut(address as usize);
    // SAFETY: a mapping of this length, in use by nobody else now.
    unsafe { ptr::write_bytes(start, 1, bytes as usize) };
}

/// How many products take `time`.
fn products_for(time: Duration) -> Result<u32, DeviceError> {
    let mut hundred = Duration::MAX;
    for _ in 0..100 {
        hundred = hundred.min(timed(|| {
            multiply(100);
            Ok(())
        })?);
    }
    Ok((time.as_nanos() * 100 / hundred.as_nanos().max(1)) as u32)
}

const SIDE: usize = 48;

/// Products of matrices that stay in the nearest cache.
fn multiply(products: u32) {
    let (a, b) = ([[0.5f32; SIDE]; SIDE], [[0.25f32; SIDE]; SIDE]);
    for _ in 0..products {
        let mut c = [[0f32; SIDE]; SIDE];
        for (row, out) in black_box(&a).iter().zip(&mut c) {
            for (factor, other) in row.iter().zip(black_box(&b)) {
                for (sum, value) in out.iter_mut().zip(other) {
                    *sum += factor * value;
                }
            }
        }
        black_box(c);
    }
}
