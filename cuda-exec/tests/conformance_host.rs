//! What the host device does beyond the suite for all devices.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use bagualu_exec::device::{Device, DeviceError, DeviceSlice, PinnedSlice, StreamUse};
use bagualu_exec::host::{HostConfig, HostDevice, Tier};

fn device(bytes: u64) -> HostDevice {
    HostDevice::open(HostConfig { device_bytes: Some(bytes), tier: Tier::Memory }).expect("a host device")
}

fn fill(to: PinnedSlice, seed: u8) {
    // SAFETY: no copy of these tests is under way on it.
    let bytes = unsafe { std::slice::from_raw_parts_mut(to.as_mut_ptr(), to.bytes() as usize) };
    for (i, byte) in bytes.iter_mut().enumerate() {
        *byte = seed ^ (i % 251) as u8;
    }
}

fn bytes(of: PinnedSlice) -> Vec<u8> {
    // SAFETY: no copy of these tests is under way on it.
    unsafe { std::slice::from_raw_parts(of.as_mut_ptr(), of.bytes() as usize) }.to_vec()
}

fn round_trip(device: &HostDevice, bytes_long: u64) {
    let (from, to) =
        (device.allocate_pinned(bytes_long).unwrap(), device.allocate_pinned(bytes_long).unwrap());
    let middle = device.allocate(bytes_long).unwrap();
    fill(from, 7);
    let stream = device.create_stream(StreamUse::CopyOut).unwrap();
    // SAFETY: all three live until the stream is synchronized.
    unsafe {
        device.copy_in(from, middle, stream).unwrap();
        device.copy_out(middle, to, stream).unwrap();
    }
    device.synchronize(stream).unwrap();
    assert_eq!(bytes(from), bytes(to));
    device.destroy_stream(stream).unwrap();
    // SAFETY: the stream has ended.
    unsafe {
        device.free(middle).unwrap();
        device.free_pinned(from).unwrap();
        device.free_pinned(to).unwrap();
    }
}

#[test]
fn both_tiers_keep_contents() {
    round_trip(&device(1 << 20), 100_003);
    let tier = Tier::Directory(std::env::temp_dir());
    let device = HostDevice::open(HostConfig { device_bytes: None, tier }).unwrap();
    round_trip(&device, 100_003);
    let nowhere = "/does/not/exist";
    let config = HostConfig { device_bytes: None, tier: Tier::Directory(nowhere.into()) };
    let error = HostDevice::open(config).expect_err("no such directory");
    assert!(error.to_string().contains(nowhere), "{error}");
}

#[test]
fn capacity_is_enforced_and_given_back() {
    let device = device(1000);
    let first = device.allocate(600).unwrap();
    assert_eq!(device.allocate(401), Err(DeviceError::OutOfMemory { bytes: 401, free: 400 }));
    let second = device.allocate(400).unwrap();
    assert_eq!(device.memory().unwrap().free, 0);
    // SAFETY: nothing uses them.
    unsafe {
        device.free(first).unwrap();
        assert!(matches!(device.free(first), Err(DeviceError::NoSuchHandle { .. })), "freed twice");
        let part = second.part(0, 100).unwrap();
        assert!(matches!(device.free(part), Err(DeviceError::NoSuchHandle { .. })), "a part");
        device.free(second).unwrap();
    }
    assert_eq!((device.device_usage().bytes, device.device_usage().peak), (0, 1000));
    device.forget_peaks();
    assert_eq!(device.device_usage().peak, 0);
}

