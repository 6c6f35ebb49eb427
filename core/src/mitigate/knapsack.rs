//! Exact multiple-choice knapsack.
//!
//! The linear relaxation gives a bound and, rounded, a first answer. Items that cannot be part of a better
//! one are struck out by their reduced cost. What is left is decided by `sides`: first within a narrow beam,
//! for a good answer; then, with what that answer strikes out gone as well, in full.

use super::relax::{Edge, Edges, Goal, Sum};
use super::sides::{Node, State, decide};
use super::{Class, MitigateError};
use crate::limits::{MAX_CLASSES, MAX_EDGES, MAX_NODES, MAX_POINTS, MAX_STATES};

/// How much an exact selection may search.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Config {
    /// Partial selections kept in all, at most [`MAX_NODES`].
    pub node_limit: u32,
    /// An answer this close to the proven bound ends the search, in millionths of the added time; 0
    /// searches on to the optimum.
    pub tolerance_ppm: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self { node_limit: MAX_NODES as u32, tolerance_ppm: 0 }
    }
}

/// Working storage of [`choose`](super::choose).
#[derive(Clone, Debug)]
pub struct ChooseScratch {
    pub(super) edges: [Edge; MAX_EDGES],
    pub(super) breaks: [Sum; MAX_EDGES + 1],
    pub(super) vertex: [u16; MAX_CLASSES],
    pub(super) place: [u16; MAX_CLASSES],
    pub(super) kept: [u16; MAX_POINTS],
    pub(super) ranges: [Range; MAX_CLASSES],
    pub(super) states: [[State; MAX_STATES]; 3],
    pub(super) nodes: [Node; MAX_NODES],
}

impl ChooseScratch {
    /// Empty storage.
    pub const fn new() -> Self {
        Self {
            edges: [Edge::NONE; MAX_EDGES],
            breaks: [Sum::NONE; MAX_EDGES + 1],
            vertex: [0; MAX_CLASSES],
            place: [0; MAX_CLASSES],
            kept: [0; MAX_POINTS],
            ranges: [Range::NONE; MAX_CLASSES],
            states: [[State::NONE; MAX_STATES]; 3],
            nodes: [Node::NONE; MAX_NODES],
        }
    }
}

impl Default for ChooseScratch {
    fn default() -> Self {
        Self::new()
    }
}

/// The items of a class that are left, in `kept`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Range {
    start: u32,
    end: u32,
}

impl Range {
    const NONE: Self = Self { start: 0, end: 0 };

    pub fn of<'k>(&self, kept: &'k [u16]) -> &'k [u16] {
        &kept[self.start as usize..self.end as usize]
    }
}

/// States kept at a time by the first pass; what its answer rules out is struck out before the second.
const BEAM: usize = if MAX_STATES < 64 { MAX_STATES } else { 64 };

/// What a search found; its picks are in the caller's slice.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found {
    /// No selection has a smaller value.
    pub bound: u64,
    /// Nor is there one of the same value and less weight than the answer's.
    pub proven: bool,
}

/// Minimises `goal` over one point of each class. With `start`, the picks already hold an answer.
pub(super) fn search(
    classes: &[Class<'_>],
    goal: &Goal,
    start: Option<Sum>,
    config: &Config,
    scratch: &mut ChooseScratch,
    picks: &mut [u16],
) -> Result<Found, MitigateError> {
    let picks = &mut picks[..classes.len()];
    let mut search = Search::new(classes, goal);
    if let Some(start) = start {
        search.accept(start);
    }
    let root = relax(classes, goal, scratch)?;
    search.round(&root, scratch, picks);
    if root.split.is_none() && goal.extra_limit.is_none() {
        // Every class at its cheapest point: nothing to trade.
        return Ok(search.found());
    }
    if search.is_close(root.bound, config) {
        return Ok(search.found_within(root.bound));
    }
    let limit = (config.node_limit as usize).clamp(1, MAX_NODES);
    let mut left = search.strike(&root, scratch, true);
    let struck = search.lost;
    if left && search.pairs(scratch, picks) {
        if search.is_close(root.bound, config) {
            return Ok(search.found_within(root.bound));
        }
        left = search.strike(&root, scratch, false);
    }
    for width in [BEAM, MAX_STATES] {
        if !left {
            break;
        }
        search.lost = struck;
        decide(&mut search, width, limit, scratch, picks)?;
        let found = search.found();
        if found.proven || search.is_close(found.bound, config) {
            break;
        }
        left = width < MAX_STATES && search.strike(&root, scratch, false);
    }
    Ok(search.found())
}

/// The relaxation of a whole instance. Its vertex is in the scratch: every class at a point, within the
/// limit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Root {
    pub sum: Sum,
    /// The edge that was taken in part.
    split: Option<Edge>,
    /// The relaxation's cost, rounded up.
    pub bound: u64,
}

