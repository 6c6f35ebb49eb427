//! What may follow a state, and how states are made comparable.

use super::super::lanes::{FOUR, Item, Lanes};
use super::super::tables::{Ahead, NEVER, Tables};
use super::super::window::Window;
use super::frontier::{NONE, State};

/// A lane that may be taken next.
#[derive(Clone, Copy)]
pub(super) struct Move<'l> {
    pub lane: usize,
    pub item: &'l Item,
    pub start: u64,
}

impl Move<'_> {
    pub fn end(&self) -> u64 {
        self.start + self.item.ns
    }
}

/// At most one per lane.
pub(super) type Moves<'l> = [Option<Move<'l>>; FOUR];

/// The rules of one problem.
pub(super) struct Rules<'p> {
    pub window: &'p Window<'p>,
    pub lanes: &'p Lanes,
    pub tables: &'p Tables,
    root_bound: u64,
}

impl<'p> Rules<'p> {
    pub fn new(window: &'p Window<'p>) -> Self {
        let Window { lanes, tables, .. } = window;
        Self { window, lanes, tables, root_bound: tables.root_bound() }
    }

    /// The state before the first operator. `emit` is told of every operator that a state brings with it.
    pub fn root(&self, emit: impl FnMut(&'p Item)) -> State {
        let mut root = State { parent: NONE, free: !self.window.memory_binds(), ..State::default() };
        self.settle(&mut root, emit);
        root
    }

    /// Whether every operator is in.
    pub fn is_complete(&self, state: &State) -> bool {
        self.lanes.places(state.places()) == self.lanes.lengths()
    }

    /// The state after `next`.
    pub fn follow(&self, state: &State, next: Move<'p>, mut emit: impl FnMut(&'p Item)) -> State {
        let mut child = State { lane: next.lane as u8, end: next.end(), ..*state };
        place(&mut child, next.item, next.end());
        emit(next.item);
        if !child.free && !self.lanes.merged {
            // Starts do not decrease from here on.
            child.chains.iter_mut().for_each(|t| *t = next.start.max(*t));
            child.resources.iter_mut().for_each(|t| *t = next.start.max(*t));
            child.free = !self.tables.may_bind(self.lanes, child.places());
        }
        self.settle(&mut child, emit);
        child
    }

    /// Takes what nothing can compete with, makes the vector comparable, and bounds it.
    pub fn settle(&self, state: &mut State, mut emit: impl FnMut(&'p Item)) {
        while state.free {
            let ahead = self.ahead(state);
            let unopposed =
                self.starts(state).into_iter().flatten().find(|next| self.is_unopposed(next, &ahead));
            let Some(next) = unopposed else { break };
            place(state, next.item, next.end());
            emit(next.item);
        }
        let ahead = self.ahead(state);
        state.bound = state.bound.max(ahead.bound());
        self.normalise(state, &ahead);
    }

    /// Whether no operator of another lane can be at the resource before this one has ended: then every
    /// order does as well with this one next.
    fn is_unopposed(&self, next: &Move<'_>, ahead: &Ahead<'_>) -> bool {
        (0..FOUR)
            .filter(|&chain| self.lane_of(chain) != next.lane)
            .all(|chain| ahead.arrive[chain][usize::from(next.item.resource)] >= next.end())
    }

    /// Raises times as far as they change nothing, so that more vectors are comparable.
    fn normalise(&self, state: &mut State, ahead: &Ahead<'_>) {
        for chain in 0..FOUR {
            // In nondecreasing order a chain's time also says when it releases bytes.
            if state.free || self.lanes.merged || self.last_release(state, chain) == 0 {
                let least = if ahead.is_done(chain) { self.root_bound } else { 0 };
                state.chains[chain] = ahead.ready[chain].max(least);
            }
        }
        for resource in 0..FOUR {
            let first = ahead.arrive.iter().map(|arrive| arrive[resource]).min().unwrap_or(NEVER);
            state.resources[resource] = if first == NEVER { 0 } else { first };
        }
    }

    /// Bytes given back at the end of the chain's last operator.
    fn last_release(&self, state: &State, chain: usize) -> i64 {
        match state.at[chain] {
            0 => 0,
            place => self.lanes.lane(chain)[usize::from(place) - 1].free,
        }
    }

    /// Where bytes cannot bind: the operators that compete for the resource on which the next operator can
    /// end (Giffler and Thompson's active schedules).
    pub fn active(&self, state: &State) -> Moves<'p> {
        let mut moves = self.starts(state);
        let Some(first) = moves.iter().flatten().min_by_key(|next| next.end()).copied() else { return moves };
        let resource = first.item.resource;
        // An operator of F may wait in their lane behind one of B for another resource. Then that one has
        // to be an alternative too.
        let ahead = self.ahead(state);
        let hidden = self.lanes.merged
            && first.lane != 0
            && moves[0].is_some_and(|next| next.item.resource != resource)
            && ahead.arrive[0][usize::from(resource)].min(ahead.arrive[1][usize::from(resource)])
                < first.end();
        if !hidden {
            for place in &mut moves {
                *place = place.filter(|next| {
                    next.lane == first.lane || next.item.resource == resource && next.start < first.end()
                });
            }
        }
        moves
    }

