//! Copies out: started, waited for and reported.

use bagualu_core::set::Set;

use super::{Left, Phase, Place, State, Store, StoreError};
use crate::engine::{EngineError, Key};

impl Store<'_> {
    /// Offloads tensors that were kept (a [`Correction`](bagualu_core::controller::Correction)).
    pub fn offload_after_all(&mut self, unit: u32, layer: usize, tensors: Set) -> Result<(), StoreError> {
        let place = self.place(unit, layer)?;
        if self.layers[place.index].phase != Phase::Settled || !tensors.is_subset(self.on_device(place)) {
            return Err(self.out_of_order(
                "offload_after_all",
                place,
                "tensors that are kept for its backward",
            ));
        }
        // What an earlier admission let come back early does not include these.
        self.engine.withdraw(unit);
        for tensor in tensors.iter() {
            let bytes = self.model_bytes(place, tensor, self.layers[place.index].rows)?;
            let reservation = self.reserve(place, tensor, bytes)?;
            self.cell_mut(place, tensor).reservation = Some(reservation);
            self.copy_out(place, tensor)?;
            self.layers[place.index].plan.offload.insert(tensor);
        }
        Ok(())
    }

    /// The next tensor that has left the device. Its memory is free once the compute stream is past what reads it.
    pub fn poll_copied_out(&mut self) -> Result<Option<Left>, StoreError> {
        let Some(copied) = self.engine.poll_copied_out()? else { return Ok(None) };
        let Key { unit, layer, tensor } = copied.key;
        let place = self.place(unit, layer.into())?;
        let tensor = usize::from(tensor);
        let State::Leaving(memory) = self.cell(place, tensor).state else {
            return Err(self.out_of_order("poll_copied_out", place, "a tensor that was leaving"));
        };
        self.cell_mut(place, tensor).state = State::Away;
        self.units[unit as usize].leaving -= 1;
        self.units[unit as usize].away += 1;
        // SAFETY: its copy-out has ended, and all else that reads it was submitted to the compute stream.
        unsafe { self.allocator.free(memory, self.compute)? };
        let bytes = self.model_bytes(place, tensor, self.layers[place.index].rows)?;
        Ok(Some(Left { unit, bytes }))
    }

    /// Blocks until copy-outs have ended that free `bytes`, or all that are under way, oldest first;
    /// [`poll_copied_out`](Self::poll_copied_out) tells which. [`EngineError::NothingLeaving`] where none is.
    pub fn block_until_released(&mut self, bytes: u64) -> Result<(), StoreError> {
        // A tensor may have fewer bytes than its model, even none, and its copy-out frees the model's.
        let leaving = self.engine.usage().leaving_bytes;
        match self.engine.block_until_released(bytes.min(leaving)) {
            Err(EngineError::NothingLeaving { .. }) => Err(EngineError::NothingLeaving { bytes }.into()),
            waited => Ok(waited?),
        }
    }

    /// Blocks until every copy under way has ended; [`poll_copied_out`](Self::poll_copied_out) tells which left.
    pub fn drain(&mut self) -> Result<(), StoreError> {
        Ok(self.engine.drain()?)
    }

    pub(super) fn copy_out(&mut self, place: Place, tensor: usize) -> Result<(), StoreError> {
        let cell = &mut self.cells[place.index * self.strides.tensors + tensor];
        let (State::Wide(memory), Some(reservation)) = (cell.state, cell.reservation.take()) else {
            return Err(self.out_of_order("copy_out", place, "a tensor with host memory reserved"));
        };
        if self.model_bytes(place, tensor, self.layers[place.index].rows)? == 0 {
            // Without rows there is nothing to copy, and no ledger that waits for it.
            return Ok(());
        }
        // SAFETY: the memory is the store's, which keeps it until `poll_copied_out` names it; nothing writes it, by the
        // contract of `save`.
        let submitted = unsafe { self.engine.offload(memory, self.compute, reservation) };
        if let Err(EngineError::Lost(_)) = submitted {
            // Part of it may be under way: the memory stays.
            self.cell_mut(place, tensor).state = State::Leaving(memory);
        }
        let ticket = submitted?;
        let cell = self.cell_mut(place, tensor);
        (cell.state, cell.ticket) = (State::Leaving(memory), Some(ticket));
        self.units[place.unit as usize].leaving += 1;
        Ok(())
    }

    pub(super) fn is_leaving(&self, place: Place) -> bool {
        let tensors = self.orders[self.layers[place.index].kind].tracked;
        tensors.iter().any(|tensor| matches!(self.cell(place, tensor).state, State::Leaving(_)))
    }
}
