//! What CUDA and HIP devices have in common: everything but the names of the functions they call.
//!
//! [`Api`](api::Api) is the few calls that both vendors' libraries have; [`Gpu`] makes a [`Device`] of them.
//! Handles are numbers in a table, so a stream or event that was destroyed, or is another device's, is an error and
//! not undefined behaviour in the library.

use std::ffi::c_void;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::device::{
    Backend, Device, DeviceError, DeviceSlice, Event, HostFunction, MemoryInfo, PinnedSlice, Stream,
    StreamUse, check_cast,
};
use crate::fp8::Cast;
use crate::fp8::kernel::Launch;
use api::{Api, Raw};
use handles::Handles;
pub use kernels::Kernels;
use kernels::Module;

pub(crate) mod api;
pub(crate) mod compiler;
mod handles;
mod image;
mod kernels;
pub(crate) mod library;
pub(crate) mod status;

/// A device of the library `A`.
pub struct Gpu<A: Api> {
    api: Arc<A>,
    streams: Handles<GpuStream<A>>,
    events: Handles<GpuEvent<A>>,
    module: Module<A>,
}

impl<A: Api> Gpu<A> {
    pub(crate) fn new(api: A, kernels: Kernels) -> Self {
        let api = Arc::new(api);
        let module = Module::new(Arc::clone(&api), kernels);
        Self {
            api,
            streams: Handles::new(A::BACKEND, "stream"),
            events: Handles::new(A::BACKEND, "event"),
            module,
        }
    }

    pub(crate) fn api(&self) -> &A {
        &self.api
    }

    /// Runs `work` while this device is the calling thread's: what a call of another library of the vendor needs.
    pub fn with_current<T>(&self, work: impl FnOnce() -> T) -> Result<T, DeviceError> {
        let _current = self.api.enter()?;
        Ok(work())
    }

    /// Copies `from` into `to`, which has the same length, both on this device.
    ///
    /// # Safety
    /// As for [`copy_out`](Device::copy_out).
    pub unsafe fn copy_within(
        &self,
        from: DeviceSlice,
        to: DeviceSlice,
        stream: Stream,
    ) -> Result<(), DeviceError> {
        let (bytes, stream) = self.copy("copy_within", from.bytes(), to.bytes(), stream)?;
        if bytes == 0 {
            return Ok(());
        }
        let _current = self.api.enter()?;
        // SAFETY: the caller vouches for the memory, the table for the stream.
        unsafe { self.api.copy_within(to.address(), from.address(), bytes, stream.raw) }
    }

    /// Submits `launch`, where there is anything to cast.
    ///
    /// # Safety
    /// - The slices (wide elements, values, scales) fit `cast` and are memory of this device until it has ended.
    unsafe fn cast(
        &self,
        cast: &Cast,
        launch: Option<Launch>,
        slices: [DeviceSlice; 3],
        stream: Stream,
    ) -> Result<(), DeviceError> {
        let stream = self.streams.find(stream.0)?;
        let Some(launch) = launch else { return Ok(()) };
        if !slices[0].address().is_multiple_of(cast.shape.source().bytes() as u64) {
            let what = "a cast of elements that are not aligned to their size";
            return Err(DeviceError::Unsupported { backend: A::BACKEND, what });
        }
        let _current = self.api.enter()?;
        // SAFETY: the caller vouches for the memory, the table for the stream.
        unsafe { self.module.launch(&launch, slices.map(DeviceSlice::address), stream.raw) }
    }

    /// The stream and the length of a copy.
    fn copy(
        &self,
        call: &'static str,
        from: u64,
        to: u64,
        stream: Stream,
    ) -> Result<(usize, Arc<GpuStream<A>>), DeviceError> {
        let mismatch = DeviceError::Mismatch { call, from, to };
        if from != to {
            return Err(mismatch);
        }
        Ok((usize::try_from(from).map_err(|_| mismatch)?, self.streams.find(stream.0)?))
    }
}

impl<A: Api> Device for Gpu<A> {
    fn backend(&self) -> Backend {
        A::BACKEND
    }

    fn memory(&self) -> Result<MemoryInfo, DeviceError> {
        let _current = self.api.enter()?;
        self.api.memory()
    }