/// Solves the linear relaxation.
pub(super) fn relax(
    classes: &[Class<'_>],
    goal: &Goal,
    scratch: &mut ChooseScratch,
) -> Result<Root, MitigateError> {
    let mut edges = Edges::new(&mut scratch.edges);
    let mut sum = Sum::NONE;
    for (number, class) in classes.iter().enumerate() {
        let all = (0..class.points.len() as u16).rev();
        let vertex = edges.add(goal, number, class, all)?;
        scratch.vertex[number] = vertex;
        sum = sum.plus(&goal.item(class, vertex));
    }
    edges.sort();
    let mut root = Root { sum, split: None, bound: sum.cost };
    for edge in edges.all() {
        if root.sum.weight <= goal.limit {
            break;
        }
        let class = &classes[usize::from(edge.class)];
        let excess = root.sum.weight - goal.limit;
        let part = u128::from(excess.min(edge.weight)) * u128::from(edge.cost);
        root.bound = root.sum.cost + part.div_ceil(u128::from(edge.weight)) as u64;
        root.sum = root.sum.swap(&goal.item(class, edge.from), &goal.item(class, edge.to));
        root.split = Some(*edge);
        scratch.vertex[usize::from(edge.class)] = edge.to;
    }
    if root.sum.weight > goal.limit {
        return Err(MitigateError::Infeasible { least: root.sum.weight, limit: goal.limit });
    }
    Ok(root)
}

/// A search under way.
pub(super) struct Search<'a> {
    pub classes: &'a [Class<'a>],
    pub goal: &'a Goal,
    /// The best answer so far.
    best: Option<Sum>,
    /// What its betters must stay within.
    pub ceilings: Ceilings,
    /// The least value that anything dropped for lack of room could have reached.
    pub lost: u64,
}

/// What the relaxation of a better answer can show at most.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ceilings {
    /// Its cost, if its value is smaller; none if no value can be.
    pub smaller: Option<u128>,
    /// Its cost, if its value is equal; then its weight is at most `lighter`.
    pub equal: u128,
    pub lighter: u64,
}

