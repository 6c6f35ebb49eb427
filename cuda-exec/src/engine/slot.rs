//! One tensor in the engine's care.

use std::sync::atomic::{AtomicU32, Ordering};

use super::Key;
use crate::device::{Device, DeviceError, Event};
use crate::pool::Lease;

/// No slot.
pub(super) const NONE: u32 = u32::MAX;

/// A place for one tensor, used again and again.
#[derive(Debug)]
pub(super) struct Slot {
    /// Which use this is; never 0.
    pub generation: u32,
    pub stage: Stage,
    pub key: Key,
    pub bytes: u64,
    pub lease: Option<Lease>,
    /// The end of its copy-out.
    pub left: Event,
    /// The end of its copy-in.
    pub arrived: Event,
    /// Its copy-out is not known to have ended, or has not been reported.
    pub leaving: bool,
    /// Its copy-in is not known to have ended.
    pub arriving: bool,
    /// What the same unit saved before it and after it, of what may still be reloaded.
    pub earlier: u32,
    pub later: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stage {
    Free,
    Reserved,
    /// Its copy-out was submitted.
    Out,
    /// Its copy-in was submitted.
    Back,
    /// Nobody will ask for it again.
    Done,
}

impl Slot {
    /// `first` is the number of its first use, never 0.
    pub fn new(device: &dyn Device, first: u32) -> Result<Self, DeviceError> {
        let left = device.create_event()?;
        let arrived = device.create_event().inspect_err(|_| {
            let _ = device.destroy_event(left);
        })?;
        Ok(Self {
            generation: first,
            stage: Stage::Free,
            key: Key { unit: 0, layer: 0, tensor: 0 },
            bytes: 0,
            lease: None,
            left,
            arrived,
            leaving: false,
            arriving: false,
            earlier: NONE,
            later: NONE,
        })
    }

    /// Whether nothing and nobody uses it, so that it may serve again.
    pub fn is_over(&self) -> bool {
        self.stage == Stage::Done && !self.leaving && !self.arriving
    }
}

/// What each unit saved, last first: intrusive lists through [`Slot::earlier`] and [`Slot::later`].
#[derive(Debug)]
pub(super) struct Order {
    /// By unit: what it saved last.
    last: Box<[u32]>,
}

impl Order {
    pub fn new(units: u32) -> Self {
        Self { last: (0..units).map(|_| NONE).collect() }
    }

    pub fn last(&self, unit: u32) -> Option<u32> {
        self.last.get(unit as usize).copied().filter(|&slot| slot != NONE)
    }

    pub fn push(&mut self, slots: &mut [Slot], index: u32) {
        let head = &mut self.last[slots[index as usize].key.unit as usize];
        let earlier = core::mem::replace(head, index);
        (slots[index as usize].earlier, slots[index as usize].later) = (earlier, NONE);
        if earlier != NONE {
            slots[earlier as usize].later = index;
        }
    }

    pub fn remove(&mut self, slots: &mut [Slot], index: u32) {
        let Slot { earlier, later, key, .. } = slots[index as usize];
        match later {
            NONE => self.last[key.unit as usize] = earlier,
            later => slots[later as usize].earlier = earlier,
        }
        if earlier != NONE {
            slots[earlier as usize].later = later;
        }
    }
}

/// Where an engine starts to count the uses of its slots: far from every other engine of the process, so that a
/// ticket's number of one is not taken by another.
pub(super) fn first_generation() -> u32 {
    static ENGINES: AtomicU32 = AtomicU32::new(0);
    // Multiples of 2³² over the golden ratio keep the largest distance that so many numbers can.
    ENGINES.fetch_add(1, Ordering::Relaxed).wrapping_mul(0x9E37_79B1).wrapping_add(1).max(1)
}
