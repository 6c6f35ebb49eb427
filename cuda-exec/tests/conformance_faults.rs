//! Random programs on a device with faults: no byte is lost, no buffer is used before its event, every failure is typed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bagualu_exec::conformance::{Options, run};
use bagualu_exec::device::{Device, DeviceError, DeviceSlice, Event, PinnedSlice, Stream, StreamUse};
use bagualu_exec::fault::{Faults, FaultyDevice, Injected};
use bagualu_exec::host::{HostConfig, HostDevice};

type Faulty = FaultyDevice<HostDevice>;

fn faulty(faults: Faults) -> Arc<Faulty> {
    let host = HostDevice::open(HostConfig { device_bytes: Some(64 << 20), ..HostConfig::default() });
    Arc::new(FaultyDevice::new(host.expect("a host device"), faults).expect("the host can do all faults"))
}

fn late(seed: u64) -> Faults {
    Faults { seed, late_copies: 100, late_by: Duration::from_millis(1), ..Faults::default() }
}

#[test]
fn the_suite_passes_with_late_copies() {
    for seed in 0..3 {
        let faulty = faulty(Faults { late_copies: 20, ..late(seed) });
        let device: Arc<dyn Device> = faulty.clone();
        let report = run(&device, &Options { seed, ..Options::default() });
        assert_eq!(report.failures().count(), 0, "seed {seed}\n{report}");
        assert!(faulty.injected().late_copies > 0);
    }
}

#[test]
fn copies_end_in_another_order_across_streams() {
    let overtaken = (0..40).filter(|&seed| {
        let device = faulty(Faults { late_by: Duration::from_millis(5), ..late(seed) });
        let mut program = Program::new(&device, seed, 2);
        program.copy(Way::In, 0, 0, true);
        program.copy(Way::In, 1, 1, true);
        // Submitted second, ended first.
        device.wait(program.buffers[1].event).unwrap();
        !device.is_done(program.buffers[0].event).unwrap()
    });
    let overtaken = overtaken.count();
    assert!((1..40).contains(&overtaken), "{overtaken} of 40");
}

#[test]
fn no_byte_is_lost_by_late_copies() {
    let mut injected = 0;
    for seed in 0..40 {
        let device = faulty(late(seed));
        let program = Program::run(&device, seed, true);
        assert_eq!(program.wrong_bytes(), 0, "seed {seed}");
        assert_eq!(program.lost, 0, "seed {seed}");
        injected += device.injected().late_copies;
    }
    assert!(injected > 1000, "{injected}");
}

#[test]
fn a_program_that_forgets_its_events_is_found_out() {
    let found =
        (0..20).filter(|&seed| Program::run(&faulty(late(seed)), seed, false).wrong_bytes() > 0).count();
    assert!(found >= 15, "{found} of 20");
}

#[test]
fn a_death_is_typed_and_costs_only_what_depends_on_it() {
    let (mut deaths, mut survivors) = (0, 0);
    for seed in 0..40 {
        let device = faulty(Faults { death_at_copy: Some(seed % 50), ..late(seed) });
        let program = Program::run(&device, seed, true);
        assert_eq!(program.wrong_bytes(), 0, "seed {seed}: bytes that were said to have arrived");
        assert!(program.lost > 0, "seed {seed}");
        deaths += device.injected().deaths;
        survivors += program.arrived();
        let apart = device.create_stream(StreamUse::Compute).unwrap();
        device.inner().run(apart, || ()).unwrap();
        device.synchronize(apart).unwrap();
    }
    assert_eq!(deaths, 40);
    assert!(survivors > 0);
}

#[test]
fn failed_allocations_are_typed_and_leave_nothing_behind() {
    let device = faulty(Faults { seed: 3, pinned_failures: 64, device_failures: 64, ..Faults::default() });
    let (mut failed, mut pinned_failed) = (0, 0);
    for bytes in 1..400 {
        match device.allocate(bytes) {
            // SAFETY: nothing uses it.
            Ok(memory) => unsafe { device.free(memory) }.unwrap(),
            Err(error) => {
                assert_eq!(error, DeviceError::OutOfMemory { bytes, free: 0 });
                failed += 1;
            }
        }
        match device.allocate_pinned(bytes) {
            // SAFETY: nothing uses it.
            Ok(memory) => unsafe { device.free_pinned(memory) }.unwrap(),
            Err(error) => {
                assert_eq!(error, DeviceError::OutOfPinnedMemory { bytes });
                pinned_failed += 1;
            }
        }
    }
    let expected =
        Injected { device_failures: failed, pinned_failures: pinned_failed, ..Injected::default() };
    assert_eq!(device.injected(), expected);
    assert!((50..150).contains(&failed) && (50..150).contains(&pinned_failed), "{failed} {pinned_failed}");
    assert_eq!((device.inner().device_usage().bytes, device.inner().pinned_usage().bytes), (0, 0));
}

const BUFFERS: usize = 6;
const STREAMS: usize = 4;
const WORDS: usize = 512;
const STEPS: u64 = 150;

