//! Tensors in the narrow format, between their forward and their backward.

use bagualu_core::cost::Bytes;

use super::{Place, Saved, State, Store, StoreError};
use crate::device::DeviceSlice;
use crate::fp8::{Cast, CastShape};

/// Bytes of a scale.
const SCALE: u64 = size_of::<f32>() as u64;

impl Store<'_> {
    /// Whether a tensor's cast is of its own shape, and stores no more than the planner counts.
    pub(super) fn check_cast(&self, place: Place, tensor: usize, saved: &Saved) -> Result<(), StoreError> {
        let bytes = saved.memory.bytes();
        let shape = saved.cast.map_or(0, |cast| cast.shape.source_bytes() as u64);
        if shape != bytes || saved.cast.is_none() {
            return Err(StoreError::NoShape { tensor, bytes, shape });
        }
        let layer = &self.layers[place.index];
        let counted =
            self.stage.types[layer.kind].tensors[tensor].quantized.map(|bytes| Bytes::at(bytes, layer.rows));
        let model = counted.flatten().ok_or(StoreError::Overflow { tensor })?;
        let stored = saved.cast.map_or(0, |cast| cast.shape.stored_bytes() as u64);
        if stored > model {
            return Err(StoreError::Larger { tensor, bytes: stored, model });
        }
        Ok(())
    }

    /// Casts a tensor; its wide memory is freed after that.
    pub(super) fn narrow(&mut self, place: Place, tensor: usize) -> Result<(), StoreError> {
        let cell = self.cell(place, tensor);
        // A tensor without rows stays as it is.
        let (State::Wide(from), Some(cast), 1..) = (cell.state, cell.cast, cell.bytes) else { return Ok(()) };
        let memory = self.allocator.allocate(cast.shape.stored_bytes() as u64, self.compute)?;
        let (values, scales) = halves(memory, &cast.shape);
        // SAFETY: both are the store's and freed after work of this stream alone; nothing writes `from`, by the
        // contract of `save`.
        let submitted = unsafe { self.engine.device().quantize(&cast, from, values, scales, self.compute) };
        if let Err(error) = submitted {
            // SAFETY: nothing was submitted that uses it.
            unsafe { self.allocator.free(memory, self.compute)? };
            return Err(error.into());
        }
        self.free_wide(place, tensor)?;
        self.cell_mut(place, tensor).state = State::Narrow(memory);
        Ok(())
    }

    /// Casts a tensor back; its narrow memory is freed after that.
    pub(super) fn widen(&mut self, place: Place, tensor: usize) -> Result<(), StoreError> {
        let cell = self.cell(place, tensor);
        let (State::Narrow(memory), Some(cast)) = (cell.state, cell.cast) else { return Ok(()) };
        let to = self.allocator.allocate(cell.bytes, self.compute)?;
        let (values, scales) = halves(memory, &cast.shape);
        // SAFETY: all are the store's and freed after work of this stream alone.
        let submitted = unsafe { self.engine.device().dequantize(&cast, values, scales, to, self.compute) };
        let (kept, freed) =
            if submitted.is_ok() { (State::Wide(to), memory) } else { (State::Narrow(memory), to) };
        self.cell_mut(place, tensor).state = kept;
        // SAFETY: only this stream uses either.
        unsafe { self.allocator.free(freed, self.compute)? };
        Ok(submitted?)
    }
}

/// Values and scales in one piece of memory: values first where that leaves the scales aligned.
fn halves(memory: DeviceSlice, shape: &CastShape) -> (DeviceSlice, DeviceSlice) {
    let (elements, scales) = (shape.elements() as u64, shape.scales() as u64 * SCALE);
    let (values_at, scales_at) = if elements.is_multiple_of(SCALE) { (0, elements) } else { (scales, 0) };
    let part = |at: u64, bytes: u64| DeviceSlice::new(memory.address() + at, bytes);
    (part(values_at, elements), part(scales_at, scales))
}

impl Saved {
    /// A tensor that may be quantised by `cast`.
    pub fn with_cast(memory: DeviceSlice, cast: Cast) -> Self {
        Self { memory, cast: Some(cast) }
    }
}
