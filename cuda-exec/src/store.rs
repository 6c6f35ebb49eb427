//! The saved tensors of a rank under a plan (§V-A; design §2, §5).
//!
//! A program hands each saved tensor over when its layer has made it; the store owns its device memory from then
//! on and does what the plan says: keeps it, copies it out, casts it, or drops it. Before the layer's backward
//! [`recover`](Store::recover) brings everything back: copies first, then casts, then the operators that run again, all
//! ordered on the compute stream, which nobody waits for.
//!
//! ```text
//! forward    enter (reserves host memory) → save, remember … → settle
//! any time   poll_copied_out; announce, poll_reloads (early recovery)
//! backward   recover → tensor … (→ recover_part, tensor …) → release
//! ```
//!
//! [`Rank`](crate::rank::Rank) calls all of this for a program, in step with the controller.

use bagualu_core::cost::LayerStorage;
use bagualu_core::layer::LayerPlan;
use bagualu_core::schedule::Pipeline;
use bagualu_core::set::Set;
use bagualu_core::stage::StageModel;

use crate::device::{DeviceSlice, Stream};
use crate::engine::{Engine, EngineError, Key, Reservation, Ticket};
use crate::fp8::Cast;
use crate::recompute::{Again, Hook, Order};

mod allocator;
mod cast;
mod error;
mod leaving;
mod open;
mod recover;

pub use allocator::{Allocator, DeviceAllocator};
pub use error::StoreError;
pub use open::OpenError;

/// A tensor as it is handed over.
#[derive(Clone, Copy, Debug)]
pub struct Saved {
    /// Its memory, from the store's allocator.
    pub memory: DeviceSlice,
    /// How it is cast, should the plan quantise it; tensors whose model says that they may be need one.
    pub cast: Option<Cast>,
}

impl From<DeviceSlice> for Saved {
    /// A tensor that is never quantised.
    fn from(memory: DeviceSlice) -> Self {
        Self { memory, cast: None }
    }
}

/// Bytes that have left the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Left {
    /// The unit that saved them.
    pub unit: u32,
    /// How many, as the model counts them: what [`handle_copied_out`](bagualu_core::controller::Controller::handle_copied_out) takes.
    pub bytes: u64,
}

/// The saved tensors of one rank.
#[derive(Debug)]
pub struct Store<'c> {
    stage: StageModel<'c>,
    pipeline: Pipeline,
    engine: Engine,
    allocator: Box<dyn Allocator>,
    compute: Stream,
    orders: Box<[Order]>,
    /// Layers of the longest chunk, tensors and operators of the largest type: the strides of what follows.
    strides: Strides,
    units: Box<[Unit]>,
    layers: Box<[Layer]>,
    cells: Box<[Cell]>,
    notes: Box<[Note]>,
}

#[derive(Clone, Copy, Debug)]
struct Strides {
    layers: usize,
    tensors: usize,
    ops: usize,
}

/// Tensors of one unit.
#[derive(Clone, Copy, Debug, Default)]
struct Unit {
    leaving: u32,
    away: u32,
}

/// One layer of one unit.
#[derive(Clone, Copy, Debug)]
struct Layer {
    phase: Phase,
    kind: usize,
    rows: u32,
    /// Of a split dispatch; 1 without.
    parts: u32,
    plan: LayerPlan,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Empty,
    /// Its forward runs.
    Forward,
    /// Between its forward and its backward.
    Settled,
    /// Its backward runs.
    Recovered,
}

