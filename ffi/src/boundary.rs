//! The panic boundary: no unwinding into C, nothing printed, no abort.

use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe, PanicHookInfo};
use std::sync::Once;
use std::thread;

use crate::message;
use crate::status::{Failure, bagualu_status};

/// What a C function returns, and how that says that it failed.
pub(crate) trait Outcome {
    /// What the body of the function ends with.
    type Value;

    /// The return value of a call that went well.
    fn success(value: Self::Value) -> Self;

    /// That of one that failed; its message is kept already.
    fn failure(status: bagualu_status) -> Self;
}

impl Outcome for bagualu_status {
    type Value = ();

    fn success((): ()) -> Self {
        Self::Ok
    }

    fn failure(status: bagualu_status) -> Self {
        status
    }
}

thread_local! {
    /// Calls of this library under way on this thread, one inside the other through callbacks.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// Runs the body of a C function. A failure leaves its message for `bagualu_last_message`; so does a panic, and
/// locks what it was working on for good ([`handle`](crate::handle)).
pub(crate) fn boundary<R: Outcome>(body: impl FnOnce() -> Result<R::Value, Failure>) -> R {
    let depth = DEPTH.replace(DEPTH.get().saturating_add(1));
    // What a panic leaves behind is behind a lock, which it poisons.
    let result = panic::catch_unwind(AssertUnwindSafe(|| {
        silence();
        body()
    }));
    DEPTH.set(depth);
    match result {
        Ok(Ok(value)) => R::success(value),
        Ok(Err(failure)) => R::failure(message::keep(failure)),
        Err(payload) => {
            // Its own drop may panic, and nobody needs it: the hook has kept its text.
            std::mem::forget(payload);
            R::failure(message::keep_panic())
        }
    }
}

/// Keeps panics inside the boundary from being printed; all others go where they went before.
fn silence() {
    // The hook cannot be changed from a destructor that a panic runs; a later call does.
    if thread::panicking() {
        return;
    }
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let previous = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if DEPTH.get() == 0 { previous(info) } else { message::note_panic(describe(info)) }
        }));
    });
}

fn describe(info: &PanicHookInfo<'_>) -> String {
    let payload = info.payload();
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_default();
    let place = info.location().map(|place| format!(" at {}:{}", place.file(), place.line()));
    format!("an error in the library itself{}: {text}", place.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_a_status_with_a_message() {
        let status: bagualu_status = boundary(|| panic!("planted {}", 7));
        assert_eq!(status, bagualu_status::Panic);
        let text = message::last();
        assert!(text.starts_with("an error in the library itself at ffi/src/boundary.rs:"), "{text}");
        assert!(text.ends_with(": planted 7"), "{text}");
        assert_eq!(DEPTH.get(), 0);
    }

    #[test]
    fn a_panic_elsewhere_goes_to_the_previous_hook() {
        let inside: bagualu_status = boundary(|| Ok(()));
        assert_eq!(inside, bagualu_status::Ok);
        let before = message::last();
        thread::spawn(|| panic!("outside, printed on purpose")).join().expect_err("it panicked");
        assert_eq!(message::last(), before);
    }
}
