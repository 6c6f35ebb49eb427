//! What is checked on both vendors' backends.

use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use bagualu_exec::Kernels;
use bagualu_exec::collective::{Collective, CollectiveError, Disagreement, UniqueId, agree, merge_profile};
use bagualu_exec::conformance::{Options, Outcome, run};
use bagualu_exec::device::{Device, DeviceError, DeviceSlice, StreamUse};
use bagualu_exec::fp8::{Cast, CastShape, Format, Overflow, Scaling, Source};

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

    /// The stream or event made after `count` more of them fails with `code`.
    pub fn refuse_after(&self, count: i32, code: i32) {
        // SAFETY: the signature in `stub.h`.
        let refuse = unsafe { self.0.get::<unsafe extern "C" fn(i32, i32)>(b"stub_refuse_after") };
        // SAFETY: as above.
        unsafe { refuse.expect("in the stub")(count, code) };
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
    let casts = report.cases.iter().find(|case| case.name.contains("cast"));
    assert_eq!(casts.map(|case| &case.outcome), Some(&Outcome::Passed), "{report}");
    let passed = report.cases.iter().filter(|case| case.outcome == Outcome::Passed).count();
    assert!(passed >= 20, "{report}");
    left(stub, 0);
}

/// `count` streams, events and allocations are left.
fn left(stub: &Stub, count: i32) {
    // Streams end after their work, on threads of their own.
    for _ in 0..500 {
        if stub.live() == count {
            return;
        }
        thread::sleep(Duration::from_millis(10));
    }
    panic!("{} streams, events and allocations are left, not {count}", stub.live());
}

/// A file that the stub takes for its kernels.
pub fn kernels(library: &Path) -> Kernels {
    let file = library.with_extension("kernels");
    std::fs::write(&file, "kernels of the stub\n").expect("a file beside the stub");
    Kernels::File(file)
}

