use bagualu_core::cost::{LayerModel, OpModel, Rooflines, TensorModel, Time};
use bagualu_core::layer::{Group, Resource};
use bagualu_core::roofline::Knee;

use super::*;
use crate::checker::{Checker, Fault, Verdict};

const KNEE: Knee = Knee { size_bytes: 0, bytes_per_s: 1_000_000_000 };
const ROOFLINES: Rooflines = Rooflines { copy_out: KNEE, copy_in: KNEE, cast: KNEE, uncast: KNEE };

const INPUT: usize = 0;
const NORMED: usize = 1;
const DISPATCHED: usize = 2;
const ROWS: usize = 3;
const INNER: usize = 4;
const OUT: usize = 5;

fn set<const N: usize>(tensors: [usize; N]) -> Set {
    tensors.into_iter().collect()
}

fn tensors() -> Vec<TensorModel> {
    let tensor = |bytes| TensorModel { bytes, offload: true, ..Default::default() };
    vec![
        TensorModel { block_input: true, ..tensor(Bytes::fixed(64)) },
        tensor(Bytes::fixed(100)),
        tensor(Bytes::per_row(7)),
        TensorModel { quantized: Some(Bytes::per_row(6)), ..tensor(Bytes::per_row(10)) },
        tensor(Bytes::per_row(20)),
        tensor(Bytes::fixed(64)),
    ]
}

/// norm → dispatch → sort → fc → combine, as a MoE layer in small.
fn ops() -> Vec<OpModel> {
    let op = |reads: &[usize], makes: &[usize], saves: &[usize], forward_work, backward_work| OpModel {
        reads: reads.iter().copied().collect(),
        makes: makes.iter().copied().collect(),
        saves: saves.iter().copied().collect(),
        forward: Time { fixed_ns: 10, per_row_ps: 0 },
        backward: Time { fixed_ns: 20, per_row_ps: 0 },
        resource: Resource::Compute,
        collective: None,
        forward_work,
        backward_work,
    };
    let dispatch = op(&[NORMED], &[DISPATCHED], &[NORMED], Bytes::per_row(7), Bytes::per_row(7));
    vec![
        op(&[INPUT], &[NORMED], &[INPUT], Bytes::default(), Bytes::fixed(30)),
        OpModel { collective: Some(Group::Ep), ..dispatch },
        op(&[DISPATCHED], &[ROWS], &[], Bytes::per_row(7), Bytes::default()),
        op(&[ROWS], &[INNER], &[ROWS], Bytes::default(), Bytes::per_row(1)),
        op(&[INNER], &[OUT], &[INNER], Bytes::fixed(5), Bytes::fixed(9)),
    ]
}

