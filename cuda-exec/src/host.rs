//! The host as a device: a thread per stream, private memory as device memory, shared memory as pinned memory.
//!
//! It is what runs where there is no accelerator, and what the engine is tested on. Copies really are asynchronous and
//! memory really is limited: by `device_bytes`, by the machine, by its control groups, by `RLIMIT_DATA`. Device memory is ordinary memory, so operators are
//! host functions ([`launch`](Device::launch), [`run`](HostDevice::run)).
//!
//! A panic in such a function ends the stream's thread: what it had under way, and what waits for it, is [`Lost`](DeviceError::Lost).

use std::ffi::c_void;
use std::ptr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::device::{
    Backend, Device, DeviceError, DeviceSlice, Event, HostFunction, MemoryInfo, PinnedSlice, Stream,
    StreamUse, check_cast,
};
use crate::fp8::Cast;
use crate::sync::Arc;

mod machine;
mod memory;
mod queue;
mod slab;
mod worker;

pub use memory::Tier;

use memory::Memory;
use queue::{CastWork, Command, Mark, Queue};
use slab::Slab;
use worker::{Worker, on_worker};

/// Streams and events kept track of without the tables growing.
const STREAMS: usize = 16;
const EVENTS: usize = 1024;

/// How the host is to act as a device.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct HostConfig {
    /// Bytes of device memory; `None`: what the machine, its control groups and the process's limits have.
    pub device_bytes: Option<u64>,
    /// Where pinned memory lives.
    pub tier: Tier,
}

/// Bytes allocated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Usage {
    /// Now, as asked for: the system rounds up to pages.
    pub bytes: u64,
    /// At most so far, or since [`forget_peaks`](HostDevice::forget_peaks).
    pub peak: u64,
}

/// The host as a device. Dropped, it ends its streams after their work, then gives back all memory still allocated.
///
/// Dropping waits for that, except in work of a stream, which may be what other streams wait for: there it returns at once, and
/// the last stream to end gives the memory back.
#[derive(Debug)]
pub struct HostDevice {
    tables: Mutex<Tables>,
    /// Of the streams' threads too, so that no work outlives it.
    memory: Arc<Memory>,
}

#[derive(Debug)]
struct Tables {
    streams: Slab<HostStream>,
    /// `None`: not recorded.
    events: Slab<Option<Mark>>,
    default_stream: Option<Arc<Queue>>,
    workers: Vec<Worker>,
}

#[derive(Debug)]
struct HostStream {
    queue: Arc<Queue>,
    adopted: bool,
}

impl HostDevice {
    /// A device with `config`. An error where files cannot be made in the directory for pinned memory.
    pub fn open(config: HostConfig) -> Result<Self, DeviceError> {
        let tables = Tables {
            streams: Slab::new(STREAMS),
            events: Slab::new(EVENTS),
            default_stream: None,
            workers: Vec::with_capacity(STREAMS),
        };
        let memory = Memory::new(config.device_bytes, config.tier)?;
        Ok(Self { tables: Mutex::new(tables), memory: Arc::new(memory) })
    }

    /// Runs `work` on `stream`, after what was submitted before it. It may submit, but must not wait for the device.
    ///
    /// As [`launch`](Device::launch), but boxed: a closure that captures something is an allocation.
    pub fn run(&self, stream: Stream, work: impl FnOnce() + Send + 'static) -> Result<(), DeviceError> {
        self.submit(stream, Command::Run(Box::new(work)))
    }

    /// Device memory allocated.
    pub fn device_usage(&self) -> Usage {
        self.memory.device_usage()
    }

    /// Pinned memory allocated.
    pub fn pinned_usage(&self) -> Usage {
        self.memory.pinned_usage()
    }

    /// Peaks are counted from now on.
    pub fn forget_peaks(&self) {
        self.memory.forget_peaks();
    }

