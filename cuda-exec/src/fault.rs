//! A device that does what the contract allows and programs do not expect: copies come late and in another order than
//! on a good day, allocations fail, a stream dies.
//!
//! It stands between a program and a real device. Streams keep their order, and nothing that
//! [`device`](crate::device) promises is broken: the conformance suite passes on it as long as nothing is set to fail. A program
//! that uses a buffer before its event finds wrong bytes here, not only on a busy machine: the destination of a late copy is
//! overwritten before it is filled.

use std::ffi::c_void;
use std::fmt;
use std::panic::resume_unwind;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use crate::device::{
    Backend, Device, DeviceError, DeviceSlice, Event, HostFunction, MemoryInfo, PinnedSlice, Stream,
    StreamUse,
};
use crate::fp8::Cast;

/// Which faults, and how often. None by default.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Faults {
    /// What the faults are drawn from.
    pub seed: u64,
    /// Of 256 copies, how many are late.
    pub late_copies: u8,
    /// How late at most.
    pub late_by: Duration,
    /// Of 256 allocations of pinned memory, how many fail.
    pub pinned_failures: u8,
    /// Of 256 allocations of device memory, how many fail.
    pub device_failures: u8,
    /// The copy (0 is the first) in whose place its stream dies. Host only.
    pub death_at_copy: Option<u64>,
}

/// Faults injected so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Injected {
    /// Late copies.
    pub late_copies: u64,
    /// Failed allocations of pinned memory.
    pub pinned_failures: u64,
    /// Failed allocations of device memory.
    pub device_failures: u64,
    /// Streams that died.
    pub deaths: u64,
}

/// A device with faults.
pub struct FaultyDevice<D> {
    inner: D,
    faults: Faults,
    copies: AtomicU64,
    draws: Mutex<Draws>,
}

struct Draws {
    /// Of the generator: xorshift64*.
    state: u64,
    injected: Injected,
}

/// Contents of a late copy's destination before the copy.
const GARBAGE: u8 = 0xa5;

