//! What the cases work with: memory, streams and events that are given back, known contents, and gates.
//!
//! A case declares memory first, then streams and events, then gates: dropped in reverse order, whatever went wrong, the gates open,
//! the streams run empty, and only then the memory goes.

use std::ffi::c_void;
use std::ops::Deref;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::{Options, Outcome};
use crate::device::{Device, DeviceError, DeviceSlice, Event, PinnedSlice, Stream, StreamUse};

/// The device under test.
pub(super) struct Bench {
    device: Arc<dyn Device>,
    pub(super) options: Options,
}

impl Bench {
    pub(super) fn new(device: Arc<dyn Device>, options: Options) -> Self {
        Self { device, options }
    }

    pub(super) fn device(&self) -> &dyn Device {
        &*self.device
    }

    /// Bytes of a larger buffer.
    pub(super) fn large(&self) -> u64 {
        self.options.buffer_bytes.max(1 << 16)
    }

    pub(super) fn stream(&self) -> Result<OwnStream<'_>, DeviceError> {
        let stream = self.device().create_stream(StreamUse::Compute)?;
        Ok(OwnStream { device: self.device(), stream })
    }

    pub(super) fn event(&self) -> Result<OwnEvent<'_>, DeviceError> {
        Ok(OwnEvent { device: self.device(), event: self.device().create_event()? })
    }

    pub(super) fn memory(&self, bytes: u64) -> Result<Memory<'_>, DeviceError> {
        Ok(Memory { device: self.device(), slice: self.device().allocate(bytes)? })
    }

    /// Pinned memory, all zeros.
    pub(super) fn pinned(&self, bytes: u64) -> Result<Pinned<'_>, DeviceError> {
        let pinned = Pinned { device: self.device(), slice: self.device().allocate_pinned(bytes)? };
        pinned.write(|to| to.fill(0));
        Ok(pinned)
    }

    /// Pinned memory with the contents of `seed`.
    pub(super) fn filled(&self, bytes: u64, seed: u64) -> Result<Pinned<'_>, DeviceError> {
        let pinned = self.pinned(bytes)?;
        pinned.write(|to| contents(self.options.seed ^ seed << 32, to));
        Ok(pinned)
    }

    /// Copies in, where both slices live until the stream has run empty: the order of declaration above.
    pub(super) fn copy_in(
        &self,
        from: PinnedSlice,
        to: DeviceSlice,
        stream: Stream,
    ) -> Result<(), DeviceError> {
        // SAFETY: as said.
        unsafe { self.device().copy_in(from, to, stream) }
    }

    /// Copies out, as [`copy_in`](Self::copy_in).
    pub(super) fn copy_out(
        &self,
        from: DeviceSlice,
        to: PinnedSlice,
        stream: Stream,
    ) -> Result<(), DeviceError> {
        // SAFETY: as there.
        unsafe { self.device().copy_out(from, to, stream) }
    }

    /// How long a stream waits at a gate, and a case for an event: what happens meanwhile takes milliseconds, unless the device
    /// makes it wait.
    fn patience(&self) -> Duration {
        self.options.limit / 3
    }

    /// That `event` becomes done without anyone waiting for it.
    pub(super) fn becomes_done(&self, event: Event) -> Result<(), Outcome> {
        let begin = Instant::now();
        while !self.device().is_done(event)? {
            check(begin.elapsed() < self.patience(), "an event becomes done by itself")?;
            std::thread::sleep(Duration::from_micros(50));
        }
        Ok(())
    }

    /// Makes `stream` wait until the gate is opened.
    pub(super) fn gate(&self, stream: Stream) -> Result<Gate, DeviceError> {
        let gate = Gate(Arc::new(Barrier {
            state: Mutex::default(),
            moved: Condvar::new(),
            patience: self.patience(),
        }));
        let data = Arc::into_raw(Arc::clone(&gate.0)).cast_mut().cast::<c_void>();
        // SAFETY: the function takes the reference made for it, once, and any thread may wait at a gate.
        let launched = unsafe { self.device().launch(pass, data, stream) };
        if launched.is_err() {
            // SAFETY: it was not launched, so the reference is still ours.
            drop(unsafe { Arc::from_raw(data.cast::<Barrier>()) });
        }
        launched.map(|()| gate)
    }
}

/// A stream that ends with its scope, after its work.
pub(super) struct OwnStream<'a> {
    device: &'a dyn Device,
    stream: Stream,
}

impl Drop for OwnStream<'_> {
    fn drop(&mut self) {
        // A case that destroyed it itself, or lost it, gets an error here that says nothing new.
        let _ = self.device.synchronize(self.stream);
        let _ = self.device.destroy_stream(self.stream);
    }
}

