//! Runs the core without std, libc and allocator: exit status 42 says that its answers were right.
//!
//! With its own panic handler it does not even compile if anything it depends on brings std.
#![no_std]
#![no_builtins]

use bagualu_core::budget::{Budget, Share, Unit};
use bagualu_core::interleave::{self, Exact, ExactSlot, Scheduler, Step};
use bagualu_core::layer::{Collectives, CopyTimes, Layer, LayerPlan, Op, Resource, Tensor};
use bagualu_core::mitigate::{self, ExactStorage, Limits, Selector};
use bagualu_core::roofline::Knee;
use bagualu_core::schedule::Event;
use bagualu_core::set::Set;

mod runtime;

/// What the process exits with; called by the entry point in `runtime`.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
extern "C" fn probe() -> i32 {
    if roofline() && budget() && mitigate() && interleave() { 42 } else { 1 }
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

fn mitigate() -> bool {
    let copy = Some(CopyTimes { out_ns: 20, in_ns: 20 });
    let tensors = [
        Tensor { bytes: 64, block_input: true, ..Tensor::default() },
        Tensor { bytes: 100, copy, ..Tensor::default() },
    ];
    let (input, output) = (Set::one(0), Set::one(1));
    let ops = [Op { reads: input, makes: output, saves: output, forward_ns: 25, collective: None }];
    let Ok(layer) = Layer::new(&tensors, &ops) else { return false };
    let limits = Limits { bytes: 100, host_bytes: u64::MAX };
    let problem = mitigate::Problem { layers: &[layer], limits, allow: Collectives::NONE };
    let (mut storage, mut plans) = (ExactStorage::new(), [LayerPlan::KEEP]);
    let found = mitigate::Exact::new(&mut storage, mitigate::Config::default()).select(&problem, &mut plans);
    // Running the operator again costs 25 ns, the copies 40.
    found.map(|s| (s.added_ns, s.optimal)) == Ok((25, true)) && plans[0].recompute == output
}

fn interleave() -> bool {
    let op = |resource| interleave::Op { resource, ns: 100, alloc_bytes: 0, free_bytes: 0 };
    let (forward, backward) = ([op(Resource::Compute)], [op(Resource::Communication)]);
    let chains: [&[interleave::Op]; 4] = [&forward, &backward, &[], &[]];
    let Ok(problem) = interleave::Problem::new(chains, 0, 0, None) else { return false };
    let (mut states, mut order) = ([ExactSlot::default(); 16], [Step::default(); 2]);
    let found = Exact::new(&mut states, interleave::Config::default()).schedule(&problem, &mut order);
    found.map(|s| (s.makespan_ns, s.optimal)) == Ok((100, true))
}
