//! Interleaving against exhaustive enumeration, a direct form of the paper's program, and an independent
//! checker of orders.

mod checker;
mod instances;
mod paper;

use bagualu_core::interleave::{
    Chain, Config, Exact, ExactSlot, InterleaveError, List, Op, PaperDp, PaperSlot, Problem, Scheduler,
    Solution, Span, Step, compact, run,
};
use bagualu_core::layer::Resource;
use checker::{all_orders, check};
use instances::{Instance, Random, random};

/// The best makespan over all orders, and how many orders fit.
fn enumerate(instance: &Instance, capacity: u64) -> (Option<u64>, usize) {
    let (mut best, mut fitting) = (None, 0);
    all_orders(instance.lengths(), instance.merge.as_deref(), &mut |order| {
        if let Some(outcome) = check(instance.slices(), instance.base, capacity, order) {
            fitting += 1;
            best = Some(best.map_or(outcome.makespan, |b: u64| b.min(outcome.makespan)));
        }
    });
    (best, fitting)
}

/// The smallest capacity for which some order fits, by trying.
fn smallest_capacity(instance: &Instance) -> u64 {
    // An empty order needs the base.
    (instance.base..).find(|&capacity| enumerate(instance, capacity).0.is_some()).expect("some capacity")
}

/// Solves, and checks that the order is what the solution says.
fn solve(
    scheduler: &mut dyn Scheduler,
    instance: &Instance,
) -> Result<(Solution, Vec<Step>), InterleaveError> {
    let problem = instance.problem()?;
    let mut order = vec![Step::default(); problem.op_count()];
    let solution = scheduler.schedule(&problem, &mut order)?;
    let outcome =
        check(instance.slices(), instance.base, instance.capacity, &order).expect("a fitting order");
    assert_eq!(solution.makespan_ns, outcome.makespan, "{instance:?} {order:?}");
    assert_eq!(i128::from(solution.peak_bytes), outcome.peak, "{instance:?} {order:?}");
    assert!(solution.peak_bytes <= instance.capacity);
    assert!(solution.lower_bound_ns <= solution.makespan_ns);
    assert_eq!(solution.optimal, solution.lower_bound_ns == solution.makespan_ns);
    if let Some(merge) = &instance.merge {
        let merged = order.iter().map(|s| s.chain).filter(|c| matches!(c, Chain::Forward | Chain::Backward));
        assert_eq!(&merged.collect::<Vec<_>>(), merge);
    }
    Ok((solution, order))
}

#[derive(Default, Debug)]
struct Seen {
    instances: usize,
    binding: usize,
    infeasible: usize,
    merged: usize,
    empty_chain: usize,
    zero_length: usize,
    above_bound: usize,
}

/// Exact, List and PaperDp on one instance at one capacity, against all its orders.
fn against_enumeration(instance: &Instance, seen: &mut Seen) {
    let mut storage = vec![ExactSlot::default(); 1 << 14];
    let mut exact = Exact::new(&mut storage, Config::default());
    let mut states = vec![PaperSlot::default(); 1 << 12];
    let mut paper = PaperDp::new(&mut states);
    let (best, _) = enumerate(instance, instance.capacity);
    seen.instances += 1;
    seen.merged += usize::from(instance.merge.is_some());
    seen.empty_chain += usize::from(instance.chains.iter().any(Vec::is_empty));
    seen.zero_length += usize::from(instance.chains.iter().flatten().any(|op| op.ns == 0));
    match best.filter(|_| instance.capacity >= instance.base) {
        None => {
            seen.infeasible += 1;
            let expected = Err(InterleaveError::Infeasible {
                needed_bytes: smallest_capacity(instance),
                available_bytes: instance.capacity,
            });
            assert_eq!(solve(&mut exact, instance).map(|s| s.0), expected, "{instance:?}");
            assert_eq!(solve(&mut paper, instance).map(|s| s.0), expected);
            assert_eq!(solve(&mut List, instance).map(|s| s.0), expected);
        }
        Some(best) => {
            let free = enumerate(&Instance { capacity: u64::MAX, ..instance.clone() }, u64::MAX).0;
            seen.binding += usize::from(free.expect("an order") < best);
            let (solution, order) = solve(&mut exact, instance).expect("feasible");
            assert!(
                solution.makespan_ns >= best && solution.lower_bound_ns <= best,
                "{instance:?} {order:?}"
            );
            for other in [&mut paper as &mut dyn Scheduler, &mut List] {
                let (other, order) = solve(other, instance).expect("feasible");
                assert!(other.makespan_ns >= best && other.lower_bound_ns <= best, "{instance:?} {order:?}");
                seen.above_bound += usize::from(other.lower_bound_ns < best);
            }
        }
    }
}

