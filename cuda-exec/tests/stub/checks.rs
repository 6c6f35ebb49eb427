//! What is checked on both vendors' backends.

use std::path::Path;
use std::sync::Arc;

use bagualu_exec::conformance::{Options, Outcome, run};
use bagualu_exec::device::{Device, DeviceError, DeviceSlice, StreamUse};

/// The stub's own functions.
pub struct Stub(libloading::Library);

impl Stub {
    pub fn of(library: &Path) -> Self {
        // SAFETY: the stub has no initialisers.
        Self(unsafe { libloading::Library::new(library) }.expect("the stub is there"))
    }

    /// Every call fails with `code` from now on.
    pub fn break_with(&self, code: i32) {
        // SAFETY: the signature in `stub.h`.
        unsafe { self.0.get::<unsafe extern "C" fn(i32)>(b"stub_break").expect("in the stub")(code) };
    }

    /// Streams, events and allocations that live.
    pub fn live(&self) -> i32 {
        // SAFETY: the signature in `stub.h`.
        unsafe { self.0.get::<unsafe extern "C" fn() -> i32>(b"stub_live").expect("in the stub")() }
    }

    /// The device that this thread has made current; -1: none.
    pub fn current(&self) -> i32 {
        // SAFETY: the signature in `stub.h`.
        unsafe { self.0.get::<unsafe extern "C" fn() -> i32>(b"stub_current").expect("in the stub")() }
    }
}

/// The suite for all devices passes, and nothing is left over.
pub fn conforms(device: &Arc<dyn Device>, stub: &Stub) {
    let options = Options { buffer_bytes: 1 << 20, ..Options::default() };
    let report = run(device, &options);
    println!("{report}");
    assert_eq!(report.failures().count(), 0, "{report}");
    let passed = report.cases.iter().filter(|case| case.outcome == Outcome::Passed).count();
    assert!(passed >= 20, "{report}");
    // Streams end after their work, on threads of their own.
    for _ in 0..500 {
        if stub.live() == 0 {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    panic!("{} streams, events and allocations are left", stub.live());
}

/// A number of a stream or event that is gone, or is another device's, is an error.
pub fn handles_are_checked(device: &dyn Device, other: &dyn Device) {
    let stream = device.create_stream(StreamUse::CopyOut).unwrap();
    let event = device.create_event().unwrap();
    assert!(matches!(other.record(event, stream), Err(DeviceError::NoSuchHandle { kind: "event", .. })));
    assert!(matches!(other.synchronize(stream), Err(DeviceError::NoSuchHandle { kind: "stream", .. })));
    device.destroy_event(event).unwrap();
    device.destroy_stream(stream).unwrap();
    assert!(matches!(device.wait(event), Err(DeviceError::NoSuchHandle { kind: "event", .. })));
    assert!(matches!(device.destroy_event(event), Err(DeviceError::NoSuchHandle { kind: "event", .. })));
    assert!(matches!(device.destroy_stream(stream), Err(DeviceError::NoSuchHandle { kind: "stream", .. })));
}

/// Statuses of the library become errors that say what happened. Afterwards the stub is whole again.
pub fn statuses_are_told_apart(device: &dyn Device, stub: &Stub) {
    let stream = device.create_stream(StreamUse::CopyIn).unwrap();
    let event = device.create_event().unwrap();
    device.record(event, stream).unwrap();
    // An illegal address, a failed launch, an uncorrectable error: the context is of no use any more.
    for lost in [700, 719, 214] {
        stub.break_with(lost);
        for result in [device.wait(event), device.synchronize(stream), device.memory().map(drop)] {
            assert!(
                matches!(&result, Err(DeviceError::Lost { what }) if what.contains(&lost.to_string())),
                "{result:?}"
            );
        }
        assert!(matches!(device.allocate(1), Err(DeviceError::Lost { .. })));
    }
    stub.break_with(2);
    assert!(matches!(device.allocate(7), Err(DeviceError::OutOfMemory { bytes: 7, .. })));
    assert!(matches!(device.allocate_pinned(7), Err(DeviceError::OutOfPinnedMemory { bytes: 7 })));
    let result = device.record(event, stream);
    assert!(
        matches!(&result, Err(DeviceError::Library { code: 2, message, .. }) if message == "out of memory"),
        "{result:?}"
    );
    stub.break_with(0);
    // SAFETY: nothing is copied, the lengths differ.
    let mismatch = unsafe {
        let pinned = device.allocate_pinned(8).unwrap();
        let result = device.copy_out(DeviceSlice::new(0, 9), pinned, stream);
        device.free_pinned(pinned).unwrap();
        result
    };
    assert_eq!(mismatch, Err(DeviceError::Mismatch { call: "copy_out", from: 9, to: 8 }));
    device.destroy_event(event).unwrap();
    device.destroy_stream(stream).unwrap();
}