    fn allocate(&self, bytes: u64) -> Result<DeviceSlice, DeviceError> {
        let _current = self.api.enter()?;
        let allocated = match usize::try_from(bytes) {
            // The libraries refuse to allocate nothing.
            Ok(size) => self.api.allocate(size.max(1))?,
            Err(_) => None,
        };
        match allocated {
            Some(address) => Ok(DeviceSlice::new(address, bytes)),
            None => Err(DeviceError::OutOfMemory {
                bytes,
                free: self.api.memory().map_or(0, |memory| memory.free),
            }),
        }
    }

    unsafe fn free(&self, memory: DeviceSlice) -> Result<(), DeviceError> {
        let _current = self.api.enter()?;
        // SAFETY: the caller gives back a whole allocation that nothing uses.
        unsafe { self.api.free(memory.address()) }
    }

    fn allocate_pinned(&self, bytes: u64) -> Result<PinnedSlice, DeviceError> {
        let _current = self.api.enter()?;
        let allocated = match usize::try_from(bytes) {
            Ok(size) => self.api.allocate_pinned(size.max(1))?,
            Err(_) => None,
        };
        let address = allocated.ok_or(DeviceError::OutOfPinnedMemory { bytes })?;
        Ok(PinnedSlice::new(address, bytes))
    }

    unsafe fn free_pinned(&self, memory: PinnedSlice) -> Result<(), DeviceError> {
        let _current = self.api.enter()?;
        // SAFETY: the caller gives back a whole allocation that nothing uses.
        unsafe { self.api.free_pinned(memory.address()) }
    }

    fn create_stream(&self, use_for: StreamUse) -> Result<Stream, DeviceError> {
        let _current = self.api.enter()?;
        let raw = self.api.create_stream(use_for)?;
        let stream = GpuStream { raw, owned: true, api: Arc::clone(&self.api) };
        self.streams.insert(stream).map(Stream)
    }

    unsafe fn adopt_stream(&self, raw: *mut c_void) -> Result<Stream, DeviceError> {
        let stream = GpuStream { raw: Raw(raw), owned: false, api: Arc::clone(&self.api) };
        self.streams.insert(stream).map(Stream)
    }

    fn raw_stream(&self, stream: Stream) -> Result<*mut c_void, DeviceError> {
        Ok(self.streams.find(stream.0)?.raw.0)
    }

    fn destroy_stream(&self, stream: Stream) -> Result<(), DeviceError> {
        self.streams.remove(stream.0).map(drop)
    }

    fn create_event(&self) -> Result<Event, DeviceError> {
        let _current = self.api.enter()?;
        let raw = self.api.create_event()?;
        let event = GpuEvent { raw, recorded: AtomicBool::new(false), api: Arc::clone(&self.api) };
        self.events.insert(event).map(Event)
    }

    fn destroy_event(&self, event: Event) -> Result<(), DeviceError> {
        self.events.remove(event.0).map(drop)
    }

    fn record(&self, event: Event, stream: Stream) -> Result<(), DeviceError> {
        let (event, stream) = (self.events.find(event.0)?, self.streams.find(stream.0)?);
        let _current = self.api.enter()?;
        // SAFETY: both are in the tables, so they live.
        unsafe { self.api.record(event.raw, stream.raw) }?;
        event.recorded.store(true, Ordering::Release);
        Ok(())
    }

    fn stream_wait(&self, stream: Stream, event: Event) -> Result<(), DeviceError> {
        let (event, stream) = (self.events.find(event.0)?, self.streams.find(stream.0)?);
        if !event.recorded.load(Ordering::Acquire) {
            return Ok(());
        }
        let _current = self.api.enter()?;
        // SAFETY: both are in the tables, so they live.
        unsafe { self.api.stream_wait(stream.raw, event.raw) }
    }

    fn is_done(&self, event: Event) -> Result<bool, DeviceError> {
        let event = self.events.find(event.0)?;
        if !event.recorded.load(Ordering::Acquire) {
            return Ok(true);
        }
        let _current = self.api.enter()?;
        // SAFETY: the event is in the table, so it lives.
        unsafe { self.api.is_done(event.raw) }
    }