/// One saved tensor.
#[derive(Debug, Default)]
struct Cell {
    state: State,
    /// The tensor's bytes; the model's where it was never handed over.
    bytes: u64,
    cast: Option<Cast>,
    reservation: Option<Reservation>,
    ticket: Option<Ticket>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum State {
    #[default]
    Empty,
    /// On the device as it was saved.
    Wide(DeviceSlice),
    /// On the device, its copy-out under way.
    Leaving(DeviceSlice),
    /// In host memory.
    Away,
    /// Its copy-in under way; the compute stream has not been told to wait.
    Returning(DeviceSlice),
    /// On the device in the narrow format.
    Narrow(DeviceSlice),
    /// Nowhere: to be made again.
    Dropped,
}

/// What a program leaves for an operator that may run again.
#[derive(Debug, Default)]
struct Note {
    payload: u64,
    rng: Vec<u8>,
}

/// A layer that was found.
#[derive(Clone, Copy, Debug)]
struct Place {
    unit: u32,
    layer: usize,
    /// Its index among all layers.
    index: usize,
}

impl<'c> Store<'c> {
    /// A store for the units of `pipeline` on `stage`. Saved tensors are made on `compute`, and recovered for it.
    pub fn new(
        stage: StageModel<'c>,
        pipeline: Pipeline,
        engine: Engine,
        allocator: Box<dyn Allocator>,
        compute: Stream,
    ) -> Result<Self, OpenError> {
        stage.check().map_err(OpenError::Stage)?;
        let units = pipeline.units().map_err(OpenError::Schedule)? as usize;
        let mut storage = Box::<LayerStorage>::default();
        let orders = stage.types.iter().map(|model| Order::new(model, &stage.rooflines, &mut storage));
        let orders = orders.collect::<Result<_, _>>().map_err(|error| OpenError::Stage(error.into()))?;
        open::check_engine(&engine, &stage, &pipeline)?;
        let strides = Strides {
            layers: stage.chunks.iter().map(|layers| layers.len()).max().unwrap_or(0),
            tensors: stage.types.iter().map(|model| model.tensors.len()).max().unwrap_or(0),
            ops: stage.types.iter().map(|model| model.ops.len()).max().unwrap_or(0),
        };
        let layers = units.saturating_mul(strides.layers);
        let empty = Layer { phase: Phase::Empty, kind: 0, rows: 0, parts: 1, plan: LayerPlan::KEEP };
        Ok(Self {
            stage,
            pipeline,
            engine,
            allocator,
            compute,
            orders,
            strides,
            units: vec![Unit::default(); units].into(),
            layers: vec![empty; layers].into(),
            cells: (0..layers.saturating_mul(strides.tensors)).map(|_| Cell::default()).collect(),
            notes: (0..layers.saturating_mul(strides.ops)).map(|_| Note::default()).collect(),
        })
    }

    /// Device memory for the program's own tensors, saved or not.
    pub fn allocate(&mut self, bytes: u64) -> Result<DeviceSlice, StoreError> {
        Ok(self.allocator.allocate(bytes, self.compute)?)
    }

    /// Gives back what [`allocate`](Self::allocate) returned and was not saved, after the work of the compute stream so far.
    ///
    /// # Safety
    /// As for [`Allocator::free`].
    pub unsafe fn free(&mut self, memory: DeviceSlice) -> Result<(), StoreError> {
        // SAFETY: passed on to the caller.
        Ok(unsafe { self.allocator.free(memory, self.compute) }?)
    }

    /// A layer of `unit` is decided: host memory is reserved for all that it offloads, so that no copy-out will wait for
    /// any. [`EngineError::Full`] here means that the pool is smaller than the planner was told.
    pub fn enter(
        &mut self,
        unit: u32,
        layer: usize,
        rows: u32,
        plan: LayerPlan,
        dispatch_chunks: u32,
    ) -> Result<(), StoreError> {
        let place = self.place(unit, layer)?;
        self.step("enter", place, Phase::Empty, Phase::Forward, "its last backward to have been released")?;
        let chunk = self.pipeline.parts(unit).1 as usize;
        let kind = self.stage.chunks[chunk][layer] as usize;
        self.layers[place.index] =
            Layer { phase: Phase::Forward, kind, rows, parts: dispatch_chunks.max(1), plan };
        for tensor in self.orders[kind].tracked.iter() {
            let bytes = self.model_bytes(place, tensor, rows)?;
            let reservation = match plan.offload.contains(tensor) {
                true => Some(self.reserve(place, tensor, bytes)?),
                false => None,
            };
            *self.cell_mut(place, tensor) = Cell { bytes, reservation, ..Cell::default() };
        }
        for op in 0..self.strides.ops {
            let note = self.note_mut(place, op);
            note.payload = 0;
            note.rng.clear();
        }
        Ok(())
    }

