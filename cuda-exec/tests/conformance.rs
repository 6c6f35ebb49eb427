//! The suite for all devices: the host passes it, and devices with one defect each do not.

use std::ffi::c_void;
use std::sync::Arc;
use std::time::Duration;

use bagualu_exec::conformance::{Options, Outcome, run};
use bagualu_exec::device::{
    Backend, Device, DeviceError, DeviceSlice, Event, HostFunction, MemoryInfo, PinnedSlice, Stream,
    StreamUse,
};
use bagualu_exec::fp8::{Cast, Format};
use bagualu_exec::host::{HostConfig, HostDevice, Tier};

fn all_pass(device: &Arc<dyn Device>, options: &Options) {
    let report = run(device, options);
    assert_eq!(report.failures().count(), 0, "{report}");
    // What was not run may only be what these options exclude.
    let not_run: Vec<_> =
        report.cases.iter().filter(|case| matches!(case.outcome, Outcome::NotRun(_))).collect();
    assert!(not_run.iter().all(|case| case.name == "free_memory_moves" && !options.exclusive), "{report}");
    let json = report.to_json();
    assert_eq!(json.matches("\"passed\"").count() + not_run.len(), report.cases.len(), "{json}");
}

#[test]
fn host_with_a_capacity() {
    let device: Arc<dyn Device> = Arc::new(host(Tier::Memory, Some(64 << 20)));
    all_pass(&device, &Options::default());
}

#[test]
fn host_with_the_memory_of_the_machine_and_a_directory() {
    let device: Arc<dyn Device> = Arc::new(host(Tier::Directory(std::env::temp_dir()), None));
    all_pass(&device, &Options { exclusive: false, seed: 2, ..Options::default() });
}

fn host(tier: Tier, device_bytes: Option<u64>) -> HostDevice {
    HostDevice::open(HostConfig { device_bytes, tier }).expect("a host device")
}

/// What can be wrong with a device, and the case that must notice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Defect {
    StreamsDoNotWait,
    EventsKeepTheirFirstMark,
    EventsAreAlwaysDone,
    CopiesDropTheirLastByte,
    LengthsAreNotCompared,
    SubmissionBlocks,
    FreeMemoryStays,
    CastsToTheOtherFormat,
    NothingIsOutOfMemory,
    StreamsAreAllOne,
}

const DEFECTS: [(Defect, &str); 10] = [
    (Defect::StreamsDoNotWait, "work_after_a_wait_waits_too"),
    (Defect::EventsKeepTheirFirstMark, "recorded_again_on_its_stream"),
    (Defect::EventsAreAlwaysDone, "an_event_follows_its_work"),
    (Defect::CopiesDropTheirLastByte, "contents_at_odd_sizes_and_offsets"),
    (Defect::LengthsAreNotCompared, "unequal_lengths_are_refused"),
    (Defect::SubmissionBlocks, "submission_returns_at_once"),
    (Defect::FreeMemoryStays, "free_memory_moves"),
    (Defect::CastsToTheOtherFormat, "casts_are_those_of_the_host"),
    (Defect::NothingIsOutOfMemory, "a_huge_allocation_is_out_of_memory"),
    (Defect::StreamsAreAllOne, "streams_run_beside_each_other"),
];

#[test]
fn every_defect_is_noticed() {
    for (defect, case) in DEFECTS {
        let host = host(Tier::Memory, Some(64 << 20));
        let one = host.create_stream(StreamUse::Compute).expect("a stream");
        let device: Arc<dyn Device> = Arc::new(Broken { host, defect, one });
        let options = Options { limit: Duration::from_secs(6), only: Some(case), ..Options::default() };
        let report = run(&device, &options);
        assert!(report.failures().map(|failed| failed.name).eq([case]), "{defect:?}\n{report}");
        assert!(report.to_json().contains("\"outcome\": \"failed\", \"reason\": \""), "{defect:?}");
    }
}

#[derive(Debug)]
struct Broken {
    host: HostDevice,
    defect: Defect,
    /// The stream that all are, where they are all one.
    one: Stream,
}

impl Broken {
    fn has(&self, defect: Defect) -> bool {
        self.defect == defect
    }

    /// The bytes that are copied of those asked for.
    fn copied(&self, from: u64, to: u64) -> u64 {
        match self.defect {
            Defect::LengthsAreNotCompared => from.min(to),
            Defect::CopiesDropTheirLastByte if from == to => from.saturating_sub(1),
            _ => from,
        }
    }

    fn submitted(&self, stream: Stream) -> Result<(), DeviceError> {
        match self.defect {
            Defect::SubmissionBlocks => self.host.synchronize(stream),
            _ => Ok(()),
        }
    }
}

impl Device for Broken {
    fn backend(&self) -> Backend {
        self.host.backend()
    }