    fn wait(&self, event: Event) -> Result<(), DeviceError> {
        let event = self.events.find(event.0)?;
        if !event.recorded.load(Ordering::Acquire) {
            return Ok(());
        }
        let _current = self.api.enter()?;
        // SAFETY: `event` is held here, so it lives through the wait even if another thread destroys its number.
        unsafe { self.api.wait(event.raw) }
    }

    fn synchronize(&self, stream: Stream) -> Result<(), DeviceError> {
        let stream = self.streams.find(stream.0)?;
        let _current = self.api.enter()?;
        // SAFETY: `stream` is held here, so it lives through the wait.
        unsafe { self.api.synchronize(stream.raw) }
    }

    unsafe fn copy_out(&self, from: DeviceSlice, to: PinnedSlice, stream: Stream) -> Result<(), DeviceError> {
        let (bytes, stream) = self.copy("copy_out", from.bytes(), to.bytes(), stream)?;
        if bytes == 0 {
            return Ok(());
        }
        let _current = self.api.enter()?;
        // SAFETY: the caller vouches for the memory, the table for the stream.
        unsafe { self.api.copy_out(to.address(), from.address(), bytes, stream.raw) }
    }

    unsafe fn copy_in(&self, from: PinnedSlice, to: DeviceSlice, stream: Stream) -> Result<(), DeviceError> {
        let (bytes, stream) = self.copy("copy_in", from.bytes(), to.bytes(), stream)?;
        if bytes == 0 {
            return Ok(());
        }
        let _current = self.api.enter()?;
        // SAFETY: the caller vouches for the memory, the table for the stream.
        unsafe { self.api.copy_in(to.address(), from.address(), bytes, stream.raw) }
    }
    unsafe fn quantize(
        &self,
        cast: &Cast,
        from: DeviceSlice,
        values: DeviceSlice,
        scales: DeviceSlice,
        stream: Stream,
    ) -> Result<(), DeviceError> {
        check_cast("quantize", A::BACKEND, cast, from, values, scales)?;
        // SAFETY: the caller vouches for the memory, which was found to fit the cast.
        unsafe { self.cast(cast, cast.quantize_launch(), [from, values, scales], stream) }
    }

    unsafe fn dequantize(
        &self,
        cast: &Cast,
        values: DeviceSlice,
        scales: DeviceSlice,
        to: DeviceSlice,
        stream: Stream,
    ) -> Result<(), DeviceError> {
        check_cast("dequantize", A::BACKEND, cast, to, values, scales)?;
        // SAFETY: the caller vouches for the memory, which was found to fit the cast.
        unsafe { self.cast(cast, cast.dequantize_launch(), [to, values, scales], stream) }
    }

    unsafe fn launch(
        &self,
        function: HostFunction,
        data: *mut c_void,
        stream: Stream,
    ) -> Result<(), DeviceError> {
        let stream = self.streams.find(stream.0)?;
        let _current = self.api.enter()?;
        // SAFETY: the caller vouches for function and data, the table for the stream.
        unsafe { self.api.launch_host(function, data, stream.raw) }
    }
}

impl<A: Api> fmt::Debug for Gpu<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gpu").field("api", &self.api).finish_non_exhaustive()
    }
}

/// A stream in the table. It ends when the table and every call under way have let go of it.
struct GpuStream<A: Api> {
    raw: Raw,
    /// Made here, not adopted.
    owned: bool,
    api: Arc<A>,
}

impl<A: Api> Drop for GpuStream<A> {
    fn drop(&mut self) {
        if !self.owned {
            return;
        }
        if let Ok(_current) = self.api.enter() {
            // SAFETY: made by `create_stream`, and no one else has it. The library ends it after its work.
            unsafe { self.api.destroy_stream(self.raw) };
        }
    }
}

/// An event in the table.
struct GpuEvent<A: Api> {
    raw: Raw,
    /// Libraries differ in what an event never recorded is, so it is known here.
    recorded: AtomicBool,
    api: Arc<A>,
}

impl<A: Api> Drop for GpuEvent<A> {
    fn drop(&mut self) {
        if let Ok(_current) = self.api.enter() {
            // SAFETY: made by `create_event`, and no one else has it. Waits submitted on it keep their meaning.
            unsafe { self.api.destroy_event(self.raw) };
        }
    }
}
