//! What a call costs through C, beside the same call in Rust, in one run.
//!
//! `cargo bench -p bagualu-benches --bench c_api`
#![allow(unsafe_code, reason = "it calls C functions")]

use std::hint::black_box;
use std::ptr::{null, null_mut};
use std::sync::RwLock;

use bagualu_core::budget::{Budget, Share, Unit};
use bagualu_core::schedule::{Event, Pipeline};
use bagualu_ffi::{
    bagualu_allowance, bagualu_budget, bagualu_budget_forward, bagualu_budget_free, bagualu_budget_hold,
    bagualu_budget_launch, bagualu_budget_new, bagualu_event, bagualu_status, bagualu_version_number,
};
use criterion::{Criterion, criterion_group, criterion_main};

fn schedule() -> Vec<Event> {
    let pipeline = Pipeline::new(8, 0, 16);
    let mut events = vec![Event::Forward(0); 32];
    pipeline.events(&mut events).expect("a schedule");
    events
}

fn c_budget(events: &[Event], floors: &[u64]) -> *mut bagualu_budget {
    let events: Vec<_> = events
        .iter()
        .map(|event| match *event {
            Event::Forward(unit) => bagualu_event { unit, backward: 0 },
            Event::Backward(unit) => bagualu_event { unit, backward: 1 },
        })
        .collect();
    let mut budget = null_mut();
    // SAFETY: arrays of their counts.
    let status = unsafe {
        let (events, count) = (events.as_ptr(), events.len());
        bagualu_budget_new(1_000, 0, events, count, floors.as_ptr(), null(), floors.len(), &mut budget)
    };
    assert_eq!(status, bagualu_status::Ok);
    budget
}

/// The shortest call that changes an object, and the one that writes a struct.
fn calls(c: &mut Criterion) {
    let events = schedule();
    let mut units = vec![Unit::new(10); 16];
    let mut budget = Budget::new(1_000, Share::Even, &events, &mut units).expect("feasible");
    budget.launch(10).expect("in order");
    let handle = c_budget(&events, &[10; 16]);
    assert_eq!(bagualu_budget_launch(handle, 10), bagualu_status::Ok);

    let mut group = c.benchmark_group("c_api");
    group.bench_function("hold, Rust", |b| {
        b.iter(|| black_box(&mut budget).hold(0, black_box(11)).expect("in flight"))
    });
    group.bench_function("hold, C", |b| {
        b.iter(|| assert_eq!(bagualu_budget_hold(black_box(handle), 0, black_box(11)), bagualu_status::Ok));
    });
    group.bench_function("forward, Rust", |b| {
        b.iter(|| black_box(black_box(&budget).forward().expect("in order")))
    });
    group.bench_function("forward, C", |b| {
        let struct_size = size_of::<bagualu_allowance>();
        let mut allowance = bagualu_allowance { struct_size, free: 0, limit: 0, quota: 0 };
        b.iter(|| {
            // SAFETY: a struct with its size.
            let status = unsafe { bagualu_budget_forward(black_box(handle), &mut allowance) };
            assert_eq!(status, bagualu_status::Ok);
            black_box(allowance.quota)
        });
    });
    // What a call through C has beside its work: a lock that tells two threads on one object.
    let lock = RwLock::new(7u64);
    group.bench_function("a lock taken and given back", |b| {
        b.iter(|| black_box(&lock).try_write().map(|mut value| *value += 1).is_ok());
    });
    group.bench_function("version_number, C", |b| b.iter(|| black_box(bagualu_version_number())));
    group.finish();
    assert_eq!(bagualu_budget_free(handle), bagualu_status::Ok);
}

criterion_group!(benches, calls);
criterion_main!(benches);
