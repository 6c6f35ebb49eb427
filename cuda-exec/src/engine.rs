//! Offload and reload of saved tensors beside the operators (§V-A; design §5, §6).
//!
//! The engine owns two streams, one each way, a capped pool of pinned memory and a ticket for each tensor.
//! It runs no thread of its own: commands submit work and return, `poll_*` says what has ended or is due.
//! One thread at a time owns it (`&mut self`); only tickets may be dropped elsewhere.
//!
//! ```text
//! forward    reserve → offload (after the producer's event) → ticket
//! any time   poll_copied_out: these device bytes are free now → Controller::handle_copied_out
//!            block_until_released: an operator needs bytes that are still leaving (back-pressure)
//! backward   announce(unit) → poll_reload, while it says what is due: reload(ticket, into)
//!            wait(ticket, consumer): the consumer's stream goes on when the copy has ended
//! end        drain, or drop: both wait for what is under way
//! ```
//!
//! A copy-in always waits, on the device, for the event of its own copy-out: no order of calls and no order of
//! completions lets a reload read what has not been written.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::device::{Device, DeviceError, DeviceSlice, Stream};
use crate::pool::{PinnedPool, PoolUsage};

mod config;
mod error;
mod lanes;
mod slot;
mod ticket;

pub use config::EngineConfig;
pub use error::EngineError;
use lanes::{Failure, Lanes};
use slot::{Order, Slot, Stage};
use ticket::{Dropped, Handle, parts_of};
pub use ticket::{Reservation, Ticket};

/// Which saved tensor.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct Key {
    /// The unit that saved it.
    pub unit: u32,
    /// The layer of the unit's chunk.
    pub layer: u16,
    /// The tensor of the layer.
    pub tensor: u16,
}

/// A tensor whose copy-out has ended: its device memory is free.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CopiedOut {
    /// The tensor.
    pub key: Key,
    /// Its bytes.
    pub bytes: u64,
}

/// A tensor that is due to come back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reload {
    /// The tensor.
    pub key: Key,
    /// Its bytes.
    pub bytes: u64,
}

/// What an engine has under way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EngineUsage {
    /// Its pinned memory.
    pub pool: PoolUsage,
    /// Places for tensors that are taken.
    pub slots: u32,
    /// Bytes whose copy-out has not been reported.
    pub leaving_bytes: u64,
    /// Bytes reloaded and not yet waited for.
    pub returning_bytes: u64,
}

/// The offload engine of one device.
#[derive(Debug)]
pub struct Engine {
    device: Arc<dyn Device>,
    config: EngineConfig,
    lanes: Lanes,
    pool: PinnedPool,
    slots: Vec<Slot>,
    free: Vec<u32>,
    dropped: Arc<Dropped>,
    order: Order,
    /// Copy-outs under way, in the order of their stream.
    leaving: VecDeque<u32>,
    leaving_bytes: u64,
    /// Copy-ins under way, in the order of their stream.
    arriving: VecDeque<u32>,
    /// Units whose backward comes, in that order.
    announced: VecDeque<u32>,
    returning_bytes: u64,
    returning_tensors: u32,
    lost: Option<DeviceError>,
}

impl Engine {
    /// An engine with its streams and events. It pins memory when that is first needed; see [`warm`](Self::warm).
    pub fn new(device: Arc<dyn Device>, config: EngineConfig) -> Result<Self, EngineError> {
        let slots = config.slots as usize;
        let mut engine = Self {
            lanes: Lanes::open(Arc::clone(&device)).map_err(EngineError::Device)?,
            pool: PinnedPool::new(Arc::clone(&device), config.pool),
            device,
            config,
            slots: Vec::with_capacity(slots),
            free: (0..config.slots).rev().collect(),
            dropped: Arc::new(Dropped::new(config.slots)),
            order: Order::new(config.units),
            leaving: VecDeque::with_capacity(slots),
            leaving_bytes: 0,
            arriving: VecDeque::with_capacity(slots),
            announced: VecDeque::with_capacity(config.units as usize),
            returning_bytes: 0,
            returning_tensors: 0,
            lost: None,
        };
        // What an error leaves half done is undone by `Drop`.
        let first = slot::first_generation();
        for _ in 0..config.slots {
            let slot = Slot::new(&*engine.device, first).map_err(EngineError::Device)?;
            engine.slots.push(slot);
        }
        Ok(engine)
    }

    /// Pins memory now, up to `bytes`, so that no offload has to.
    pub fn warm(&mut self, bytes: u64) -> Result<(), EngineError> {
        self.begin()?;
        Ok(self.pool.warm(bytes)?)
    }

