//! What planning a distribution says, in a few numbers.

use bagualu_model::Model;
use serde::Serialize;

use crate::plan::load::LoadFactor;
use crate::plan::rank::RankPlan;
use crate::plan::report::Infeasible;
use crate::plan::{Verdict, worst};

/// The memory of the rank that comes closest to its device's or passes it, and the time of an iteration.
#[derive(Clone, Serialize)]
pub struct Outcome {
    pub verdict: Verdict,
    /// That pipeline rank.
    pub rank: u32,
    pub static_bytes: u64,
    pub floor_bytes: u64,
    /// Its peak over the loads; absent where it is infeasible.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peak_bytes: Option<u64>,
    pub device_bytes: u64,
    /// What its strategies add at the load where that is most.
    pub added_ns: u64,
    /// What strategies add at each load, on the rank where that is most.
    #[serde(skip)]
    pub most_added_ns: Vec<u64>,
    /// (PP − 1) ÷ (M · V), in thousandths: the pipeline's bubble over its work.
    pub bubble_permille: u64,
    /// The slowest rank's operators and strategies at the first load, with the bubble. Where a rank is
    /// infeasible, without strategies.
    pub iteration_ns: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub infeasible: Option<Infeasible>,
}

impl Outcome {
    /// Of a model's plan.
    pub fn new(model: &Model, ranks: &[RankPlan], loads: &[LoadFactor]) -> Result<Self, String> {
        let worst = worst(ranks).ok_or("a pipeline without ranks")?;
        let carried = || worst.loads.iter().filter_map(|load| load.outcome.as_ref().ok());
        let shortage = worst.shortage();
        let rows = loads.first().map_or(model.balanced_rows, |load| model.rows_at(load.0));
        let mut slowest = 0;
        for (stage, rank) in model.stages.iter().zip(ranks) {
            let added = rank.loads.first().and_then(|load| load.outcome.as_ref().ok());
            let added = added.map_or(0, |carried| carried.added_ns);
            let compute = model.compute_ns(stage, rows).map_err(|error| error.to_string())?;
            slowest = slowest.max(compute.saturating_add(added));
        }
        let stages = u128::from(model.parallelism.pp);
        let units = u128::from(model.micro_batches) * u128::from(model.parallelism.chunks);
        let iteration = u128::from(slowest) * (units + stages - 1) / units.max(1);
        Ok(Self {
            verdict: ranks.iter().map(RankPlan::verdict).max().unwrap_or(Verdict::Fits),
            rank: worst.rank,
            static_bytes: worst.static_bytes.total(),
            floor_bytes: worst.floor_bytes,
            peak_bytes: shortage.is_none().then(|| carried().map(|c| c.peak_bytes).max()).flatten(),
            device_bytes: worst.device_bytes,
            added_ns: added_ns(worst).max().unwrap_or(0),
            most_added_ns: (0..loads.len())
                .map(|load| ranks.iter().filter_map(|rank| added_ns(rank).nth(load)).max().unwrap_or(0))
                .collect(),
            bubble_permille: saturate((stages - 1) * 1_000 / units.max(1)),
            iteration_ns: saturate(iteration),
            infeasible: shortage.map(Into::into),
        })
    }

    /// Whether strategies cost at most half as much as in `other` at one load, at no load more, and the
    /// iteration takes no longer.
    pub fn halves(&self, other: &Self) -> bool {
        let pairs = || self.most_added_ns.iter().zip(&other.most_added_ns);
        self.iteration_ns <= other.iteration_ns
            && pairs().all(|(own, others)| own <= others)
            && pairs().any(|(own, others)| *others > 0 && *own <= others / 2)
    }

    /// Bytes that its worst rank lacks.
    pub fn missing_bytes(&self) -> u64 {
        self.infeasible.as_ref().map_or(0, Infeasible::missing_bytes)
    }
}

/// What strategies add on a rank at each load.
fn added_ns(rank: &RankPlan) -> impl Iterator<Item = u64> {
    rank.loads.iter().filter_map(|load| load.outcome.as_ref().ok()).map(|carried| carried.added_ns)
}

fn saturate(value: u128) -> u64 {
    u64::try_from(value).unwrap_or(u64::MAX)
}