    /// Hands a saved tensor over. A tensor that the plan recomputes may be left out.
    ///
    /// # Safety
    /// - The memory is the store's allocator's, whole, and nobody else frees it.
    /// - What makes it was submitted to the compute stream, and nothing writes it afterwards.
    pub unsafe fn save(
        &mut self,
        unit: u32,
        layer: usize,
        tensor: usize,
        saved: Saved,
    ) -> Result<(), StoreError> {
        let place = self.place(unit, layer)?;
        let Layer { phase, kind, rows, plan, .. } = self.layers[place.index];
        if !self.orders[kind].tracked.contains(tensor) {
            return Err(StoreError::NoSuchTensor { unit, layer, tensor });
        }
        if phase != Phase::Forward || self.cell(place, tensor).state != State::Empty {
            return Err(self.out_of_order("save", place, "a layer whose forward runs, and each tensor once"));
        }
        let model = self.model_bytes(place, tensor, rows)?;
        let bytes = saved.memory.bytes();
        if bytes > model {
            return Err(StoreError::Larger { tensor, bytes, model });
        }
        if plan.quantize.contains(tensor) {
            self.check_cast(place, tensor, &saved)?;
        }
        let cell = self.cell_mut(place, tensor);
        (cell.state, cell.bytes, cell.cast) = (State::Wide(saved.memory), bytes, saved.cast);
        Ok(())
    }

    /// Leaves `payload` and the state of the random numbers for an operator that may run again.
    pub fn remember(
        &mut self,
        unit: u32,
        layer: usize,
        op: usize,
        payload: u64,
        rng: &[u8],
    ) -> Result<(), StoreError> {
        let place = self.place(unit, layer)?;
        let Layer { phase, kind, .. } = self.layers[place.index];
        if phase != Phase::Forward || op >= self.stage.types[kind].ops.len() {
            return Err(self.out_of_order("remember", place, "an operator of a layer whose forward runs"));
        }
        let note = self.note_mut(place, op);
        note.payload = payload;
        note.rng.clear();
        note.rng.extend_from_slice(rng);
        Ok(())
    }

    /// The layer's forward has been submitted: drops, casts and copies out what the plan says.
    pub fn settle(&mut self, unit: u32, layer: usize) -> Result<(), StoreError> {
        let place = self.place(unit, layer)?;
        let Layer { phase, kind, plan, .. } = self.layers[place.index];
        let tracked = self.orders[kind].tracked;
        let missing = tracked - self.on_device(place) - plan.recompute;
        if let (Phase::Forward, Some(tensor)) = (phase, missing.iter().next()) {
            return Err(StoreError::NotSaved { tensor });
        }
        self.step("settle", place, Phase::Forward, Phase::Settled, "a layer whose forward runs")?;
        for tensor in (tracked & plan.recompute).iter() {
            self.free_wide(place, tensor)?;
            self.cell_mut(place, tensor).state = State::Dropped;
        }
        for tensor in (tracked & plan.quantize).iter() {
            self.narrow(place, tensor)?;
        }
        for tensor in (tracked & plan.offload).iter() {
            self.copy_out(place, tensor)?;
        }
        Ok(())
    }

    /// Where a tensor of a layer is on the device, as it was saved.
    pub fn tensor(&self, unit: u32, layer: usize, tensor: usize) -> Option<DeviceSlice> {
        let place = self.place(unit, layer).ok().filter(|_| tensor < self.strides.tensors)?;
        match self.cell(place, tensor).state {
            State::Wide(memory) | State::Leaving(memory) => Some(memory),
            _ => None,
        }
    }