    /// Takes host memory and a place for a tensor of `bytes` of `key`'s unit. [`EngineError::Full`] is an answer for the
    /// planner; the engine goes on.
    pub fn reserve(&mut self, key: Key, bytes: u64) -> Result<Reservation, EngineError> {
        self.begin()?;
        if key.unit >= self.config.units {
            return Err(EngineError::NoSuchUnit { unit: key.unit, units: self.config.units });
        }
        let Some(&index) = self.free.last() else {
            return Err(EngineError::NoSlot { slots: self.config.slots });
        };
        let lease = self.pool.reserve(bytes)?;
        self.free.pop();
        let slot = &mut self.slots[index as usize];
        slot.lease = Some(lease);
        (slot.key, slot.bytes, slot.stage) = (key, bytes, Stage::Reserved);
        Ok(Reservation(Handle::new(index, slot.generation, Arc::clone(&self.dropped))))
    }

    /// Starts copying `from` out, once all work submitted to `producer` so far has ended. It may be shorter than reserved.
    ///
    /// # Safety
    /// - `from` is memory of this device. It lives, unchanged, until [`poll_copied_out`](Self::poll_copied_out) returns its
    ///   tensor, [`drain`](Self::drain) succeeds or the engine is dropped; after [`EngineError::Lost`], until the device ends.
    pub unsafe fn offload(
        &mut self,
        from: DeviceSlice,
        producer: Stream,
        reservation: Reservation,
    ) -> Result<Ticket, EngineError> {
        self.begin()?;
        let index = self.find(&reservation.0)?;
        let slot = &self.slots[index as usize];
        if slot.stage != Stage::Reserved {
            return Err(EngineError::OutOfOrder { call: "offload", needs: "a reservation" });
        }
        if slot.bytes < from.bytes() {
            return Err(EngineError::Length { tensor: slot.bytes, named: from.bytes() });
        }
        let pieces = slot.lease.iter().flat_map(|lease| self.pool.pieces(lease));
        // SAFETY: `from` is the caller's promise; the pieces are leased to the slot, which gives them back only when
        // its event is done.
        let submitted = unsafe { self.lanes.copy_out(from, pieces, producer, slot.left) };
        submitted.map_err(|failure| self.failed(failure))?;
        let slot = &mut self.slots[index as usize];
        (slot.stage, slot.leaving, slot.bytes) = (Stage::Out, true, from.bytes());
        self.leaving.push_back(index);
        self.leaving_bytes += slot.bytes;
        self.order.push(&mut self.slots, index);
        let (_, generation) = reservation.0.into_parts();
        Ok(Ticket(Handle::new(index, generation, Arc::clone(&self.dropped))))
    }

    /// The next copy-out that has ended: its device memory may be freed, after the work of other streams that reads it.
    pub fn poll_copied_out(&mut self) -> Result<Option<CopiedOut>, EngineError> {
        self.begin()?;
        let Some(&index) = self.leaving.front() else { return Ok(None) };
        match self.device.is_done(self.slots[index as usize].left) {
            Ok(false) => Ok(None),
            Ok(true) => {
                self.leaving.pop_front();
                let slot = &mut self.slots[index as usize];
                slot.leaving = false;
                let copied = CopiedOut { key: slot.key, bytes: slot.bytes };
                self.leaving_bytes -= copied.bytes;
                self.recycle(index);
                Ok(Some(copied))
            }
            Err(error) => Err(self.lose(error)),
        }
    }

    /// Blocks until the oldest copy-outs under way, `bytes` in all, have ended; [`poll_copied_out`](Self::poll_copied_out)
    /// then returns them. Which bytes wait is the ledger's answer ([`Admission::Wait`](bagualu_core::ledger::Admission)).
    pub fn block_until_released(&mut self, bytes: u64) -> Result<(), EngineError> {
        self.begin()?;
        let mut sum = 0u64;
        let last = self.leaving.iter().find(|&&index| {
            sum += self.slots[index as usize].bytes;
            sum >= bytes
        });
        let Some(&index) = last else { return Err(EngineError::NothingLeaving { bytes }) };
        self.device.wait(self.slots[index as usize].left).map_err(|error| self.lose(error))
    }

    /// Blocks until the oldest copy-in under way has ended, whose host memory and place then serve again, if its ticket was
    /// used up. `false` where none is under way.
    pub fn block_until_arrived(&mut self) -> Result<bool, EngineError> {
        self.begin()?;
        let Some(&index) = self.arriving.front() else { return Ok(false) };
        self.device.wait(self.slots[index as usize].arrived).map_err(|error| self.lose(error))?;
        self.reap()?;
        Ok(true)
    }

