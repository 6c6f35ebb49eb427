//! Tickets: who may still ask for an offloaded tensor.

use std::sync::Arc;

use crate::sync::{AtomicBool, AtomicU32, Ordering};

/// A tensor handed to the engine: on its way to the host, there, or on its way back.
///
/// It cannot be copied, and [`wait`](super::Engine::wait) takes it: nothing is waited for twice. Dropping it
/// at any time is safe: the engine forgets the tensor once no copy of it is under way.
#[must_use = "dropping a ticket gives the tensor up"]
#[derive(Debug)]
pub struct Ticket(pub(super) Handle);

/// Host memory and a place in the engine for a tensor that is to be offloaded: its copy-out will not wait.
#[must_use = "dropping a reservation gives its host memory up"]
#[derive(Debug)]
pub struct Reservation(pub(super) Handle);

impl Ticket {
    /// The ticket as a number, for callers in other languages; never 0. Nothing gives the tensor up then but
    /// [`Engine::ticket`](super::Engine::ticket), which makes a ticket of it again.
    pub fn into_raw(self) -> u64 {
        self.0.into_raw()
    }
}

/// A slot in its present use.
#[derive(Debug)]
pub(super) struct Handle {
    pub slot: u32,
    /// Told apart from earlier and later uses of the slot by this. Never 0.
    pub generation: u32,
    /// Whom to tell when it is dropped; nobody once it is used up.
    dropped: Option<Arc<Dropped>>,
}

impl Handle {
    pub fn new(slot: u32, generation: u32, dropped: Arc<Dropped>) -> Self {
        Self { slot, generation, dropped: Some(dropped) }
    }

    /// Whether it is of the engine that is told by `dropped`.
    pub fn is_of(&self, dropped: &Arc<Dropped>) -> bool {
        self.dropped.as_ref().is_some_and(|own| Arc::ptr_eq(own, dropped))
    }

    /// Which slot and use it was. It is not counted as dropped.
    pub fn into_parts(mut self) -> (u32, u32) {
        self.dropped = None;
        (self.slot, self.generation)
    }

    fn into_raw(self) -> u64 {
        let (slot, generation) = self.into_parts();
        u64::from(generation) << 32 | u64::from(slot)
    }
}

/// Slot and generation of [`Ticket::into_raw`]'s number.
pub(super) fn parts_of(raw: u64) -> (u32, u32) {
    (raw as u32, (raw >> 32) as u32)
}

impl Drop for Handle {
    fn drop(&mut self) {
        if let Some(dropped) = self.dropped.take() {
            dropped.tell(self.slot, self.generation);
        }
    }
}

/// Handles dropped since the engine looked: the only state that tickets, which may be dropped on any thread,
/// share with their engine.
#[derive(Debug)]
pub(super) struct Dropped {
    any: AtomicBool,
    /// By slot: the generation dropped, or 0.
    generations: Box<[AtomicU32]>,
}

impl Dropped {
    pub fn new(slots: u32) -> Self {
        Self { any: AtomicBool::new(false), generations: (0..slots).map(|_| AtomicU32::new(0)).collect() }
    }

    /// Called by the ticket.
    fn tell(&self, slot: u32, generation: u32) {
        if let Some(place) = self.generations.get(slot as usize) {
            // Read and written at once: whoever sees a later ticket's also sees what this one told before it, and none
            // is overwritten by an engine that looks meanwhile, nor by a ticket of an earlier use of the slot.
            let newer = |told| (told == 0 || is_later(generation, told)).then_some(generation);
            let _ = place.fetch_update(Ordering::Relaxed, Ordering::Relaxed, newer);
            self.any.swap(true, Ordering::Release);
        }
    }

    /// Called by the engine: each (slot, generation) once.
    pub fn take(&self, mut each: impl FnMut(u32, u32)) {
        if !self.any.swap(false, Ordering::Acquire) {
            return;
        }
        for (slot, place) in self.generations.iter().enumerate() {
            let generation = place.swap(0, Ordering::Relaxed);
            if generation != 0 {
                each(slot as u32, generation);
            }
        }
    }
}

/// Whether one generation of a slot came after another: they wrap around, and half of them are never told at once.
fn is_later(generation: u32, other: u32) -> bool {
    generation.wrapping_sub(other) as i32 > 0
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;

    /// Two tickets dropped on two threads while the engine looks: each is told exactly once.
    #[test]
    fn loom_no_dropped_ticket_is_missed_or_told_twice() {
        loom::model(|| {
            let dropped = Arc::new(Dropped::new(2));
            let threads = [0, 1].map(|slot| {
                let handle = Handle::new(slot, 7 + slot, Arc::clone(&dropped));
                loom::thread::spawn(move || drop(handle))
            });
            let mut told = Vec::new();
            dropped.take(|slot, generation| told.push((slot, generation)));
            for thread in threads {
                thread.join().expect("no panic");
            }
            dropped.take(|slot, generation| told.push((slot, generation)));
            told.sort_unstable();
            assert_eq!(told, [(0, 7), (1, 8)]);
        });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_is_dropped_is_told_once() {
        let dropped = Arc::new(Dropped::new(4));
        let told = || {
            let mut all = Vec::new();
            dropped.take(|slot, generation| all.push((slot, generation)));
            all
        };
        let kept = Handle::new(2, 9, Arc::clone(&dropped));
        drop(Handle::new(1, 7, Arc::clone(&dropped)));
        assert_eq!(told(), [(1, 7)]);
        assert_eq!(told(), []);
        assert_eq!(kept.into_parts(), (2, 9));
        assert_eq!(told(), [], "used up, not dropped");
        // A stale one dropped after a live one, also where the generations have wrapped around, hides nothing.
        for (stale, live) in [(8, 9), (u32::MAX, 1)] {
            drop(Handle::new(1, live, Arc::clone(&dropped)));
            drop(Handle::new(1, stale, Arc::clone(&dropped)));
            assert_eq!(told(), [(1, live)]);
        }
        let raw = Handle::new(3, 5, Arc::clone(&dropped)).into_raw();
        assert_eq!((parts_of(raw), told()), ((3, 5), vec![]));
    }
}
