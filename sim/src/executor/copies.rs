//! Copies to and from the host, which run beside the operators, and the clock.

use bagualu_core::set::Set;

use super::{CopiedOut, Executor};
use crate::log::{Event, Form, Item, Log, Place};

impl<L: Log> Executor<'_, L> {
    /// Waits until all copies have ended.
    pub fn drain(&mut self) {
        while let Some(end) = self.next_end() {
            self.advance(end.saturating_sub(self.now));
        }
    }

    /// Waits for the next copy-out to end; `false` if none is pending.
    pub fn wait(&mut self) -> bool {
        let Some(&(end, _)) = self.pending.front() else { return false };
        self.advance(end.saturating_sub(self.now));
        true
    }

    /// The copy-outs that have ended since the last call.
    pub fn take_copied_out(&mut self) -> Vec<CopiedOut> {
        core::mem::take(&mut self.copied)
    }

    /// Whether a unit in flight has something to bring back from the host.
    pub fn has_offloaded(&self, unit: u32) -> bool {
        let layers = self.units.get(unit as usize).into_iter().flatten();
        layers.into_iter().any(|running| !(running.decision.plan.offload - running.wide).is_empty())
    }

    /// Whether something of a unit is being copied to the host.
    pub fn is_copying_out(&self, unit: u32) -> bool {
        self.pending.iter().any(|(_, copy)| copy.item.place.unit == unit)
    }

    /// Copies `tensors` back from the host and waits for them.
    pub(super) fn copy_in(&mut self, place: Place, tensors: Set) {
        self.request(place, tensors);
        self.await_arrivals(place);
    }

    /// Queues copies from the host, which run beside the operators.
    pub(super) fn request(&mut self, place: Place, tensors: Set) {
        for tensor in tensors.iter() {
            let item = Item { place, tensor: tensor as u8 };
            self.alloc(place, tensor, false);
            self.log.record(self.now, Event::CopyStart(item, Form::Host, Form::Wide));
            let start = self.copy_in_free.max(self.now);
            let ns = self.stage.rooflines.copy_in.ns(self.bytes(place, tensor));
            self.copy_in_free = start.saturating_add(ns);
            self.arriving.push_back((self.copy_in_free, item));
        }
    }

    pub(super) fn await_arrivals(&mut self, place: Place) {
        let last = self.arriving.iter().rev().find(|(_, item)| item.place == place);
        if let Some(&(end, _)) = last {
            self.advance(end.saturating_sub(self.now));
        }
    }

    /// Brings back what a unit in flight offloaded, before its backward and beside the operators. Its
    /// copies to the host must have ended.
    pub fn recover_early(&mut self, unit: u32) {
        let layers = self.units.get(unit as usize).map_or(0, Vec::len);
        // The last layer's backward comes first.
        for layer in (0..layers).rev() {
            let place = Place { unit, layer: layer as u16 };
            let Some(running) = self.running(place) else { continue };
            self.request(place, running.decision.plan.offload - running.wide);
        }
    }

    /// Lets `ns` pass; copies that end meanwhile give their storage back at their own time.
    pub(super) fn advance(&mut self, ns: u64) {
        let until = self.now.saturating_add(ns);
        while let Some(end) = self.next_end().filter(|&end| end <= until) {
            self.now = self.now.max(end);
            let is_out = self.pending.front().is_some_and(|&(at, _)| at == end);
            if let Some((_, copied)) = if is_out { self.pending.pop_front() } else { None } {
                self.log.record(self.now, Event::CopyEnd(copied.item, Form::Wide, Form::Host));
                self.free(copied.item.place, copied.item.tensor.into());
                self.copied.push(copied);
            } else if let Some((_, item)) = self.arriving.pop_front() {
                self.log.record(self.now, Event::CopyEnd(item, Form::Host, Form::Wide));
                self.log.record(self.now, Event::Free(item, Form::Host));
            }
        }
        self.now = until;
    }

    /// When the next copy ends.
    pub(super) fn next_end(&self) -> Option<u64> {
        let out = self.pending.front().map(|&(end, _)| end);
        let back = self.arriving.front().map(|&(end, _)| end);
        out.into_iter().chain(back).min()
    }
}
