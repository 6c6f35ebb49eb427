//! `List`: a priority list, memory-safe.

use core::cmp::Reverse;

use super::lanes::{FOUR, Item, Lanes};
use super::need::smallest_capacity;
use super::run::{Run, Runner};
use super::tables::Tables;
use super::{InterleaveError, Problem, Scheduler, Solution, Step, run};

/// Issues what can start first, and among those the operator with the most left of its chain. Never takes
/// an operator after which the rest no longer fits.
#[derive(Clone, Copy, Debug, Default)]
pub struct List;

impl Scheduler for List {
    fn schedule(&mut self, problem: &Problem<'_>, order: &mut [Step]) -> Result<Solution, InterleaveError> {
        let lanes = Lanes::new(problem);
        let order = check(problem, &lanes, order)?;
        let tables = Tables::new(problem);
        let memory = tables.memory_binds(&lanes);
        build(&lanes, &tables, Rule { choice: Choice::First, priority: Priority::Chain }, memory, order);
        solution(problem, &tables, order, 0)
    }
}

/// The part of `order` to fill, if there is one and some order fits.
pub(super) fn check<'o>(
    problem: &Problem<'_>,
    lanes: &Lanes,
    order: &'o mut [Step],
) -> Result<&'o mut [Step], InterleaveError> {
    let needed = smallest_capacity(lanes, [0; FOUR], lanes.base);
    if needed > lanes.capacity {
        return Err(InterleaveError::Infeasible {
            needed_bytes: needed.unsigned_abs(),
            available_bytes: problem.capacity_bytes(),
        });
    }
    let (available, needed) = (order.len(), problem.op_count());
    order.get_mut(..needed).ok_or(InterleaveError::StorageTooSmall { needed, available })
}

/// What `order` is worth when it is run; `proven` is a lower bound that its scheduler found.
pub(super) fn solution(
    problem: &Problem<'_>,
    tables: &Tables,
    order: &[Step],
    proven: u64,
) -> Result<Solution, InterleaveError> {
    let Run { makespan_ns, peak_bytes } = run(problem, order)?;
    let lower_bound_ns = tables.root_bound().max(proven);
    Ok(Solution { makespan_ns, lower_bound_ns, optimal: makespan_ns == lower_bound_ns, peak_bytes })
}

/// Which operators compete for the next place.
#[derive(Clone, Copy, Debug)]
pub(super) enum Choice {
    /// Those that can start first.
    First,
    /// Those that can start before the first possible end, on the resource where that is.
    Active,
}

/// Which of them wins.
#[derive(Clone, Copy, Debug)]
pub(super) enum Priority {
    /// The one with the most left of its chain.
    Chain,
    /// The one with the most left of its chain behind it.
    Behind,
    /// The longest.
    Longest,
    /// The shortest.
    Shortest,
}

/// A priority rule.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rule {
    pub choice: Choice,
    pub priority: Priority,
}

impl Rule {
    /// All rules.
    pub const ALL: [Self; 8] = {
        use {Choice::*, Priority::*};
        const fn rule(choice: Choice, priority: Priority) -> Rule {
            Rule { choice, priority }
        }
        [
            rule(First, Chain),
            rule(Active, Chain),
            rule(Active, Behind),
            rule(First, Behind),
            rule(First, Longest),
            rule(Active, Longest),
            rule(First, Shortest),
            rule(Active, Shortest),
        ]
    };
}

/// An operator that may be next.
#[derive(Clone, Copy)]
struct Candidate<'l> {
    item: &'l Item,
    start: u64,
    end: u64,
    priority: u64,
}

/// Fills `order` by `rule` and returns its makespan. Some order must fit.
pub(super) fn build(lanes: &Lanes, tables: &Tables, rule: Rule, memory: bool, order: &mut [Step]) -> u64 {
    let mut runner = Runner::new(lanes, memory);
    let mut at = [0; FOUR];
    for step in order {
        let candidates = lanes.heads(at).map(|head| {
            let item = head.filter(|item| !memory || leaves_room(lanes, tables, at, item))?;
            let start = runner.start(item)?;
            let tail = tables.rest(item.chain.into(), item.index.into()).tail;
            let priority = match rule.priority {
                Priority::Chain => tail,
                Priority::Behind => tail - item.ns,
                Priority::Longest => item.ns,
                Priority::Shortest => u64::MAX - item.ns,
            };
            Some(Candidate { item, start, end: start + item.ns, priority })
        });
        let candidates = candidates.iter().flatten();
        let Some(first) = candidates.clone().min_by_key(|c| match rule.choice {
            Choice::First => (c.start, Reverse(c.priority)),
            Choice::Active => (c.end, Reverse(c.priority)),
        }) else {
            break;
        };
        let next = match rule.choice {
            Choice::First => first,
            Choice::Active => candidates
                .filter(|c| c.item.resource == first.item.resource && c.start < first.end)
                .max_by_key(|c| c.priority)
                .unwrap_or(first),
        };
        runner.place(next.item, next.start);
        at[next.item.chain as usize] += 1;
        *step = Step { chain: super::Chain::ALL[next.item.chain as usize], index: next.item.index };
    }
    runner.chains.into_iter().max().unwrap_or(0)
}

/// Whether the rest still fits once `item` has run.
pub(super) fn leaves_room(lanes: &Lanes, tables: &Tables, mut at: [usize; FOUR], item: &Item) -> bool {
    let before = tables.level(lanes, at);
    at[item.chain as usize] += 1;
    before + item.alloc <= lanes.capacity
        && smallest_capacity(lanes, lanes.places(at), before + item.net()) <= lanes.capacity
}