/// Without kernels all works but the casts, and a cast says what is missing.
pub fn only_casts_need_kernels(device: &dyn Device, missing: &str) {
    let shape = CastShape::new(2, 64, Scaling::Unit, Source::Bf16).unwrap();
    let cast = Cast { shape, format: Format::E4m3, overflow: Overflow::Saturate };
    let stream = device.create_stream(StreamUse::Compute).unwrap();
    let (wide, values) = (device.allocate(256).unwrap(), device.allocate(128).unwrap());
    let none = DeviceSlice::new(0, 0);
    // Each time anew: what is missing may be put there.
    for _ in 0..2 {
        // SAFETY: the memory lives until the stream has run empty.
        let error = unsafe { device.quantize(&cast, wide, values, none, stream) }.unwrap_err();
        assert!(error.to_string().contains(missing), "{error}");
    }
    // SAFETY: as above, and the address is used by nothing, as it is refused.
    let odd =
        unsafe { device.quantize(&cast, DeviceSlice::new(wide.address() + 1, 256), values, none, stream) };
    assert!(matches!(odd, Err(DeviceError::Unsupported { .. })), "{odd:?}");
    device.synchronize(stream).unwrap();
    device.destroy_stream(stream).unwrap();
    // SAFETY: the stream has run empty.
    unsafe {
        device.free(wide).unwrap();
        device.free(values).unwrap();
    }
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

/// Joins a group of `size` as `rank` on a device of its own.
pub trait Join:
    Fn(usize, usize, UniqueId, Duration) -> Result<Box<dyn Collective>, CollectiveError> + Sync
{
}

impl<T> Join for T where
    T: Fn(usize, usize, UniqueId, Duration) -> Result<Box<dyn Collective>, CollectiveError> + Sync
{
}

/// A group over devices agrees, disagrees on every rank, and does not wait for ever.
pub fn ranks_agree(id: impl Fn() -> UniqueId, join: impl Join, stub: &Stub) {
    const LONG: Duration = Duration::from_secs(600);
    const SHORT: Duration = Duration::from_millis(100);
    let on_all = |size: usize,
                  here: usize,
                  work: &(dyn Fn(&mut dyn Collective) -> Result<(), Disagreement> + Sync)| {
        let id = id();
        thread::scope(|scope| {
            let ranks: Vec<_> = (0..here)
                .map(|rank| {
                    let join = &join;
                    scope.spawn(move || {
                        let timeout = if here < size { SHORT } else { LONG };
                        let mut group = join(rank, size, id, timeout)?;
                        assert_eq!((group.rank(), group.size()), (rank, size));
                        work(&mut *group)
                    })
                })
                .collect();
            ranks.into_iter().map(|rank| rank.join().expect("no panic")).collect::<Vec<_>>()
        })
    };

    let merged = on_all(3, 3, &|group| {
        let rank = group.rank() as u64;
        let mut profile = [rank, 10 - rank, u64::MAX - rank];
        merge_profile(group, &mut profile, LONG)?;
        assert_eq!(profile, [2, 10, u64::MAX]);
        agree(group, 7, LONG)
    });
    assert_eq!(merged, [Ok(()), Ok(()), Ok(())]);

    let odd = on_all(3, 3, &|group| {
        let fingerprint = u64::from(group.rank() == 1);
        agree(group, fingerprint, LONG)
    });
    assert!(odd.iter().all(|result| matches!(result, Err(Disagreement::Group(_)))), "{odd:?}");

    let timed_out =
        Err(Disagreement::Collective(CollectiveError::TimedOut { timeout: SHORT, missing: None }));
    let alone = on_all(3, 2, &|_| Ok(()));
    assert_eq!(alone, [timed_out.clone(), timed_out.clone()], "a rank never joins");

    let late = on_all(3, 3, &|group| match group.rank() {
        1 => Ok(()),
        _ => {
            assert_eq!(agree(group, 1, SHORT), timed_out, "a rank joins and never comes");
            let broken = Err(Disagreement::Collective(CollectiveError::Broken));
            assert_eq!(agree(group, 1, LONG), broken, "the communicator was ended");
            Ok(())
        }
    });
    assert_eq!(late, [Ok(()), Ok(()), Ok(())]);
    // Each of the two ranks that gave up leaves its device and pinned buffer, as work under way may write to them.
    left(stub, 4);
    failed_calls_end_the_group(&|| join(0, 1, id(), LONG), stub);
    let outside = join(3, 3, id(), SHORT).unwrap_err();
    assert_eq!(outside, CollectiveError::Rank { rank: 3, size: 3 });
}

/// A call that fails ends the group on its rank, however early: the others may be in it. Nothing is left of a failed `join`.
fn failed_calls_end_the_group(alone: &dyn Fn() -> Result<Box<dyn Collective>, CollectiveError>, stub: &Stub) {
    const LONG: Duration = Duration::from_secs(600);
    let before = stub.live();
    type Call = fn(&mut dyn Collective) -> Result<(), CollectiveError>;
    // Too little room; the device refuses the memory of either call.
    let calls: [(i32, Call); 3] = [
        (0, |group| group.gather(&[1, 2], &mut [0], LONG)),
        (2, |group| group.gather(&[1], &mut [0], LONG)),
        (2, |group| group.max(&mut [1], LONG)),
    ];
    for (code, call) in calls {
        let mut group = alone().expect("a group of one");
        group.gather(&[1], &mut [0], LONG).expect("a group that works");
        stub.break_with(code);
        let failed = call(&mut *group);
        stub.break_with(0);
        assert!(matches!(&failed, Err(error) if *error != CollectiveError::Broken), "{failed:?}");
        assert_eq!(group.gather(&[1], &mut [0], LONG), Err(CollectiveError::Broken));
        assert_eq!(group.max(&mut [1], LONG), Err(CollectiveError::Broken));
    }
    left(stub, before);
    let joined = (0..100).find(|&count| {
        stub.refuse_after(count, 2);
        let joined = alone();
        left(stub, before + if joined.is_ok() { 2 } else { 0 });
        joined.is_ok()
    });
    assert_eq!(joined, Some(2), "a stream and an event are made");
    stub.refuse_after(-1, 0);
    left(stub, before);
}
