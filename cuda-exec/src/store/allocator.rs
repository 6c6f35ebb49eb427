//! Where the store's device memory comes from.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use crate::device::{Device, DeviceError, DeviceSlice, Event, Stream};

/// Device memory, handed out by stream as frameworks do (PyTorch's caching allocator).
pub trait Allocator: fmt::Debug + Send {
    /// Memory for work submitted to `stream` from now on.
    fn allocate(&mut self, bytes: u64, stream: Stream) -> Result<DeviceSlice, DeviceError>;

    /// Gives memory back at once, though work submitted to `stream` before may still use it.
    ///
    /// # Safety
    /// - `memory` was allocated here, is whole, and is given back once.
    /// - No work uses it but what was submitted to `stream` before, and what that waits for.
    unsafe fn free(&mut self, memory: DeviceSlice, stream: Stream) -> Result<(), DeviceError>;

    /// Whether [`allocate`](Self::allocate) minds its stream: what other streams did with the memory before has ended, or
    /// `stream` waits for it. Else copies in start after all that was submitted to the compute stream, which may still use it.
    fn minds_streams(&self) -> bool {
        false
    }
}

/// Memory of the device itself, for programs without an allocator of their own.
///
/// What is freed goes back to the device once the work before it has ended. An allocation that finds the device
/// full waits for that, oldest first, so that it fails only where the bytes really are in use.
#[derive(Debug)]
pub struct DeviceAllocator {
    device: Arc<dyn Device>,
    /// Freed, in use until the event is done.
    freed: VecDeque<(Event, DeviceSlice)>,
    events: Vec<Event>,
}

/// Frees under way without the lists growing.
const ROOM: usize = 256;

impl DeviceAllocator {
    /// An allocator over `device`.
    pub fn new(device: Arc<dyn Device>) -> Self {
        Self { device, freed: VecDeque::with_capacity(ROOM), events: Vec::with_capacity(ROOM) }
    }

    /// Gives the device back what no work uses any more.
    fn reap(&mut self) -> Result<(), DeviceError> {
        while let Some(&(event, _)) = self.freed.front() {
            if !self.device.is_done(event)? {
                break;
            }
            self.give_back()?;
        }
        Ok(())
    }

    /// Gives back the oldest, whose event is done.
    fn give_back(&mut self) -> Result<(), DeviceError> {
        let Some((event, memory)) = self.freed.pop_front() else { return Ok(()) };
        self.events.push(event);
        // SAFETY: it was freed by who allocated it, and the work that used it has ended.
        unsafe { self.device.free(memory) }
    }
}

impl Allocator for DeviceAllocator {
    fn allocate(&mut self, bytes: u64, _stream: Stream) -> Result<DeviceSlice, DeviceError> {
        self.reap()?;
        loop {
            match (self.device.allocate(bytes), self.freed.front()) {
                (Err(DeviceError::OutOfMemory { .. }), Some(&(event, _))) => {
                    self.device.wait(event)?;
                    self.give_back()?;
                }
                (allocated, _) => return allocated,
            }
        }
    }

    unsafe fn free(&mut self, memory: DeviceSlice, stream: Stream) -> Result<(), DeviceError> {
        let event = match self.events.pop() {
            Some(event) => event,
            None => self.device.create_event()?,
        };
        // Where no event says when its work ends, the memory stays allocated.
        if let Err(error) = self.device.record(event, stream) {
            self.events.push(event);
            return Err(error);
        }
        self.freed.push_back((event, memory));
        self.reap()
    }

    /// What was freed is handed out once its work has ended.
    fn minds_streams(&self) -> bool {
        true
    }
}

impl Drop for DeviceAllocator {
    fn drop(&mut self) {
        while let Some(&(event, _)) = self.freed.front() {
            // Memory of lost work may still be in use: it stays.
            if self.device.wait(event).is_ok() {
                let _ = self.give_back();
            } else {
                self.freed.pop_front();
                self.events.push(event);
            }
        }
        for event in self.events.drain(..) {
            let _ = self.device.destroy_event(event);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::host::{HostConfig, HostDevice};

    #[test]
    fn a_free_that_fails_keeps_its_event() {
        let host = Arc::new(HostDevice::open(HostConfig::default()).expect("a host"));
        let mut allocator = DeviceAllocator::new(host);
        let unknown = Stream::numbered(u64::MAX);
        for _ in 0..3 {
            let memory = allocator.allocate(64, unknown).expect("memory");
            // SAFETY: nothing uses it.
            let freed = unsafe { allocator.free(memory, unknown) };
            assert!(freed.is_err(), "there is no such stream");
            assert_eq!((allocator.events.len(), allocator.freed.len()), (1, 0));
        }
    }
}