    /// Where bytes may bind and starts do not decrease: every lane whose operator leaves room for the rest,
    /// unless another operator that holds no bytes in the end could run before it starts.
    pub fn in_order(&self, state: &State) -> Moves<'p> {
        let heads = self.lanes.heads(state.places());
        let moves: Moves<'p> = core::array::from_fn(|lane| {
            let item = heads[lane].filter(|item| self.window.leaves_room(state.places(), item))?;
            Some(Move { lane, item, start: self.start_in_order(state, item)? })
        });
        if let Some(next) = self.at_no_cost(state, &moves) {
            return core::array::from_fn(|lane| Some(next).filter(|next| next.lane == lane));
        }
        let first = |a: &Move<'_>, b: &Move<'_>| a.item.net() <= 0 && a.end() <= b.start;
        moves.map(|next| {
            next.filter(|next| {
                !moves.iter().flatten().any(|other| {
                    other.lane != next.lane
                        && first(other, next)
                        && !(next.lane < other.lane && first(next, other))
                })
            })
        })
    }

    /// A move that can start first, takes no bytes and has its resource to itself: every order does as well
    /// with it next.
    fn at_no_cost(&self, state: &State, moves: &Moves<'p>) -> Option<Move<'p>> {
        let first = moves.iter().flatten().map(|next| next.start).min()?;
        let mut free =
            moves.iter().flatten().filter(|next| next.start == first && next.item.alloc == 0).peekable();
        free.peek()?;
        let ahead = self.ahead(state);
        free.find(|next| self.is_unopposed(next, &ahead)).copied()
    }

    /// The earliest start of `item` not before that of any operator in: chains hold what their last operator
    /// releases until it ends.
    fn start_in_order(&self, state: &State, item: &Item) -> Option<u64> {
        let room = self.lanes.capacity - self.tables.level(self.lanes, state.places()) - item.alloc;
        let mut start =
            state.chains[usize::from(item.chain)].max(state.resources[usize::from(item.resource)]);
        if room < 0 {
            return None;
        }
        loop {
            let held = (0..FOUR).filter(|&chain| state.chains[chain] > start);
            if held.clone().map(|chain| self.last_release(state, chain)).sum::<i64>() <= room {
                return Some(start);
            }
            start = held.map(|chain| state.chains[chain]).min()?;
        }
    }

    /// The next operator of every lane at its earliest start, bytes left aside.
    fn starts(&self, state: &State) -> Moves<'p> {
        let heads = self.lanes.heads(state.places());
        core::array::from_fn(|lane| {
            let item = heads[lane]?;
            let start =
                state.chains[usize::from(item.chain)].max(state.resources[usize::from(item.resource)]);
            Some(Move { lane, item, start })
        })
    }

    fn ahead(&self, state: &State) -> Ahead<'p> {
        self.tables.ahead(state.places(), &state.chains, &state.resources)
    }

    fn lane_of(&self, chain: usize) -> usize {
        if self.lanes.merged && chain == 1 { 0 } else { chain }
    }
}

fn place(state: &mut State, item: &Item, end: u64) {
    state.chains[usize::from(item.chain)] = end;
    state.resources[usize::from(item.resource)] = end;
    state.at[usize::from(item.chain)] += 1;
}
