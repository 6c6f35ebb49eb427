//! Exact multiple-choice knapsack.
//!
//! The linear relaxation gives a bound and, rounded, a first answer. Items that cannot be part of a better
//! one are struck out by their reduced cost. What is left is decided class by class over the non-dominated
//! partial selections (`stages`), each bounded by the relaxation of the classes after it. Where they do not
//! fit into their storage the least promising go, and the least bound among them limits what is proven.

use super::relax::{Break, Edge, Edges, Goal, Item};
use super::stages::{Node, State, decide};
use super::{Class, MitigateError};
use crate::limits::{MAX_CLASSES, MAX_EDGES, MAX_NODES, MAX_POINTS, MAX_STATES};

/// How much an exact selection may search.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Config {
    /// Partial selections kept in all, at most [`MAX_NODES`].
    pub node_limit: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self { node_limit: MAX_NODES as u32 }
    }
}

/// Working storage of [`choose`](super::choose).
#[derive(Clone, Debug)]
pub struct ChooseScratch {
    pub(super) edges: [Edge; MAX_EDGES],
    pub(super) breaks: [Break; MAX_EDGES + 1],
    pub(super) vertex: [u16; MAX_CLASSES],
    pub(super) kept: [u16; MAX_POINTS],
    pub(super) ranges: [Range; MAX_CLASSES],
    pub(super) states: [State; MAX_STATES],
    pub(super) next: [State; MAX_STATES],
    pub(super) nodes: [Node; MAX_NODES],
}

impl ChooseScratch {
    /// Empty storage.
    pub const fn new() -> Self {
        Self {
            edges: [Edge::NONE; MAX_EDGES],
            breaks: [Break::NONE; MAX_EDGES + 1],
            vertex: [0; MAX_CLASSES],
            kept: [0; MAX_POINTS],
            ranges: [Range::NONE; MAX_CLASSES],
            states: [State::NONE; MAX_STATES],
            next: [State::NONE; MAX_STATES],
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
    pub start: u32,
    pub end: u32,
    pub class: u16,
}

impl Range {
    const NONE: Self = Self { start: 0, end: 0, class: 0 };

    pub fn of<'k>(&self, kept: &'k [u16]) -> &'k [u16] {
        &kept[self.start as usize..self.end as usize]
    }
}

/// What a search found; its picks are in the caller's slice.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found {
    /// No selection has a smaller value.
    pub bound: u64,
    /// Nor is there one of the same value and less weight than the answer's.
    pub proven: bool,
}

/// Minimises `goal` over one point of each class.
///
/// With `start`, the picks already hold an answer. `sorted`: the value descends along each class.
pub(super) fn search(
    classes: &[Class<'_>],
    goal: &Goal,
    sorted: bool,
    start: Option<Break>,
    config: &Config,
    scratch: &mut ChooseScratch,
    picks: &mut [u16],
) -> Result<Found, MitigateError> {
    let picks = &mut picks[..classes.len()];
    let mut search = Search { classes, goal, sorted, best: start, lost: u64::MAX };
    let root = relax(classes, goal, scratch)?;
    search.round(&root, scratch, picks);
    if root.split.is_none() && goal.extra_limit.is_none() {
        // Every class at its cheapest point: nothing to trade.
        return Ok(search.result());
    }
    if search.strike(&root, scratch) {
        decide(&mut search, config, scratch, picks)?;
    }
    Ok(search.result())
}

/// The relaxation of a whole instance. Its vertex is in the scratch: every class at a point, within the
/// limit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Root {
    pub sum: Break,
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
    let mut sum = Break::NONE;
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
    sorted: bool,
    /// The best answer so far.
    pub best: Option<Break>,
    /// The least value that anything dropped for lack of room could have reached.
    pub lost: u64,
}

