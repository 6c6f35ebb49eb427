//! The linear relaxation of a multiple-choice knapsack: convex hulls, and a greedy walk along their edges.

use core::cmp::Ordering;

use super::{Class, MitigateError};

/// A point as the knapsack sees it, or the sum of several.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sum {
    /// Device bytes.
    pub weight: u64,
    /// What the relaxation minimises: the value, scaled, plus the price of the extra.
    pub cost: u64,
    /// Host bytes, where they are limited.
    pub extra: u64,
}

/// What is minimised.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Measure {
    Time,
    Host,
}

/// The aim of one search.
#[derive(Clone, Copy, Debug)]
pub(super) struct Goal {
    pub measure: Measure,
    /// Bound on the sum of weights.
    pub limit: u64,
    /// Bound on the sum of extras; with one, `cost` = value · 2^shift + price · extra, a Lagrangian.
    pub extra_limit: Option<u64>,
    pub shift: u32,
    pub price: u64,
}

impl Goal {
    /// Least `measure` within `limit`.
    pub fn plain(measure: Measure, limit: u64) -> Self {
        Self { measure, limit, extra_limit: None, shift: 0, price: 0 }
    }

    /// Whether the value descends along every class.
    pub fn sorted(&self) -> bool {
        self.measure == Measure::Time && self.extra_limit.is_none()
    }

    #[inline]
    pub fn item(&self, class: &Class<'_>, index: u16) -> Sum {
        let point = &class.points[usize::from(index)];
        let weight = point.bytes.max(class.least_bytes);
        let value = match self.measure {
            Measure::Time => point.added_ns,
            Measure::Host => point.host_bytes,
        };
        if self.extra_limit.is_none() {
            return Sum { weight, cost: value, extra: 0 };
        }
        let extra = point.host_bytes;
        Sum { weight, cost: (value << self.shift) + self.price * extra, extra }
    }

    /// The sum of the picked points.
    pub fn sum(&self, classes: &[Class<'_>], picks: &[u16]) -> Sum {
        let items = classes.iter().zip(picks).map(|(class, &pick)| self.item(class, pick));
        items.fold(Sum::NONE, |sum, item| sum.plus(&item))
    }

    /// The value of a selection.
    pub fn value(&self, sum: &Sum) -> u64 {
        (sum.cost - self.price * sum.extra) >> self.shift
    }

    /// The largest cost that the relaxation may show for a selection of at most `value`.
    pub fn ceiling(&self, value: u64) -> u128 {
        let priced = u128::from(self.price) * u128::from(self.extra_limit.unwrap_or(0));
        (u128::from(value) << self.shift) + priced
    }

    /// The least value of a selection whose relaxation shows `cost`.
    pub fn floor(&self, cost: u64) -> u64 {
        let priced = u128::from(self.price) * u128::from(self.extra_limit.unwrap_or(0));
        let scaled = u128::from(cost).saturating_sub(priced);
        // At most `cost`, so it fits.
        scaled.div_ceil(1 << self.shift) as u64
    }
}

/// A step along a class's hull: fewer bytes for more cost.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Edge {
    pub class: u16,
    pub from: u16,
    pub to: u16,
    /// Weight saved, at least 1.
    pub weight: u64,
    /// Cost added.
    pub cost: u64,
}

impl Edge {
    pub const NONE: Self = Self { class: 0, from: 0, to: 0, weight: 0, cost: 0 };

    /// By cost per weight saved.
    fn by_slope(&self, other: &Self) -> Ordering {
        let left = u128::from(self.cost) * u128::from(other.weight);
        let right = u128::from(other.cost) * u128::from(self.weight);
        left.cmp(&right).then((self.class, self.from).cmp(&(other.class, other.from)))
    }
}

/// Hull edges of several classes, cheapest slope first once sorted.
pub(super) struct Edges<'s> {
    edges: &'s mut [Edge],
    len: usize,
}

impl<'s> Edges<'s> {
    pub fn new(edges: &'s mut [Edge]) -> Self {
        Self { edges, len: 0 }
    }

    pub fn sort(&mut self) {
        self.edges[..self.len].sort_unstable_by(Edge::by_slope);
    }

    pub fn all(&self) -> &[Edge] {
        &self.edges[..self.len]
    }

