//! Branch and bound of the knapsack, from both sides.
//!
//! The classes that have a choice left are split into two halves. In each, class by class, the
//! non-dominated partial selections ([`State`]) are kept, each bounded by the relaxation of all classes that
//! it has not decided. The two halves are then joined, which replaces a product of their lengths by a walk
//! along both. Where states do not fit into their storage the least promising go, and the least bound among
//! them limits what is proven.

use super::MitigateError;
use super::knapsack::{Ceilings, ChooseScratch, Range, Search};
use super::relax::{Edges, Sum, advance, relaxed, within};
use crate::limits::MAX_CLASSES;

/// A partial selection.
#[derive(Clone, Copy, Debug)]
pub(super) struct State {
    sum: Sum,
    /// The least cost it can lead to, where that was needed.
    bound: u64,
    /// Its last decision; while the state is new, the one before.
    node: u32,
    /// The item it was last extended by.
    item: u16,
}

impl State {
    pub const NONE: Self = Self { sum: Sum::NONE, node: u32::MAX, item: 0, bound: 0 };

    /// A total order, so that every machine sorts alike.
    fn key(&self) -> (u64, u64, u32, u16) {
        (self.sum.weight, self.sum.cost, self.node, self.item)
    }
}

/// A decision that a state rests on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Node {
    parent: u32,
    class: u16,
    item: u16,
}

impl Node {
    pub const NONE: Self = Self { parent: u32::MAX, class: 0, item: 0 };
}

/// Decides the classes that have a choice left: at most `width` states at a time, `nodes` in all.
pub(super) fn decide(
    search: &mut Search<'_>,
    width: usize,
    nodes: usize,
    scratch: &mut ChooseScratch,
    picks: &mut [u16],
) -> Result<(), MitigateError> {
    let [states, next, other] = &mut scratch.states;
    let mut sides = Sides {
        search,
        picks,
        ranges: &scratch.ranges,
        kept: &scratch.kept,
        edges: Edges::new(&mut scratch.edges),
        vertex: &mut scratch.vertex,
        place: &mut scratch.place,
        breaks: &mut scratch.breaks,
        states,
        next,
        other,
        len: 0,
        new: 0,
        nodes: &mut scratch.nodes[..nodes],
        used: 0,
        width,
        stages: 0,
        least_extra: 0,
        answer: None,
    };
    let mut open: heapless::Vec<u16, MAX_CLASSES> = heapless::Vec::new();
    let fixed = sides.start(&mut open)?;
    let half = sides.half(&open);
    let (left, right) = open.split_at_mut(half);
    sides.run(fixed, left, right);
    if !right.is_empty() {
        core::mem::swap(&mut sides.states, &mut sides.other);
        let others = sides.len;
        sides.run(fixed, right, left);
        sides.join(others, &fixed);
    }
    Ok(())
}

/// How an answer came about.
#[derive(Clone, Copy)]
enum Answer {
    /// A decision, and the relaxation of the rest rounded: its first so many edges taken.
    Rounded(Node, usize),
    /// A state of each side.
    Joined(u32, u32),
}

struct Sides<'a, 's, 'c> {
    search: &'a mut Search<'c>,
    /// Where the best answer is written.
    picks: &'a mut [u16],
    /// The items left of each class.
    ranges: &'s [Range],
    kept: &'s [u16],
    /// Hulls of the items left, and the cheapest item of each class, where they begin.
    edges: Edges<'s>,
    vertex: &'s mut [u16],
    /// When each class is decided on this side.
    place: &'s mut [u16],
    /// The relaxation of the classes not decided yet.
    breaks: &'s mut [Sum],
    /// States by weight, `len` of them; the next ones, `new` of them; and the other side's.
    states: &'s mut [State],
    next: &'s mut [State],
    other: &'s mut [State],
    len: usize,
    new: usize,
    nodes: &'s mut [Node],
    used: usize,
    width: usize,
    /// Decisions to come, on both sides.
    stages: usize,
    /// Host bytes that the classes not decided yet hold at least.
    least_extra: u64,
    answer: Option<Answer>,
}

