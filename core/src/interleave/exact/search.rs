//! Best-first search over states.

use super::super::lanes::{FOUR, Item, Lanes};
use super::super::run::Runner;
use super::super::tables::Tables;
use super::super::window::Window;
use super::super::{MAX_ORDER, Step};
use super::frontier::{ExactSlot, Frontier, NONE, State};
use super::moves::{Move, Rules};
use crate::limits::MAX_CHAIN;

/// When each operator of each chain ends.
type Ends = [[u64; MAX_CHAIN]; FOUR];

/// The search of one problem.
pub(super) struct Search<'p, 's> {
    rules: Rules<'p>,
    frontier: Frontier<'s>,
    best: u64,
    /// The state and lane that complete the best order found.
    found: Option<(u32, u8)>,
    expanded: u32,
}

/// No slot is left.
struct Full;

impl<'p, 's> Search<'p, 's> {
    pub fn new(window: &'p Window<'p>, slots: &'s mut [ExactSlot]) -> Self {
        Self {
            rules: Rules::new(window),
            frontier: Frontier::new(slots),
            best: u64::MAX,
            found: None,
            expanded: 0,
        }
    }

    /// States expanded.
    pub fn expanded(&self) -> u32 {
        self.expanded
    }

    /// Looks for an order that ends before `best` and writes the best it finds. Returns the proven lower
    /// bound.
    pub fn run(&mut self, best: u64, node_limit: u32, order: &mut [Step]) -> u64 {
        self.best = best;
        let root = self.rules.root(|_| ());
        let proven = match self.offer(&root, |_, a, b| dominates(a, b)) {
            Ok(()) => self.search(node_limit),
            Err(Full) => root.bound,
        };
        if let Some((state, lane)) = self.found {
            self.write(state, lane, order);
        }
        proven
    }

    fn search(&mut self, node_limit: u32) -> u64 {
        while let Some(node) = self.frontier.pop() {
            let bound = self.frontier.state(node).bound;
            if bound >= self.best {
                break;
            }
            if self.expanded == node_limit {
                return bound;
            }
            self.expanded += 1;
            if self.expand(node).is_err() {
                return bound.min(self.best);
            }
        }
        self.best
    }

    fn expand(&mut self, node: u32) -> Result<(), Full> {
        let state = State { parent: node, ..*self.frontier.state(node) };
        if !state.free && self.rules.lanes.merged {
            return self.expand_merged(node, &state);
        }
        let moves = if state.free { self.rules.active(&state) } else { self.rules.in_order(&state) };
        for next in moves.into_iter().flatten() {
            let child = self.rules.follow(&state, next, |_| ());
            self.offer(&child, |_, a, b| dominates(a, b))?;
        }
        Ok(())
    }

    /// Where bytes may bind and the merge is given: every lane, run as design §10 says.
    fn expand_merged(&mut self, node: u32, state: &State) -> Result<(), Full> {
        let (runner, mut ends) = self.replay(node);
        for lane in 0..FOUR {
            let Some(next) = self.next_merged(state, lane, &runner) else { continue };
            let child = self.follow_merged(state, next, &runner, |_| ());
            ends[usize::from(next.item.chain)][usize::from(next.item.index)] = next.end();
            let Rules { lanes, tables, .. } = self.rules;
            self.offer(&child, |frontier, a, b| match (a.free, b.free) {
                (true, _) => dominates(a, b),
                (false, true) => false,
                // One of the two is the child, whose ends are known.
                (false, false) => {
                    a.chains == b.chains
                        && a.resources == b.resources
                        && same_ahead(lanes, tables, frontier, if a == &child { b } else { a }, &ends)
                }
            })?;
        }
        Ok(())
    }

