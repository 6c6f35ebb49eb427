//! Bringing back: early, before a layer's backward, and part by part; and letting go.

use bagualu_core::set::Set;

use super::{Again, Cell, Hook, Layer, Phase, Place, State, Store, StoreError};
use crate::device::DeviceSlice;
use crate::engine::{EngineError, Key, Reload};

impl Store<'_> {
    /// What `unit` offloaded may come back from now on, its last layer first: an early recovery that the controller has
    /// admitted. [`poll_reloads`](Self::poll_reloads) starts the copies.
    pub fn announce(&mut self, unit: u32) -> Result<(), StoreError> {
        Ok(self.engine.announce(unit)?)
    }

    /// Starts the copies that are due, as far as the engine's window goes.
    pub fn poll_reloads(&mut self) -> Result<(), StoreError> {
        while let Some(Reload { key: Key { unit, layer, tensor }, .. }) = self.engine.poll_reload()? {
            let place = self.place(unit, layer.into())?;
            self.copy_in(place, tensor.into())?;
        }
        Ok(())
    }

    /// Brings back all saved tensors of a layer: copies, then casts, then operators that run again, for work
    /// submitted to the compute stream from now on. Tensors that exist only part by part come by
    /// [`recover_part`](Self::recover_part). Each hook is called at most once, also where one fails.
    pub fn recover(&mut self, unit: u32, layer: usize, hook: &mut dyn Hook) -> Result<(), StoreError> {
        let place = self.place(unit, layer)?;
        self.may_recover(unit, layer)?;
        if self.is_leaving(place) {
            return Err(self.out_of_order("recover", place, "its copies out to have been reported"));
        }
        self.layers[place.index].phase = Phase::Recovered;
        let tracked = self.orders[self.layers[place.index].kind].tracked;
        self.bring_back(place, tracked - self.by_part(place), None, hook)
    }

    /// Whether a layer is between its forward and its backward.
    pub(crate) fn may_recover(&self, unit: u32, layer: usize) -> Result<(), StoreError> {
        let place = self.place(unit, layer)?;
        match self.layers[place.index].phase {
            Phase::Settled => Ok(()),
            _ => Err(self.out_of_order("recover", place, "its forward to have ended, and is done once")),
        }
    }

    /// The first layer of a unit that has not been released since it was entered.
    pub(crate) fn first_held(&self, unit: u32) -> Option<usize> {
        let layers = self.layers.chunks(self.strides.layers.max(1)).nth(unit as usize)?;
        layers.iter().position(|layer| layer.phase != Phase::Empty)
    }

    /// Brings one part of a split dispatch back, in place of the part before.
    pub fn recover_part(
        &mut self,
        unit: u32,
        layer: usize,
        part: u32,
        hook: &mut dyn Hook,
    ) -> Result<(), StoreError> {
        let place = self.place(unit, layer)?;
        let Layer { phase, parts, .. } = self.layers[place.index];
        if phase != Phase::Recovered || part >= parts {
            return Err(self.out_of_order(
                "recover_part",
                place,
                "the layer recovered, and a part that it has",
            ));
        }
        let by_part = self.by_part(place);
        for tensor in by_part.iter() {
            self.free_wide(place, tensor)?;
        }
        self.bring_back(place, by_part, Some(part), hook)
    }

    /// In how many parts a layer's dispatch was split: how often to call [`recover_part`](Self::recover_part), if more
    /// than 1.
    pub fn parts(&self, unit: u32, layer: usize) -> Result<u32, StoreError> {
        Ok(self.layers[self.place(unit, layer)?.index].parts)
    }

    /// The layer's backward has been submitted: frees what is left of its tensors.
    pub fn release(&mut self, unit: u32, layer: usize) -> Result<(), StoreError> {
        let place = self.place(unit, layer)?;
        self.step("release", place, Phase::Recovered, Phase::Empty, "the layer recovered")?;
        let tensors = self.orders[self.layers[place.index].kind].tracked;
        tensors.iter().try_for_each(|tensor| self.let_go(place, tensor))
    }

    /// Ends the iteration in the middle: waits for the copies under way and frees everything. What lost copies may
    /// still use stays allocated.
    pub fn abandon(&mut self) {
        let whole = self.engine.drain().is_ok();
        while whole && matches!(self.poll_copied_out(), Ok(Some(_))) {}
        for unit in 0..self.units.len() as u32 {
            for layer in 0..self.strides.layers {
                let Ok(place) = self.place(unit, layer) else { continue };
                for tensor in self.orders[self.layers[place.index].kind].tracked.iter() {
                    // What cannot be freed now never can.
                    let _ = self.let_go(place, tensor);
                }
                self.layers[place.index].phase = Phase::Empty;
            }
            self.units[unit as usize] = super::Unit::default();
        }
    }

    fn bring_back(
        &mut self,
        place: Place,
        wanted: Set,
        part: Option<u32>,
        hook: &mut dyn Hook,
    ) -> Result<(), StoreError> {
        let Layer { kind, plan, .. } = self.layers[place.index];
        let model = &self.stage.types[kind];
        let there = self.on_device(place);
        let again = self.orders[kind].closure(model, plan.recompute, wanted, there);
        let reads = again.iter().fold(wanted, |all, op| all | model.ops[op].reads);
        let away = (reads & plan.offload) - there;
        for tensor in away.iter() {
            self.copy_in(place, tensor)?;
        }
        for tensor in away.iter() {
            self.arrive(place, tensor)?;
        }
        for tensor in ((reads & plan.quantize) - there).iter() {
            self.widen(place, tensor)?;
        }
        for at in 0..model.ops.len() {
            let Some(op) = self.orders[kind].nth(at).filter(|&op| again.contains(op)) else { continue };
            self.make_room(place, (model.ops[op].makes & plan.recompute) - self.on_device(place))?;
            self.run(place, op, part, hook)?;
        }
        Ok(())
    }

    fn run(&self, place: Place, op: usize, part: Option<u32>, hook: &mut dyn Hook) -> Result<(), StoreError> {
        let Layer { rows, parts, .. } = self.layers[place.index];
        let Place { unit, layer, .. } = place;
        let note = &self.notes[place.index * self.strides.ops + op];
        let again = Again {
            unit,
            layer,
            op,
            rows,
            part: part.map(|part| (part, parts)),
            payload: note.payload,
            rng: &note.rng,
            stream: self.compute,
            tensors: &|tensor| self.tensor(unit, layer, tensor),
        };
        hook.run(&again).map_err(|error| StoreError::Hook { unit, layer, op, error })
    }

    /// Device memory for tensors that are about to be made again.
    fn make_room(&mut self, place: Place, tensors: Set) -> Result<(), StoreError> {
        let Layer { rows, parts, .. } = self.layers[place.index];
        let by_part = self.by_part(place);
        for tensor in tensors.iter() {
            let bytes = match by_part.contains(tensor) {
                true => self.model_bytes(place, tensor, rows.div_ceil(parts))?,
                false => self.cell(place, tensor).bytes,
            };
            let memory = self.allocator.allocate(bytes, self.compute)?;
            self.cell_mut(place, tensor).state = State::Wide(memory);
        }
        Ok(())
    }

    /// Recomputed tensors of a layer that exist part by part.
    fn by_part(&self, place: Place) -> Set {
        let Layer { kind, plan, parts, .. } = self.layers[place.index];
        if parts > 1 { plan.recompute & self.orders[kind].routed_only } else { Set::EMPTY }
    }

    /// Starts a copy in, unless it was started early.
    fn copy_in(&mut self, place: Place, tensor: usize) -> Result<(), StoreError> {
        match self.cell(place, tensor).state {
            State::Away => {}
            State::Returning(_) => return Ok(()),
            _ => return Err(self.out_of_order("recover", place, "its copies out to have been reported")),
        }
        let into = self.allocator.allocate(self.cell(place, tensor).bytes, self.engine.copy_in_stream())?;
        // What an allocator that minds no streams hands out, the compute stream may still use.
        let after = (!self.allocator.minds_streams()).then_some(self.compute);
        let cell = &self.cells[place.index * self.strides.tensors + tensor];
        let Some(ticket) = &cell.ticket else {
            return Err(self.out_of_order("recover", place, "a ticket for what is away"));
        };
        // SAFETY: the memory is the store's, allocated for the copy's stream; it is used once `arrive` has been called and
        // freed after that, or after `cancel`.
        let started = unsafe { self.engine.reload(ticket, into, after) };
        if let Err(error) = started {
            self.keep_or_free(into, &error)?;
            return Err(error.into());
        }
        self.cell_mut(place, tensor).state = State::Returning(into);
        self.units[place.unit as usize].away -= 1;
        Ok(())
    }

    /// The compute stream goes on once the copy in has ended.
    fn arrive(&mut self, place: Place, tensor: usize) -> Result<(), StoreError> {
        let compute = self.compute;
        let cell = self.cell_mut(place, tensor);
        let (State::Returning(memory), Some(ticket)) = (cell.state, cell.ticket.take()) else {
            return Ok(());
        };
        self.engine.wait(ticket, compute)?;
        self.cell_mut(place, tensor).state = State::Wide(memory);
        Ok(())
    }

    /// Frees whatever there is of a tensor.
    fn let_go(&mut self, place: Place, tensor: usize) -> Result<(), StoreError> {
        let Cell { state, ticket, .. } = core::mem::take(self.cell_mut(place, tensor));
        match state {
            State::Wide(memory) | State::Narrow(memory) => {
                // SAFETY: what uses it was submitted to the compute stream.
                unsafe { self.allocator.free(memory, self.compute)? };
            }
            State::Returning(memory) => {
                // Without a ticket its end cannot be known: it stays.
                let Some(ticket) = ticket else { return Ok(()) };
                self.engine.cancel(ticket)?;
                // SAFETY: its copy has ended, and nothing else has used it.
                unsafe { self.allocator.free(memory, self.compute)? };
            }
            State::Away => {
                self.units[place.unit as usize].away = self.units[place.unit as usize].away.saturating_sub(1)
            }
            // Its copy was lost: it stays.
            State::Leaving(_) | State::Empty | State::Dropped => {}
        }
        Ok(())
    }

    /// Frees the memory of a copy that was refused, unless part of it is under way.
    fn keep_or_free(&mut self, memory: DeviceSlice, error: &EngineError) -> Result<(), StoreError> {
        if matches!(error, EngineError::Lost(_)) {
            return Ok(());
        }
        // SAFETY: nothing was submitted that uses it.
        Ok(unsafe { self.allocator.free(memory, self.compute) }?)
    }
}
