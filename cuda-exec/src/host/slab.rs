//! Things by handle; a handle of a thing that is gone is told from its successor's.

/// Things by handle.
#[derive(Debug)]
pub(super) struct Slab<T> {
    slots: Vec<Slot<T>>,
    vacant: Vec<u32>,
}

#[derive(Debug)]
struct Slot<T> {
    generation: u32,
    value: Option<T>,
}

impl<T> Slab<T> {
    /// Room for `capacity` things before it grows.
    pub(super) fn new(capacity: usize) -> Self {
        Self { slots: Vec::with_capacity(capacity), vacant: Vec::with_capacity(capacity) }
    }

    /// Keeps `value` and returns its handle, which is not 0.
    pub(super) fn insert(&mut self, value: T) -> u64 {
        let index = self.vacant.pop().unwrap_or_else(|| {
            self.slots.push(Slot { generation: 0, value: None });
            (self.slots.len() - 1) as u32
        });
        let slot = &mut self.slots[index as usize];
        slot.generation = slot.generation.wrapping_add(1).max(1);
        slot.value = Some(value);
        u64::from(slot.generation) << 32 | u64::from(index)
    }

    /// The thing of `handle`.
    pub(super) fn find(&mut self, handle: u64) -> Option<&mut T> {
        self.slot(handle)?.value.as_mut()
    }

    /// Takes the thing of `handle` out.
    pub(super) fn remove(&mut self, handle: u64) -> Option<T> {
        let value = self.slot(handle)?.value.take()?;
        self.vacant.push(handle as u32);
        Some(value)
    }

    fn slot(&mut self, handle: u64) -> Option<&mut Slot<T>> {
        let slot = self.slots.get_mut(handle as u32 as usize)?;
        (u64::from(slot.generation) == handle >> 32).then_some(slot)
    }
}