#[test]
fn exact_equals_exhaustive_enumeration() {
    let mut seen = Seen::default();
    let mut source = Random(1);
    for round in 0..1_500 {
        let resources = 1 + source.below(4);
        let mut instance = random(&mut source, 7, resources, 1 + 4 * (round % 3), round % 2 == 1);
        against_enumeration(&instance, &mut seen);
        let needed = smallest_capacity(&instance);
        for above in [0, source.below(4), source.below(8)] {
            instance.capacity = needed + above;
            against_enumeration(&instance, &mut seen);
        }
        if needed > 0 {
            instance.capacity = needed - 1;
            against_enumeration(&instance, &mut seen);
        }
    }
    println!("{seen:?}");
    assert!(seen.instances > 6_000 && seen.binding > 300 && seen.infeasible > 1_000);
    assert!(seen.merged > 2_500 && seen.zero_length > 2_500 && seen.empty_chain > 2_500);
    assert!(seen.above_bound > 100);
}

#[test]
fn larger_instances_equal_enumeration_too() {
    let mut seen = Seen::default();
    let mut source = Random(4);
    for round in 0..120 {
        let resources = 2 + source.below(3);
        let mut instance = random(&mut source, 9, resources, 9, round % 3 == 0);
        against_enumeration(&instance, &mut seen);
        instance.capacity = match solve(&mut List, &Instance { capacity: 0, ..instance.clone() }) {
            Err(InterleaveError::Infeasible { needed_bytes, .. }) => needed_bytes + source.below(6),
            _ => continue,
        };
        against_enumeration(&instance, &mut seen);
    }
    assert!(seen.instances > 200 && seen.binding > 15 && seen.infeasible == 0, "{seen:?}");
}

#[test]
fn a_search_cut_short_says_what_it_proved() {
    let mut source = Random(5);
    let mut storage = vec![ExactSlot::default(); 1 << 16];
    let (mut cut, mut raised) = (0, 0);
    for round in 0..300 {
        let mut instance = random(&mut source, 20, 4, 9, round % 3 == 0);
        let least = solve(&mut List, &Instance { capacity: 0, ..instance.clone() });
        if let Err(InterleaveError::Infeasible { needed_bytes, .. }) = least {
            instance.capacity = if round % 2 == 0 { needed_bytes + source.below(9) } else { u64::MAX };
        }
        let (list, _) = solve(&mut List, &instance).expect("feasible");
        let mut exact = Exact::new(&mut storage, Config::default());
        let (best, _) = solve(&mut exact, &instance).expect("feasible");
        assert!(best.optimal && best.makespan_ns <= list.makespan_ns);
        for (slots, node_limit) in
            [(0, u32::MAX), (1, u32::MAX), (7, u32::MAX), (60, u32::MAX), (1 << 16, 0), (1 << 16, 9)]
        {
            let mut exact = Exact::new(&mut storage[..slots], Config { node_limit });
            let (found, order) = solve(&mut exact, &instance).expect("feasible");
            assert!(found.makespan_ns >= best.makespan_ns, "{instance:?} {order:?}");
            assert!(found.lower_bound_ns <= best.makespan_ns && found.lower_bound_ns >= list.lower_bound_ns);
            cut += usize::from(!found.optimal);
            raised += usize::from(!found.optimal && found.lower_bound_ns > list.lower_bound_ns);
        }
    }
    assert!(cut > 100 && raised > 20, "{cut} {raised}");
}

#[test]
fn the_run_of_any_order_equals_the_checkers() {
    let mut source = Random(2);
    let (mut fitting, mut not) = (0, 0);
    for round in 0..1_200 {
        let mut instance = random(&mut source, 6, 1 + round % 4, 3, round % 2 == 0);
        instance.capacity = instance.base + source.below(16);
        let problem = instance.problem().expect("a problem");
        all_orders(instance.lengths(), instance.merge.as_deref(), &mut |order| {
            let expected = check(instance.slices(), instance.base, instance.capacity, order);
            match (run(&problem, order), expected) {
                (Ok(run), Some(outcome)) => {
                    assert_eq!(run.makespan_ns, outcome.makespan, "{instance:?} {order:?}");
                    assert_eq!(i128::from(run.peak_bytes), outcome.peak, "{instance:?} {order:?}");
                    fitting += 1;
                }
                (Err(InterleaveError::Infeasible { needed_bytes, .. }), None) => {
                    let with = |capacity| check(instance.slices(), instance.base, capacity, order);
                    assert!(with(needed_bytes).is_some() && with(needed_bytes - 1).is_none());
                    not += 1;
                }
                (run, expected) => panic!("{instance:?} {order:?} {run:?} {expected:?}"),
            }
        });
    }
    assert!(fitting > 5_000 && not > 5_000, "{fitting} {not}");
}

