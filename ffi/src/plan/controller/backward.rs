//! The backward half of a controller's iteration.

use super::{bagualu_controller, bytes_to_wait, step};
use crate::arguments::out;
use crate::boundary::boundary;
use crate::status::bagualu_status;

/// Asks to bring back, before its backward, all of `unit` that needs no collective: `granted` receives 1 if it may be.
///
/// # Safety
/// - `granted` is NULL or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bagualu_controller_recover_early(
    controller: *mut bagualu_controller,
    unit: u32,
    granted: *mut u32,
) -> bagualu_status {
    boundary(|| {
        // SAFETY: the contract of this function.
        let out = unsafe { out(granted, "granted") }?;
        out.set(step(controller, |controller| controller.recover_early(unit))?.into());
        Ok(())
    })
}

/// The backward of `unit` starts.
#[unsafe(no_mangle)]
pub extern "C" fn bagualu_controller_backward(
    controller: *mut bagualu_controller,
    unit: u32,
) -> bagualu_status {
    boundary(|| step(controller, |controller| controller.handle_backward(unit)))
}

/// Whether `layer` of the backward under way may be recovered and run: `wait_bytes` receives 0 if so, else the bytes that
/// must be freed first.
///
/// # Safety
/// - `wait_bytes` is NULL or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bagualu_controller_may_recover(
    controller: *mut bagualu_controller,
    layer: usize,
    wait_bytes: *mut u64,
) -> bagualu_status {
    boundary(|| {
        // SAFETY: the contract of this function.
        let out = unsafe { out(wait_bytes, "wait_bytes") }?;
        out.set(bytes_to_wait(step(controller, |controller| controller.poll_recovery(layer))?));
        Ok(())
    })
}

/// The layer's backward has ended.
#[unsafe(no_mangle)]
pub extern "C" fn bagualu_controller_recovered(controller: *mut bagualu_controller) -> bagualu_status {
    boundary(|| step(controller, |controller| controller.handle_recovery_done()))
}

/// The backward has ended: nothing of its unit is left.
#[unsafe(no_mangle)]
pub extern "C" fn bagualu_controller_backward_done(controller: *mut bagualu_controller) -> bagualu_status {
    boundary(|| step(controller, |controller| controller.handle_backward_done()))
}
