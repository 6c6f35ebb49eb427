//! A worker on memory of the heap: what it does with raw addresses, for Miri too.

use std::ffi::c_void;

use super::Worker;
use crate::device::{HostFunction, StreamUse};
use crate::fp8::{Cast, CastShape, Format, Overflow, Scaling, Source};
use crate::host::queue::{CastWork, Command, Queue};

fn address<T>(of: &mut [T]) -> u64 {
    of.as_mut_ptr().expose_provenance() as u64
}

fn perform_all(commands: impl IntoIterator<Item = Command>) {
    let worker = Worker::start(StreamUse::CopyOut, ()).expect("a thread");
    for command in commands {
        worker.queue().submit(command).unwrap();
    }
    Queue::mark(worker.queue()).0.wait().unwrap();
    worker.close();
    worker.join();
}

#[test]
fn copies_between_addresses() {
    let (mut from, mut middle, mut to) = ([1u8, 2, 3, 4, 5], [0u8; 4], [9u8; 6]);
    let (source, between, end) = (address(&mut from), address(&mut middle), address(&mut to));
    perform_all([
        Command::Copy { from: source + 1, to: between, bytes: 4 },
        Command::Copy { from: between, to: end + 1, bytes: 4 },
        Command::Copy { from: 256, to: 256, bytes: 0 },
    ]);
    assert_eq!(to, [9, 2, 3, 4, 5, 9]);
}

#[test]
fn casts_between_addresses() {
    let shape = CastShape::new(2, 3, Scaling::Blocks(Default::default()), Source::F32).unwrap();
    let cast = Cast { shape, format: Format::E4m3, overflow: Overflow::Saturate };
    let numbers = [1.0f32, -2.0, 0.5, 448.0, 0.0, -56.0];
    let mut from: Vec<u8> = numbers.iter().flat_map(|number| number.to_ne_bytes()).collect();
    let (mut values, mut scales, mut back) = ([0u8; 6], [0f32; 2], [0u8; 24]);
    let there = CastWork {
        cast,
        back: false,
        wide: address(&mut from),
        values: address(&mut values),
        scales: address(&mut scales),
    };
    let again = CastWork { back: true, wide: address(&mut back), ..there };
    perform_all([Command::Cast(there), Command::Cast(again)]);
    assert_eq!(back[..], from[..], "these numbers are exact in E4M3");
    assert_eq!(scales[1], 1.0);
}

#[test]
fn functions_get_their_data() {
    unsafe extern "C-unwind" fn add_one(data: *mut c_void) {
        // SAFETY: the test's number, which it looks at only afterwards.
        unsafe { *data.cast::<u32>() += 1 };
    }
    let mut number = [41u32];
    let data = number.as_mut_ptr().expose_provenance();
    perform_all([Command::Call { function: add_one as HostFunction, data }]);
    assert_eq!(number, [42]);
}
