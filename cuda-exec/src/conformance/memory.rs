//! Allocation and free memory.

use super::Outcome;
use super::bench::{Bench, check, contents, fail, same};
use crate::device::{ALIGNMENT, DeviceError};

/// No device has as much.
const HUGE: u64 = 1 << 60;

pub(super) fn allocations_are_apart(bench: &Bench) -> Result<(), Outcome> {
    let sizes = [1, 2, 63, 255, 256, 257, 1000, 4096, 65_537];
    let filled = sizes.iter().zip(1..).map(|(&bytes, seed)| bench.filled(bytes, seed));
    let sources = filled.collect::<Result<Vec<_>, _>>()?;
    let memory = sizes.iter().map(|&bytes| bench.memory(bytes)).collect::<Result<Vec<_>, _>>()?;
    let results = sizes.iter().map(|&bytes| bench.pinned(bytes)).collect::<Result<Vec<_>, _>>()?;
    let mut ranges: Vec<_> = memory.iter().map(|slice| (slice.address(), slice.bytes())).collect();
    ranges.sort_unstable();
    for pair in ranges.windows(2) {
        check(pair[0].0 + pair[0].1 <= pair[1].0, "allocations do not overlap")?;
    }
    let stream = bench.stream()?;
    for (from, to) in sources.iter().zip(&memory) {
        check(to.address().is_multiple_of(ALIGNMENT), "device memory is aligned")?;
        bench.copy_in(**from, **to, *stream)?;
    }
    for (from, to) in memory.iter().zip(&results) {
        bench.copy_out(**from, **to, *stream)?;
    }
    bench.device().synchronize(*stream)?;
    for (result, source) in results.iter().zip(&sources) {
        same(&result.read(), &source.read(), "contents of neighbours")?;
    }
    Ok(())
}

pub(super) fn pinned_memory_is_aligned_and_readable(bench: &Bench) -> Result<(), Outcome> {
    for bytes in [1, 4097, bench.large()] {
        let pinned = bench.pinned(bytes)?;
        check(pinned.address().is_multiple_of(ALIGNMENT), "pinned memory is aligned")?;
        let mut expected = vec![0; bytes as usize];
        contents(bytes, &mut expected);
        pinned.write(|to| to.copy_from_slice(&expected));
        same(&pinned.read(), &expected, "pinned memory")?;
    }
    Ok(())
}

pub(super) fn a_huge_allocation_is_out_of_memory(bench: &Bench) -> Result<(), Outcome> {
    match bench.memory(HUGE) {
        Err(DeviceError::OutOfMemory { bytes: HUGE, .. }) => {}
        Err(other) => return Err(fail(format!("device memory: another error: {other}"))),
        Ok(_) => return Err(fail("device memory: 2^60 bytes were given out")),
    }
    // Not `Bench::pinned`, which would write to it.
    match bench.device().allocate_pinned(HUGE) {
        Err(DeviceError::OutOfPinnedMemory { bytes: HUGE }) => {}
        Err(other) => return Err(fail(format!("pinned memory: another error: {other}"))),
        Ok(_) => return Err(fail("pinned memory: 2^60 bytes were given out")),
    }
    bench.memory(1)?;
    bench.pinned(1)?;
    Ok(())
}

pub(super) fn free_memory_moves(bench: &Bench) -> Result<(), Outcome> {
    let before = bench.device().memory()?;
    check(before.total > 0 && before.free <= before.total, "free memory is part of all memory")?;
    if !bench.options.exclusive {
        return Err(Outcome::NotRun("others use this memory too".to_owned()));
    }
    // Small allocations may come out of a block that is there already.
    let bytes = (before.free / 8).min(256 << 20);
    let memory = bench.memory(bytes)?;
    let during = bench.device().memory()?;
    check(during.total == before.total, "all memory stays")?;
    check(during.free <= before.free - bytes / 2, "an allocation is seen in free memory")?;
    drop(memory);
    let after = bench.device().memory()?;
    check(after.free >= during.free + bytes / 2, "freeing is seen in free memory")
}