/// An event that ends with its scope.
pub(super) struct OwnEvent<'a> {
    device: &'a dyn Device,
    event: Event,
}

impl Drop for OwnEvent<'_> {
    fn drop(&mut self) {
        let _ = self.device.destroy_event(self.event);
    }
}

/// Device memory that ends with its scope.
pub(super) struct Memory<'a> {
    device: &'a dyn Device,
    slice: DeviceSlice,
}

impl Drop for Memory<'_> {
    fn drop(&mut self) {
        // SAFETY: allocated by `memory`, given back once, and the streams that use it have run empty.
        let _ = unsafe { self.device.free(self.slice) };
    }
}

/// Pinned memory that ends with its scope.
pub(super) struct Pinned<'a> {
    device: &'a dyn Device,
    slice: PinnedSlice,
}

impl Drop for Pinned<'_> {
    fn drop(&mut self) {
        // SAFETY: as for `Memory`.
        let _ = unsafe { self.device.free_pinned(self.slice) };
    }
}

macro_rules! deref {
    ($owner:ident, $field:ident, $target:ty) => {
        impl Deref for $owner<'_> {
            type Target = $target;

            fn deref(&self) -> &$target {
                &self.$field
            }
        }
    };
}

deref!(OwnStream, stream, Stream);
deref!(OwnEvent, event, Event);
deref!(Memory, slice, DeviceSlice);
deref!(Pinned, slice, PinnedSlice);

impl Pinned<'_> {
    /// Its bytes, when no copy is under way.
    pub(super) fn read(&self) -> Vec<u8> {
        // SAFETY: it lives, it was written when it was made, and cases look only after their streams.
        unsafe { std::slice::from_raw_parts(self.slice.as_mut_ptr(), self.slice.bytes() as usize) }.to_vec()
    }

    /// Changes its bytes, when no copy is under way.
    pub(super) fn write(&self, change: impl FnOnce(&mut [u8])) {
        let start = self.slice.as_mut_ptr();
        // SAFETY: it lives, and cases write only when no stream uses it; memory of the system has some contents.
        change(unsafe { std::slice::from_raw_parts_mut(start, self.slice.bytes() as usize) });
    }
}

/// What a stream waits at. It opens when dropped.
pub(super) struct Gate(Arc<Barrier>);

#[derive(Debug)]
struct Barrier {
    state: Mutex<GateState>,
    moved: Condvar,
    patience: Duration,
}

#[derive(Debug, Default)]
struct GateState {
    open: bool,
    /// The stream went on by itself, since nobody came to open.
    given_up: bool,
}

impl Gate {
    /// Opens it. An error if the stream did not wait for that.
    pub(super) fn open(&self) -> Result<(), Outcome> {
        let mut state = self.0.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.open = true;
        self.0.moved.notify_all();
        match state.given_up {
            true => Err(fail(format!(
                "a call waited {:?} for a stream that had to wait for the caller",
                self.0.patience
            ))),
            false => Ok(()),
        }
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        let _ = self.open();
    }
}

/// # Safety
/// - `data` is a reference to a `Barrier`, given up by the caller.
unsafe extern "C-unwind" fn pass(data: *mut c_void) {
    // SAFETY: as required of the caller.
    let barrier = unsafe { Arc::from_raw(data.cast::<Barrier>()) };
    let state = barrier.state.lock().unwrap_or_else(PoisonError::into_inner);
    let waited = barrier.moved.wait_timeout_while(state, barrier.patience, |state| !state.open);
    let mut state = waited.unwrap_or_else(PoisonError::into_inner).0;
    state.given_up = !state.open;
}

/// Fills `to` with what follows from `seed`: xorshift64*.
pub(super) fn contents(seed: u64, to: &mut [u8]) {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    for byte in to {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        *byte = (state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 56) as u8;
    }
}

pub(super) fn fail(reason: impl Into<String>) -> Outcome {
    Outcome::Failed(reason.into())
}

/// That `what` holds.
pub(super) fn check(holds: bool, what: &str) -> Result<(), Outcome> {
    if holds { Ok(()) } else { Err(fail(format!("does not hold: {what}"))) }
}

/// That two contents are the same.
pub(super) fn same(found: &[u8], expected: &[u8], what: &str) -> Result<(), Outcome> {
    if found.len() != expected.len() {
        return Err(fail(format!("{what}: {} bytes instead of {}", found.len(), expected.len())));
    }
    match found.iter().zip(expected).position(|(found, expected)| found != expected) {
        None => Ok(()),
        Some(at) => {
            let (found, expected) = (found[at], expected[at]);
            Err(fail(format!("{what}: byte {at} is {found} instead of {expected}")))
        }
    }
}
