//! Branch and bound of the knapsack: class by class over the non-dominated partial selections.

use super::MitigateError;
use super::knapsack::{ChooseScratch, Config, Range, Search};
use super::relax::{Break, Edges, advance, relaxed, within};
use crate::limits::{MAX_NODES, MAX_STATES};

/// A partial selection.
#[derive(Clone, Copy, Debug)]
pub(super) struct State {
    sum: Break,
    /// The node of its last decision; while it is new, of the one before.
    node: u32,
    /// Its last decision.
    item: u16,
    /// The least cost it can lead to, where that was needed.
    bound: u64,
}

impl State {
    pub const NONE: Self = Self { sum: Break::NONE, node: u32::MAX, item: 0, bound: 0 };

    /// A total order, so that every machine sorts alike.
    fn key(&self) -> (u64, u64, u32, u16) {
        (self.sum.weight, self.sum.cost, self.node, self.item)
    }
}

/// A decision that a state rests on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Node {
    parent: u32,
    item: u16,
}

impl Node {
    pub const NONE: Self = Self { parent: u32::MAX, item: 0 };
}

/// Decides the classes that have a choice left, fewest items first.
pub(super) fn decide(
    search: &mut Search<'_>,
    config: &Config,
    scratch: &mut ChooseScratch,
    picks: &mut [u16],
) -> Result<(), MitigateError> {
    let ranges = &mut scratch.ranges[..search.classes.len()];
    ranges.sort_unstable_by_key(|range| (range.end - range.start, range.class));
    let (fixed, ranges) = ranges.split_at(ranges.partition_point(|range| range.end - range.start == 1));
    let mut stages = Stages {
        fixed,
        ranges,
        kept: &scratch.kept,
        edges: Edges::new(&mut scratch.edges),
        breaks: &mut scratch.breaks,
        vertex: &mut scratch.vertex,
        states: &mut scratch.states,
        next: &mut scratch.next,
        nodes: &mut scratch.nodes[..(config.node_limit as usize).clamp(1, MAX_NODES)],
        used: 0,
        len: 1,
        new: 0,
        least_extra: 0,
        answer: None,
        search,
    };
    let fixed = stages.start()?;
    if stages.ranges.is_empty() && stages.search.improves(&fixed) {
        stages.search.best = Some(fixed);
        stages.answer = Some(Answer { parent: u32::MAX, item: 0, edges: 0 });
        stages.write(0, picks);
    }
    for rank in 0..stages.ranges.len() {
        let breaks = stages.breaks(rank);
        stages.expand(rank, breaks);
        stages.write(rank, picks);
        stages.advance(rank, breaks);
    }
    Ok(())
}

/// An answer that a state leads to by rounding the relaxation of the rest.
#[derive(Clone, Copy)]
struct Answer {
    parent: u32,
    item: u16,
    /// How many edges of the rest are taken.
    edges: usize,
}

struct Stages<'a, 's, 'c> {
    search: &'a mut Search<'c>,
    /// Classes with one item left, and those with more in the order of decisions: a class's *rank*.
    fixed: &'s [Range],
    ranges: &'s [Range],
    kept: &'s [u16],
    /// Hulls of the items left; an edge's `class` is a rank.
    edges: Edges<'s>,
    /// The relaxation of the classes after the current one.
    breaks: &'s mut [Break],
    /// The cheapest item of each rank.
    vertex: &'s mut [u16],
    /// The states, by weight; `len` of them.
    states: &'s mut [State],
    /// Those of the next stage; `new` of them.
    next: &'s mut [State],
    nodes: &'s mut [Node],
    used: usize,
    len: usize,
    new: usize,
    /// Host bytes that the classes after the current one hold at least.
    least_extra: u64,
    answer: Option<Answer>,
}

