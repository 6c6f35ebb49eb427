//! What the script's own recompute and offload settings would make of each rank and load, for people.

use bagualu_model::settings::Configured;

use super::Plan;
use super::rank::RankPlan;
use super::table::share_of;
use crate::output::{bytes, table};

/// Whether a rank has what the script's own settings need.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    Fits,
    /// More than the device has left, whatever the host has.
    OutOfMemory,
    /// More than the host has left beside the optimizer.
    OutOfHostMemory,
}

impl Verdict {
    /// Of one load on `rank`.
    pub fn new(rank: &RankPlan, configured: &Configured) -> Self {
        if configured.peak_bytes > rank.device_bytes {
            Self::OutOfMemory
        } else if configured.host_bytes > rank.host_bytes {
            Self::OutOfHostMemory
        } else {
            Self::Fits
        }
    }

    fn words(self) -> &'static str {
        match self {
            Self::Fits => "fits",
            Self::OutOfMemory => "out of memory",
            Self::OutOfHostMemory => "out of host memory",
        }
    }
}

/// A table of every rank and load; empty where the script has no settings.
pub fn describe(plan: &Plan) -> String {
    let settings = &plan.loaded.settings;
    if settings.keeps_all() {
        return String::new();
    }
    let mut rows =
        table(["rank", "load", "held", "peak", "of", "on the host", "of", "added time", "verdict"]);
    for rank in &plan.ranks {
        for load in &rank.loads {
            let Some(configured) = &load.configured else { continue };
            rows.add_row([
                rank.rank.to_string(),
                load.load.to_string(),
                bytes(configured.held_bytes),
                bytes(configured.peak_bytes),
                bytes(rank.device_bytes),
                bytes(configured.host_bytes),
                bytes(rank.host_bytes),
                share_of(configured.added_ns, configured.compute_ns),
                Verdict::new(rank, configured).words().to_owned(),
            ]);
        }
    }
    format!("\nAs configured instead: {settings}\n{rows}\n{}", left_out(plan))
}

/// The ranks that have no rows in the table.
fn left_out(plan: &Plan) -> String {
    let infeasible = |rank: &RankPlan| rank.provision.as_ref().err().map(|short| (rank.rank, short.part));
    plan.ranks
        .iter()
        .filter_map(infeasible)
        .map(|(rank, part)| {
            format!("rank {rank} is left out: nothing fits there whatever its settings ({part})\n")
        })
        .collect()
}