fn with_stage<T>(body: impl FnOnce(&StageModel<'_>) -> T) -> T {
    let (tensors, ops) = (tensors(), ops());
    let types = [LayerModel {
        tensors: &tensors,
        ops: &ops,
        moe: set([ROWS, INNER]),
        experts: set([3, 4]),
        routed: true,
    }];
    body(&StageModel {
        types: &types,
        chunks: &[&[0]],
        rooflines: ROOFLINES,
        balanced_rows: 10,
        device_bytes: 10_000,
        host_bytes: 10_000,
        fused: false,
    })
}

/// Device bytes between the forward and the backward, and what the checker found.
fn run(rows: u32, recovery: Recovery, decision: Decision) -> (u64, u64, Verdict) {
    with_stage(|stage| {
        let checker = Checker::new(stage.types, stage.device_bytes, stage.host_bytes);
        let mut executor = Executor::new(stage, recovery, checker);
        let place = Place { unit: 0, layer: 0 };
        executor.forward_to_gate(place, 0, rows, Set::EMPTY);
        executor.forward_from_gate(place, decision);
        let before = executor.log().device_bytes();
        executor.drain();
        let held = executor.log().device_bytes();
        executor.backward(place);
        executor.leave(0);
        assert_eq!(executor.log().device_bytes(), 0);
        let verdict = executor.log().verdict().clone();
        assert_eq!(verdict.first_fault, None, "{decision:?}");
        (before, held, verdict)
    })
}

fn plan(recompute: Set, offload: Set, quantize: Set) -> Decision {
    Decision::new(LayerPlan { recompute, offload, quantize })
}

#[test]
fn bytes_are_those_of_the_strategies() {
    let rows = 10;
    let (kept, held, verdict) = run(rows, Recovery::Layer, Decision::new(LayerPlan::KEEP));
    assert_eq!((kept, held), (64 + 100 + 100 + 200, 464));
    assert_eq!(verdict.peak.bytes, 464 + 9, "at the first backward operator");

    let (before, held, verdict) = run(rows, Recovery::Layer, plan(set([INNER]), set([ROWS]), Set::EMPTY));
    assert_eq!((before, held), (64 + 100 + 100, 64 + 100));
    assert_eq!(verdict.host_peak, 100);
    assert_eq!(verdict.peak.bytes, 464 + 9);

    let (before, held, verdict) = run(rows, Recovery::Layer, plan(set([INNER]), Set::EMPTY, set([ROWS])));
    assert_eq!((before, held), (64 + 100 + 60, 224));
    assert_eq!(verdict.host_peak, 0);
}

#[test]
fn a_whole_recompute_runs_dispatch_again() {
    let everything = plan(set([NORMED, ROWS, INNER]), Set::EMPTY, Set::EMPTY);
    for recovery in [Recovery::Layer, Recovery::Operator] {
        let (_, held, verdict) = run(10, recovery, everything);
        assert_eq!(held, 64);
        assert!(verdict.peak.bytes >= 464 && verdict.peak.bytes <= 464 + 10 + 70, "{verdict:?}");
    }
}

#[test]
fn row_chunks_divide_what_is_made_again() {
    let whole = plan(set([ROWS, INNER]), Set::EMPTY, Set::EMPTY);
    let (_, held, one) = run(100, Recovery::Layer, whole);
    let (_, same, four) = run(100, Recovery::Layer, Decision { dispatch_chunks: 4, ..whole });
    assert_eq!((held, same), (164, 164));
    assert_eq!(one.peak.bytes, 164 + 3_000 + 9);
    assert_eq!(four.peak.bytes, 164 + 750 + 9);
}

#[test]
fn row_chunks_of_the_experts_divide_their_own_tensors_in_forward() {
    let dropped = plan(set([INNER]), Set::EMPTY, Set::EMPTY);
    let forward_peak = |expert_chunks| {
        with_stage(|stage| {
            let checker = Checker::new(stage.types, stage.device_bytes, stage.host_bytes);
            let mut executor = Executor::new(stage, Recovery::Layer, checker);
            let place = Place { unit: 0, layer: 0 };
            executor.forward_to_gate(place, 0, 100, Set::EMPTY);
            executor.forward_from_gate(place, Decision { expert_chunks, ..dropped });
            let forward = executor.log().verdict().peak.bytes;
            executor.backward(place);
            executor.leave(0);
            assert_eq!(executor.log().verdict().first_fault, None);
            (forward, executor.log().verdict().peak.bytes)
        })
    };
    assert_eq!(forward_peak(1), (164 + 3_000 + 5, 164 + 3_000 + 9));
    assert_eq!(forward_peak(4), (164 + 1_700, 164 + 3_000 + 9));
}

#[test]
fn every_plan_has_what_its_backward_reads() {
    let saved = set([NORMED, ROWS, INNER]);
    for recovery in [Recovery::Layer, Recovery::Operator] {
        for choice in 0..64usize {
            let mut plan = LayerPlan::KEEP;
            for (tensor, place) in saved.iter().zip(0u32..) {
                match choice / 4usize.pow(place) % 4 {
                    1 => plan.recompute.insert(tensor),
                    2 => plan.offload.insert(tensor),
                    3 if tensor == ROWS => plan.quantize.insert(tensor),
                    _ => {}
                }
            }
            for dispatch_chunks in 1..4 {
                for expert_chunks in 1..3 {
                    run(7, recovery, Decision { plan, dispatch_chunks, expert_chunks });
                }
            }
        }
    }
}

#[test]
fn an_early_recovery_is_there_before_its_backward() {
    with_stage(|stage| {
        let checker = Checker::new(stage.types, stage.device_bytes, stage.host_bytes);
        let mut executor = Executor::new(stage, Recovery::Layer, checker);
        let places = [0, 1].map(|unit| Place { unit, layer: 0 });
        let offload = plan(Set::EMPTY, set([ROWS, INNER]), Set::EMPTY);
        executor.forward_to_gate(places[0], 0, 10, Set::EMPTY);
        executor.forward_from_gate(places[0], offload);
        executor.drain();
        let held = executor.log().device_bytes();
        executor.recover_early(0);
        assert_eq!(executor.log().device_bytes(), held + 300, "it counts from its start");
        executor.forward_to_gate(places[1], 0, 10, Set::EMPTY);
        executor.forward_from_gate(places[1], Decision::new(LayerPlan::KEEP));
        for (unit, place) in (0..).zip(places) {
            executor.backward(place);
            executor.leave(unit);
        }
        let verdict = executor.log().verdict();
        assert_eq!((verdict.first_fault, verdict.host_peak), (None, 300));
        assert!(verdict.peak.bytes >= 2 * 464, "{verdict:?}");
    });
}

#[test]
fn a_capacity_one_byte_too_small_is_found() {
    with_stage(|stage| {
        for (short, found) in [(0, false), (1, true)] {
            let mut executor =
                Executor::new(stage, Recovery::Layer, Checker::new(stage.types, 473 - short, 0));
            let place = Place { unit: 0, layer: 0 };
            executor.forward_to_gate(place, 0, 10, Set::EMPTY);
            executor.forward_from_gate(place, Decision::new(LayerPlan::KEEP));
            executor.backward(place);
            let verdict = executor.log().verdict();
            assert_eq!(verdict.first_excess.is_some(), found);
            assert_eq!(verdict.excess_iterations.len(), usize::from(found));
        }
    });
}

/// Changes events on their way to the checker.
struct Meddler<'a, F> {
    checker: Checker<'a>,
    change: F,
}