    /// The backward of `unit` comes after those announced before: what it offloaded is due from now on.
    pub fn announce(&mut self, unit: u32) -> Result<(), EngineError> {
        if unit >= self.config.units {
            return Err(EngineError::NoSuchUnit { unit, units: self.config.units });
        }
        if !self.announced.contains(&unit) {
            self.announced.push_back(unit);
        }
        Ok(())
    }

    /// Nothing of `unit` is due any more, until it is announced again.
    pub fn withdraw(&mut self, unit: u32) {
        self.announced.retain(|&announced| announced != unit);
    }

    /// What to bring back next: of the units announced, in their order, the tensor saved last. `None` where nothing is
    /// due or the window is full. The same answer again until it is reloaded or given up.
    pub fn poll_reload(&mut self) -> Result<Option<Reload>, EngineError> {
        self.begin()?;
        while let Some(&unit) = self.announced.front() {
            let Some(index) = self.order.last(unit) else {
                self.announced.pop_front();
                continue;
            };
            let Slot { key, bytes, .. } = self.slots[index as usize];
            let fits = self.returning_tensors < self.config.window_tensors
                && self.returning_bytes.saturating_add(bytes) <= self.config.window_bytes;
            return Ok((fits || self.returning_tensors == 0).then_some(Reload { key, bytes }));
        }
        Ok(None)
    }

    /// Starts copying a tensor back into `into`: after its own copy-out, and after all work submitted to `after` so far,
    /// where that may still use the memory. Not bound by the window.
    ///
    /// # Safety
    /// - `into` is memory of this device. It lives, and nothing else uses it, until work submitted to the consumer after
    ///   [`wait`](Self::wait) runs, [`cancel`](Self::cancel) or [`drain`](Self::drain) succeeds or the engine is dropped;
    ///   after [`EngineError::Lost`], until the device ends.
    pub unsafe fn reload(
        &mut self,
        ticket: &Ticket,
        into: DeviceSlice,
        after: Option<Stream>,
    ) -> Result<(), EngineError> {
        self.begin()?;
        let index = self.find(&ticket.0)?;
        let slot = &self.slots[index as usize];
        if slot.stage != Stage::Out {
            return Err(EngineError::OutOfOrder {
                call: "reload",
                needs: "a tensor that was not reloaded before",
            });
        }
        if slot.bytes != into.bytes() {
            return Err(EngineError::Length { tensor: slot.bytes, named: into.bytes() });
        }
        let pieces = slot.lease.iter().flat_map(|lease| self.pool.pieces(lease));
        // SAFETY: as in `offload`, with `into` for `from`.
        let submitted = unsafe { self.lanes.copy_in(pieces, into, after, slot.left, slot.arrived) };
        submitted.map_err(|failure| self.failed(failure))?;
        self.order.remove(&mut self.slots, index);
        let slot = &mut self.slots[index as usize];
        (slot.stage, slot.arriving) = (Stage::Back, true);
        self.arriving.push_back(index);
        self.returning_bytes += slot.bytes;
        self.returning_tensors += 1;
        Ok(())
    }

    /// Work submitted to `consumer` from now on starts after the tensor is back. Uses the ticket up; on any error the
    /// tensor is given up with it, and its copy-in may still be under way: [`drain`](Self::drain) says when it has ended.
    pub fn wait(&mut self, ticket: Ticket, consumer: Stream) -> Result<(), EngineError> {
        self.begin()?;
        let index = self.find(&ticket.0)?;
        let slot = &self.slots[index as usize];
        if slot.stage != Stage::Back {
            return Err(EngineError::OutOfOrder { call: "wait", needs: "a reload before it" });
        }
        self.device.stream_wait(consumer, slot.arrived).map_err(EngineError::Device)?;
        ticket.0.into_parts();
        self.give_up(index);
        Ok(())
    }

    /// Gives a tensor up. Blocks until its copy-in has ended, if one is under way; its copy-out ends by itself and is
    /// reported as ever.
    pub fn cancel(&mut self, ticket: Ticket) -> Result<(), EngineError> {
        self.begin()?;
        let index = self.find(&ticket.0)?;
        let slot = &self.slots[index as usize];
        if slot.arriving {
            self.device.wait(slot.arrived).map_err(|error| self.lose(error))?;
        }
        ticket.0.into_parts();
        self.give_up(index);
        self.reap()
    }

