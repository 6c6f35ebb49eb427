//! Streams: order, independence, ends.

use std::ffi::c_void;
use std::sync::Mutex;
use std::sync::PoisonError;

use super::Outcome;
use super::bench::{Bench, check, same};
use crate::device::{Device, DeviceError, StreamUse};
use crate::host::{HostConfig, HostDevice};

/// A number to be noted down by a host function.
struct Note<'a> {
    number: u32,
    list: &'a Mutex<Vec<u32>>,
}

/// # Safety
/// - `data` is a `Note` that lives until this returns.
unsafe extern "C-unwind" fn take_note(data: *mut c_void) {
    // SAFETY: as required of the caller.
    let note = unsafe { &*data.cast::<Note<'_>>() };
    note.list.lock().unwrap_or_else(PoisonError::into_inner).push(note.number);
}

pub(super) fn host_functions_keep_their_order(bench: &Bench) -> Result<(), Outcome> {
    let list = Mutex::new(Vec::new());
    let notes: Vec<_> = (0..200).map(|number| Note { number, list: &list }).collect();
    let stream = bench.stream()?;
    for note in &notes {
        let data = std::ptr::from_ref(note).cast_mut().cast::<c_void>();
        // SAFETY: `notes` is declared before the stream, which runs empty before they go; the list has a lock.
        unsafe { bench.device().launch(take_note, data, *stream) }?;
    }
    bench.device().synchronize(*stream)?;
    let noted = list.lock().unwrap_or_else(PoisonError::into_inner).clone();
    check(noted.into_iter().eq(0..200), "host functions ran once each, in order")
}

pub(super) fn submission_returns_at_once(bench: &Bench) -> Result<(), Outcome> {
    let (source, memory, result) = (bench.filled(256, 1)?, bench.memory(256)?, bench.pinned(256)?);
    let event = bench.event()?;
    let (stream, other) = (bench.stream()?, bench.stream()?);
    let gate = bench.gate(*stream)?;
    for _ in 0..100 {
        bench.copy_in(*source, *memory, *stream)?;
        bench.copy_out(*memory, *result, *stream)?;
        bench.device().record(*event, *stream)?;
        bench.device().stream_wait(*other, *event)?;
    }
    check(!bench.device().is_done(*event)?, "work behind a closed gate is not done")?;
    gate.open()?;
    bench.device().synchronize(*other)?;
    same(&result.read(), &source.read(), "after the gate")
}

pub(super) fn streams_run_beside_each_other(bench: &Bench) -> Result<(), Outcome> {
    let bytes = bench.large();
    let (source, memory, result) = (bench.filled(bytes, 1)?, bench.memory(bytes)?, bench.pinned(bytes)?);
    let event = bench.event()?;
    let (held, free) = (bench.stream()?, bench.stream()?);
    let gate = bench.gate(*held)?;
    bench.device().record(*event, *held)?;
    bench.copy_in(*source, *memory, *free)?;
    bench.copy_out(*memory, *result, *free)?;
    bench.device().synchronize(*free)?;
    same(&result.read(), &source.read(), "beside a stream that is held")?;
    check(!bench.device().is_done(*event)?, "the held stream is still held")?;
    gate.open()?;
    bench.device().wait(*event)?;
    Ok(())
}

pub(super) fn a_stream_ends_after_its_work(bench: &Bench) -> Result<(), Outcome> {
    let (source, memory, result) = (bench.filled(4097, 1)?, bench.memory(4097)?, bench.pinned(4097)?);
    let event = bench.event()?;
    // Its end is waited for by the event, whatever happens.
    let done = bench.stream()?;
    let stream = bench.device().create_stream(StreamUse::CopyOut)?;
    let gate = bench.gate(stream)?;
    bench.copy_in(*source, *memory, stream)?;
    bench.copy_out(*memory, *result, stream)?;
    bench.device().record(*event, stream)?;
    bench.device().stream_wait(*done, *event)?;
    bench.device().destroy_stream(stream)?;
    check(!bench.device().is_done(*event)?, "destroying a stream does not end its work")?;
    gate.open()?;
    bench.device().wait(*event)?;
    same(&result.read(), &source.read(), "work of a destroyed stream")
}

pub(super) fn an_adopted_stream_is_the_same(bench: &Bench) -> Result<(), Outcome> {
    let (source, memory, result) = (bench.filled(4097, 1)?, bench.memory(4097)?, bench.pinned(4097)?);
    let event = bench.event()?;
    let stream = bench.stream()?;
    let raw = bench.device().raw_stream(*stream)?;
    // SAFETY: the stream outlives its use under another name.
    let adopted = unsafe { bench.device().adopt_stream(raw) }?;
    let gate = bench.gate(*stream)?;
    bench.copy_in(*source, *memory, adopted)?;
    bench.device().record(*event, adopted)?;
    check(!bench.device().is_done(*event)?, "an adopted stream is behind the owner's work")?;
    bench.copy_out(*memory, *result, *stream)?;
    bench.device().destroy_stream(adopted)?;
    gate.open()?;
    bench.device().synchronize(*stream)?;
    same(&result.read(), &source.read(), "through both names of a stream")
}

/// Numbers of another device, and those of what is gone, are refused. The other device is the host.
pub(super) fn numbers_are_good_for_one_device_and_one_life(bench: &Bench) -> Result<(), Outcome> {
    let (stream, event) = (bench.stream()?, bench.event()?);
    let other: &dyn Device = &HostDevice::open(HostConfig::default())?;
    let (foreign_stream, foreign_event) = (other.create_stream(StreamUse::Compute)?, other.create_event()?);
    let gone_stream = bench.device().create_stream(StreamUse::Compute)?;
    let gone_event = bench.device().create_event()?;
    bench.device().destroy_stream(gone_stream)?;
    bench.device().destroy_event(gone_event)?;
    let refused = |result: Result<(), DeviceError>, handle: u64, what: &str| {
        let expected =
            matches!(result, Err(DeviceError::NoSuchHandle { handle: named, .. }) if named == handle);
        check(expected, what)
    };
    for (device, stranger, what) in [
        (bench.device(), foreign_stream, "a stream of the host is refused"),
        (bench.device(), gone_stream, "a destroyed stream is refused"),
        (other, *stream, "the host refuses a stream of this device"),
    ] {
        refused(device.synchronize(stranger), stranger.0, what)?;
        refused(device.destroy_stream(stranger), stranger.0, what)?;
    }
    for (device, own, stranger, what) in [
        (bench.device(), *stream, foreign_event, "an event of the host is refused"),
        (bench.device(), *stream, gone_event, "a destroyed event is refused"),
        (other, foreign_stream, *event, "the host refuses an event of this device"),
    ] {
        refused(device.wait(stranger), stranger.0, what)?;
        refused(device.record(stranger, own), stranger.0, what)?;
        refused(device.stream_wait(own, stranger), stranger.0, what)?;
        refused(device.destroy_event(stranger), stranger.0, what)?;
    }
    Ok(())
}
