//! A greedy rule by bytes per added time, for comparison.

use super::{MitigateError, Problem, Selection, Selector, evaluate, offers};
use crate::layer::{LayerPlan, Strategy};
use crate::limits::MAX_LAYERS;

/// Takes the change that frees the most bytes per added nanosecond until the layers fit, then undoes what
/// turns out not to be needed, dearest first.
///
/// A change is one strategy for one tensor; closures that it shares with changes made before cost nothing
/// again.
#[derive(Clone, Copy, Debug, Default)]
pub struct RatioGreedy;

impl Selector for RatioGreedy {
    fn select(&mut self, problem: &Problem<'_>, plans: &mut [LayerPlan]) -> Result<Selection, MitigateError> {
        problem.start(plans)?;
        let plans = &mut plans[..problem.layers.len()];
        let mut now = problem.total(plans)?;
        let mut best = [None; MAX_LAYERS];
        let mut stale = 0..problem.layers.len();
        while now.bytes > problem.limits.bytes {
            let host = problem.limits.host_bytes.saturating_sub(now.host_bytes);
            for layer in stale {
                best[layer] = Change::all(problem, plans, layer)
                    .filter(|change| change.freed > 0 && change.host <= i128::from(host))
                    .reduce(|best, change| if change.beats(&best) { change } else { best });
            }
            let next = best.iter().flatten().copied().reduce(|a, b| if b.beats(&a) { b } else { a });
            let Some(change) = next else {
                return Err(stuck(problem, now.bytes));
            };
            plans[change.layer] = change.plan;
            now = problem.total(plans)?;
            // A change that needs host bytes may not fit any more, so all layers are looked at again then.
            stale = match change.host {
                0 => change.layer..change.layer + 1,
                _ => 0..problem.layers.len(),
            };
        }
        prune(problem, plans, &mut now)?;
        Ok(now)
    }
}

/// Without a host limit every tensor can reach its fewest bytes on its own, so being stuck is proof.
fn stuck(problem: &Problem<'_>, reached: u64) -> MitigateError {
    let limit = problem.limits.bytes;
    match problem.limits.host_bytes {
        u64::MAX => MitigateError::Infeasible { least: reached, limit },
        _ => MitigateError::OutOfCandidates { reached, limit },
    }
}

/// Undoes the change that saves the most time while everything still fits, until there is none.
fn prune(problem: &Problem<'_>, plans: &mut [LayerPlan], now: &mut Selection) -> Result<(), MitigateError> {
    loop {
        let slack = i128::from(problem.limits.bytes - now.bytes);
        let host = i128::from(problem.limits.host_bytes.saturating_sub(now.host_bytes));
        let layers = 0..problem.layers.len();
        let undone = layers.flat_map(|layer| Change::all(problem, plans, layer));
        let fits = undone.filter(|c| c.ns < 0 && -c.freed <= slack && c.host <= host);
        let Some(change) = fits.min_by_key(|c| (c.ns, -c.freed)) else { return Ok(()) };
        plans[change.layer] = change.plan;
        *now = problem.total(plans)?;
    }
}

/// One tensor of one layer treated differently.
#[derive(Clone, Copy, Debug)]
struct Change {
    layer: usize,
    plan: LayerPlan,
    /// Device bytes fewer, time and host bytes more than now.
    freed: i128,
    ns: i128,
    host: i128,
}

impl Change {
    /// Every change of a layer that can be run.
    fn all<'p>(
        problem: &'p Problem<'_>,
        plans: &[LayerPlan],
        layer: usize,
    ) -> impl Iterator<Item = Self> + use<'p> {
        const STRATEGIES: [Strategy; 4] =
            [Strategy::Keep, Strategy::Recompute, Strategy::Offload, Strategy::Quantize];
        let (l, plan) = (&problem.layers[layer], plans[layer]);
        let now = evaluate(l, &plan, problem.allow).unwrap_or_default();
        let pairs = l.saved().iter().flat_map(|tensor| STRATEGIES.map(|strategy| (tensor, strategy)));
        pairs.filter(move |&(tensor, s)| s != plan.strategy(tensor) && offers(l, tensor, s)).filter_map(
            move |(tensor, strategy)| {
                let mut plan = plan;
                plan.assign(tensor, strategy);
                let point = evaluate(l, &plan, problem.allow).ok()?;
                let more = |after: u64, before: u64| i128::from(after) - i128::from(before);
                Some(Self {
                    layer,
                    plan,
                    freed: more(now.bytes, point.bytes),
                    ns: more(point.added_ns, now.added_ns),
                    host: more(point.host_bytes, now.host_bytes),
                })
            },
        )
    }

    /// More bytes per added time; a change that adds none beats all that do; then more bytes.
    fn beats(&self, other: &Self) -> bool {
        // Both freed: below 2^64 each, times a time of below 2^64, so the products fit.
        let left = self.freed.saturating_mul(other.ns.max(0));
        let right = other.freed.saturating_mul(self.ns.max(0));
        left > right || left == right && self.freed > other.freed
    }
}