impl<'a> Search<'a> {
    fn new(classes: &'a [Class<'a>], goal: &'a Goal) -> Self {
        let none = Ceilings { smaller: Some(u128::MAX), equal: u128::MAX, lighter: goal.limit };
        Self { classes, goal, best: None, ceilings: none, lost: u64::MAX }
    }

    /// Makes `sum` the best answer.
    pub fn accept(&mut self, sum: Sum) {
        let value = self.goal.value(&sum);
        self.ceilings = Ceilings {
            smaller: value.checked_sub(1).map(|value| self.goal.ceiling(value)),
            equal: self.goal.ceiling(value),
            lighter: sum.weight.saturating_sub(1),
        };
        self.best = Some(sum);
    }

    fn found(&self) -> Found {
        let value = self.best.map_or(u64::MAX, |best| self.goal.value(&best));
        Found { bound: value.min(self.lost), proven: self.lost > value }
    }

    /// What is known with the root's bound alone: nothing of answers that weigh less.
    fn found_within(&self, bound: u64) -> Found {
        Found { bound: bound.min(self.found().bound), proven: false }
    }

    /// Whether the best answer is as close to `bound` as was asked for.
    fn is_close(&self, bound: u64, config: &Config) -> bool {
        let Some(best) = self.best.filter(|_| self.goal.extra_limit.is_none()) else { return false };
        let value = self.goal.value(&best);
        let tolerated = u128::from(value) * u128::from(config.tolerance_ppm) / 1_000_000;
        config.tolerance_ppm > 0 && u128::from(value.saturating_sub(bound)) <= tolerated
    }

    #[inline]
    pub fn item(&self, class: usize, index: u16) -> Sum {
        self.goal.item(&self.classes[class], index)
    }

    /// What is minimised, ties included.
    fn key(&self, sum: &Sum) -> (u64, u64) {
        (self.goal.value(sum), sum.weight)
    }

    /// Whether `sum` is an answer, and better than the best so far.
    #[inline]
    pub fn improves(&self, sum: &Sum) -> bool {
        let fits = sum.weight <= self.goal.limit && self.goal.extra_limit.is_none_or(|x| sum.extra <= x);
        fits && self.best.is_none_or(|best| self.key(sum) < self.key(&best))
    }

    /// Rounds the relaxation to an answer and improves it one class at a time.
    fn round(&mut self, root: &Root, scratch: &mut ChooseScratch, picks: &mut [u16]) {
        let mut current = root.sum;
        let vertex = &mut scratch.place[..picks.len()];
        vertex.copy_from_slice(&scratch.vertex[..picks.len()]);
        if let Some(split) = root.split {
            let class = usize::from(split.class);
            let above = root.sum.swap(&self.item(class, split.to), &self.item(class, split.from));
            if let Some((other, index, sum)) = self.repair(&above, class, vertex)
                && self.key(&sum) < self.key(&current)
            {
                (vertex[class], vertex[other], current) = (split.from, index, sum);
            }
        }
        // Each round lowers the value, and a class seldom moves twice; the bound merely ends the loop.
        for _ in 0..2 * self.classes.len() {
            let Some((class, index, sum)) = self.improve(&current, vertex) else { break };
            vertex[class] = index;
            current = sum;
        }
        if self.improves(&current) {
            self.accept(current);
            picks.copy_from_slice(vertex);
        }
    }

    /// Improves the answer two classes at a time among the items left; whether it did.
    fn pairs(&mut self, scratch: &ChooseScratch, picks: &mut [u16]) -> bool {
        let ranges = &scratch.ranges[..self.classes.len()];
        let start = self.best;
        let Some(mut best) = start.filter(|_| self.goal.sorted()) else { return false };
        for first in 0..ranges.len() {
            for second in first + 1..ranges.len() {
                let (left, right) = (ranges[first].of(&scratch.kept), ranges[second].of(&scratch.kept));
                if left.len() == 1 && right.len() == 1 {
                    continue;
                }
                let others =
                    best.without(&self.item(first, picks[first])).without(&self.item(second, picks[second]));
                let mut fit = right.len();
                for &index in left {
                    let sum = others.plus(&self.item(first, index));
                    let Some(room) = self.goal.limit.checked_sub(sum.weight) else { break };
                    while fit > 0 && self.item(second, right[fit - 1]).weight > room {
                        fit -= 1;
                    }
                    let Some(&other) = right[..fit].last() else { break };
                    let sum = sum.plus(&self.item(second, other));
                    if self.improves(&sum) {
                        self.accept(sum);
                        (best, picks[first], picks[second]) = (sum, index, other);
                    }
                }
            }
        }
        self.best.map(|best| self.key(&best)) != start.map(|best| self.key(&best))
    }

    /// The cheapest move of one class that brings `above` within the limit.
    fn repair(&self, above: &Sum, split: usize, vertex: &[u16]) -> Option<(usize, u16, Sum)> {
        let excess = above.weight.saturating_sub(self.goal.limit);
        let others = (0..self.classes.len()).filter(|&class| class != split);
        let moves = others.filter_map(|class| {
            let from = self.item(class, vertex[class]);
            let index = self.cheapest(class, from.weight.checked_sub(excess)?)?;
            Some((class, index, above.swap(&from, &self.item(class, index))))
        });
        moves.min_by_key(|(class, _, sum)| (self.key(sum), *class))
    }

    /// The move of one class that lowers the value of `current` most.
    fn improve(&self, current: &Sum, vertex: &[u16]) -> Option<(usize, u16, Sum)> {
        let slack = self.goal.limit - current.weight;
        let moves = (0..self.classes.len()).filter_map(|class| {
            let from = self.item(class, vertex[class]);
            let index = self.cheapest(class, from.weight.saturating_add(slack))?;
            Some((class, index, current.swap(&from, &self.item(class, index))))
        });
        let best = moves.min_by_key(|(class, _, sum)| (self.key(sum), *class))?;
        (self.key(&best.2) < self.key(current)).then_some(best)
    }

    /// The item of least value among those of at most `weight`.
    fn cheapest(&self, class: usize, weight: u64) -> Option<u16> {
        let c = &self.classes[class];
        let light = c.points.partition_point(|p| p.bytes.max(c.least_bytes) <= weight);
        if self.goal.sorted() {
            return Some(light.checked_sub(1)? as u16);
        }
        (0..light as u16).min_by_key(|&i| (self.item(class, i).cost, self.item(class, i).weight))
    }

    /// Strikes out every item that no better answer contains; `false` where nothing is left to find.
    ///
    /// With any multiplier λ = b/a an answer that contains item i has
    /// a · cost ≥ Σ min(a·cost + b·weight) − b·limit + (what i exceeds its class's minimum by).
    fn strike(&mut self, root: &Root, scratch: &mut ChooseScratch, first: bool) -> bool {
        let (a, b) = root.split.map_or((1, 0), |split| self.multiplier(&split));
        let reduced =
            |item: Sum| u128::from(a) * u128::from(item.cost) + u128::from(b) * u128::from(item.weight);
        let ChooseScratch { kept, ranges, .. } = scratch;
        let items = |class: usize, range: &Range| match first {
            true => 0..self.classes[class].points.len(),
            false => range.start as usize..range.end as usize,
        };
        let index = |kept: &[u16], i: usize| if first { i as u16 } else { kept[i] };
        let least = |class: usize, range: &Range, kept: &[u16]| {
            let all = items(class, range).map(|i| reduced(self.item(class, index(kept, i))));
            all.min().unwrap_or(0)
        };
        let pairs = ranges.iter().enumerate().take(self.classes.len());
        let sum = pairs.map(|(class, range)| least(class, range, kept)).sum();
        let Some(room) = self.room(a, b, sum) else { return false };
        let (mut end, mut lost) = (0, false);
        for (class, range) in ranges.iter_mut().enumerate().take(self.classes.len()) {
            let (start, least) = (end, least(class, range, kept));
            for i in items(class, range) {
                let index = index(kept, i);
                if reduced(self.item(class, index)) - least > room {
                    continue;
                }
                match kept.get_mut(end) {
                    Some(slot) => (*slot, end) = (index, end + 1),
                    None => lost = true,
                }
            }
            *range = Range { start: start as u32, end: end as u32 };
            if start == end {
                return false;
            }
        }
        if lost {
            self.lost = self.goal.floor(root.bound);
        }
        true
    }

    /// How far an item of a better answer can be above its class's minimum; `None` if nothing can be better.
    fn room(&self, a: u64, b: u64, sum: u128) -> Option<u128> {
        let Ceilings { smaller, equal, lighter } = self.ceilings;
        let room = |ceiling: u128, weight: u64| {
            let right = ceiling.checked_mul(a.into())?.checked_add(u128::from(b) * u128::from(weight))?;
            Some(right.checked_sub(sum))
        };
        // None outside: too large to tell; inside: nothing fits.
        let smaller = smaller.map_or(Some(None), |ceiling| room(ceiling, self.goal.limit));
        match (smaller, room(equal, lighter)) {
            (Some(x), Some(y)) => x.max(y),
            _ => Some(u128::MAX),
        }
    }

    /// The slope of the split edge as b/a, shortened where products could pass `u128`.
    fn multiplier(&self, split: &Edge) -> (u64, u64) {
        let most = |measure: fn(&Sum) -> u64| {
            let class = |c: usize| {
                let all = 0..self.classes[c].points.len() as u16;
                // The ends of a sorted class bound all of it.
                let step = if self.goal.sorted() { usize::from(all.end - 1).max(1) } else { 1 };
                all.step_by(step).map(|i| measure(&self.item(c, i))).max().unwrap_or(0)
            };
            (0..self.classes.len()).map(|c| u128::from(class(c))).sum::<u128>()
        };
        let bits = |n: u128| u128::BITS - n.leading_zeros();
        let cost = bits(u128::from(split.weight)) + bits(most(|item| item.cost));
        let weight = bits(u128::from(split.cost)) + bits(most(|item| item.weight));
        let shift = cost.max(weight).saturating_sub(124).min(63);
        (split.weight >> shift, split.cost >> shift)
    }
}
