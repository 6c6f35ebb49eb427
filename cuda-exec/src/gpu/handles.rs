//! Numbers for the library's handles.

use std::sync::{Arc, PoisonError, RwLock};

use crate::device::number::{number_for, slot};
use crate::device::{Backend, DeviceError};

/// Values by number. A slot is used again, so nothing is allocated once as many have lived together as ever will.
pub(super) struct Handles<T> {
    backend: Backend,
    kind: &'static str,
    slots: RwLock<Slots<T>>,
}

struct Slots<T> {
    all: Vec<(u64, Option<Arc<T>>)>,
    vacant: Vec<usize>,
}

impl<T> Handles<T> {
    pub(super) fn new(backend: Backend, kind: &'static str) -> Self {
        Self { backend, kind, slots: RwLock::new(Slots { all: Vec::new(), vacant: Vec::new() }) }
    }

    pub(super) fn insert(&self, value: T) -> Result<u64, DeviceError> {
        let mut slots = self.slots.write().unwrap_or_else(PoisonError::into_inner);
        let slot = slots.vacant.pop().unwrap_or(slots.all.len());
        let number = number_for(slot, self.backend)?;
        let entry = (number, Some(Arc::new(value)));
        match slots.all.get_mut(slot) {
            Some(vacant) => *vacant = entry,
            None => slots.all.push(entry),
        }
        Ok(number)
    }

    /// The value, which lives as long as the caller holds it.
    pub(super) fn find(&self, number: u64) -> Result<Arc<T>, DeviceError> {
        let slots = self.slots.read().unwrap_or_else(PoisonError::into_inner);
        match slots.all.get(slot(number)) {
            Some((found, Some(value))) if *found == number => Ok(Arc::clone(value)),
            _ => Err(self.missing(number)),
        }
    }

    pub(super) fn remove(&self, number: u64) -> Result<Arc<T>, DeviceError> {
        let mut slots = self.slots.write().unwrap_or_else(PoisonError::into_inner);
        let slots = &mut *slots;
        match slots.all.get_mut(slot(number)) {
            Some((found, value)) if *found == number => {
                let value = value.take().ok_or_else(|| self.missing(number))?;
                slots.vacant.push(slot(number));
                Ok(value)
            }
            _ => Err(self.missing(number)),
        }
    }

    fn missing(&self, handle: u64) -> DeviceError {
        DeviceError::NoSuchHandle { kind: self.kind, handle }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_good_for_one_value_of_one_table() {
        let (one, other) = (Handles::new(Backend::Hip, "event"), Handles::new(Backend::Hip, "event"));
        let first = one.insert('a').unwrap();
        assert_eq!(*one.find(first).unwrap(), 'a');
        let foreign = other.insert('x').unwrap();
        assert!(one.find(foreign).is_err());
        let held = one.find(first).unwrap();
        assert_eq!(*one.remove(first).unwrap(), 'a');
        assert_eq!(one.find(first), Err(DeviceError::NoSuchHandle { kind: "event", handle: first }));
        assert!(one.remove(first).is_err());
        let second = one.insert('b').unwrap();
        assert_eq!(slot(second), slot(first), "the slot is used again");
        assert!(one.find(first).is_err());
        assert_eq!((*held, *one.find(second).unwrap()), ('a', 'b'));
    }
}
