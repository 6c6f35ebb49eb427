//! Orders of four chains: what a scheduler claims is what a replay shows, within capacity; the exact one is
//! never beaten, and its bound and its smallest capacity hold.

use bagualu_core::interleave::{
    Chain, Config, Exact, ExactSlot, InterleaveError, List, Op, PaperDp, PaperSlot, Problem, Run, Scheduler,
    Solution, Step, run,
};
use bagualu_core::layer::Resource;

use crate::Input;

/// Operators of the longest chain: small, so that many instances are searched to the end.
const LONGEST: usize = 6;

const RESOURCES: [Resource; 4] =
    [Resource::Compute, Resource::Communication, Resource::CopyOut, Resource::CopyIn];

/// The target.
pub fn interleave(data: &[u8]) {
    let mut input = Input::new(data);
    let instance = Instance::new(&mut input);
    let Ok(problem) = instance.problem() else { return };
    any_order(&problem, &mut input);
    let node_limit = if input.one_in(8) { 50 } else { 20_000 };
    let exact = solve(&problem, &mut Exact::new(&mut [ExactSlot::default(); 4096], Config { node_limit }));
    let list = solve(&problem, &mut List);
    let paper = solve(&problem, &mut PaperDp::new(&mut vec![PaperSlot::default(); 4096]));
    match exact {
        Ok(best) => {
            for other in [list, paper].into_iter().flatten() {
                assert!(best.lower_bound_ns <= other.makespan_ns, "{best:?} bounds {other:?}");
            }
            // A search that was cut short starts from the list's order, but may not have seen the paper's.
            let list = list.expect("a list where there is an order");
            assert!(best.makespan_ns <= list.makespan_ns, "{best:?} beaten by {list:?}");
        }
        Err(InterleaveError::Infeasible { needed_bytes, available_bytes }) => {
            assert!(needed_bytes > available_bytes);
            assert!(list.is_err() && paper.is_err(), "an order fits where none should");
            smallest(&instance, needed_bytes);
        }
        Err(other) => panic!("{other}"),
    }
}

/// The claim of `scheduler`, checked by a replay.
fn solve(problem: &Problem<'_>, scheduler: &mut impl Scheduler) -> Result<Solution, InterleaveError> {
    let mut order = vec![Step::default(); problem.op_count()];
    let solution = scheduler.schedule(problem, &mut order)?;
    let Run { makespan_ns, peak_bytes, .. } = run(problem, &order).expect("a returned order runs");
    assert_eq!((makespan_ns, peak_bytes), (solution.makespan_ns, solution.peak_bytes));
    assert!(peak_bytes <= problem.capacity_bytes());
    assert!(solution.lower_bound_ns <= makespan_ns);
    assert_eq!(solution.optimal, solution.lower_bound_ns == makespan_ns);
    Ok(solution)
}

/// Some order fits in `needed` bytes, none in one less.
fn smallest(instance: &Instance, needed: u64) {
    let fits = |capacity_bytes| {
        let instance = Instance { capacity_bytes, ..instance.clone() };
        let Ok(problem) = instance.problem() else { return false };
        let mut nodes = [ExactSlot::default(); 4096];
        solve(&problem, &mut Exact::new(&mut nodes, Config { node_limit: 20_000 })).is_ok()
    };
    assert!(fits(needed), "{needed} bytes are not enough");
    assert!(!needed.checked_sub(1).is_some_and(fits), "{needed} bytes are not the least");
}

/// Any steps at all: a run or a typed error.
fn any_order(problem: &Problem<'_>, input: &mut Input<'_>) {
    let order: Vec<Step> = (0..problem.op_count())
        .map(|_| Step { chain: Chain::ALL[input.below(4)], index: input.below(LONGEST) as u8 })
        .collect();
    if let Ok(run) = run(problem, &order) {
        assert!(run.peak_bytes >= problem.base_bytes());
    }
}

#[derive(Clone, Debug)]
struct Instance {
    chains: [Vec<Op>; 4],
    base_bytes: u64,
    capacity_bytes: u64,
    merge: Option<Vec<Chain>>,
}

impl Instance {
    fn new(input: &mut Input<'_>) -> Self {
        let shape = input.byte();
        let chains = std::array::from_fn(|_| {
            let length = input.below(LONGEST + 1);
            (0..length).map(|_| op(input, shape)).collect::<Vec<Op>>()
        });
        let merge = input.one_in(3).then(|| merge(input, &chains));
        let base_bytes = u64::from(input.byte());
        let all = chains.iter().flatten().fold(0u64, |sum, op| sum.saturating_add(op.alloc_bytes));
        // From nothing to more than everything: binding most of the time.
        let capacity_bytes =
            base_bytes.saturating_add((u128::from(all) * u128::from(input.byte()) / 200) as u64);
        Self { chains, base_bytes, capacity_bytes, merge }
    }

    fn problem(&self) -> Result<Problem<'_>, InterleaveError> {
        let chains = self.chains.each_ref().map(Vec::as_slice);
        Problem::new(chains, self.base_bytes, self.capacity_bytes, self.merge.as_deref())
    }
}

/// One bit of `shape` frees the instance of its memory, one lets quantities be large.
fn op(input: &mut Input<'_>, shape: u8) -> Op {
    let mut quantity = || if shape & 2 == 0 { u64::from(input.byte() % 16) } else { input.modest() };
    let (ns, alloc, free) = (quantity(), quantity(), quantity());
    let memory = u64::from(shape & 1 == 0);
    Op { resource: RESOURCES[input.below(4)], ns, alloc_bytes: alloc * memory, free_bytes: free * memory }
}

/// A merge of F and B; now and then one that does not name them as often as it must.
fn merge(input: &mut Input<'_>, chains: &[Vec<Op>; 4]) -> Vec<Chain> {
    let (mut forward, mut backward) = (chains[0].len(), chains[1].len() + usize::from(input.one_in(16)));
    let mut merge = Vec::new();
    while forward + backward > 0 {
        if backward == 0 || (forward > 0 && input.one_in(2)) {
            merge.push(Chain::Forward);
            forward -= 1;
        } else {
            merge.push(Chain::Backward);
            backward -= 1;
        }
    }
    merge
}