#[test]
fn a_panic_is_lost_work_and_carried_by_events() {
    let device = Arc::new(device(1 << 20));
    let [dies, waits, apart] = [(); 3].map(|()| device.create_stream(StreamUse::Compute).unwrap());
    let [before, after, there, early] = [(); 4].map(|()| device.create_event().unwrap());
    device.run(dies, || {}).unwrap();
    device.record(before, dies).unwrap();
    device.run(waits, || {}).unwrap();
    device.record(early, waits).unwrap();
    let (open, gate) = channel::<()>();
    device
        .run(dies, move || {
            gate.recv().unwrap();
            panic!("on purpose");
        })
        .unwrap();
    device.record(after, dies).unwrap();
    device.stream_wait(waits, after).unwrap();
    device.run(waits, || unreachable!("it waits for lost work")).unwrap();
    device.record(there, waits).unwrap();
    open.send(()).unwrap();

    let lost = |outcome: Result<_, DeviceError>| {
        assert!(matches!(outcome, Err(DeviceError::Lost { .. })), "{outcome:?}")
    };
    device.wait(before).unwrap();
    lost(device.wait(after));
    lost(device.wait(there));
    device.wait(early).unwrap();
    lost(device.is_done(there).map(drop));
    lost(device.synchronize(dies));
    lost(device.run(dies, || ()));
    lost(device.run(waits, || ()));
    lost(device.record(early, dies));
    lost(device.wait(early));
    device.run(apart, || ()).unwrap();
    device.synchronize(apart).unwrap();
}

#[test]
fn submission_returns_at_once_however_much_is_under_way() {
    let device = device(1 << 20);
    let stream = device.create_stream(StreamUse::Compute).unwrap();
    let (open, gate) = channel::<()>();
    let (done, seen) = channel();
    device.run(stream, move || gate.recv().unwrap()).unwrap();
    for i in 0..5000 {
        let done = done.clone();
        device.run(stream, move || done.send(i).unwrap()).unwrap();
    }
    open.send(()).unwrap();
    device.synchronize(stream).unwrap();
    assert!(seen.try_iter().eq(0..5000));
}

#[test]
fn streams_are_adopted_and_forgotten() {
    let device = device(1 << 20);
    let own = device.create_stream(StreamUse::Compute).unwrap();
    let raw = device.raw_stream(own).unwrap();
    // SAFETY: `own` outlives its use as `adopted`.
    let adopted = unsafe { device.adopt_stream(raw) }.unwrap();
    let (open, gate) = channel::<()>();
    device.run(own, move || gate.recv().unwrap()).unwrap();
    let event = device.create_event().unwrap();
    device.record(event, adopted).unwrap();
    assert!(!device.is_done(event).unwrap(), "one stream under two handles");
    device.destroy_stream(adopted).unwrap();
    open.send(()).unwrap();
    device.synchronize(own).unwrap();
    assert!(matches!(device.synchronize(adopted), Err(DeviceError::NoSuchHandle { kind: "stream", .. })));
    // SAFETY: null is the default stream.
    let default = unsafe { device.adopt_stream(std::ptr::null_mut()) }.unwrap();
    device.run(default, || ()).unwrap();
    device.synchronize(default).unwrap();
}

#[test]
fn dropping_ends_the_work() {
    let (done, seen) = channel();
    let device = device(1 << 20);
    let stream = device.create_stream(StreamUse::Compute).unwrap();
    for i in 0..10 {
        let done = done.clone();
        device.run(stream, move || done.send(i).unwrap()).unwrap();
    }
    device.destroy_stream(stream).unwrap();
    drop(device);
    assert!(seen.try_iter().eq(0..10));
}

/// What `end` gives, soon.
fn soon<T>(end: &Receiver<T>) -> T {
    end.recv_timeout(Duration::from_secs(60)).expect("the work goes on")
}

/// Whether a mapping of this process begins at `address`.
fn is_mapped(address: u64) -> bool {
    let start = format!("{address:x}-");
    let mappings = std::fs::read_to_string("/proc/self/maps").expect("the system's list of mappings");
    mappings.lines().any(|line| line.starts_with(&start))
}

