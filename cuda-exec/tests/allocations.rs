//! In steady state the executor allocates nothing: memory comes from where it was taken at the start.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bagualu_exec::host::{HostConfig, HostDevice};

mod common;

use common::{Job, run_with};

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

/// Counts, on every thread.
struct Counting;

// SAFETY: all is passed on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: passed on.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: passed on.
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

#[test]
fn no_micro_batch_allocates_once_the_first_iterations_have_run() {
    // One after another: the counter counts every thread.
    steady(false);
    steady(true);
}

fn steady(casts: bool) {
    const ITERATIONS: usize = 12;
    const WARM_UP: usize = 4;
    let config = HostConfig { device_bytes: Some(320_000), ..HostConfig::default() };
    let device = Arc::new(HostDevice::open(config).expect("a host"));
    let job = Job { iterations: ITERATIONS as u64, operators: false, casts, ..Job::new(320_000) };
    let mut counted = [0; ITERATIONS];
    let mut after = |iteration: u64| counted[iteration as usize] = ALLOCATIONS.load(Ordering::Relaxed);
    let outcome = run_with(device, job, &mut after).expect("feasible");
    assert!(outcome.counts.offloaded > 0 && outcome.hooks > 0, "{outcome:?}");
    assert_eq!(outcome.counts.quantized > 0, casts, "{outcome:?}");
    assert!(counted[0] > 0, "the counter counts");
    assert_eq!(
        counted[ITERATIONS - 1] - counted[WARM_UP],
        0,
        "allocations after each iteration: {counted:?}"
    );
}