#[test]
fn paper_dp_equals_its_direct_form() {
    let mut source = Random(3);
    let mut states = vec![PaperSlot::default(); 1 << 16];
    let mut gaps = 0;
    for round in 0..1_200 {
        let mut instance = random(&mut source, 12, 1 + round % 4, 9, round % 3 == 0);
        if round % 2 == 1 {
            let error = solve(&mut List, &Instance { capacity: 0, ..instance.clone() }).err();
            if let Some(InterleaveError::Infeasible { needed_bytes, .. }) = error {
                instance.capacity = needed_bytes + source.below(12);
            }
        }
        let mut dp = PaperDp::new(&mut states);
        let (solution, _) = solve(&mut dp, &instance).expect("feasible");
        assert_eq!(dp.barrier_ns(), paper::direct(&instance), "{instance:?}");
        assert!(solution.makespan_ns <= dp.barrier_ns());
        gaps += usize::from(solution.makespan_ns < dp.barrier_ns());
    }
    assert!(gaps > 30, "{gaps}");
}

fn op(resource: Resource, ns: u64, alloc_bytes: u64, free_bytes: u64) -> Op {
    Op { resource, ns, alloc_bytes, free_bytes }
}

#[test]
fn stages_never_hold_less_than_their_operators() {
    let mut source = Random(6);
    let mut joined = 0;
    for _ in 0..500 {
        let chain = random(&mut source, 12, 2, 9, false).chains.concat();
        let (mut stages, mut spans) = (vec![op(Resource::CopyIn, 0, 0, 0); 12], vec![Span::default(); 12]);
        let count = compact(&chain, &mut stages, &mut spans).expect("room for all");
        joined += chain.len() - count;
        let (mut next, mut held, mut stage_held) = (0, 0i64, 0i64);
        for (stage, span) in stages.iter().zip(&spans).take(count) {
            assert_eq!(span.first, next);
            let ops = &chain[span.first..span.first + span.len];
            assert!(ops.iter().all(|op| op.resource == stage.resource));
            assert!(ops.len() == 1 || stage.resource == Resource::Compute);
            assert_eq!(ops.iter().map(|op| op.ns).sum::<u64>(), stage.ns);
            let mut most = held;
            for op in ops {
                most = most.max(held + op.alloc_bytes as i64);
                held += op.alloc_bytes as i64 - op.free_bytes as i64;
            }
            assert_eq!(most.max(stage_held), stage_held + stage.alloc_bytes as i64);
            stage_held += stage.alloc_bytes as i64 - stage.free_bytes as i64;
            assert_eq!(held, stage_held);
            next += span.len;
        }
        assert_eq!(next, chain.len());
        if count > 0 {
            let refused = compact(&chain, &mut stages[..count - 1], &mut spans);
            assert_eq!(
                refused,
                Err(InterleaveError::StorageTooSmall { needed: chain.len(), available: count - 1 })
            );
        }
    }
    assert!(joined > 500, "{joined}");
}

#[test]
fn bad_input_is_refused_by_name() {
    let one = [op(Resource::Compute, 1, 0, 0)];
    let many = [one[0]; 65];
    let chains: [&[Op]; 4] = [&one, &one, &[], &[]];
    let refused =
        |chains, base, merge| Problem::new(chains, base, 10, merge).expect_err("refused").to_string();
    assert!(refused([&many, &[], &[], &[]], 0, None).contains("65 operators in chain forward"));
    assert!(refused(chains, u64::MAX, None).contains("base_bytes"));
    let long = [op(Resource::Compute, u64::MAX, 0, 0)];
    assert!(refused([&[], &[], &long, &[]], 0, None).contains("offload operator 0"));
    let large = [op(Resource::Compute, 0, u64::MAX / 2, 0), op(Resource::Compute, 0, 0, 1)];
    assert!(refused([&[], &[], &[], &large], 0, None).contains("recover operator 1"));
    assert!(refused(chains, 0, Some(&[Chain::Forward])).contains("merge names backward 0 times"));
    assert!(
        refused(chains, 0, Some(&[Chain::Forward, Chain::Backward, Chain::Offload]))
            .contains("merge names offload")
    );

    let problem = Problem::new(chains, 0, 10, Some(&[Chain::Backward, Chain::Forward])).expect("a problem");
    let step = |chain, index| Step { chain, index };
    let bad = |order: &[Step]| run(&problem, order).expect_err("refused");
    assert_eq!(bad(&[]), InterleaveError::OrderLength { length: 0, needed: 2 });
    let against_merge = [step(Chain::Forward, 0), step(Chain::Backward, 0)];
    assert_eq!(
        bad(&against_merge),
        InterleaveError::BadOrder { position: 0, chain: Chain::Forward, index: 0 }
    );
    let twice = [step(Chain::Backward, 0), step(Chain::Backward, 0)];
    assert!(bad(&twice).to_string().contains("order[1] is backward operator 0"));
    assert_eq!(
        List.schedule(&problem, &mut [Step::default()]),
        Err(InterleaveError::StorageTooSmall { needed: 2, available: 1 })
    );
    assert_eq!(
        PaperDp::new(&mut [PaperSlot::default(); 2]).schedule(&problem, &mut [Step::default(); 2]),
        Err(InterleaveError::StorageTooSmall { needed: 3, available: 2 })
    );
}
