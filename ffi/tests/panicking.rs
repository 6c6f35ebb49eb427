//! Calls from a destructor that a panic runs. Alone in its process: the library's first call is such a one.

use std::panic::catch_unwind;

use bagualu_ffi::{bagualu_selector_new, bagualu_status};

struct Calls;

impl Drop for Calls {
    fn drop(&mut self) {
        // SAFETY: both may be NULL.
        let status = unsafe { bagualu_selector_new(std::ptr::null(), std::ptr::null_mut()) };
        assert_eq!(status, bagualu_status::NullPointer);
    }
}

/// Setting the panic hook there would be a panic outside the boundary, which ends the process.
#[test]
fn the_first_call_may_come_while_a_panic_unwinds() {
    let ended = catch_unwind(|| {
        let _calls = Calls;
        panic!("planted");
    });
    assert!(ended.is_err());
    // SAFETY: both may be NULL.
    let status = unsafe { bagualu_selector_new(std::ptr::null(), std::ptr::null_mut()) };
    assert_eq!(status, bagualu_status::NullPointer);
}