    fn tables(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn queue(&self, stream: Stream) -> Result<Arc<Queue>, DeviceError> {
        let mut tables = self.tables();
        let found = tables.streams.find(stream.0).ok_or_else(|| no_stream(stream.0))?;
        Ok(Arc::clone(&found.queue))
    }

    /// What `event` marks now.
    fn mark(&self, event: Event) -> Result<Option<Mark>, DeviceError> {
        self.tables().events.find(event.0).cloned().ok_or_else(|| no_event(event))
    }

    fn submit(&self, stream: Stream, command: Command) -> Result<(), DeviceError> {
        self.queue(stream)?.submit(command)
    }

    fn copy(
        &self,
        call: &'static str,
        from: (u64, u64),
        to: (u64, u64),
        stream: Stream,
    ) -> Result<(), DeviceError> {
        if from.1 != to.1 {
            return Err(DeviceError::Mismatch { call, from: from.1, to: to.1 });
        }
        self.submit(stream, Command::Copy { from: from.0, to: to.0, bytes: from.1 })
    }

    fn cast(
        &self,
        cast: &Cast,
        back: bool,
        [wide, values, scales]: [DeviceSlice; 3],
        stream: Stream,
    ) -> Result<(), DeviceError> {
        let (wide, values, scales) = (wide.address(), values.address(), scales.address());
        self.submit(stream, Command::Cast(CastWork { cast: *cast, back, wide, values, scales }))
    }
}

impl Device for HostDevice {
    fn backend(&self) -> Backend {
        Backend::Host
    }

    fn memory(&self) -> Result<MemoryInfo, DeviceError> {
        Ok(self.memory.info())
    }

    fn allocate(&self, bytes: u64) -> Result<DeviceSlice, DeviceError> {
        self.memory.allocate(bytes)
    }

    unsafe fn free(&self, memory: DeviceSlice) -> Result<(), DeviceError> {
        // SAFETY: no work uses it, as the caller says.
        unsafe { self.memory.free(memory) }
    }

    fn allocate_pinned(&self, bytes: u64) -> Result<PinnedSlice, DeviceError> {
        self.memory.allocate_pinned(bytes)
    }

    unsafe fn free_pinned(&self, memory: PinnedSlice) -> Result<(), DeviceError> {
        // SAFETY: no work uses it, as the caller says.
        unsafe { self.memory.free_pinned(memory) }
    }

    fn create_stream(&self, use_for: StreamUse) -> Result<Stream, DeviceError> {
        let mut tables = self.tables();
        let queue = tables.start(use_for, &self.memory)?;
        let inserted = tables.streams.insert(HostStream { queue: Arc::clone(&queue), adopted: false });
        inserted.map(Stream).inspect_err(|_| queue.close())
    }

    unsafe fn adopt_stream(&self, raw: *mut c_void) -> Result<Stream, DeviceError> {
        let mut tables = self.tables();
        let queue = if raw.is_null() {
            match &tables.default_stream {
                Some(queue) => Arc::clone(queue),
                None => {
                    let queue = tables.start(StreamUse::Compute, &self.memory)?;
                    tables.default_stream = Some(Arc::clone(&queue));
                    queue
                }
            }
        } else {
            let handle = raw.addr() as u64;
            Arc::clone(&tables.streams.find(handle).ok_or_else(|| no_stream(handle))?.queue)
        };
        tables.streams.insert(HostStream { queue, adopted: true }).map(Stream)
    }

    fn raw_stream(&self, stream: Stream) -> Result<*mut c_void, DeviceError> {
        self.queue(stream)?;
        Ok(ptr::without_provenance_mut(stream.0 as usize))
    }

    fn destroy_stream(&self, stream: Stream) -> Result<(), DeviceError> {
        let mut tables = self.tables();
        let removed = tables.streams.remove(stream.0).ok_or_else(|| no_stream(stream.0))?;
        if !removed.adopted {
            removed.queue.close();
        }
        tables.workers.retain(|worker| !worker.is_finished());
        Ok(())
    }

    fn create_event(&self) -> Result<Event, DeviceError> {
        self.tables().events.insert(None).map(Event)
    }

