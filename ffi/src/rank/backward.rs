//! The backward half of a rank's iteration.

use super::{Hooked, bagualu_hook, bagualu_rank, step};
use crate::arguments::out;
use crate::boundary::boundary;
use crate::device::bagualu_memory;
use crate::handle;
use crate::status::bagualu_status;

/// The backward of `unit` starts.
#[unsafe(no_mangle)]
pub extern "C" fn bagualu_rank_begin_backward(rank: *mut bagualu_rank, unit: u32) -> bagualu_status {
    boundary(|| step(rank, |rank| rank.begin_backward(unit)))
}

/// Waits until `layer` may be recovered, and brings its saved tensors back for work submitted to the compute stream from now
/// on. `hook` is called, with `user`, for each operator that runs again; NULL where plans recompute nothing.
///
/// # Safety
/// - `hook` may be called with `user` during this call, and does not throw.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bagualu_rank_recover(
    rank: *mut bagualu_rank,
    layer: usize,
    hook: bagualu_hook,
    user: *mut std::ffi::c_void,
) -> bagualu_status {
    boundary(|| {
        let mut hook = Hooked { function: hook, user };
        step(rank, |rank| rank.recover(layer, &mut hook))
    })
}

/// In how many parts the dispatch of a layer of the backward was split; if more than 1, `bagualu_rank_recover_part` before the
/// backward of each.
///
/// # Safety
/// - `parts` is NULL or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bagualu_rank_parts(
    rank: *const bagualu_rank,
    layer: usize,
    parts: *mut u32,
) -> bagualu_status {
    boundary(|| {
        // SAFETY: the contract of this function.
        let out = unsafe { out(parts, "parts") }?;
        out.set(handle::with(rank, |object| Ok(object.read().borrow_dependent().parts(layer)?))?);
        Ok(())
    })
}

/// Brings one part of a split dispatch back, in place of the part before.
///
/// # Safety
/// - As for `bagualu_rank_recover`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bagualu_rank_recover_part(
    rank: *mut bagualu_rank,
    layer: usize,
    part: u32,
    hook: bagualu_hook,
    user: *mut std::ffi::c_void,
) -> bagualu_status {
    boundary(|| {
        let mut hook = Hooked { function: hook, user };
        step(rank, |rank| rank.recover_part(layer, part, &mut hook))
    })
}

/// Where a saved tensor of the backward under way lies.
///
/// # Safety
/// - `memory` is NULL or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bagualu_rank_tensor(
    rank: *const bagualu_rank,
    layer: usize,
    tensor: usize,
    memory: *mut bagualu_memory,
) -> bagualu_status {
    boundary(|| {
        // SAFETY: the contract of this function.
        let out = unsafe { out(memory, "memory") }?;
        let found =
            handle::with(rank, |object| Ok(object.read().borrow_dependent().tensor(layer, tensor)?))?;
        out.set(found.into());
        Ok(())
    })
}

/// The layer's backward has been submitted: its tensors are freed.
#[unsafe(no_mangle)]
pub extern "C" fn bagualu_rank_layer_undone(rank: *mut bagualu_rank, layer: usize) -> bagualu_status {
    boundary(|| step(rank, |rank| rank.layer_undone(layer)))
}

/// The backward has ended.
#[unsafe(no_mangle)]
pub extern "C" fn bagualu_rank_end_backward(rank: *mut bagualu_rank) -> bagualu_status {
    boundary(|| step(rank, |rank| rank.end_backward()))
}
