//! Things by number. A number of a thing that is gone, or of another device, is not found.

use crate::device::number::{number_for, slot};
use crate::device::{Backend, DeviceError};

/// Things by number.
#[derive(Debug)]
pub(super) struct Slab<T> {
    slots: Vec<Slot<T>>,
    vacant: Vec<usize>,
}

#[derive(Debug)]
struct Slot<T> {
    number: u64,
    value: Option<T>,
}

impl<T> Slab<T> {
    /// Room for `capacity` things before it grows.
    pub(super) fn new(capacity: usize) -> Self {
        Self { slots: Vec::with_capacity(capacity), vacant: Vec::with_capacity(capacity) }
    }

    /// Keeps `value` and returns its number, which is not 0.
    pub(super) fn insert(&mut self, value: T) -> Result<u64, DeviceError> {
        let slot = self.vacant.last().copied().unwrap_or(self.slots.len());
        let number = number_for(slot, Backend::Host)?;
        let kept = Slot { number, value: Some(value) };
        match self.slots.get_mut(slot) {
            Some(vacant) => *vacant = kept,
            None => self.slots.push(kept),
        }
        self.vacant.pop();
        Ok(number)
    }

    /// The thing of `number`.
    pub(super) fn find(&mut self, number: u64) -> Option<&mut T> {
        self.slot(number)?.value.as_mut()
    }

    /// Takes the thing of `number` out.
    pub(super) fn remove(&mut self, number: u64) -> Option<T> {
        let value = self.slot(number)?.value.take()?;
        self.vacant.push(slot(number));
        Some(value)
    }

    fn slot(&mut self, number: u64) -> Option<&mut Slot<T>> {
        self.slots.get_mut(slot(number)).filter(|slot| slot.number == number)
    }
}