/// Work of a device may hold its last handle. What was submitted behind it still runs, on memory that is still there.
#[test]
fn dropped_by_its_own_work_it_finishes_what_is_under_way() {
    let device = Arc::new(device(1 << 20));
    let (middle, to) = (device.allocate(100_003).unwrap(), device.allocate_pinned(100_003).unwrap());
    let from = device.allocate_pinned(100_003).unwrap();
    fill(from, 7);
    let stream = device.create_stream(StreamUse::CopyOut).unwrap();
    let ((open, gate), (found, contents)) = (channel::<()>(), channel());
    let last = Arc::clone(&device);
    // SAFETY: memory lives until the streams of the device have ended.
    unsafe { device.copy_in(from, middle, stream) }.unwrap();
    device
        .run(stream, move || {
            gate.recv().unwrap();
            drop(last);
        })
        .unwrap();
    // SAFETY: as above.
    unsafe { device.copy_out(middle, to, stream) }.unwrap();
    device.run(stream, move || found.send((bytes(from), bytes(to))).unwrap()).unwrap();
    drop(device);
    open.send(()).unwrap();
    let (sent, arrived) = soon(&contents);
    assert_eq!(sent, arrived);
    // The thread gives the memory back when it ends.
    let begin = Instant::now();
    while is_mapped(to.address()) {
        assert!(begin.elapsed() < Duration::from_secs(60), "memory is given back");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn dropped_by_work_that_another_stream_waits_for_it_does_not_wait_for_that_one() {
    let device = Arc::new(device(1 << 20));
    let [drops, waits] = [(); 2].map(|()| device.create_stream(StreamUse::Compute).unwrap());
    let ((open, gate), (done, end)) = (channel::<()>(), channel());
    let last = Arc::clone(&device);
    device
        .run(drops, move || {
            gate.recv().unwrap();
            drop(last);
        })
        .unwrap();
    let event = device.create_event().unwrap();
    device.record(event, drops).unwrap();
    device.stream_wait(waits, event).unwrap();
    device.run(waits, move || done.send(()).unwrap()).unwrap();
    drop(device);
    open.send(()).unwrap();
    soon(&end);
}

#[test]
fn two_devices_dropped_by_each_others_work() {
    let devices = [(); 2].map(|()| Arc::new(device(1 << 20)));
    let (done, end) = channel();
    let both = Arc::new(std::sync::Barrier::new(3));
    for (one, other) in [(0, 1), (1, 0)] {
        let stream = devices[one].create_stream(StreamUse::Compute).unwrap();
        let (last, both, done) = (Arc::clone(&devices[other]), Arc::clone(&both), done.clone());
        let work = move || {
            // Not before these are the last handles.
            both.wait();
            drop(last);
            done.send(()).unwrap();
        };
        devices[one].run(stream, work).unwrap();
    }
    drop(devices);
    both.wait();
    soon(&end);
    soon(&end);
}

#[test]
fn numbers_of_another_host_device_are_refused() {
    let [own, other] = [(); 2].map(|()| device(1 << 20));
    let (stream, event) = (own.create_stream(StreamUse::Compute).unwrap(), own.create_event().unwrap());
    let (_stream, _event) = (other.create_stream(StreamUse::Compute).unwrap(), other.create_event().unwrap());
    assert!(matches!(other.synchronize(stream), Err(DeviceError::NoSuchHandle { kind: "stream", .. })));
    assert!(matches!(other.wait(event), Err(DeviceError::NoSuchHandle { kind: "event", .. })));
    let raw = own.raw_stream(stream).unwrap();
    // SAFETY: a stream of another device is refused.
    let adopted = unsafe { other.adopt_stream(raw) };
    assert!(matches!(adopted, Err(DeviceError::NoSuchHandle { kind: "stream", .. })), "{adopted:?}");
    assert!(matches!(other.destroy_stream(stream), Err(DeviceError::NoSuchHandle { .. })));
    own.destroy_event(event).unwrap();
    own.destroy_stream(stream).unwrap();
}

#[test]
fn empty_slices() {
    let device = device(0);
    let (nothing, pinned) = (device.allocate(0).unwrap(), device.allocate_pinned(0).unwrap());
    assert_eq!((nothing.bytes(), pinned.bytes()), (0, 0));
    let stream = device.create_stream(StreamUse::CopyIn).unwrap();
    // SAFETY: nothing is copied, nothing is freed.
    unsafe {
        device.copy_in(pinned, nothing, stream).unwrap();
        device.synchronize(stream).unwrap();
        let longer = DeviceSlice::new(nothing.address(), 1);
        assert!(matches!(
            device.copy_in(pinned, longer, stream),
            Err(DeviceError::Mismatch { from: 0, to: 1, .. })
        ));
        device.free(nothing).unwrap();
        device.free_pinned(pinned).unwrap();
    }
}