impl Search<'_> {
    fn result(&self) -> Found {
        let value = self.best.map_or(u64::MAX, |best| best.value);
        Found { bound: value.min(self.lost), proven: self.lost > value }
    }

    pub fn item(&self, class: usize, index: u16) -> Item {
        self.goal.item(&self.classes[class], index)
    }

    /// Whether `sum` is an answer, and better than the best so far.
    pub fn improves(&self, sum: &Break) -> bool {
        let fits = sum.weight <= self.goal.limit && self.goal.extra_limit.is_none_or(|x| sum.extra <= x);
        fits && self.best.is_none_or(|best| (sum.value, sum.weight) < (best.value, best.weight))
    }

    /// Costs that a better answer's relaxation can show at most: within the limit (none if no value can
    /// be smaller), and within a weight below the best answer's.
    pub fn ceilings(&self) -> (Option<u128>, u128, u64) {
        match self.best {
            None => (Some(u128::MAX), u128::MAX, self.goal.limit),
            Some(best) => {
                let smaller = best.value.checked_sub(1).map(|value| self.goal.ceiling(value));
                (smaller, self.goal.ceiling(best.value), best.weight.saturating_sub(1))
            }
        }
    }

    /// Rounds the relaxation to an answer and improves it one class at a time.
    fn round(&mut self, root: &Root, scratch: &mut ChooseScratch, picks: &mut [u16]) {
        let vertex = &mut scratch.vertex;
        let classes = self.classes.len();
        let (mut current, mut repaired) = (root.sum, None);
        if let Some(split) = root.split {
            let class = usize::from(split.class);
            let above = root.sum.swap(&self.item(class, split.to), &self.item(class, split.from));
            repaired = self.repair(&above, class, vertex);
        }
        let start = *vertex;
        if let Some((class, index, sum)) = repaired
            && (sum.value, sum.weight) < (current.value, current.weight)
            && let Some(split) = root.split
        {
            vertex[usize::from(split.class)] = split.from;
            vertex[class] = index;
            current = sum;
        }
        // Each round lowers the value, and a class seldom moves twice; the bound merely ends the loop.
        for _ in 0..2 * classes {
            let Some((class, index, sum)) = self.improve(&current, vertex) else { break };
            vertex[class] = index;
            current = sum;
        }
        if self.improves(&current) {
            self.best = Some(current);
            picks.copy_from_slice(&vertex[..classes]);
        }
        *vertex = start;
    }

    /// The cheapest move of one class that brings `above` within the limit.
    fn repair(&self, above: &Break, split: usize, vertex: &[u16]) -> Option<(usize, u16, Break)> {
        let excess = above.weight.saturating_sub(self.goal.limit);
        let others = (0..self.classes.len()).filter(|&class| class != split);
        let moves = others.filter_map(|class| {
            let from = self.item(class, vertex[class]);
            let index = self.cheapest(class, from.weight.checked_sub(excess)?)?;
            Some((class, index, above.swap(&from, &self.item(class, index))))
        });
        moves.min_by_key(|(class, _, sum)| (sum.value, sum.weight, *class))
    }

    /// The move of one class that lowers the value of `current` most.
    fn improve(&self, current: &Break, vertex: &[u16]) -> Option<(usize, u16, Break)> {
        let slack = self.goal.limit - current.weight;
        let moves = (0..self.classes.len()).filter_map(|class| {
            let from = self.item(class, vertex[class]);
            let index = self.cheapest(class, from.weight.saturating_add(slack))?;
            Some((class, index, current.swap(&from, &self.item(class, index))))
        });
        let best = moves.min_by_key(|(class, _, sum)| (sum.value, sum.weight, *class))?;
        ((best.2.value, best.2.weight) < (current.value, current.weight)).then_some(best)
    }

    /// The item of least value among those of at most `weight`.
    fn cheapest(&self, class: usize, weight: u64) -> Option<u16> {
        let c = &self.classes[class];
        let light = c.points.partition_point(|p| p.bytes.max(c.least_bytes) <= weight);
        if self.sorted {
            return Some(light.checked_sub(1)? as u16);
        }
        (0..light as u16).min_by_key(|&i| (self.item(class, i).cost, self.item(class, i).weight))
    }

    /// Strikes out every item that no better answer contains; `false` where nothing is left to find.
    ///
    /// With any multiplier λ = b/a an answer that contains item i has
    /// a · cost ≥ Σ min(a·cost + b·weight) − b·limit + (what i exceeds its class's minimum by).
    fn strike(&mut self, root: &Root, scratch: &mut ChooseScratch) -> bool {
        let (a, b, exact) = root.split.map_or((1, 0, true), |split| self.multiplier(&split));
        let reduced =
            |item: Item| u128::from(a) * u128::from(item.cost) + u128::from(b) * u128::from(item.weight);
        let least = |class: usize, vertex: u16| match exact {
            true => reduced(self.item(class, vertex)),
            false => {
                let all = 0..self.classes[class].points.len() as u16;
                all.map(|i| reduced(self.item(class, i))).min().unwrap_or(0)
            }
        };
        let sum: u128 = (0..self.classes.len()).map(|class| least(class, scratch.vertex[class])).sum();
        let (smaller, equal, lighter) = self.ceilings();
        let room = |ceiling: u128, weight: u64| {
            let right =
                ceiling.checked_mul(u128::from(a))?.checked_add(u128::from(b) * u128::from(weight))?;
            Some(right.checked_sub(sum))
        };
        // None: no bound at all; Some(None): nothing fits.
        let room = match (smaller.map_or(Some(None), |s| room(s, self.goal.limit)), room(equal, lighter)) {
            (Some(x), Some(y)) => x.max(y),
            _ => Some(u128::MAX),
        };
        let Some(room) = room else { return false };
        let (mut end, mut lost) = (0, u64::MAX);
        for class in 0..self.classes.len() {
            let start = end;
            let least = least(class, scratch.vertex[class]);
            for index in 0..self.classes[class].points.len() as u16 {
                let item = self.item(class, index);
                if reduced(item) - least > room {
                    continue;
                }
                match scratch.kept.get_mut(end) {
                    Some(slot) => (*slot, end) = (index, end + 1),
                    None => lost = self.goal.floor(root.bound),
                }
            }
            scratch.ranges[class] = Range { start: start as u32, end: end as u32, class: class as u16 };
            if start == end {
                self.lost = self.lost.min(lost);
                return false;
            }
        }
        self.lost = self.lost.min(lost);
        true
    }

    /// The slope of the split edge as b/a, shortened where products could pass `u128`; whether exact.
    fn multiplier(&self, split: &Edge) -> (u64, u64, bool) {
        let most = |measure: fn(&Item) -> u64| {
            let class = |c: usize| {
                let all = 0..self.classes[c].points.len() as u16;
                // The ends of a class bound the middle wherever it is sorted.
                let ends = [0, all.end - 1];
                match self.sorted {
                    true => ends.iter().map(|&i| measure(&self.item(c, i))).max().unwrap_or(0),
                    false => all.map(|i| measure(&self.item(c, i))).max().unwrap_or(0),
                }
            };
            (0..self.classes.len()).map(|c| u128::from(class(c))).sum::<u128>()
        };
        let bits = |n: u128| u128::BITS - n.leading_zeros();
        let cost = bits(u128::from(split.weight)) + bits(most(|item| item.cost));
        let weight = bits(u128::from(split.cost)) + bits(most(|item| item.weight));
        let shift = cost.max(weight).saturating_sub(124).min(63);
        (split.weight >> shift, split.cost >> shift, shift == 0)
    }
}
