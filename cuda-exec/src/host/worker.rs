//! The thread behind a stream.

use std::cell::Cell;
use std::io;
use std::thread::{self, JoinHandle};
use std::{ptr, slice};

use super::queue::{CastWork, Command, Queue};
use crate::device::{DeviceError, StreamUse};
use crate::sync::Arc;

#[cfg(all(test, not(loom)))]
mod tests;

/// A stream's thread, and the queue that it serves.
#[derive(Debug)]
pub(super) struct Worker {
    queue: Arc<Queue>,
    thread: JoinHandle<()>,
}

impl Worker {
    /// A thread for a new queue. It lets go of `kept`, what its work needs, when it ends.
    pub(super) fn start(use_for: StreamUse, kept: impl Send + 'static) -> Result<Self, DeviceError> {
        let name = match use_for {
            StreamUse::Compute => "bagualu-compute",
            StreamUse::CopyOut => "bagualu-out",
            StreamUse::CopyIn => "bagualu-in",
        };
        let queue = Arc::new(Queue::new());
        let served = Arc::clone(&queue);
        let thread = thread::Builder::new().name(name.to_owned()).spawn(move || {
            let _kept = kept;
            ON_WORKER.set(true);
            serve(&served);
        });
        Ok(Self { queue, thread: thread.map_err(no_thread)? })
    }

    /// The queue it serves.
    pub(super) const fn queue(&self) -> &Arc<Queue> {
        &self.queue
    }

    /// Whether its thread has ended.
    pub(super) fn is_finished(&self) -> bool {
        self.thread.is_finished()
    }

    /// Lets it end after its work.
    pub(super) fn close(&self) {
        self.queue.close();
    }

    /// Waits until it has ended. Not for work of a stream, which it may be waiting for.
    pub(super) fn join(self) {
        // A panic in the thread has been told as `Lost`.
        let _ = self.thread.join();
    }
}

thread_local! {
    static ON_WORKER: Cell<bool> = const { Cell::new(false) };
}

/// Whether the calling thread is that of a stream, of whatever host device.
pub(super) fn on_worker() -> bool {
    // A thread whose variables are gone runs no work, but may be a stream's.
    ON_WORKER.try_with(Cell::get).unwrap_or(true)
}

fn no_thread(error: io::Error) -> DeviceError {
    let code = error.raw_os_error().unwrap_or_default();
    DeviceError::Library { call: "std::thread::spawn", code: i64::from(code), message: error.to_string() }
}

/// Performs what comes through `queue`, in order.
pub(super) fn serve(queue: &Queue) {
    let _guard = LostOnPanic(queue);
    while let Some(command) = queue.next() {
        match perform(command) {
            Ok(()) => queue.end(),
            Err(error) => queue.fail(error),
        }
    }
}

fn perform(command: Command) -> Result<(), DeviceError> {
    match command {
        Command::Copy { from, to, bytes } => {
            let from: *const u8 = ptr::with_exposed_provenance(from as usize);
            let to: *mut u8 = ptr::with_exposed_provenance_mut(to as usize);
            // SAFETY: who submitted the copy keeps both alive and untouched until it has ended, and a pinned
            // slice never overlaps device memory.
            unsafe { ptr::copy_nonoverlapping(from, to, bytes as usize) };
        }
        // SAFETY: who submitted the cast keeps its buffers alive and to it alone until it has ended; their lengths were
        // checked then.
        Command::Cast(work) => return unsafe { run_cast(&work) },
        Command::Wait(mark) => return mark.wait(),
        // SAFETY: who submitted the function vouches for it and its data.
        Command::Call { function, data } => unsafe { function(ptr::with_exposed_provenance_mut(data)) },
        Command::Run(work) => work(),
    }
    Ok(())
}

/// # Safety
/// - The buffers are as long as the shape needs and scales aligned. What is read stays unchanged, what is written is this cast's alone.
unsafe fn run_cast(work: &CastWork) -> Result<(), DeviceError> {
    let shape = &work.cast.shape;
    let (wide, values, scales) = (shape.source_bytes(), shape.elements(), shape.scales());
    // SAFETY: as required of the caller.
    let done = unsafe {
        if work.back {
            let (from, by) = (shared(work.values, values), shared(work.scales, scales));
            work.cast.dequantize(from, by, exclusive(work.wide, wide))
        } else {
            let (to, by) = (exclusive(work.values, values), exclusive(work.scales, scales));
            work.cast.quantize(shared(work.wide, wide), to, by)
        }
    };
    done.map_err(|error| {
        let call = if work.back { "dequantize" } else { "quantize" };
        DeviceError::Library { call, code: 0, message: error.to_string() }
    })
}

/// # Safety
/// - `length` elements from `address` live, aligned, and nobody changes them.
unsafe fn shared<'a, T>(address: u64, length: usize) -> &'a [T] {
    if length == 0 {
        return &[];
    }
    // SAFETY: as required of the caller.
    unsafe { slice::from_raw_parts(ptr::with_exposed_provenance(address as usize), length) }
}

/// # Safety
/// - `length` elements from `address` live, aligned, and nobody else uses them.
unsafe fn exclusive<'a, T>(address: u64, length: usize) -> &'a mut [T] {
    if length == 0 {
        return &mut [];
    }
    // SAFETY: as required of the caller.
    unsafe { slice::from_raw_parts_mut(ptr::with_exposed_provenance_mut(address as usize), length) }
}

/// Tells the waiters of a worker that dies.
struct LostOnPanic<'a>(&'a Queue);

impl Drop for LostOnPanic<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.fail(DeviceError::Lost { what: "work of a stream whose thread panicked".to_owned() });
        }
    }
}
