//! Algorithm 2 (§V-A): what to do with each saved tensor of a micro-batch so that it fits.
//!
//! Three selectors behind one trait. [`PaperGreedy`] is the paper's rule, [`RatioGreedy`] takes the most
//! bytes per added nanosecond, and [`Exact`], the default, proves its answer. All minimise the exposed
//! added time, the paper's objective, within a limit of device bytes and one of host bytes.
//!
//! Two halves of an exact selection are public because their results are worth caching: [`front`], the
//! trade-off of one layer, and [`choose`], a multiple-choice knapsack over the fronts of several.

mod choose;
mod error;
mod evaluate;
mod exact;
mod front;
mod knapsack;
mod paper;
mod ratio;
mod relax;
mod sides;

pub use choose::{Class, choose};
pub use error::MitigateError;
pub use evaluate::{Refused, evaluate};
pub(crate) use evaluate::{offers, recomputable};
pub use exact::{Exact, ExactStorage};
pub use front::{FrontScratch, front};
pub use knapsack::{ChooseScratch, Config};
pub use paper::PaperGreedy;
pub use ratio::RatioGreedy;

use crate::layer::{Collectives, Layer, LayerPlan};
use crate::limits::MAX_LAYERS;

/// How much may be held.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Limits {
    /// Device bytes of all layers together, block inputs included.
    pub bytes: u64,
    /// Host bytes of all offloaded tensors; `u64::MAX` for no limit.
    pub host_bytes: u64,
}

/// One selection: the layers of a micro-batch at known rows.
#[derive(Clone, Copy, Debug)]
pub struct Problem<'a> {
    /// The layers.
    pub layers: &'a [Layer<'a>],
    /// What they may hold together.
    pub limits: Limits,
    /// Collectives that a recomputation may run again.
    pub allow: Collectives,
}

/// What a selector found.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Selection {
    /// Device bytes held.
    pub bytes: u64,
    /// Host bytes held.
    pub host_bytes: u64,
    /// Time added to forward and backward together, ns.
    pub added_ns: u64,
    /// Proven: no plan within the limits adds less time, nor as much with fewer bytes.
    pub optimal: bool,
    /// Proven: at most this much of `added_ns` could be saved, ns.
    pub gap_ns: u64,
}

/// An implementation of Algorithm 2.
pub trait Selector {
    /// Writes one plan per layer into `plans` (at least as many as layers).
    fn select(&mut self, problem: &Problem<'_>, plans: &mut [LayerPlan]) -> Result<Selection, MitigateError>;
}

/// A consistent configuration of a layer, or of a part of it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct FrontPoint {
    /// Device bytes held.
    pub bytes: u64,
    /// Host bytes held.
    pub host_bytes: u64,
    /// Added time, ns.
    pub added_ns: u64,
    /// By how much a configuration that was left out for lack of room could be faster at no fewer bytes
    /// than this point, ns: 0 unless the front was thinned.
    pub slack_ns: u64,
    /// The configuration.
    pub plan: LayerPlan,
}

impl Problem<'_> {
    /// Checks the counts that every selector relies on, and clears the plans.
    fn start(&self, plans: &mut [LayerPlan]) -> Result<(), MitigateError> {
        let count = self.layers.len();
        if count > MAX_LAYERS {
            return Err(MitigateError::TooManyLayers { count });
        }
        if plans.len() < count {
            return Err(MitigateError::PlansTooShort { plans: plans.len(), layers: count });
        }
        plans[..count].fill(LayerPlan::KEEP);
        Ok(())
    }

    /// What `plans` hold and cost together, with nothing proven.
    fn total(&self, plans: &[LayerPlan]) -> Result<Selection, MitigateError> {
        let mut sum = Selection { bytes: 0, host_bytes: 0, added_ns: 0, optimal: false, gap_ns: 0 };
        for (index, (layer, plan)) in self.layers.iter().zip(plans).enumerate() {
            let point = evaluate(layer, plan, self.allow)
                .map_err(|refused| MitigateError::Refused { layer: index, refused })?;
            sum.bytes = add(sum.bytes, point.bytes)?;
            sum.host_bytes = add(sum.host_bytes, point.host_bytes)?;
            sum.added_ns = add(sum.added_ns, point.added_ns)?;
        }
        // Nothing is faster than nothing: all that a rule without a bound can prove.
        sum.gap_ns = sum.added_ns;
        Ok(sum)
    }
}

fn add(a: u64, b: u64) -> Result<u64, MitigateError> {
    a.checked_add(b).ok_or(MitigateError::Overflow)
}
