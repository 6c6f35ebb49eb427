//! Runs the core without std, libc and allocator: exit status 42 says that its answers were right.
//!
//! With its own panic handler it does not even compile if anything it depends on brings std.
#![no_std]
#![no_builtins]

use bagualu_core::budget::{Budget, Share, Unit};
use bagualu_core::interleave::{List, Op, Problem, Scheduler, Step};
use bagualu_core::layer::Resource;
use bagualu_core::roofline::Knee;
use bagualu_core::schedule::Event;

mod runtime;

/// What the process exits with; called by the entry point in `runtime`.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
extern "C" fn probe() -> i32 {
    if roofline() && budget() && interleave() { 42 } else { 1 }
}

fn roofline() -> bool {
    Knee { size_bytes: 1_000, bytes_per_s: 1_000_000_000 }.ns(2_000) == 2_000
}

fn budget() -> bool {
    let events = [Event::Forward(0), Event::Forward(1), Event::Backward(0), Event::Backward(1)];
    let mut units = [Unit::new(10), Unit::new(10)];
    let Ok(mut budget) = Budget::new(1_000, Share::Even, &events, &mut units) else { return false };
    let first = budget.forward().map(|a| (a.quota, a.limit));
    first == Ok((500, 990)) && budget.launch(500).is_ok() && budget.forward().map(|a| a.quota) == Ok(500)
}

fn interleave() -> bool {
    let op = |resource| Op { resource, ns: 100, alloc_bytes: 0, free_bytes: 0 };
    let (forward, backward) = ([op(Resource::Compute)], [op(Resource::Communication)]);
    let Ok(problem) = Problem::new([&forward, &backward, &[], &[]], 0, 0, None) else { return false };
    let mut order = [Step::default(); 2];
    List.schedule(&problem, &mut order).map(|s| (s.makespan_ns, s.optimal)) == Ok((100, true))
}
