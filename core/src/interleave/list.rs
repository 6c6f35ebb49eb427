//! `List`: a priority list, memory-safe.

use core::cmp::Reverse;

use super::lanes::{FOUR, Item};
use super::run::Runner;
use super::window::Window;
use super::{Chain, InterleaveError, Problem, Scheduler, Solution, Step};

/// Issues what can start first, and among those the operator with the most left of its chain. Never takes
/// an operator after which the rest no longer fits.
#[derive(Clone, Copy, Debug, Default)]
pub struct List;

impl Scheduler for List {
    fn schedule(&mut self, problem: &Problem<'_>, order: &mut [Step]) -> Result<Solution, InterleaveError> {
        let window = Window::new(problem)?;
        let order = window.order(order)?;
        build(&window, Rule { choice: Choice::First, priority: Priority::Chain }, order);
        window.solution(order, 0)
    }
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

/// Fills `order` by `rule` and returns its makespan.
pub(super) fn build(window: &Window<'_>, rule: Rule, order: &mut [Step]) -> u64 {
    let mut runner = Runner::new(&window.lanes, window.memory_binds());
    let mut at = [0; FOUR];
    for step in order {
        let candidates = window.lanes.heads(at).map(|head| {
            let item = head.filter(|item| window.leaves_room(at, item))?;
            let start = runner.start(item)?;
            let tail = window.tables.rest(item.chain.into(), item.index.into()).tail;
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
        *step = Step { chain: Chain::ALL[next.item.chain as usize], index: next.item.index };
    }
    runner.chains.into_iter().max().unwrap_or(0)
}