impl<D: Device> FaultyDevice<D> {
    /// `inner` with `faults`.
    pub fn new(inner: D, faults: Faults) -> Result<Self, DeviceError> {
        if faults.death_at_copy.is_some() && inner.backend() != Backend::Host {
            return Err(DeviceError::Unsupported {
                backend: inner.backend(),
                what: "death of a stream; try it on the host",
            });
        }
        // An odd number times an odd number: not 0, which the generator never leaves.
        let state = (faults.seed << 1 | 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let draws = Mutex::new(Draws { state, injected: Injected::default() });
        Ok(Self { inner, faults, copies: AtomicU64::new(0), draws })
    }

    /// The device behind.
    pub const fn inner(&self) -> &D {
        &self.inner
    }

    /// Faults injected so far.
    pub fn injected(&self) -> Injected {
        self.draws().injected
    }

    fn draws(&self) -> std::sync::MutexGuard<'_, Draws> {
        self.draws.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is to happen to the next copy.
    fn draw(&self) -> Fate {
        let copy = self.copies.fetch_add(1, Ordering::Relaxed);
        let mut draws = self.draws();
        if self.faults.death_at_copy == Some(copy) {
            draws.injected.deaths += 1;
            return Fate::Death;
        }
        if !draws.one_of_256(self.faults.late_copies) {
            return Fate::OnTime;
        }
        draws.injected.late_copies += 1;
        let limit = u64::try_from(self.faults.late_by.as_nanos()).unwrap_or(u64::MAX).max(1);
        let nanoseconds = draws.next() % limit;
        if draws.one_of_256(128) { Fate::Late { nanoseconds } } else { Fate::ToldLate { nanoseconds } }
    }

    /// Submits `copy`, which ends in `to`, with a fate. Where the copy is refused nothing uses `to` any more.
    fn with_fate(
        &self,
        fate: Fate,
        to: (u64, u64),
        stream: Stream,
        copy: impl FnOnce() -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        match fate {
            Fate::OnTime => copy(),
            Fate::Late { nanoseconds } => {
                let overwriting = self.overwrite(to, stream)?;
                let submitted = self.sleep(nanoseconds, stream).and_then(|()| copy());
                if let (Err(_), Some(overwriting)) = (&submitted, overwriting) {
                    overwriting.cancel();
                }
                submitted
            }
            Fate::ToldLate { nanoseconds } => {
                copy()?;
                // The copy is under way, so it was not refused. Where its stream has failed since, events tell.
                let _ = self.sleep(nanoseconds, stream);
                Ok(())
            }
            Fate::Death => {
                // SAFETY: any thread may call it with anything, and this is the host, where it may unwind.
                unsafe { self.inner.launch(die, ptr::null_mut(), stream) }?;
                copy()
            }
        }
    }

    fn sleep(&self, nanoseconds: u64, stream: Stream) -> Result<(), DeviceError> {
        // SAFETY: any thread may call it with any number.
        unsafe { self.inner.launch(sleep, ptr::without_provenance_mut(nanoseconds as usize), stream) }
    }

    /// Overwrites `to` as work of `stream`; nothing where the processor cannot reach it.
    fn overwrite(&self, to: (u64, u64), stream: Stream) -> Result<Option<Arc<Overwriting>>, DeviceError> {
        if self.inner.backend() != Backend::Host {
            return Ok(None);
        }
        let overwriting = Arc::new(Overwriting(Mutex::new(Some(to))));
        let data = Arc::into_raw(Arc::clone(&overwriting)).cast_mut().cast::<c_void>();
        // SAFETY: the function takes the reference, once. The destination is that of the copy submitted next, so it lives and
        // is nobody else's from here on, or until it is cancelled.
        let launched = unsafe { self.inner.launch(overwrite, data, stream) };
        if launched.is_err() {
            // SAFETY: it was not launched, so the reference is still ours.
            drop(unsafe { Arc::from_raw(data.cast::<Overwriting>()) });
        }
        launched.map(|()| Some(overwriting))
    }
}

/// An address and bytes there that are to be overwritten; `None` from when they are, or need not be.
struct Overwriting(Mutex<Option<(u64, u64)>>);

impl Overwriting {
    /// Waits for it if it is under way; otherwise it does not happen.
    fn cancel(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

enum Fate {
    OnTime,
    /// It begins late.
    Late {
        nanoseconds: u64,
    },
    /// It is done, but not said to be.
    ToldLate {
        nanoseconds: u64,
    },
    /// Its stream dies.
    Death,
}

impl Draws {
    fn next(&mut self) -> u64 {
        self.state ^= self.state >> 12;
        self.state ^= self.state << 25;
        self.state ^= self.state >> 27;
        self.state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 8
    }

    fn one_of_256(&mut self, rate: u8) -> bool {
        self.next() % 256 < u64::from(rate)
    }
}

/// # Safety
/// - None: `data` is a number of nanoseconds.
unsafe extern "C-unwind" fn sleep(data: *mut c_void) {
    thread::sleep(Duration::from_nanos(data.addr() as u64));
}

/// # Safety
/// - `data` is a reference to an `Overwriting`, given up by the caller. Unless it is cancelled, its bytes may be written.
unsafe extern "C-unwind" fn overwrite(data: *mut c_void) {
    // SAFETY: as required of the caller.
    let overwriting = unsafe { Arc::from_raw(data.cast::<Overwriting>()) };
    let mut bytes = overwriting.0.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((address, bytes)) = bytes.take() {
        let start: *mut u8 = ptr::with_exposed_provenance_mut(address as usize);
        // SAFETY: as required of the caller; who cancels waits for the lock.
        unsafe { ptr::write_bytes(start, GARBAGE, bytes as usize) };
    }
}

/// # Safety
/// - Unwinding may leave it.
unsafe extern "C-unwind" fn die(_: *mut c_void) {
    // As a panic, but without its message.
    resume_unwind(Box::new("a fault"));
}

impl<D: Device> Device for FaultyDevice<D> {
    fn backend(&self) -> Backend {
        self.inner.backend()
    }

    fn memory(&self) -> Result<MemoryInfo, DeviceError> {
        self.inner.memory()
    }

    fn allocate(&self, bytes: u64) -> Result<DeviceSlice, DeviceError> {
        let mut draws = self.draws();
        if draws.one_of_256(self.faults.device_failures) {
            draws.injected.device_failures += 1;
            return Err(DeviceError::OutOfMemory { bytes, free: 0 });
        }
        drop(draws);
        self.inner.allocate(bytes)
    }

    unsafe fn free(&self, memory: DeviceSlice) -> Result<(), DeviceError> {
        // SAFETY: as required of the caller.
        unsafe { self.inner.free(memory) }
    }

    fn allocate_pinned(&self, bytes: u64) -> Result<PinnedSlice, DeviceError> {
        let mut draws = self.draws();
        if draws.one_of_256(self.faults.pinned_failures) {
            draws.injected.pinned_failures += 1;
            return Err(DeviceError::OutOfPinnedMemory { bytes });
        }
        drop(draws);
        self.inner.allocate_pinned(bytes)
    }

    unsafe fn free_pinned(&self, memory: PinnedSlice) -> Result<(), DeviceError> {
        // SAFETY: as required of the caller.
        unsafe { self.inner.free_pinned(memory) }
    }

    fn create_stream(&self, use_for: StreamUse) -> Result<Stream, DeviceError> {
        self.inner.create_stream(use_for)
    }

    unsafe fn adopt_stream(&self, raw: *mut c_void) -> Result<Stream, DeviceError> {
        // SAFETY: as required of the caller.
        unsafe { self.inner.adopt_stream(raw) }
    }

    fn raw_stream(&self, stream: Stream) -> Result<*mut c_void, DeviceError> {
        self.inner.raw_stream(stream)
    }

    fn destroy_stream(&self, stream: Stream) -> Result<(), DeviceError> {
        self.inner.destroy_stream(stream)
    }

    fn create_event(&self) -> Result<Event, DeviceError> {
        self.inner.create_event()
    }

    fn destroy_event(&self, event: Event) -> Result<(), DeviceError> {
        self.inner.destroy_event(event)
    }

    fn record(&self, event: Event, stream: Stream) -> Result<(), DeviceError> {
        self.inner.record(event, stream)
    }

    fn stream_wait(&self, stream: Stream, event: Event) -> Result<(), DeviceError> {
        self.inner.stream_wait(stream, event)
    }

    fn is_done(&self, event: Event) -> Result<bool, DeviceError> {
        self.inner.is_done(event)
    }

    fn wait(&self, event: Event) -> Result<(), DeviceError> {
        self.inner.wait(event)
    }

    fn synchronize(&self, stream: Stream) -> Result<(), DeviceError> {
        self.inner.synchronize(stream)
    }

    unsafe fn copy_out(&self, from: DeviceSlice, to: PinnedSlice, stream: Stream) -> Result<(), DeviceError> {
        check(from.bytes(), to.bytes(), "copy_out")?;
        // SAFETY: as required of the caller.
        self.with_fate(self.draw(), (to.address(), to.bytes()), stream, || unsafe {
            self.inner.copy_out(from, to, stream)
        })
    }

    unsafe fn copy_in(&self, from: PinnedSlice, to: DeviceSlice, stream: Stream) -> Result<(), DeviceError> {
        check(from.bytes(), to.bytes(), "copy_in")?;
        // SAFETY: as required of the caller.
        self.with_fate(self.draw(), (to.address(), to.bytes()), stream, || unsafe {
            self.inner.copy_in(from, to, stream)
        })
    }

    unsafe fn quantize(
        &self,
        cast: &Cast,
        from: DeviceSlice,
        values: DeviceSlice,
        scales: DeviceSlice,
        stream: Stream,
    ) -> Result<(), DeviceError> {
        // SAFETY: as required of the caller.
        unsafe { self.inner.quantize(cast, from, values, scales, stream) }
    }

    unsafe fn dequantize(
        &self,
        cast: &Cast,
        values: DeviceSlice,
        scales: DeviceSlice,
        to: DeviceSlice,
        stream: Stream,
    ) -> Result<(), DeviceError> {
        // SAFETY: as required of the caller.
        unsafe { self.inner.dequantize(cast, values, scales, to, stream) }
    }

    unsafe fn launch(
        &self,
        function: HostFunction,
        data: *mut c_void,
        stream: Stream,
    ) -> Result<(), DeviceError> {
        // SAFETY: as required of the caller.
        unsafe { self.inner.launch(function, data, stream) }
    }
}

/// Refused before anything is overwritten for it.
fn check(from: u64, to: u64, call: &'static str) -> Result<(), DeviceError> {
    if from == to { Ok(()) } else { Err(DeviceError::Mismatch { call, from, to }) }
}

impl<D: fmt::Debug> fmt::Debug for FaultyDevice<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FaultyDevice")
            .field("inner", &self.inner)
            .field("faults", &self.faults)
            .finish_non_exhaustive()
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