/// Buffers written and read by random copies on random streams, each after the last use of the buffer, if events are waited for.
struct Program<'a> {
    device: &'a Faulty,
    random: u64,
    streams: Vec<Stream>,
    buffers: Vec<Buffer>,
    /// Copies out: their event, where they went, the word that is to be there.
    results: Vec<(Event, PinnedSlice, u64)>,
    sources: Vec<PinnedSlice>,
    /// Host functions that saw other bytes than those they came after.
    seen_wrong: Arc<AtomicU64>,
    /// Calls and events that reported lost work.
    lost: usize,
}

struct Buffer {
    memory: DeviceSlice,
    /// Recorded after its last use.
    event: Event,
    /// The word it is full of.
    word: u64,
}

#[derive(Clone, Copy)]
enum Way {
    In,
    Out,
    Look,
}

impl<'a> Program<'a> {
    fn run(device: &'a Faulty, seed: u64, waits: bool) -> Self {
        let mut program = Self::new(device, seed, STREAMS);
        for _ in 0..STEPS {
            let way = [Way::In, Way::Out, Way::Look][program.draw(3)];
            let (buffer, stream) = (program.draw(BUFFERS), program.draw(STREAMS));
            program.copy(way, buffer, stream, waits);
        }
        for stream in program.streams.clone() {
            program.note(device.synchronize(stream));
        }
        program
    }

    fn new(device: &'a Faulty, seed: u64, streams: usize) -> Self {
        let bytes = (WORDS * 8) as u64;
        let streams = (0..streams).map(|_| device.create_stream(StreamUse::CopyOut).unwrap()).collect();
        let buffer = |_| Buffer {
            memory: device.allocate(bytes).unwrap(),
            event: device.create_event().unwrap(),
            word: 0,
        };
        Self {
            device,
            random: seed * 2 + 1,
            streams,
            buffers: (0..BUFFERS).map(buffer).collect(),
            results: Vec::new(),
            sources: Vec::new(),
            seen_wrong: Arc::default(),
            lost: 0,
        }
    }

    fn draw(&mut self, below: usize) -> usize {
        self.random = self.random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (self.random >> 33) as usize % below
    }

    /// Counts a lost one; any other error is a defect.
    fn note(&mut self, outcome: Result<(), DeviceError>) -> bool {
        match outcome {
            Ok(()) => true,
            Err(DeviceError::Lost { .. }) => {
                self.lost += 1;
                false
            }
            Err(other) => panic!("{other}"),
        }
    }

    fn copy(&mut self, way: Way, buffer: usize, stream: usize, waits: bool) {
        let (memory, event, word) =
            (self.buffers[buffer].memory, self.buffers[buffer].event, self.buffers[buffer].word);
        let stream = self.streams[stream];
        if waits {
            let waited = self.device.stream_wait(stream, event);
            if !self.note(waited) {
                return;
            }
        }
        let done = match way {
            Way::In => {
                let word = self.sources.len() as u64 + 1;
                let source = pinned(self.device, word);
                self.sources.push(source);
                // SAFETY: neither is freed before the device is dropped.
                let copied = unsafe { self.device.copy_in(source, memory, stream) };
                if copied.is_ok() {
                    self.buffers[buffer].word = word;
                }
                copied
            }
            Way::Out if word != 0 => {
                let result = pinned(self.device, 0);
                let arrived = self.device.create_event().unwrap();
                // SAFETY: neither is freed before the device is dropped.
                let copied = unsafe { self.device.copy_out(memory, result, stream) };
                let done = copied.and_then(|()| self.device.record(arrived, stream));
                if done.is_ok() {
                    self.results.push((arrived, result, word));
                }
                done
            }
            Way::Look if word != 0 => {
                let seen_wrong = Arc::clone(&self.seen_wrong);
                self.device.inner().run(stream, move || {
                    let found = words(memory.address());
                    seen_wrong.fetch_add(
                        found.iter().filter(|&&found| found != word).count() as u64,
                        Ordering::Relaxed,
                    );
                })
            }
            Way::Out | Way::Look => Ok(()),
        };
        if self.note(done) {
            let recorded = self.device.record(event, stream);
            self.note(recorded);
        }
    }

    /// Words that are not what was sent, among those whose event says that they have arrived, and those looked at on the device.
    fn wrong_bytes(&self) -> u64 {
        let arrived = self.results.iter().filter(|(event, ..)| self.device.is_done(*event) == Ok(true));
        let wrong = arrived
            .flat_map(|(_, at, word)| words(at.address()).into_iter().filter(move |found| found != word));
        wrong.count() as u64 + self.seen_wrong.load(Ordering::Relaxed)
    }

    fn arrived(&self) -> usize {
        self.results.iter().filter(|(event, ..)| self.device.is_done(*event) == Ok(true)).count()
    }
}

fn words(address: u64) -> Vec<u64> {
    let start: *const AtomicU64 = std::ptr::with_exposed_provenance(address as usize);
    // SAFETY: it lives until the device is dropped. Words are read as atomics, since the program without events races on purpose.
    (0..WORDS).map(|i| unsafe { &*start.add(i) }.load(Ordering::Relaxed)).collect()
}

fn pinned(device: &Faulty, word: u64) -> PinnedSlice {
    let pinned = device.allocate_pinned((WORDS * 8) as u64).unwrap();
    let start = pinned.as_mut_ptr().cast::<u64>();
    // SAFETY: it is ours alone, aligned, and long enough.
    (0..WORDS).for_each(|i| unsafe { start.add(i).write(word) });
    pinned
}
