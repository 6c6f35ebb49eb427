//! The thread behind a stream.

use std::io;
use std::ptr;
use std::thread::{self, JoinHandle};

use super::queue::{Command, Queue};
use crate::device::{DeviceError, StreamUse};
use crate::sync::Arc;

/// A stream's thread, and the queue that it serves.
#[derive(Debug)]
pub(super) struct Worker {
    queue: Arc<Queue>,
    thread: JoinHandle<()>,
}

impl Worker {
    /// A thread for a new queue.
    pub(super) fn start(use_for: StreamUse) -> Result<Self, DeviceError> {
        let name = match use_for {
            StreamUse::Compute => "bagualu-compute",
            StreamUse::CopyOut => "bagualu-out",
            StreamUse::CopyIn => "bagualu-in",
        };
        let queue = Arc::new(Queue::new());
        let served = Arc::clone(&queue);
        let thread = thread::Builder::new().name(name.to_owned()).spawn(move || serve(&served));
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

    /// Ends it after its work.
    pub(super) fn finish(self) {
        self.queue.close();
        // The device may be dropped by work of its own. A panic in the thread has been told as `Lost`.
        if self.thread.thread().id() != thread::current().id() {
            let _ = self.thread.join();
        }
    }
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
        Command::Wait(mark) => return mark.wait(),
        // SAFETY: who submitted the function vouches for it and its data.
        Command::Call { function, data } => unsafe { function(ptr::with_exposed_provenance_mut(data)) },
        Command::Run(work) => work(),
    }
    Ok(())
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
