//! What the script's own recompute and offload settings would make of each rank and load, for people.

use super::Plan;
use super::table::share_of;
use crate::output::{bytes, table};

/// A table of every rank and load; empty where the script has no settings.
pub fn describe(plan: &Plan) -> String {
    let settings = &plan.loaded.settings;
    if settings.keeps_all() {
        return String::new();
    }
    let mut rows = table(["rank", "load", "held", "peak", "of", "on the host", "added time", "verdict"]);
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
                share_of(configured.added_ns, configured.compute_ns),
                if configured.peak_bytes <= rank.device_bytes { "fits" } else { "out of memory" }.to_owned(),
            ]);
        }
    }
    format!("\nAs configured instead: {settings}\n{rows}\n")
}
