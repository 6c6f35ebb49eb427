//! Stages: consecutive compute operators taken as one (§V-B "Runtime Solving").
//!
//! Splitting a run of computation offers no overlap that its communication operators do not, so an MoE
//! layer's more than 20 operators become 4 stages: compute, dispatch, compute, combine.

use super::lanes::Item;
use super::{InterleaveError, Op};
use crate::layer::Resource;

/// The operators of one stage.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Span {
    /// Place of the first in its chain.
    pub first: usize,
    /// How many.
    pub len: usize,
}

/// Writes the stages of `chain` to `out`, the operators of each to `spans`, and returns how many there are.
///
/// A stage is a longest run of compute operators, or one operator of another resource. At its start it
/// takes the most that the run holds at any point, at its end it gives back what is left over: a stage never
/// counts less in use than its operators do.
pub fn compact(chain: &[Op], out: &mut [Op], spans: &mut [Span]) -> Result<usize, InterleaveError> {
    let available = out.len().min(spans.len());
    let mut count = 0usize;
    for (first, op) in chain.iter().enumerate() {
        if let Some(last) = count.checked_sub(1)
            && let Some(stage) = join_ops(&out[last], op)
        {
            out[last] = stage;
            spans[last].len += 1;
            continue;
        }
        if count == available {
            return Err(InterleaveError::StorageTooSmall { needed: chain.len(), available });
        }
        (out[count], spans[count]) = (*op, Span { first, len: 1 });
        count += 1;
    }
    Ok(count)
}

/// `None` where the two are not of one stage, or their sum is past `u64`.
fn join_ops(a: &Op, b: &Op) -> Option<Op> {
    if a.resource != Resource::Compute || b.resource != Resource::Compute {
        return None;
    }
    let (alloc, free) =
        join_bytes((a.alloc_bytes.into(), a.free_bytes.into()), (b.alloc_bytes.into(), b.free_bytes.into()));
    Some(Op {
        resource: Resource::Compute,
        ns: a.ns.checked_add(b.ns)?,
        alloc_bytes: alloc.try_into().ok()?,
        free_bytes: free.try_into().ok()?,
    })
}

/// The same for the items of a lane.
pub(super) fn join_items(a: &Item, b: &Item) -> Option<Item> {
    let compute = Resource::Compute as u8;
    if a.chain != b.chain || a.resource != compute || b.resource != compute {
        return None;
    }
    let (alloc, free) = join_bytes((a.alloc.into(), a.free.into()), (b.alloc.into(), b.free.into()));
    Some(Item {
        ns: a.ns.checked_add(b.ns)?,
        alloc: alloc.try_into().ok()?,
        free: free.try_into().ok()?,
        count: a.count + b.count,
        ..*a
    })
}

/// (taken at the start, given back at the end) of two in a row.
fn join_bytes(a: (i128, i128), b: (i128, i128)) -> (i128, i128) {
    let held = a.0 - a.1;
    let most = a.0.max(held + b.0);
    (most, most - (held + b.0 - b.1))
}