    /// Whether a unit in flight has something in host memory, and nothing on the way there.
    pub fn can_come_back(&self, unit: u32) -> bool {
        self.units.get(unit as usize).is_some_and(|unit| unit.away > 0 && unit.leaving == 0)
    }

    /// The engine: what it has under way is the store's alone to change.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The stream that tensors are made and used on.
    pub fn compute(&self) -> Stream {
        self.compute
    }

    /// Host memory for a tensor. The program may have submitted more than the device has done: what copies in under way
    /// still hold is waited for.
    fn reserve(&mut self, place: Place, tensor: usize, bytes: u64) -> Result<Reservation, StoreError> {
        loop {
            match self.engine.reserve(key(place, tensor), bytes) {
                Err(EngineError::Full(_) | EngineError::NoSlot { .. })
                    if self.engine.block_until_arrived()? => {}
                reserved => return Ok(reserved?),
            }
        }
    }

    /// Frees a tensor that is on the device as it was saved, if it is.
    fn free_wide(&mut self, place: Place, tensor: usize) -> Result<(), StoreError> {
        let State::Wide(memory) = self.cell(place, tensor).state else { return Ok(()) };
        self.cell_mut(place, tensor).state = State::Empty;
        // SAFETY: what uses it was submitted to the compute stream, and no copy does: it is not leaving.
        Ok(unsafe { self.allocator.free(memory, self.compute) }?)
    }

    /// Tensors of a layer on the device as they were saved.
    fn on_device(&self, place: Place) -> Set {
        let cells = &self.cells[place.index * self.strides.tensors..][..self.strides.tensors];
        let wide = |cell: &Cell| matches!(cell.state, State::Wide(_));
        cells.iter().enumerate().filter(|(_, cell)| wide(cell)).map(|(tensor, _)| tensor).collect()
    }

    fn model_bytes(&self, place: Place, tensor: usize, rows: u32) -> Result<u64, StoreError> {
        let model = &self.stage.types[self.layers[place.index].kind];
        model.tensors[tensor].bytes.at(rows).ok_or(StoreError::Overflow { tensor })
    }

    fn place(&self, unit: u32, layer: usize) -> Result<Place, StoreError> {
        let chunk = self.pipeline.parts(unit).1 as usize;
        let layers = self.stage.chunks.get(chunk).map_or(0, |layers| layers.len());
        if unit as usize >= self.units.len() || layer >= layers {
            return Err(StoreError::NoSuchLayer { unit, layer });
        }
        Ok(Place { unit, layer, index: unit as usize * self.strides.layers + layer })
    }

    fn step(
        &mut self,
        call: &'static str,
        place: Place,
        from: Phase,
        to: Phase,
        needs: &'static str,
    ) -> Result<(), StoreError> {
        let phase = &mut self.layers[place.index].phase;
        if *phase != from {
            return Err(self.out_of_order(call, place, needs));
        }
        *phase = to;
        Ok(())
    }

    fn out_of_order(&self, call: &'static str, place: Place, needs: &'static str) -> StoreError {
        StoreError::OutOfOrder { call, unit: place.unit, layer: place.layer, needs }
    }

    fn cell(&self, place: Place, tensor: usize) -> &Cell {
        &self.cells[place.index * self.strides.tensors + tensor]
    }

    fn cell_mut(&mut self, place: Place, tensor: usize) -> &mut Cell {
        &mut self.cells[place.index * self.strides.tensors + tensor]
    }

    fn note_mut(&mut self, place: Place, op: usize) -> &mut Note {
        &mut self.notes[place.index * self.strides.ops + op]
    }
}

impl Drop for Store<'_> {
    fn drop(&mut self) {
        self.abandon();
    }
}

fn key(place: Place, tensor: usize) -> Key {
    // A chunk has at most MAX_LAYERS layers and a layer 64 tensors.
    Key { unit: place.unit, layer: place.layer as u16, tensor: tensor as u16 }
}
