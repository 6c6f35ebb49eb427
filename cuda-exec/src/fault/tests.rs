//! A copy that is refused uses nothing, and one that is under way is not said to be refused.

use std::slice;
use std::sync::mpsc::channel;

use super::{Fate, Faults, FaultyDevice};
use crate::device::{Device, DeviceError, DeviceSlice, Stream, StreamUse};
use crate::host::{HostConfig, HostDevice};

const BYTES: u64 = 1000;

struct Bench {
    device: FaultyDevice<HostDevice>,
    stream: Stream,
    to: DeviceSlice,
}

fn bench() -> Bench {
    let host = HostDevice::open(HostConfig { device_bytes: Some(1 << 20), ..HostConfig::default() }).unwrap();
    let device = FaultyDevice::new(host, Faults::default()).unwrap();
    let stream = device.create_stream(StreamUse::CopyIn).unwrap();
    let to = device.allocate(BYTES).unwrap();
    Bench { device, stream, to }
}

impl Bench {
    fn submit(&self, fate: Fate, copy: impl FnOnce() -> Result<(), DeviceError>) -> Result<(), DeviceError> {
        self.device.with_fate(fate, (self.to.address(), BYTES), self.stream, copy)
    }

    /// The destination, when the stream does not use it.
    fn bytes(&self) -> Vec<u8> {
        let start = std::ptr::with_exposed_provenance(self.to.address() as usize);
        // SAFETY: device memory of the host lives as long as the device, and was zero from the start.
        unsafe { slice::from_raw_parts(start, BYTES as usize) }.to_vec()
    }
}

#[test]
fn a_copy_under_way_is_not_refused_for_the_sleep_after_it() {
    let bench = bench();
    let submitted = bench.submit(Fate::ToldLate { nanoseconds: 1 }, || {
        bench.device.inner().run(bench.stream, || ())?;
        // The next submission is refused.
        bench.device.destroy_stream(bench.stream)
    });
    assert_eq!(submitted, Ok(()));
}

#[test]
fn nothing_is_overwritten_for_a_copy_that_is_refused() {
    let bench = bench();
    let ((open, gate), (done, end)) = (channel::<()>(), channel());
    // The overwriting is submitted behind this.
    bench.device.inner().run(bench.stream, move || gate.recv().unwrap()).unwrap();
    let refused = DeviceError::OutOfPinnedMemory { bytes: 1 };
    let submitted = bench.submit(Fate::Late { nanoseconds: 1 }, || Err(refused.clone()));
    assert_eq!(submitted, Err(refused));
    bench.device.inner().run(bench.stream, move || done.send(()).unwrap()).unwrap();
    open.send(()).unwrap();
    end.recv().unwrap();
    assert_eq!(bench.bytes(), [0; BYTES as usize]);
    // The same where it is not refused.
    bench.submit(Fate::Late { nanoseconds: 1 }, || Ok(())).unwrap();
    bench.device.synchronize(bench.stream).unwrap();
    assert_eq!(bench.bytes(), [super::GARBAGE; BYTES as usize]);
}
