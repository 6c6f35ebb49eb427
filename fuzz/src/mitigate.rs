//! Selections for any layers: they are what evaluating their plans shows, within both limits; what is
//! proven is not beaten; what is infeasible has nothing below its least bytes.

use bagualu_core::layer::{CastTimes, Collectives, CopyTimes, Group, Layer, LayerPlan, Op, Tensor};
use bagualu_core::mitigate::{
    Config, Exact, ExactStorage, Limits, MitigateError, PaperGreedy, Problem, RatioGreedy, Selection,
    Selector, evaluate,
};
use bagualu_core::set::Set;

use crate::Input;

const MOST_LAYERS: usize = 4;
const MOST_TENSORS: usize = 12;

/// The target.
pub fn mitigate(data: &[u8]) {
    let mut input = Input::new(data);
    let tables: Vec<_> = (0..1 + input.below(MOST_LAYERS)).map(|_| table(&mut input)).collect();
    // Tables may be wrong: then a typed error, and nothing more to do.
    let Ok(layers) = tables.iter().map(|(t, o)| Layer::new(t, o)).collect::<Result<Vec<_>, _>>() else {
        return;
    };
    let allow = [Collectives::NONE, Collectives::NONE.with(Group::Ep), Collectives::ALL][input.below(3)];
    any_plan(&layers, allow, &mut input);
    let full = layers.iter().fold(0u64, |sum, layer| sum.saturating_add(layer.full_bytes()));
    let bytes = (u128::from(full) * u128::from(input.byte()) / 200) as u64;
    let host_bytes = if input.one_in(2) { full / (1 + input.below(8) as u64) } else { u64::MAX };
    let problem = Problem { layers: &layers, limits: Limits { bytes, host_bytes }, allow };
    check(&problem, if input.one_in(8) { 20 } else { Config::default().node_limit });
}

fn check(problem: &Problem<'_>, node_limit: u32) {
    let mut storage = Box::new(ExactStorage::new());
    let exact = solve(problem, &mut Exact::new(&mut storage, Config { node_limit, ..Config::default() }));
    let greedy = [solve(problem, &mut RatioGreedy), solve(problem, &mut PaperGreedy)];
    match exact {
        Ok(best) => {
            for other in greedy.into_iter().flatten() {
                let floor = best.added_ns - best.gap_ns;
                assert!(other.added_ns >= floor, "{other:?} beats what {best:?} has proven");
                let key = |s: Selection| (s.added_ns, s.bytes);
                assert!(!best.optimal || key(other) >= key(best), "{other:?} beats {best:?}");
            }
        }
        Err(MitigateError::Infeasible { least, limit }) => {
            assert!(least > limit && greedy.iter().all(Result::is_err));
            let at = |bytes| {
                let limits = Limits { bytes, host_bytes: u64::MAX };
                solve(
                    &Problem { limits, ..*problem },
                    &mut Exact::new(&mut Box::new(ExactStorage::new()), Config::default()),
                )
            };
            assert!(at(least).is_ok(), "{least} bytes are not enough");
        }
        Err(MitigateError::HostInfeasible { least, limit }) => {
            assert!(least > limit && greedy.iter().all(Result::is_err));
        }
        Err(_) => {}
    }
}

/// The claim of `selector`, checked plan by plan.
fn solve(problem: &Problem<'_>, selector: &mut impl Selector) -> Result<Selection, MitigateError> {
    let mut plans = vec![LayerPlan::KEEP; problem.layers.len()];
    let selection = selector.select(problem, &mut plans)?;
    let (mut bytes, mut host_bytes, mut added_ns) = (0, 0, 0);
    for (layer, plan) in problem.layers.iter().zip(&plans) {
        let point = evaluate(layer, plan, problem.allow).expect("a selected plan is allowed");
        bytes += point.bytes;
        host_bytes += point.host_bytes;
        added_ns += point.added_ns;
    }
    assert_eq!((bytes, host_bytes, added_ns), (selection.bytes, selection.host_bytes, selection.added_ns));
    assert!(bytes <= problem.limits.bytes && host_bytes <= problem.limits.host_bytes, "{selection:?}");
    assert!(selection.gap_ns <= added_ns && (!selection.optimal || selection.gap_ns == 0), "{selection:?}");
    Ok(selection)
}

/// Any plan at all: an evaluation or a typed refusal.
fn any_plan(layers: &[Layer<'_>], allow: Collectives, input: &mut Input<'_>) {
    let mut set = || Set::from_bits(u64::from(input.byte()) | u64::from(input.byte()) << 8);
    let plan = LayerPlan { recompute: set(), offload: set(), quantize: set() };
    for layer in layers {
        if let Ok(point) = evaluate(layer, &plan, allow) {
            assert!(point.bytes >= layer.bytes(layer.block_inputs()));
        }
    }
}

/// A layer whose operators mostly read what was made before; now and then not.
fn table(input: &mut Input<'_>) -> (Vec<Tensor>, Vec<Op>) {
    let count = 1 + input.below(MOST_TENSORS);
    let tensors: Vec<Tensor> = (0..count).map(|t| tensor(input, t)).collect();
    let mut ops = Vec::new();
    let mut made = 1;
    while made < count {
        let makes: Set = (made..(made + 1 + input.below(3)).min(count)).collect();
        let reads: Set = (0..input.below(4)).map(|_| input.below(made)).collect();
        ops.push(op(input, reads, makes, count));
        made = makes.last().unwrap_or(made) + 1;
        // A tensor without producer.
        made += usize::from(input.one_in(8));
    }
    if input.one_in(32) {
        let (reads, makes) = (Set::one(input.below(count + 1)), Set::one(input.below(count + 1)));
        ops.push(op(input, reads, makes, count));
    }
    (tensors, ops)
}

fn op(input: &mut Input<'_>, reads: Set, makes: Set, count: usize) -> Op {
    let mut saves: Set = (0..input.below(3)).map(|_| input.below(count)).collect();
    if input.one_in(2) {
        saves |= makes;
    }
    let collective = [None, None, None, Some(Group::Ep), Some(Group::Tp)][input.below(5)];
    Op { reads, makes, saves, forward_ns: quantity(input), collective }
}

fn tensor(input: &mut Input<'_>, index: usize) -> Tensor {
    let kind = input.byte();
    let bytes = quantity(input);
    Tensor {
        bytes,
        block_input: index == 0 || kind & 0xf0 == 0x10,
        copy: (kind & 1 == 0).then(|| CopyTimes { out_ns: quantity(input), in_ns: quantity(input) }),
        cast: (kind & 2 == 0).then(|| CastTimes {
            cast_ns: quantity(input),
            uncast_ns: quantity(input),
            bytes: if kind & 4 == 0 { bytes / 2 } else { quantity(input) },
        }),
        source: (kind & 0x18 == 0x18 && index > 0).then(|| (index - 1) as u8),
    }
}

/// Small often, so that ties and symmetries occur.
fn quantity(input: &mut Input<'_>) -> u64 {
    if input.one_in(4) { input.modest() } else { u64::from(input.byte() % 32) }
}