    fn next_merged(&self, state: &State, lane: usize, runner: &Runner) -> Option<Move<'p>> {
        let item = self.rules.lanes.heads(state.places())[lane]?;
        let fits = self.rules.window.leaves_room(state.places(), item);
        Some(Move { lane, item, start: runner.start(item).filter(|_| fits)? })
    }

    /// The state after `next`, and whether bytes can bind beyond it.
    fn follow_merged(
        &self,
        state: &State,
        next: Move<'p>,
        runner: &Runner,
        mut emit: impl FnMut(&'p Item),
    ) -> State {
        let Rules { lanes, tables, .. } = self.rules;
        let mut child = self.rules.follow(state, next, &mut emit);
        let most = runner.most_from(earliest(tables, &child)) + next.item.alloc;
        if most + tables.rise(child.places()) <= lanes.capacity {
            child.free = true;
            self.rules.settle(&mut child, emit);
        }
        child
    }

    /// Keeps `child` if it can lead to a better order.
    fn offer(
        &mut self,
        child: &State,
        beats: impl Fn(&Frontier<'_>, &State, &State) -> bool,
    ) -> Result<(), Full> {
        if child.bound >= self.best {
            return Ok(());
        }
        if self.rules.is_complete(child) {
            self.best = child.bound;
            self.found = Some((child.parent, child.lane));
            return Ok(());
        }
        if self.frontier.insert(child, beats) { Ok(()) } else { Err(Full) }
    }

    /// The run up to `node`, all of whose operators were taken one by one.
    fn replay(&self, node: u32) -> (Runner, Ends) {
        let lanes = self.rules.lanes;
        let mut runner = Runner::new(lanes, true);
        let mut ends = [[0; MAX_CHAIN]; FOUR];
        let mut path = [NONE; MAX_ORDER];
        for &state in self.path(node, &mut path) {
            let state = self.frontier.state(state);
            let item = last(lanes, state);
            runner.place(item, state.end - item.ns);
            ends[usize::from(item.chain)][usize::from(item.index)] = state.end;
        }
        (runner, ends)
    }

    /// The states from the first after the root to `node`.
    fn path<'b>(&self, node: u32, buffer: &'b mut [u32; MAX_ORDER]) -> &'b [u32] {
        let mut from = MAX_ORDER;
        let mut state = node;
        while state != NONE && self.frontier.state(state).parent != NONE {
            from -= 1;
            buffer[from] = state;
            state = self.frontier.state(state).parent;
        }
        &buffer[from..]
    }

    /// Writes the order that takes `lane` after `node`.
    fn write(&self, node: u32, lane: u8, order: &mut [Step]) {
        let mut places = order.iter_mut();
        let mut emit = |item: &Item| {
            for (place, step) in places.by_ref().take(1).zip(item.steps()) {
                *place = step;
            }
        };
        let mut state = self.rules.root(&mut emit);
        let mut runner = Runner::new(self.rules.lanes, true);
        let mut path = [NONE; MAX_ORDER];
        let lanes = self.path(node, &mut path).iter().map(|&n| self.frontier.state(n).lane);
        let last = (node != NONE).then_some(lane);
        for lane in lanes.chain(last).map(usize::from) {
            state = if !state.free && self.rules.lanes.merged {
                let Some(next) = self.next_merged(&state, lane, &runner) else { return };
                let child = self.follow_merged(&state, next, &runner, &mut emit);
                runner.place(next.item, next.start);
                child
            } else {
                let moves = if state.free { self.rules.active(&state) } else { self.rules.in_order(&state) };
                let Some(next) = moves[lane] else { return };
                self.rules.follow(&state, next, &mut emit)
            };
        }
    }
}

/// Whether whatever follows `b` may follow `a` and end no later.
fn dominates(a: &State, b: &State) -> bool {
    let pairs = a.chains.iter().zip(&b.chains).chain(a.resources.iter().zip(&b.resources));
    pairs.into_iter().all(|(a, b)| a <= b)
}

/// Whether the operators of `state` that end at a time that matters to what follows end as in `ends`.
fn same_ahead(lanes: &Lanes, tables: &Tables, frontier: &Frontier<'_>, state: &State, ends: &Ends) -> bool {
    let from = earliest(tables, state);
    let mut state = state;
    while state.parent != NONE {
        let item = last(lanes, state);
        let other = ends[usize::from(item.chain)][usize::from(item.index)];
        if state.end != other && state.end.max(other) > from {
            return false;
        }
        state = frontier.state(state.parent);
    }
    true
}

/// No operator that is left starts before.
fn earliest(tables: &Tables, state: &State) -> u64 {
    let left = (0..FOUR).filter(|&chain| !tables.rest(chain, state.at[chain].into()).is_done());
    left.map(|chain| state.chains[chain]).min().unwrap_or(u64::MAX)
}

/// The operator taken last.
fn last<'l>(lanes: &'l Lanes, state: &State) -> &'l Item {
    let lane = usize::from(state.lane);
    &lanes.lane(lane)[lanes.places(state.places())[lane] - 1]
}