    fn memory(&self) -> Result<MemoryInfo, DeviceError> {
        match self.defect {
            Defect::FreeMemoryStays => Ok(MemoryInfo { free: 1 << 20, total: 1 << 20 }),
            _ => self.host.memory(),
        }
    }

    fn allocate(&self, bytes: u64) -> Result<DeviceSlice, DeviceError> {
        match self.host.allocate(bytes) {
            Err(DeviceError::OutOfMemory { .. }) if self.has(Defect::NothingIsOutOfMemory) => {
                Ok(DeviceSlice::new(4096, bytes))
            }
            allocated => allocated,
        }
    }

    unsafe fn free(&self, memory: DeviceSlice) -> Result<(), DeviceError> {
        // SAFETY: passed on.
        unsafe { self.host.free(memory) }
    }

    fn allocate_pinned(&self, bytes: u64) -> Result<PinnedSlice, DeviceError> {
        self.host.allocate_pinned(bytes)
    }

    unsafe fn free_pinned(&self, memory: PinnedSlice) -> Result<(), DeviceError> {
        // SAFETY: passed on.
        unsafe { self.host.free_pinned(memory) }
    }

    fn create_stream(&self, use_for: StreamUse) -> Result<Stream, DeviceError> {
        if self.has(Defect::StreamsAreAllOne) {
            let raw = self.host.raw_stream(self.one)?;
            // SAFETY: that stream lives as long as the device.
            return unsafe { self.host.adopt_stream(raw) };
        }
        self.host.create_stream(use_for)
    }

    unsafe fn adopt_stream(&self, raw: *mut c_void) -> Result<Stream, DeviceError> {
        // SAFETY: passed on.
        unsafe { self.host.adopt_stream(raw) }
    }

    fn raw_stream(&self, stream: Stream) -> Result<*mut c_void, DeviceError> {
        self.host.raw_stream(stream)
    }

    fn destroy_stream(&self, stream: Stream) -> Result<(), DeviceError> {
        self.host.destroy_stream(stream)
    }

    fn create_event(&self) -> Result<Event, DeviceError> {
        self.host.create_event()
    }

    fn destroy_event(&self, event: Event) -> Result<(), DeviceError> {
        self.host.destroy_event(event)
    }

    fn record(&self, event: Event, stream: Stream) -> Result<(), DeviceError> {
        // An event whose mark is not reached has one.
        if self.has(Defect::EventsKeepTheirFirstMark) && !self.host.is_done(event)? {
            return Ok(());
        }
        self.host.record(event, stream)
    }

    fn stream_wait(&self, stream: Stream, event: Event) -> Result<(), DeviceError> {
        if self.has(Defect::StreamsDoNotWait) {
            return Ok(());
        }
        self.host.stream_wait(stream, event)
    }

    fn is_done(&self, event: Event) -> Result<bool, DeviceError> {
        Ok(self.has(Defect::EventsAreAlwaysDone) || self.host.is_done(event)?)
    }

    fn wait(&self, event: Event) -> Result<(), DeviceError> {
        self.host.wait(event)
    }

    fn synchronize(&self, stream: Stream) -> Result<(), DeviceError> {
        self.host.synchronize(stream)
    }

    unsafe fn copy_out(&self, from: DeviceSlice, to: PinnedSlice, stream: Stream) -> Result<(), DeviceError> {
        let bytes = self.copied(from.bytes(), to.bytes());
        let (from, to) = (from.part(0, bytes).unwrap_or(from), to.part(0, bytes).unwrap_or(to));
        // SAFETY: passed on, of parts.
        unsafe { self.host.copy_out(from, to, stream) }.and_then(|()| self.submitted(stream))
    }

    unsafe fn copy_in(&self, from: PinnedSlice, to: DeviceSlice, stream: Stream) -> Result<(), DeviceError> {
        let bytes = self.copied(from.bytes(), to.bytes());
        let (from, to) = (from.part(0, bytes).unwrap_or(from), to.part(0, bytes).unwrap_or(to));
        // SAFETY: passed on, of parts.
        unsafe { self.host.copy_in(from, to, stream) }.and_then(|()| self.submitted(stream))
    }

    unsafe fn quantize(
        &self,
        cast: &Cast,
        from: DeviceSlice,
        values: DeviceSlice,
        scales: DeviceSlice,
        stream: Stream,
    ) -> Result<(), DeviceError> {
        let mut cast = *cast;
        if self.has(Defect::CastsToTheOtherFormat) {
            cast.format = if cast.format == Format::E4m3 { Format::E5m2 } else { Format::E4m3 };
        }
        // SAFETY: passed on; both formats take as many bytes.
        unsafe { self.host.quantize(&cast, from, values, scales, stream) }
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