impl<F: FnMut(Event) -> Option<Event>> Log for Meddler<'_, F> {
    fn record(&mut self, ns: u64, event: Event) {
        if let Some(event) = (self.change)(event) {
            self.checker.record(ns, event);
        }
    }
}

#[test]
fn planted_mistakes_are_found() {
    let fault = |change: fn(Event) -> Option<Event>| {
        with_stage(|stage| {
            let checker = Checker::new(stage.types, stage.device_bytes, stage.host_bytes);
            let mut executor = Executor::new(stage, Recovery::Layer, Meddler { checker, change });
            let place = Place { unit: 0, layer: 0 };
            executor.forward_to_gate(place, 0, 10, Set::EMPTY);
            executor.forward_from_gate(place, plan(set([INNER]), set([ROWS]), Set::EMPTY));
            executor.backward(place);
            executor.leave(0);
            executor.log().checker.verdict().first_fault
        })
    };
    assert_eq!(fault(Some), None);
    let forgets_the_reload = fault(|e| {
        (!matches!(e, Event::CopyStart(_, Form::Host, _) | Event::CopyEnd(_, Form::Host, _))).then_some(e)
    });
    assert!(
        matches!(forgets_the_reload, Some(Fault::ReadsMissing(run, 3)) if run.op == 3),
        "{forgets_the_reload:?}"
    );
    let forgets_to_recompute = fault(|e| match e {
        Event::Start(run) | Event::End(run) if run.pass == Pass::Again => None,
        e => Some(e),
    });
    assert!(matches!(forgets_to_recompute, Some(Fault::ReadsMissing(..))), "{forgets_to_recompute:?}");
    let frees_early = fault(|e| match e {
        Event::CopyEnd(_, Form::Wide, Form::Host) => None,
        e => Some(e),
    });
    assert!(matches!(frees_early, Some(Fault::FreedInCopy(..))), "{frees_early:?}");
    let leaks = fault(|e| match e {
        Event::Free(item, Form::Host) if item.tensor == 3 => None,
        e => Some(e),
    });
    assert!(matches!(leaks, Some(Fault::Leaked(item)) if item.tensor == 3), "{leaks:?}");
    let stores_nothing = fault(|e| match e {
        Event::Alloc(item, Form::Wide) if item.tensor == 1 => None,
        e => Some(e),
    });
    assert!(matches!(stores_nothing, Some(Fault::NotStored(..))), "{stores_nothing:?}");
    let unknown = fault(|e| match e {
        Event::Enter { place, rows, .. } => Some(Event::Enter { place, kind: 9, rows }),
        e => Some(e),
    });
    assert!(matches!(unknown, Some(Fault::Unknown(_))), "{unknown:?}");
}