    fn destroy_event(&self, event: Event) -> Result<(), DeviceError> {
        // The mark may hold the last of a queue, whose commands are foreign code: dropped without the lock.
        let removed = self.tables().events.remove(event.0);
        removed.map(drop).ok_or_else(|| no_event(event))
    }

    fn record(&self, event: Event, stream: Stream) -> Result<(), DeviceError> {
        let (mark, usable) = Queue::mark(&self.queue(stream)?);
        let earlier = match self.tables().events.find(event.0) {
            Some(recorded) => recorded.replace(mark),
            None => return Err(no_event(event)),
        };
        drop(earlier);
        usable
    }

    fn stream_wait(&self, stream: Stream, event: Event) -> Result<(), DeviceError> {
        let queue = self.queue(stream)?;
        match self.mark(event)? {
            Some(mark) if !mark.is_of(&queue) && mark.outcome() != Some(Ok(())) => {
                queue.submit(Command::Wait(mark))
            }
            _ => Queue::mark(&queue).1,
        }
    }

    fn is_done(&self, event: Event) -> Result<bool, DeviceError> {
        match self.mark(event)?.map(|mark| mark.outcome()) {
            None | Some(Some(Ok(()))) => Ok(true),
            Some(None) => Ok(false),
            Some(Some(Err(error))) => Err(error),
        }
    }

    fn wait(&self, event: Event) -> Result<(), DeviceError> {
        self.mark(event)?.map_or(Ok(()), |mark| mark.wait())
    }

    fn synchronize(&self, stream: Stream) -> Result<(), DeviceError> {
        let (mark, usable) = Queue::mark(&self.queue(stream)?);
        usable.and_then(|()| mark.wait())
    }

    unsafe fn copy_out(&self, from: DeviceSlice, to: PinnedSlice, stream: Stream) -> Result<(), DeviceError> {
        self.copy("copy_out", (from.address(), from.bytes()), (to.address(), to.bytes()), stream)
    }

    unsafe fn copy_in(&self, from: PinnedSlice, to: DeviceSlice, stream: Stream) -> Result<(), DeviceError> {
        self.copy("copy_in", (from.address(), from.bytes()), (to.address(), to.bytes()), stream)
    }

    unsafe fn quantize(
        &self,
        cast: &Cast,
        from: DeviceSlice,
        values: DeviceSlice,
        scales: DeviceSlice,
        stream: Stream,
    ) -> Result<(), DeviceError> {
        check_cast("quantize", Backend::Host, cast, from, values, scales)?;
        self.cast(cast, false, [from, values, scales], stream)
    }

    unsafe fn dequantize(
        &self,
        cast: &Cast,
        values: DeviceSlice,
        scales: DeviceSlice,
        to: DeviceSlice,
        stream: Stream,
    ) -> Result<(), DeviceError> {
        check_cast("dequantize", Backend::Host, cast, to, values, scales)?;
        self.cast(cast, true, [to, values, scales], stream)
    }

    unsafe fn launch(
        &self,
        function: HostFunction,
        data: *mut c_void,
        stream: Stream,
    ) -> Result<(), DeviceError> {
        self.submit(stream, Command::Call { function, data: data.expose_provenance() })
    }
}

impl Tables {
    fn start(&mut self, use_for: StreamUse, memory: &Arc<Memory>) -> Result<Arc<Queue>, DeviceError> {
        let worker = Worker::start(use_for, Arc::clone(memory))?;
        let queue = Arc::clone(worker.queue());
        self.workers.push(worker);
        Ok(queue)
    }
}

impl Drop for HostDevice {
    fn drop(&mut self) {
        let tables = self.tables.get_mut().unwrap_or_else(PoisonError::into_inner);
        tables.workers.iter().for_each(Worker::close);
        if !on_worker() {
            tables.workers.drain(..).for_each(Worker::join);
        }
    }
}

fn no_stream(handle: u64) -> DeviceError {
    DeviceError::NoSuchHandle { kind: "stream", handle }
}

fn no_event(event: Event) -> DeviceError {
    DeviceError::NoSuchHandle { kind: "event", handle: event.0 }
}
