//! The message of the last call that failed, one for each thread.

use std::cell::RefCell;
use std::ffi::c_char;
use std::ptr;

use crate::status::{Details, Failure, bagualu_status};

#[derive(Default)]
struct Last {
    /// UTF-8, without a NUL inside and with one behind.
    text: String,
    shortage: Option<(u64, u64)>,
    panic: Option<String>,
}

thread_local! {
    static LAST: RefCell<Last> = const { RefCell::new(Last { text: String::new(), shortage: None, panic: None }) };
}

/// Keeps a failure's message and gives its status.
pub(crate) fn keep(failure: Failure) -> bagualu_status {
    let Details { status, mut message, shortage } = failure.into_details();
    // Names from files may hold anything; C would end at the first NUL.
    if message.contains('\0') {
        message = message.replace('\0', "\u{fffd}");
    }
    message.push('\0');
    // A thread that is ending has no message any more.
    let _ = LAST.try_with(|last| {
        let mut last = last.borrow_mut();
        (last.text, last.shortage) = (message, shortage);
    });
    status
}

/// Keeps the text of a panic until the boundary is reached.
pub(crate) fn note_panic(text: String) {
    let _ = LAST.try_with(|last| {
        if let Ok(mut last) = last.try_borrow_mut() {
            last.panic = Some(text);
        }
    });
}

/// Makes the panic noted the last message.
pub(crate) fn keep_panic() -> bagualu_status {
    let text = LAST.try_with(|last| last.borrow_mut().panic.take()).ok().flatten();
    keep(Failure::new(bagualu_status::Panic, text.unwrap_or_default()))
}

/// The message of the call on this thread that failed last: one sentence of UTF-8 with a NUL behind it, which says
/// what is wrong, with which value, and what to do.
///
/// `length`, where it is not NULL, receives its bytes without the NUL. The text is the library's and stays until
/// the next call on this thread that fails; a call that succeeds leaves it. Empty, and never NULL, if none has failed.
///
/// Thread-safe: every thread has its own.
///
/// # Safety
/// - `length` is NULL or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bagualu_last_message(length: *mut usize) -> *const c_char {
    let (text, bytes) = LAST
        .try_with(|last| {
            let last = last.borrow();
            (last.text.as_ptr().cast::<c_char>(), last.text.len().saturating_sub(1))
        })
        .unwrap_or((ptr::null(), 0));
    if !length.is_null() && length.is_aligned() {
        // SAFETY: not null, aligned, and writable by the contract above.
        unsafe { length.write(bytes) };
    }
    // An empty String has no allocation to point into.
    if bytes == 0 { c"".as_ptr() } else { text }
}

/// Bytes that the call on this thread that failed last needed, and those there were.
///
/// Returns 1 and writes both where it failed for want of memory (`BAGUALU_STATUS_INFEASIBLE`,
/// `BAGUALU_STATUS_OUT_OF_MEMORY`, …); else returns 0 and writes nothing. Either pointer may be NULL.
///
/// Thread-safe: every thread has its own.
///
/// # Safety
/// - Pointers are NULL or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bagualu_last_shortage(needed: *mut u64, available: *mut u64) -> u32 {
    let shortage = LAST.try_with(|last| last.borrow().shortage).ok().flatten();
    let Some(bytes) = shortage else { return 0 };
    for (to, value) in [(needed, bytes.0), (available, bytes.1)] {
        if !to.is_null() && to.is_aligned() {
            // SAFETY: not null, aligned, and writable by the contract above.
            unsafe { to.write(value) };
        }
    }
    1
}

#[cfg(test)]
pub(crate) fn last() -> String {
    LAST.with(|last| last.borrow().text.trim_end_matches('\0').to_owned())
}