impl Stages<'_, '_, '_> {
    /// Lays out the hulls and the first state; returns the sum of the classes without a choice.
    fn start(&mut self) -> Result<Break, MitigateError> {
        let mut sum = Break::NONE;
        for range in self.fixed {
            sum = sum.plus(&self.search.item(range.class.into(), self.kept[range.start as usize]));
        }
        self.states[0] = State { sum, ..State::NONE };
        for (rank, range) in self.ranges.iter().enumerate() {
            let class = &self.search.classes[usize::from(range.class)];
            let items = range.of(self.kept).iter().rev().copied();
            self.vertex[rank] = self.edges.add(self.search.goal, rank, class, items)?;
        }
        self.edges.sort();
        Ok(sum)
    }

    /// Lays out the relaxation of the classes after `rank`; returns its number of breaks.
    fn breaks(&mut self, rank: usize) -> usize {
        let item = |rank: usize, index: u16| self.search.item(self.ranges[rank].class.into(), index);
        let rest = rank + 1..self.ranges.len();
        self.breaks[0] = rest.clone().fold(Break::NONE, |sum, rank| sum.plus(&item(rank, self.vertex[rank])));
        let mut count = 1;
        for edge in self.edges.all().iter().filter(|edge| usize::from(edge.class) > rank) {
            let (from, to) = (item(edge.class.into(), edge.from), item(edge.class.into(), edge.to));
            self.breaks[count] = self.breaks[count - 1].swap(&from, &to);
            count += 1;
        }
        self.least_extra = 0;
        if self.search.goal.extra_limit.is_some() {
            let least = |rank: usize| {
                let items = self.ranges[rank].of(self.kept).iter();
                items.map(|&index| item(rank, index).extra).min().unwrap_or(0)
            };
            self.least_extra = rest.map(least).sum();
        }
        count
    }

    /// Extends every state by every item of the class at `rank`.
    fn expand(&mut self, rank: usize, breaks: usize) {
        self.new = 0;
        let range = self.ranges[rank];
        let last = rank + 1 == self.ranges.len();
        for &index in range.of(self.kept) {
            let item = self.search.item(range.class.into(), index);
            let mut at = (0, 0);
            for place in 0..self.len {
                let state = self.states[place];
                let sum = state.sum.plus(&item);
                // The states get heavier: where one has no room, none after it has.
                let Some(room) = self.search.goal.limit.checked_sub(sum.weight) else { break };
                let Some(whole) = advance(&self.breaks[..breaks], at.0, room) else { break };
                at.0 = whole;
                if self.answers(&sum, whole) {
                    self.answer = Some(Answer { parent: state.node, item: index, edges: whole });
                    at.1 = 0;
                }
                if last || !self.promises(breaks, &sum, &mut at) {
                    continue;
                }
                if self.new == self.next.len() {
                    self.compact(breaks, self.next.len() / 2);
                }
                self.next[self.new] = State { sum, node: state.node, item: index, bound: 0 };
                self.new += 1;
            }
        }
    }

    /// Whether `sum` and the first `edges` edges of the rest are the best answer so far.
    fn answers(&mut self, sum: &Break, edges: usize) -> bool {
        let whole = sum.and(&self.breaks[edges]);
        let better = self.search.improves(&whole);
        if better {
            self.search.best = Some(whole);
        }
        better
    }

    /// Whether `sum` may lead to a better answer. `at`: its breaks within the limit, and within the weight
    /// that an answer of equal value has to stay below; the latter is advanced.
    fn promises(&self, breaks: usize, sum: &Break, at: &mut (usize, usize)) -> bool {
        let goal = self.search.goal;
        if goal.extra_limit.is_some_and(|limit| sum.extra.saturating_add(self.least_extra) > limit) {
            return false;
        }
        let (smaller, equal, lighter) = self.search.ceilings();
        let breaks = &self.breaks[..breaks];
        let room = goal.limit - sum.weight;
        if !within(breaks, at.0, room, sum.cost, equal) {
            return false;
        }
        if smaller.is_some_and(|ceiling| within(breaks, at.0, room, sum.cost, ceiling)) {
            return true;
        }
        let Some(room) = lighter.checked_sub(sum.weight) else { return false };
        let Some(place) = advance(breaks, at.1, room) else { return false };
        at.1 = place;
        within(breaks, place, room, sum.cost, equal)
    }

    /// Drops new states that another dominates or that promise nothing any more, and beyond `room` the
    /// least promising.
    fn compact(&mut self, breaks: usize, room: usize) {
        self.next[..self.new].sort_unstable_by_key(State::key);
        let (mut len, mut at) = (0, (0, 0));
        for place in 0..self.new {
            let state = self.next[place];
            let left = self.search.goal.limit - state.sum.weight;
            let Some(whole) = advance(&self.breaks[..breaks], at.0, left) else { break };
            at.0 = whole;
            if !self.dominated(&state.sum, len) && self.promises(breaks, &state.sum, &mut at) {
                let bound = state.sum.cost + relaxed(&self.breaks[..breaks], whole, left);
                self.next[len] = State { bound, ..state };
                len += 1;
            }
        }
        self.new = len;
        if len > room {
            self.thin(room);
        }
    }

    /// Whether one of the `len` new states before does as well.
    fn dominated(&self, sum: &Break, len: usize) -> bool {
        if self.search.goal.extra_limit.is_none() {
            return len > 0 && self.next[len - 1].sum.cost <= sum.cost;
        }
        // The nearest are the likeliest; to miss one costs time only.
        let near = &self.next[len.saturating_sub(128)..len];
        near.iter().any(|other| other.sum.value <= sum.value && other.sum.extra <= sum.extra)
    }

    /// Keeps the `room` new states of the least bounds, and notes what the others could have reached.
    fn thin(&mut self, room: usize) {
        let states = &mut self.next[..self.new];
        states.select_nth_unstable_by_key(room, |state| (state.bound, state.key()));
        self.search.lost = self.search.lost.min(self.search.goal.floor(states[room].bound));
        states[..room].sort_unstable_by_key(State::key);
        self.new = room;
    }

    /// Writes the answer found at `rank`, if one was.
    fn write(&mut self, rank: usize, picks: &mut [u16]) {
        let Some(answer) = self.answer.take() else { return };
        for range in self.fixed {
            picks[usize::from(range.class)] = self.kept[range.start as usize];
        }
        for (rank, range) in self.ranges.iter().enumerate().skip(rank + 1) {
            picks[usize::from(range.class)] = self.vertex[rank];
        }
        let rest = self.edges.all().iter().filter(|edge| usize::from(edge.class) > rank);
        for edge in rest.take(answer.edges) {
            picks[usize::from(self.ranges[usize::from(edge.class)].class)] = edge.to;
        }
        let mut node = Node { parent: answer.parent, item: answer.item };
        for range in self.ranges.iter().take(rank + 1).rev() {
            picks[usize::from(range.class)] = node.item;
            // The first decision has no parent, and none is looked up after it.
            node = self.nodes.get(node.parent as usize).copied().unwrap_or(Node::NONE);
        }
    }

    /// Makes the new states the current ones.
    fn advance(&mut self, rank: usize, breaks: usize) {
        let left = self.nodes.len() - self.used;
        let stages = self.ranges.len() - rank;
        let room = (left / stages).max(left / 4).clamp(1, MAX_STATES).min(left);
        self.compact(breaks, room);
        for state in &mut self.next[..self.new] {
            self.nodes[self.used] = Node { parent: state.node, item: state.item };
            state.node = self.used as u32;
            self.used += 1;
        }
        core::mem::swap(&mut self.states, &mut self.next);
        self.len = self.new;
    }
}
