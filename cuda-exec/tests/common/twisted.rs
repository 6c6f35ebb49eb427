//! The host device with one thing changed.

use std::ffi::c_void;
use std::sync::Mutex;

use bagualu_exec::device::{
    Backend, Device, DeviceError, DeviceSlice, Event, HostFunction, MemoryInfo, PinnedSlice, Stream,
    StreamUse,
};
use bagualu_exec::fp8::Cast;
use bagualu_exec::host::HostDevice;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(dead_code, reason = "each test uses its part")]
pub enum Twist {
    None,
    /// Streams for copies in do not wait for events: what an engine without that wait would do.
    ReloadsDoNotWait,
    NoPinnedMemory,
    /// Nobody learns that an event is done before somebody has blocked for one of its stream.
    DoneWhenWaitedFor,
}

#[derive(Debug)]
pub struct Twisted {
    pub host: HostDevice,
    pub twist: Twist,
    /// Streams for copies in.
    pub back: Mutex<Vec<Stream>>,
    /// Events recorded, on which stream, and whether they are known to be done.
    events: Mutex<Vec<(Event, Stream, bool)>>,
}

impl Twisted {
    pub fn new(host: HostDevice, twist: Twist) -> Self {
        Self { host, twist, back: Mutex::default(), events: Mutex::default() }
    }
}

impl Device for Twisted {
    fn backend(&self) -> Backend {
        self.host.backend()
    }
    fn memory(&self) -> Result<MemoryInfo, DeviceError> {
        self.host.memory()
    }
    fn allocate(&self, bytes: u64) -> Result<DeviceSlice, DeviceError> {
        self.host.allocate(bytes)
    }
    unsafe fn free(&self, memory: DeviceSlice) -> Result<(), DeviceError> {
        // SAFETY: passed on.
        unsafe { self.host.free(memory) }
    }
    fn allocate_pinned(&self, bytes: u64) -> Result<PinnedSlice, DeviceError> {
        match self.twist {
            Twist::NoPinnedMemory => Err(DeviceError::OutOfPinnedMemory { bytes }),
            _ => self.host.allocate_pinned(bytes),
        }
    }
    unsafe fn free_pinned(&self, memory: PinnedSlice) -> Result<(), DeviceError> {
        // SAFETY: passed on.
        unsafe { self.host.free_pinned(memory) }
    }
    fn create_stream(&self, use_for: StreamUse) -> Result<Stream, DeviceError> {
        let stream = self.host.create_stream(use_for)?;
        if use_for == StreamUse::CopyIn {
            self.back.lock().expect("no panic").push(stream);
        }
        Ok(stream)
    }
    unsafe fn adopt_stream(&self, raw: *mut c_void) -> Result<Stream, DeviceError> {
        // SAFETY: passed on.
        unsafe { self.host.adopt_stream(raw) }
    }
    fn destroy_stream(&self, stream: Stream) -> Result<(), DeviceError> {
        self.host.destroy_stream(stream)
    }
    fn create_event(&self) -> Result<Event, DeviceError> {
        self.host.create_event()
    }
    fn destroy_event(&self, event: Event) -> Result<(), DeviceError> {
        self.events.lock().expect("no panic").retain(|(other, ..)| *other != event);
        self.host.destroy_event(event)
    }
    fn record(&self, event: Event, stream: Stream) -> Result<(), DeviceError> {
        self.host.record(event, stream)?;
        let mut events = self.events.lock().expect("no panic");
        events.retain(|(other, ..)| *other != event);
        events.push((event, stream, false));
        Ok(())
    }
    fn stream_wait(&self, stream: Stream, event: Event) -> Result<(), DeviceError> {
        if self.twist == Twist::ReloadsDoNotWait && self.back.lock().expect("no panic").contains(&stream) {
            return Ok(());
        }
        self.host.stream_wait(stream, event)
    }
    fn is_done(&self, event: Event) -> Result<bool, DeviceError> {
        let events = self.events.lock().expect("no panic");
        let known = events.iter().find(|(other, ..)| *other == event).is_none_or(|&(.., known)| known);
        if self.twist == Twist::DoneWhenWaitedFor && !known { Ok(false) } else { self.host.is_done(event) }
    }
    fn wait(&self, event: Event) -> Result<(), DeviceError> {
        self.host.wait(event)?;
        let mut events = self.events.lock().expect("no panic");
        let waited = events.iter().find(|(other, ..)| *other == event).map(|&(_, stream, _)| stream);
        for (event, _, known) in events.iter_mut().filter(|(_, stream, _)| Some(*stream) == waited) {
            *known = self.host.is_done(*event)?;
        }
        Ok(())
    }
    fn synchronize(&self, stream: Stream) -> Result<(), DeviceError> {
        self.host.synchronize(stream)
    }
    unsafe fn copy_out(&self, from: DeviceSlice, to: PinnedSlice, stream: Stream) -> Result<(), DeviceError> {
        // SAFETY: passed on.
        unsafe { self.host.copy_out(from, to, stream) }
    }
    unsafe fn copy_in(&self, from: PinnedSlice, to: DeviceSlice, stream: Stream) -> Result<(), DeviceError> {
        // SAFETY: passed on.
        unsafe { self.host.copy_in(from, to, stream) }
    }
    unsafe fn quantize(
        &self,
        cast: &Cast,
        from: DeviceSlice,
        values: DeviceSlice,
        scales: DeviceSlice,
        stream: Stream,
    ) -> Result<(), DeviceError> {
        // SAFETY: passed on.
        unsafe { self.host.quantize(cast, from, values, scales, stream) }
    }
    unsafe fn dequantize(
        &self,
        cast: &Cast,
        values: DeviceSlice,
        scales: DeviceSlice,
        to: DeviceSlice,
        stream: Stream,
    ) -> Result<(), DeviceError> {
        // SAFETY: passed on.
        unsafe { self.host.dequantize(cast, values, scales, to, stream) }
    }
    unsafe fn launch(
        &self,
        function: HostFunction,
        data: *mut c_void,
        stream: Stream,
    ) -> Result<(), DeviceError> {
        // SAFETY: passed on.
        unsafe { self.host.launch(function, data, stream) }
    }
}
