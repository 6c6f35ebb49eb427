//! One point of each front, within the limits and with the least added time.

use super::knapsack::{ChooseScratch, Config, Found, relax, search};
use super::relax::{Goal, Measure};
use super::{FrontPoint, Limits, MitigateError, Selection, add};
use crate::limits::MAX_CLASSES;

/// The front of one layer, or of one independent part of it.
#[derive(Clone, Copy, Debug)]
pub struct Class<'a> {
    /// Its points: bytes ascending, added time descending.
    pub points: &'a [FrontPoint],
    /// A point counts at least these bytes: what a layer whose rows are not known yet is sure to need.
    pub least_bytes: u64,
}

/// Picks one point of each class (`picks[i]` is an index into `classes[i].points`).
///
/// Exact up to the node limit of `config`; beyond it the best answer found comes with the proven gap.
/// `bytes` of the result counts [`Class::least_bytes`]. Fronts leave out points that merely spare host
/// bytes: where the host limit binds, the answer is the best of these points and not proven; and where they
/// hold none, [`Exact`](super::Exact) can still decide.
pub fn choose(
    classes: &[Class<'_>],
    limits: Limits,
    config: &Config,
    scratch: &mut ChooseScratch,
    picks: &mut [u16],
) -> Result<Selection, MitigateError> {
    for (index, class) in classes.iter().enumerate() {
        let sorted =
            |pair: &[FrontPoint]| pair[0].bytes < pair[1].bytes && pair[0].added_ns > pair[1].added_ns;
        if !class.points.windows(2).all(sorted) {
            return Err(MitigateError::Unsorted { class: index });
        }
    }
    let first = without_host(classes, limits.bytes, config, scratch, picks)?;
    if first.host_bytes <= limits.host_bytes {
        return Ok(first);
    }
    let mut second = within_host(classes, limits, config, scratch, picks).map_err(|error| match error {
        MitigateError::HostInfeasible { least, limit } => {
            MitigateError::HostUndecided { found: least, limit }
        }
        other => other,
    })?;
    second.optimal = false;
    second.gap_ns = second.added_ns.saturating_sub(first.added_ns.saturating_sub(first.gap_ns));
    Ok(second)
}

/// The selection if host bytes had no limit.
pub(super) fn without_host(
    classes: &[Class<'_>],
    limit: u64,
    config: &Config,
    scratch: &mut ChooseScratch,
    picks: &mut [u16],
) -> Result<Selection, MitigateError> {
    check(classes, picks)?;
    let goal = Goal::plain(Measure::Time, limit);
    let found = search(classes, &goal, None, config, scratch, picks)?;
    select(classes, picks, &found)
}

/// The selection within a host limit that the one without it exceeds; the classes hold every point that
/// spares host bytes.
pub(super) fn within_host(
    classes: &[Class<'_>],
    limits: Limits,
    config: &Config,
    scratch: &mut ChooseScratch,
    picks: &mut [u16],
) -> Result<Selection, MitigateError> {
    check(classes, picks)?;
    let limit = limits.host_bytes;
    let goal = Goal::plain(Measure::Host, limits.bytes);
    let least = search(classes, &goal, None, config, scratch, picks)?;
    if least.bound > limit {
        return Err(MitigateError::HostInfeasible { least: least.bound, limit });
    }
    let found = goal.sum(classes, picks).cost;
    if found > limit {
        return Err(MitigateError::HostUndecided { found, limit });
    }
    let goal = price(classes, limits, scratch)?;
    let start = goal.sum(classes, picks);
    let found = search(classes, &goal, Some(start), config, scratch, picks)?;
    select(classes, picks, &found)
}

/// The goal whose price of a host byte makes the relaxation's bound largest.
///
/// The bound is concave in the price, and rises while the relaxation holds more than the limit.
fn price(classes: &[Class<'_>], limits: Limits, scratch: &mut ChooseScratch) -> Result<Goal, MitigateError> {
    let most = |measure: fn(&FrontPoint) -> u64| {
        let class = |class: &Class<'_>| class.points.iter().map(measure).max().unwrap_or(0);
        classes.iter().try_fold(0, |all, c| add(all, class(c)))
    };
    let (ns, host) = (most(|p| p.added_ns)?, most(|p| p.host_bytes)?);
    // Value and priced extra each stay below 2^61, so that no sum of costs passes `u64`.
    let shift = ns.leading_zeros().checked_sub(3).ok_or(MitigateError::Overflow)?.min(20);
    let at = |price: u64| Goal {
        extra_limit: Some(limits.host_bytes),
        shift,
        price,
        ..Goal::plain(Measure::Time, limits.bytes)
    };
    let mut bound = |price: u64| {
        let root = relax(classes, &at(price), scratch)?;
        let bound = i128::from(root.bound) - i128::from(price) * i128::from(limits.host_bytes);
        Ok((bound, root.sum.extra > limits.host_bytes))
    };
    let (mut low, mut high) = (0, (1 << 61) / host.max(1));
    let mut best = (bound(0)?.0, 0);
    while low < high && (low == 0 || high - low > low >> 8) {
        // Halves of the exponent first, then of the number: prices span many magnitudes.
        let middle = if low == 0 { 1 << (high.ilog2() / 2) } else { low + (high - low) / 2 };
        let (value, rises) = bound(middle)?;
        best = best.max((value, middle));
        if rises {
            low = middle + 1;
        } else {
            high = middle.min(high - 1);
        }
    }
    Ok(at(best.1))
}

/// Checks what a search relies on.
fn check(classes: &[Class<'_>], picks: &[u16]) -> Result<(), MitigateError> {
    if classes.len() > MAX_CLASSES {
        return Err(MitigateError::TooManyClasses { count: classes.len() });
    }
    if picks.len() < classes.len() {
        return Err(MitigateError::PicksTooShort { picks: picks.len(), classes: classes.len() });
    }
    let (mut bytes, mut ns) = (0, 0);
    for (index, class) in classes.iter().enumerate() {
        let count = class.points.len();
        if count > usize::from(u16::MAX) {
            return Err(MitigateError::TooManyPoints { class: index, count });
        }
        let last = class.points.last().ok_or(MitigateError::EmptyClass { class: index })?;
        bytes = add(bytes, last.bytes.max(class.least_bytes))?;
        ns = add(ns, class.points.iter().map(|p| p.added_ns).max().unwrap_or(0))?;
    }
    Ok(())
}

/// The selection that was found. A thinned front proves that much less.
fn select(classes: &[Class<'_>], picks: &[u16], found: &Found) -> Result<Selection, MitigateError> {
    let mut all = Selection { bytes: 0, host_bytes: 0, added_ns: 0, optimal: found.proven, gap_ns: 0 };
    let mut bound = found.bound;
    for (class, &pick) in classes.iter().zip(picks) {
        let point = &class.points[usize::from(pick)];
        all.bytes = add(all.bytes, point.bytes.max(class.least_bytes))?;
        all.host_bytes = add(all.host_bytes, point.host_bytes)?;
        all.added_ns = add(all.added_ns, point.added_ns)?;
        let slack = class.points.iter().map(|p| p.slack_ns).max().unwrap_or(0);
        bound = bound.saturating_sub(slack);
        all.optimal &= slack == 0;
    }
    all.gap_ns = all.added_ns.saturating_sub(bound);
    Ok(all)
}