    /// Makes a ticket of [`Ticket::into_raw`]'s number. [`EngineError::Stale`] where it was used up or
    /// is another engine's.
    pub fn ticket(&self, raw: u64) -> Result<Ticket, EngineError> {
        let (index, generation) = parts_of(raw);
        let in_use =
            |slot: &&Slot| slot.generation == generation && matches!(slot.stage, Stage::Out | Stage::Back);
        match self.slots.get(index as usize).filter(in_use) {
            Some(_) => Ok(Ticket(Handle::new(index, generation, Arc::clone(&self.dropped)))),
            None => Err(EngineError::Stale { slot: index }),
        }
    }

    /// Blocks until every copy under way has ended. [`poll_copied_out`](Self::poll_copied_out) still returns each.
    pub fn drain(&mut self) -> Result<(), EngineError> {
        self.begin()?;
        self.lanes.synchronize().map_err(|error| self.lose(error))?;
        self.reap()
    }

    /// What is under way.
    pub fn usage(&self) -> EngineUsage {
        EngineUsage {
            pool: self.pool.usage(),
            slots: self.config.slots - self.free.len() as u32,
            leaving_bytes: self.leaving_bytes,
            returning_bytes: self.returning_bytes,
        }
    }

    /// The stream of copies in, for an allocator that hands out memory by stream.
    pub fn copy_in_stream(&self) -> Stream {
        self.lanes.back
    }

    /// How it was set up.
    pub fn config(&self) -> &EngineConfig {
        &self.config
    }

    /// The device.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }
}

/// Keeping count.
impl Engine {
    /// What every command starts with.
    fn begin(&mut self) -> Result<(), EngineError> {
        if let Some(error) = &self.lost {
            return Err(EngineError::Lost(error.clone()));
        }
        let dropped = Arc::clone(&self.dropped);
        dropped.take(|slot, generation| {
            if self.slots[slot as usize].generation == generation {
                self.give_up(slot);
            }
        });
        self.reap()
    }

    /// Notices the copy-ins that have ended.
    fn reap(&mut self) -> Result<(), EngineError> {
        while let Some(&index) = self.arriving.front() {
            match self.device.is_done(self.slots[index as usize].arrived) {
                Ok(false) => break,
                Ok(true) => {
                    self.arriving.pop_front();
                    self.slots[index as usize].arriving = false;
                    self.recycle(index);
                }
                Err(error) => return Err(self.lose(error)),
            }
        }
        Ok(())
    }

    /// The slot of a live handle.
    fn find(&self, handle: &Handle) -> Result<u32, EngineError> {
        let slot = self.slots.get(handle.slot as usize);
        let own = slot.is_some_and(|slot| slot.generation == handle.generation);
        let own = own && handle.is_of(&self.dropped);
        own.then_some(handle.slot).ok_or(EngineError::Stale { slot: handle.slot })
    }

    /// Nobody will ask for this slot's tensor again.
    fn give_up(&mut self, index: u32) {
        let slot = &mut self.slots[index as usize];
        match core::mem::replace(&mut slot.stage, Stage::Done) {
            Stage::Out => self.order.remove(&mut self.slots, index),
            Stage::Back => {
                self.returning_bytes -= slot.bytes;
                self.returning_tensors -= 1;
            }
            Stage::Free => slot.stage = Stage::Free,
            Stage::Reserved | Stage::Done => {}
        }
        self.recycle(index);
    }

    /// Takes a slot back once nothing uses it.
    fn recycle(&mut self, index: u32) {
        let slot = &mut self.slots[index as usize];
        if !slot.is_over() {
            return;
        }
        slot.stage = Stage::Free;
        slot.generation = slot.generation.wrapping_add(1).max(1);
        if let Some(lease) = slot.lease.take() {
            self.pool.release(lease);
        }
        self.free.push(index);
    }

    fn lose(&mut self, error: DeviceError) -> EngineError {
        self.lost = Some(error.clone());
        EngineError::Lost(error)
    }

    /// A copy was not submitted: what is under way without an event is lost.
    fn failed(&mut self, failure: Failure) -> EngineError {
        match failure.under_way {
            true => self.lose(failure.error),
            false => EngineError::Device(failure.error),
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let lanes = self.lanes.synchronize();
        // A lane that is gone does not say when its copies end; their own events do.
        let leaving = self.leaving.iter().map(|&index| self.slots[index as usize].left);
        let arriving = self.arriving.iter().map(|&index| self.slots[index as usize].arrived);
        let copies = leaving.chain(arriving).map(|end| self.device.wait(end));
        // Copies that cannot be known to have ended may still use the pinned memory: then it stays.
        if copies.fold(lanes, Result::and).is_err() {
            self.pool.leak();
        }
        for event in self.slots.iter().flat_map(|slot| [slot.left, slot.arrived]) {
            let _ = self.device.destroy_event(event);
        }
    }
}
