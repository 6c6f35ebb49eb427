//! `Exact`: the shortest order, with a proof.
//!
//! States are how far each chain has come; a state keeps the vectors of (chain ready, resource free) that no
//! other vector is better than. They are expanded in the order of a lower bound, deepest first among equals,
//! so that the first complete order at the bound is a shortest one. Good orders of priority rules are the
//! incumbents: where one meets the bound nothing is searched at all.
//!
//! What follows a state depends on memory (design §9.2):
//!
//! - where bytes can no longer bind, *active* orders are enough: only operators that compete for the resource
//!   where the next operator can end are alternatives;
//! - where they may, operators are issued in nondecreasing order of their starts, any chain next;
//! - where they may and the merge of F and B is given, starts need not be in order, and an earlier start is
//!   not always better: every lane is an alternative, and only equal vectors replace one another.

mod frontier;
mod moves;
mod search;

use super::list::{Rule, build};
use super::window::Window;
use super::{InterleaveError, MAX_ORDER, Problem, Scheduler, Solution, Step};
pub use frontier::ExactSlot;
use search::Search;

/// Limits of the search.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Config {
    /// States expanded before the best order so far is returned, with the lower bound proven so far.
    pub node_limit: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self { node_limit: u32::MAX }
    }
}

/// The exact scheduler.
///
/// ```
/// # use bagualu_core::interleave::{Config, Exact, ExactSlot, Op, Problem, Scheduler, Step};
/// # use bagualu_core::layer::Resource::{Communication, Compute};
/// let op = |resource, ns| Op { resource, ns, alloc_bytes: 0, free_bytes: 0 };
/// let forward = [op(Compute, 30), op(Communication, 20), op(Compute, 10)];
/// let backward = [op(Communication, 20), op(Compute, 30)];
/// let problem = Problem::new([&forward, &backward, &[], &[]], 0, 0, None)?;
///
/// let mut storage = [ExactSlot::default(); 64];
/// let mut order = [Step::default(); 5];
/// let solution = Exact::new(&mut storage, Config::default()).schedule(&problem, &mut order)?;
/// assert_eq!((solution.makespan_ns, solution.optimal), (70, true));
/// # Ok::<(), bagualu_core::interleave::InterleaveError>(())
/// ```
#[derive(Debug)]
pub struct Exact<'s> {
    storage: &'s mut [ExactSlot],
    config: Config,
    expanded: u32,
}

impl<'s> Exact<'s> {
    /// A scheduler that keeps one state of its search in each element of `storage`. Where they run out, the
    /// search ends as at the node limit; with none, it returns the best of its priority rules.
    pub fn new(storage: &'s mut [ExactSlot], config: Config) -> Self {
        Self { storage, config, expanded: 0 }
    }

    /// States expanded for the last problem.
    pub fn expanded(&self) -> u32 {
        self.expanded
    }
}

impl Scheduler for Exact<'_> {
    fn schedule(&mut self, problem: &Problem<'_>, order: &mut [Step]) -> Result<Solution, InterleaveError> {
        let window = Window::new(problem)?;
        let order = window.order(order)?;
        let bound = window.tables.root_bound();
        let best = incumbent(&window, bound, order);
        self.expanded = 0;
        let mut proven = bound;
        if best > bound {
            let mut search = Search::new(&window, self.storage);
            proven = search.run(best, self.config.node_limit, order);
            self.expanded = search.expanded();
        }
        window.solution(order, proven)
    }
}

/// With memory an order by a rule costs as much as expanding ten states.
const RULES_WITH_MEMORY: usize = 3;

/// Writes the best order of the priority rules and returns its makespan. Stops at one that meets `bound`.
fn incumbent(window: &Window<'_>, bound: u64, order: &mut [Step]) -> u64 {
    let mut trial = [Step::default(); MAX_ORDER];
    let trial = &mut trial[..order.len()];
    let mut best = u64::MAX;
    let rules = if window.memory_binds() { RULES_WITH_MEMORY } else { Rule::ALL.len() };
    for rule in Rule::ALL.into_iter().take(rules) {
        let makespan = build(window, rule, trial);
        if makespan < best {
            best = makespan;
            order.copy_from_slice(trial);
        }
        if best == bound {
            break;
        }
    }
    best
}