impl Sides<'_, '_, '_> {
    fn items(&self, class: u16) -> &[u16] {
        self.ranges[usize::from(class)].of(self.kept)
    }

    /// Lays out the hulls. Collects the classes that have a choice; returns the sum of the others.
    fn start(&mut self, open: &mut heapless::Vec<u16, MAX_CLASSES>) -> Result<Sum, MitigateError> {
        let (goal, mut fixed) = (self.search.goal, Sum::NONE);
        for (number, class) in self.search.classes.iter().enumerate() {
            let items = self.ranges[number].of(self.kept);
            self.vertex[number] = items[0];
            if items.len() == 1 {
                fixed = fixed.plus(&goal.item(class, items[0]));
                continue;
            }
            let heaviest_first = items.iter().rev().copied();
            self.vertex[number] = self.edges.add(goal, number, class, heaviest_first)?;
            // There are at most MAX_CLASSES classes.
            let _ = open.push(number as u16);
        }
        self.edges.sort();
        self.stages = open.len();
        if open.is_empty() && self.search.improves(&fixed) {
            self.search.accept(fixed);
            self.picks.copy_from_slice(&self.vertex[..self.picks.len()]);
        }
        Ok(fixed)
    }

    /// Where to split the classes: half of the product of their lengths on each side, neighbours (parts of
    /// one layer, whose bytes resemble each other) together. Two limits at once cannot be joined.
    fn half(&self, open: &[u16]) -> usize {
        if self.search.goal.extra_limit.is_some() {
            return open.len();
        }
        let bits = |class: &u16| u64::from((self.items(*class).len() as u64 * 16).ilog2());
        let all: u64 = open.iter().map(bits).sum();
        let mut sum = 0;
        let end = open.iter().position(|class| {
            sum += 2 * bits(class);
            sum > all
        });
        end.unwrap_or(open.len())
    }

    /// Decides the classes of `own`, those with the fewest items first.
    fn run(&mut self, start: Sum, own: &mut [u16], rest: &[u16]) {
        own.sort_unstable_by_key(|&class| (self.items(class).len(), class));
        for (place, &class) in own.iter().chain(rest).enumerate() {
            self.place[usize::from(class)] = place as u16;
        }
        self.states[0] = State { sum: start, ..State::NONE };
        self.len = 1;
        for (place, &class) in own.iter().enumerate() {
            let later = own[place + 1..].iter().chain(rest);
            let breaks = self.breaks(place, later.clone());
            self.expand(class, breaks, later.clone().next().is_none());
            self.write(place, later);
            self.advance(class, breaks);
        }
    }

    /// Lays out the relaxation of the classes after `place`; returns its number of breaks.
    fn breaks<'o>(&mut self, place: usize, later: impl Iterator<Item = &'o u16> + Clone) -> usize {
        let item = |class: u16, index: u16| self.search.item(class.into(), index);
        let cheapest = |class: &u16| item(*class, self.vertex[usize::from(*class)]);
        self.breaks[0] = later.clone().fold(Sum::NONE, |sum, class| sum.plus(&cheapest(class)));
        let mut count = 1;
        for edge in self.edges.all() {
            if usize::from(self.place[usize::from(edge.class)]) > place {
                let (from, to) = (item(edge.class, edge.from), item(edge.class, edge.to));
                self.breaks[count] = self.breaks[count - 1].swap(&from, &to);
                count += 1;
            }
        }
        self.least_extra = 0;
        if self.search.goal.extra_limit.is_some() {
            let least = |class: &u16| {
                let items = self.items(*class).iter();
                items.map(|&index| item(*class, index).extra).min().unwrap_or(0)
            };
            self.least_extra = later.map(least).sum();
        }
        count
    }

    /// Extends every state by every item of a class.
    fn expand(&mut self, class: u16, breaks: usize, last: bool) {
        self.new = 0;
        let range = self.ranges[usize::from(class)];
        for &index in range.of(self.kept) {
            let item = self.search.item(class.into(), index);
            let mut at = (0, 0);
            for place in 0..self.len {
                let state = self.states[place];
                let sum = state.sum.plus(&item);
                // The states get heavier: where one has no room, none after it has.
                let Some(room) = self.search.goal.limit.checked_sub(sum.weight) else { break };
                let Some(whole) = advance(&self.breaks[..breaks], at.0, room) else { break };
                at.0 = whole;
                let rounded = sum.plus(&self.breaks[whole]);
                if self.search.improves(&rounded) {
                    self.search.accept(rounded);
                    self.answer =
                        Some(Answer::Rounded(Node { parent: state.node, class, item: index }, whole));
                    at.1 = 0;
                }
                // With nothing after it a state has just been an answer, or is no use.
                if last || !self.promises(breaks, &sum, &mut at) {
                    continue;
                }
                if self.new == self.next.len() {
                    self.compact(breaks, self.next.len() / 2);
                }
                self.next[self.new] = State { sum, bound: 0, node: state.node, item: index };
                self.new += 1;
            }
        }
    }

    /// Whether `sum` may lead to a better answer. `at`: its breaks within the limit, and within the weight
    /// that an answer of equal value has to stay below; the latter is advanced.
    #[inline]
    fn promises(&self, breaks: usize, sum: &Sum, at: &mut (usize, usize)) -> bool {
        let goal = self.search.goal;
        if goal.extra_limit.is_some_and(|limit| sum.extra.saturating_add(self.least_extra) > limit) {
            return false;
        }
        let Ceilings { smaller, equal, lighter } = self.search.ceilings;
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
                self.next[len] = state;
                len += 1;
            }
        }
        self.new = len;
        if len > room {
            self.thin(breaks, room);
        }
    }

    /// Whether one of the `len` new states before does as well.
    fn dominated(&self, sum: &Sum, len: usize) -> bool {
        if self.search.goal.extra_limit.is_none() {
            return len > 0 && self.next[len - 1].sum.cost <= sum.cost;
        }
        // The nearest are the likeliest; to miss one costs time only.
        let value = self.search.goal.value(sum);
        let near = self.next[len.saturating_sub(128)..len].iter().map(|state| &state.sum);
        near.clone().any(|other| self.search.goal.value(other) <= value && other.extra <= sum.extra)
    }

    /// Keeps the `room` new states of the least bounds, and notes what the others could have reached.
    fn thin(&mut self, breaks: usize, room: usize) {
        let (states, breaks) = (&mut self.next[..self.new], &self.breaks[..breaks]);
        for state in &mut *states {
            let left = self.search.goal.limit - state.sum.weight;
            let whole = breaks.partition_point(|b| b.weight > left);
            state.bound = state.sum.cost + relaxed(breaks, whole, left);
        }
        states.select_nth_unstable_by_key(room, |state| (state.bound, state.key()));
        self.search.lost = self.search.lost.min(self.search.goal.floor(states[room].bound));
        states[..room].sort_unstable_by_key(State::key);
        self.new = room;
    }

    /// Makes the new states the current ones.
    fn advance(&mut self, class: u16, breaks: usize) {
        let left = self.nodes.len() - self.used;
        let room = (left / self.stages).max(left / 4).clamp(1, self.width).min(left);
        self.compact(breaks, room);
        for state in &mut self.next[..self.new] {
            self.nodes[self.used] = Node { parent: state.node, class, item: state.item };
            state.node = self.used as u32;
            self.used += 1;
        }
        core::mem::swap(&mut self.states, &mut self.next);
        self.len = self.new;
        self.stages -= 1;
    }

    /// Joins each state of the first side with the cheapest that fits of this one; both count `fixed`.
    fn join(&mut self, others: usize, fixed: &Sum) {
        let mut fit = self.len;
        for other in &self.other[..others] {
            let room = self.search.goal.limit - (other.sum.weight - fixed.weight);
            while fit > 0 && self.states[fit - 1].sum.weight > room {
                fit -= 1;
            }
            let Some(state) = self.states[..fit].last() else { break };
            let sum = other.sum.plus(&state.sum.without(fixed));
            if self.search.improves(&sum) {
                self.search.accept(sum);
                self.answer = Some(Answer::Joined(other.node, state.node));
            }
        }
        self.write(usize::MAX, core::iter::empty());
    }

    /// Writes the latest answer, if there is one since the last time.
    fn write<'o>(&mut self, place: usize, later: impl Iterator<Item = &'o u16>) {
        let Some(answer) = self.answer.take() else { return };
        for (class, range) in self.ranges.iter().enumerate().take(self.picks.len()) {
            if let &[only] = range.of(self.kept) {
                self.picks[class] = only;
            }
        }
        match answer {
            Answer::Joined(left, right) => {
                self.trace(left);
                self.trace(right);
            }
            Answer::Rounded(last, edges) => {
                self.picks[usize::from(last.class)] = last.item;
                self.trace(last.parent);
                for &class in later {
                    self.picks[usize::from(class)] = self.vertex[usize::from(class)];
                }
                let after = |class: u16| usize::from(self.place[usize::from(class)]) > place;
                for edge in self.edges.all().iter().filter(|edge| after(edge.class)).take(edges) {
                    self.picks[usize::from(edge.class)] = edge.to;
                }
            }
        }
    }

    /// Writes the decisions up to `node`.
    fn trace(&mut self, mut node: u32) {
        // The first decision has no node before it.
        while let Some(&Node { parent, class, item }) = self.nodes.get(node as usize) {
            self.picks[usize::from(class)] = item;
            node = parent;
        }
    }
}