    /// Adds the lower left hull of a class, given its points heaviest first. Returns the point with the
    /// least cost, where the hull starts.
    pub fn add(
        &mut self,
        goal: &Goal,
        number: usize,
        class: &Class<'_>,
        heaviest_first: impl Iterator<Item = u16>,
    ) -> Result<u16, MitigateError> {
        let base = self.len;
        let mut top: Option<(u16, Sum)> = None;
        let mut start = 0;
        for index in heaviest_first {
            let item = goal.item(class, index);
            while let Some((_, last)) = top
                && item.cost <= last.cost
            {
                top = self.pop(goal, class, base);
            }
            let Some((_, last)) = top else {
                (start, top) = (index, Some((index, item)));
                continue;
            };
            if item.weight == last.weight {
                continue;
            }
            while self.len > base && self.bends_up(&item, top) {
                top = self.pop(goal, class, base);
            }
            if let Some((from, last)) = top {
                let slot = self.edges.get_mut(self.len).ok_or(MitigateError::TooManyEdges)?;
                let (weight, cost) = (last.weight - item.weight, item.cost - last.cost);
                *slot = Edge { class: number as u16, from, to: index, weight, cost };
                self.len += 1;
            }
            top = Some((index, item));
        }
        Ok(start)
    }

    /// Removes the last vertex of the hull that began at `base`; the one before it, if any.
    fn pop(&mut self, goal: &Goal, class: &Class<'_>, base: usize) -> Option<(u16, Sum)> {
        if self.len == base {
            return None;
        }
        self.len -= 1;
        let from = self.edges[self.len].from;
        Some((from, goal.item(class, from)))
    }

    /// Whether the last vertex lies on or above the line from the vertex before it to `item`.
    fn bends_up(&self, item: &Sum, top: Option<(u16, Sum)>) -> bool {
        let (Some((_, last)), edge) = (top, &self.edges[self.len - 1]) else { return false };
        let new = u128::from(item.cost - last.cost) * u128::from(edge.weight);
        new <= u128::from(edge.cost) * u128::from(last.weight - item.weight)
    }
}

impl Sum {
    pub const NONE: Self = Self { weight: 0, cost: 0, extra: 0 };

    pub fn plus(&self, item: &Sum) -> Self {
        Self {
            weight: self.weight + item.weight,
            cost: self.cost + item.cost,
            extra: self.extra + item.extra,
        }
    }

    pub fn without(&self, part: &Sum) -> Self {
        Self {
            weight: self.weight - part.weight,
            cost: self.cost - part.cost,
            extra: self.extra - part.extra,
        }
    }

    /// One class moves from one item to another.
    pub fn swap(&self, from: &Sum, to: &Sum) -> Self {
        Self {
            weight: self.weight - from.weight + to.weight,
            cost: self.cost - from.cost + to.cost,
            extra: self.extra - from.extra + to.extra,
        }
    }
}

/// The first break of at most `room`, searched from `at` on; none where even the last is heavier.
#[inline]
pub(super) fn advance(breaks: &[Sum], mut at: usize, room: u64) -> Option<usize> {
    while breaks.get(at)?.weight > room {
        at += 1;
    }
    Some(at)
}

/// Whether `cost` plus the relaxation of the rest at `room` is at most `ceiling`; `at` is from [`advance`].
#[inline]
pub(super) fn within(breaks: &[Sum], at: usize, room: u64, cost: u64, ceiling: u128) -> bool {
    let rounded = u128::from(cost) + u128::from(breaks[at].cost);
    let Some(excess) = rounded.checked_sub(ceiling).filter(|&excess| excess > 0) else { return true };
    if at == 0 {
        return false;
    }
    let (weight, added) = slope(breaks, at);
    // Both products: below 2^64 each factor, since costs and ceilings share their bound.
    u128::from(room - breaks[at].weight) * u128::from(added) >= excess * u128::from(weight)
}

/// The relaxation of the rest at `room`, rounded up.
pub(super) fn relaxed(breaks: &[Sum], at: usize, room: u64) -> u64 {
    let b = &breaks[at];
    if at == 0 {
        return b.cost;
    }
    let (weight, added) = slope(breaks, at);
    let saved = u128::from(room - b.weight) * u128::from(added) / u128::from(weight);
    // room lies on this edge, so no more is saved than the edge adds.
    b.cost - saved as u64
}

/// Weight saved and cost added by the edge before break `at`.
fn slope(breaks: &[Sum], at: usize) -> (u64, u64) {
    let (before, b) = (&breaks[at - 1], &breaks[at]);
    (before.weight - b.weight, b.cost - before.cost)
}
