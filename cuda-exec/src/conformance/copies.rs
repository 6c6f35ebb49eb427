//! Contents through copies.

use std::thread;

use super::Outcome;
use super::bench::{Bench, fail, same};
use crate::device::{DeviceError, DeviceSlice, PinnedSlice};

fn device_part(of: DeviceSlice, offset: u64, bytes: u64) -> Result<DeviceSlice, Outcome> {
    of.part(offset, bytes).ok_or_else(|| fail("a part inside a slice"))
}

fn pinned_part(of: PinnedSlice, offset: u64, bytes: u64) -> Result<PinnedSlice, Outcome> {
    of.part(offset, bytes).ok_or_else(|| fail("a part inside a slice"))
}

pub(super) fn contents_at_odd_sizes_and_offsets(bench: &Bench) -> Result<(), Outcome> {
    for (seed, bytes) in
        [1, 2, 3, 15, 255, 256, 257, 4095, 4097, 65_537, bench.large() + 1].into_iter().enumerate()
    {
        for [source_at, device_at, result_at] in [[0, 0, 0], [1, 0, 2], [0, 1, 0], [3, 5, 7], [64, 31, 1]] {
            let whole = bytes + 64;
            let (source, before) = (bench.filled(whole, seed as u64)?, bench.filled(whole, 99)?);
            let (middle, result, around) = (bench.memory(whole)?, bench.pinned(whole)?, bench.pinned(whole)?);
            let stream = bench.stream()?;
            bench.copy_in(*before, *middle, *stream)?;
            let target = device_part(*middle, device_at, bytes)?;
            bench.copy_in(pinned_part(*source, source_at, bytes)?, target, *stream)?;
            bench.copy_out(target, pinned_part(*result, result_at, bytes)?, *stream)?;
            bench.copy_out(*middle, *around, *stream)?;
            bench.device().synchronize(*stream)?;

            let part = |of: &[u8], at: u64| of[at as usize..(at + bytes) as usize].to_vec();
            let sent = part(&source.read(), source_at);
            let mut expected = vec![0; whole as usize];
            expected[result_at as usize..(result_at + bytes) as usize].copy_from_slice(&sent);
            same(&result.read(), &expected, "pinned memory in and around the copy")?;
            let mut expected = before.read();
            expected[device_at as usize..(device_at + bytes) as usize].copy_from_slice(&sent);
            same(&around.read(), &expected, "device memory in and around the copy")?;
        }
    }
    Ok(())
}

pub(super) fn empty_copies(bench: &Bench) -> Result<(), Outcome> {
    let (pinned, memory) = (bench.filled(64, 1)?, bench.memory(64)?);
    let (no_memory, no_pinned) = (bench.memory(0)?, bench.pinned(0)?);
    let event = bench.event()?;
    let stream = bench.stream()?;
    bench.copy_in(pinned_part(*pinned, 64, 0)?, device_part(*memory, 0, 0)?, *stream)?;
    bench.copy_out(device_part(*memory, 64, 0)?, pinned_part(*pinned, 0, 0)?, *stream)?;
    bench.copy_in(*no_pinned, *no_memory, *stream)?;
    bench.copy_out(*no_memory, *no_pinned, *stream)?;
    bench.device().record(*event, *stream)?;
    bench.device().wait(*event)?;
    Ok(())
}

pub(super) fn unequal_lengths_are_refused(bench: &Bench) -> Result<(), Outcome> {
    let (pinned, memory) = (bench.filled(64, 1)?, bench.memory(64)?);
    let result = bench.pinned(64)?;
    let stream = bench.stream()?;
    let (short, short_memory) = (pinned_part(*pinned, 0, 63)?, device_part(*memory, 0, 63)?);
    for refused in [
        bench.copy_in(short, *memory, *stream),
        bench.copy_in(*pinned, short_memory, *stream),
        bench.copy_out(short_memory, *pinned, *stream),
        bench.copy_out(*memory, short, *stream),
    ] {
        match refused {
            Err(DeviceError::Mismatch { from, to, .. }) if from + to == 127 => {}
            other => return Err(fail(format!("unequal lengths gave {other:?}"))),
        }
    }
    bench.copy_in(*pinned, *memory, *stream)?;
    bench.copy_out(*memory, *result, *stream)?;
    bench.device().synchronize(*stream)?;
    same(&result.read(), &pinned.read(), "a copy after those refused")
}

pub(super) fn one_stream_keeps_its_order(bench: &Bench) -> Result<(), Outcome> {
    const ROUNDS: u64 = 32;
    let bytes = bench.large() / 4;
    let sources = (0..ROUNDS).map(|i| bench.filled(bytes, i)).collect::<Result<Vec<_>, _>>()?;
    let results = (0..ROUNDS).map(|_| bench.pinned(bytes)).collect::<Result<Vec<_>, _>>()?;
    let memory = bench.memory(bytes)?;
    let stream = bench.stream()?;
    for (source, result) in sources.iter().zip(&results) {
        bench.copy_in(**source, *memory, *stream)?;
        bench.copy_out(*memory, **result, *stream)?;
    }
    bench.device().synchronize(*stream)?;
    sources.iter().zip(&results).try_for_each(|(a, b)| same(&b.read(), &a.read(), "through one buffer"))
}

pub(super) fn large_copies_meet_both_ways(bench: &Bench) -> Result<(), Outcome> {
    let bytes = bench.large() * 4;
    let (source, elsewhere) = (bench.filled(bytes, 1)?, bench.filled(bytes, 2)?);
    let (out, back) = (bench.pinned(bytes)?, bench.pinned(bytes)?);
    let (here, there) = (bench.memory(bytes)?, bench.memory(bytes)?);
    let (outwards, inwards) = (bench.stream()?, bench.stream()?);
    bench.copy_in(*source, *here, *outwards)?;
    bench.device().synchronize(*outwards)?;
    bench.copy_out(*here, *out, *outwards)?;
    bench.copy_in(*elsewhere, *there, *inwards)?;
    bench.device().synchronize(*outwards)?;
    bench.copy_out(*there, *back, *inwards)?;
    bench.device().synchronize(*inwards)?;
    same(&out.read(), &source.read(), "copied out")?;
    same(&back.read(), &elsewhere.read(), "copied in")
}

pub(super) fn many_threads_submit(bench: &Bench) -> Result<(), Outcome> {
    const THREADS: u64 = 8;
    const ROUNDS: u64 = 24;
    let shared = bench.stream()?;
    let one = |thread: u64| -> Result<(), Outcome> {
        for round in 0..ROUNDS {
            let bytes = 1000 + 777 * (thread + round);
            let (source, result) = (bench.filled(bytes, thread * ROUNDS + round)?, bench.pinned(bytes)?);
            let memory = bench.memory(bytes)?;
            let (full, done, own) = (bench.event()?, bench.event()?, bench.stream()?);
            // In on a stream of its own, out on one shared by all.
            bench.copy_in(*source, *memory, *own)?;
            bench.device().record(*full, *own)?;
            bench.device().stream_wait(*shared, *full)?;
            bench.copy_out(*memory, *result, *shared)?;
            bench.device().record(*done, *shared)?;
            bench.device().wait(*done)?;
            same(&result.read(), &source.read(), "through two streams")?;
        }
        Ok(())
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|thread| scope.spawn(move || one(thread))).collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().unwrap_or_else(|_| Err(fail("a thread panicked"))))
    })
}
