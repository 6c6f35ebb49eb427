//! Rules that must be equal on all ranks of a group.

use bagualu_core::group::{GroupRows, RowThreshold};

use crate::arguments::{elements, out, room};
use crate::boundary::boundary;
use crate::status::{Failure, bagualu_status};

/// Writes the rows that each of `ranks` expert-parallel ranks receives, from the count matrix `[sources, experts]` that
/// the all-to-all dispatcher gathers on every rank. Experts are placed in order, experts / ranks on each rank.
///
/// Thread-safe.
///
/// # Safety
/// - `counts` is NULL or as long as `count_count`; `rows` is NULL or has room for `ranks`, apart from `counts`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bagualu_group_rows(
    counts: *const u32,
    count_count: usize,
    experts: usize,
    rows: *mut u32,
    ranks: usize,
) -> bagualu_status {
    boundary(|| {
        // SAFETY: the contract of this function.
        let (counts, to) = unsafe { (elements(counts, count_count, "counts")?, room(rows, ranks, "rows")?) };
        let rows = GroupRows::from_counts(counts, experts, ranks)?;
        to.write(rows.as_slice().iter().copied());
        Ok(())
    })
}

/// The group's decision for one layer of one micro-batch, from the rows of all its ranks and its smallest thresholds
/// (`bagualu_provision`): what `bagualu_gate` takes as `whole_moe` and `dispatch_chunks`.
///
/// Thread-safe.
///
/// # Safety
/// - `rows` is NULL or as long as `ranks`; the others are NULL or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bagualu_group_decide(
    rows: *const u32,
    ranks: usize,
    row_threshold: u32,
    dispatch_threshold: u32,
    whole_moe: *mut u32,
    dispatch_chunks: *mut u32,
) -> bagualu_status {
    boundary(|| {
        // SAFETY: the contract of this function.
        let (rows, whole_moe, chunks) = unsafe {
            let rows = elements(rows, ranks, "rows")?;
            (rows, out(whole_moe, "whole_moe")?, out(dispatch_chunks, "dispatch_chunks")?)
        };
        if dispatch_threshold == 0 {
            return Err(Failure::value("dispatch_threshold", 0, "give at least 1"));
        }
        let rule = RowThreshold { row_threshold, dispatch_threshold };
        let decision = rule.decide(&GroupRows::new(rows)?);
        whole_moe.set(decision.whole_moe.into());
        chunks.set(decision.dispatch_chunks);
        Ok(())
    })
}
