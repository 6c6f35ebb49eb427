//! What the host device does beyond the suite for all devices.

use std::sync::Arc;
use std::sync::mpsc::channel;

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
