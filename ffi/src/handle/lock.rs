//! A lock that is tried and never waited for: two calls on one object at once are an error, not a queue.
//!
//! As `RwLock::try_write`, but giving back what one thread alone has is a store: half the price of a short call.

use std::cell::UnsafeCell;
use std::mem;
use std::sync::atomic::{AtomicU32, Ordering};

const FREE: u32 = 0;
/// Up to here the state counts readers.
const MOST_READERS: u32 = u32::MAX - 2;
const WRITING: u32 = u32::MAX - 1;
/// A writer panicked.
const BROKEN: u32 = u32::MAX;

/// Why a turn is denied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Denied {
    /// Another call has its turn.
    Busy,
    /// A call panicked while it wrote.
    Broken,
}

/// A value and whose turn it is.
#[derive(Debug)]
pub(super) struct TryLock<T> {
    state: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached by shared reference while readers are counted, or by one exclusive one while the state
// is `WRITING`; so threads share it as they would an `RwLock`.
unsafe impl<T: Send + Sync> Sync for TryLock<T> {}

impl<T> TryLock<T> {
    pub(super) const fn new(value: T) -> Self {
        Self { state: AtomicU32::new(FREE), value: UnsafeCell::new(value) }
    }

    /// Calls `body` beside other readers.
    #[inline]
    pub(super) fn read<R>(&self, body: impl FnOnce(&T) -> R) -> Result<R, Denied> {
        let mut readers = self.state.load(Ordering::Relaxed);
        loop {
            if readers >= MOST_READERS {
                return Err(denied(readers));
            }
            let counted =
                self.state.compare_exchange_weak(readers, readers + 1, Ordering::Acquire, Ordering::Relaxed);
            match counted {
                Ok(_) => break,
                Err(now) => readers = now,
            }
        }
        let _turn = Reading(&self.state);
        // SAFETY: nobody writes while readers are counted.
        Ok(body(unsafe { &*self.value.get() }))
    }

    /// Calls `body` alone. If it panics nobody has a turn until [`mend`](Self::mend).
    #[inline]
    pub(super) fn write<R>(&self, body: impl FnOnce(&mut T) -> R) -> Result<R, Denied> {
        match self.state.compare_exchange(FREE, WRITING, Ordering::Acquire, Ordering::Relaxed) {
            Err(now) => Err(denied(now)),
            Ok(_) => Ok(self.alone(body)),
        }
    }

    /// As [`write`](Self::write), also after a panic, which is forgotten.
    pub(super) fn mend<R>(&self, body: impl FnOnce(&mut T) -> R) -> Result<R, Denied> {
        match self.state.compare_exchange(BROKEN, WRITING, Ordering::Acquire, Ordering::Relaxed) {
            Err(_) => self.write(body),
            Ok(_) => Ok(self.alone(body)),
        }
    }

    /// The state is `WRITING`, set by the caller.
    #[inline]
    fn alone<R>(&self, body: impl FnOnce(&mut T) -> R) -> R {
        let turn = Writing(&self.state);
        // SAFETY: only who has set the state to `WRITING` gets here, and nobody else has a turn until it is set again.
        let result = body(unsafe { &mut *self.value.get() });
        mem::forget(turn);
        self.state.store(FREE, Ordering::Release);
        result
    }
}

#[cold]
fn denied(state: u32) -> Denied {
    if state == BROKEN { Denied::Broken } else { Denied::Busy }
}

/// A reader's turn, given back however it ends.
struct Reading<'l>(&'l AtomicU32);

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Release);
    }
}

/// A writer's turn, dropped only where it panics.
struct Writing<'l>(&'l AtomicU32);

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        self.0.store(BROKEN, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_share_and_a_writer_is_alone() {
        let lock = TryLock::new(1);
        let both = lock.read(|_| (lock.read(|&value| value), lock.write(|_| ())));
        assert_eq!(both, Ok((Ok(1), Err(Denied::Busy))));
        assert_eq!(
            lock.write(|_| (lock.read(|_| ()), lock.write(|_| ()), lock.mend(|_| ()))),
            Ok((Err(Denied::Busy), Err(Denied::Busy), Err(Denied::Busy)))
        );
        assert_eq!(lock.write(|value| mem::replace(value, 2)), Ok(1));
        assert_eq!(lock.read(|&value| value), Ok(2));
    }

    #[test]
    fn a_panic_breaks_it_until_it_is_mended() {
        let lock = TryLock::new(1);
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            lock.write(|_| std::panic::resume_unwind(Box::new(())))
        }));
        assert!(panicked.is_err());
        assert_eq!(lock.read(|_| ()), Err(Denied::Broken));
        assert_eq!(lock.write(|_| ()), Err(Denied::Broken));
        assert_eq!(lock.mend(|&mut value| value), Ok(1));
        assert_eq!(lock.write(|_| ()), Ok(()));
    }

    #[test]
    fn threads_never_write_together() {
        let lock = TryLock::new((0u64, 0u64));
        let taken = AtomicU32::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..5_000 {
                        let written = lock.write(|pair| {
                            assert_eq!(pair.0, pair.1);
                            pair.0 += 1;
                            std::hint::black_box(&mut *pair);
                            pair.1 += 1;
                        });
                        taken.fetch_add(u32::from(written.is_ok()), Ordering::Relaxed);
                        let _ = lock.read(|pair| assert_eq!(pair.0, pair.1));
                    }
                });
            }
        });
        assert_eq!(lock.read(|pair| pair.0), Ok(u64::from(taken.into_inner())));
    }
}
