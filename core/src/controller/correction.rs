//! When the model erred: what to offload so that later forwards get their floors again (design §6).

use super::{Controller, ControllerError};
use crate::set::Set;

/// Kept tensors that are offloaded after all.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Correction {
    /// The unit in flight.
    pub unit: u32,
    /// Its layer.
    pub layer: usize,
    /// The tensors to copy out now.
    pub tensors: Set,
    /// Their bytes; report them by `handle_copied_out` when they have left.
    pub bytes: u64,
}

impl Controller<'_> {
    /// The next kept tensors to offload because something holds more than its limit; `None` if nothing
    /// has to leave, or nothing can.
    ///
    /// Takes them from the unit launched last, whose backward is furthest away, largest layer first, and
    /// only as far as the host pool's own budget allows.
    pub fn poll_correction(&mut self) -> Result<Option<Correction>, ControllerError> {
        if self.forward.is_some() || self.device.deficit() == 0 {
            return Ok(None);
        }
        let mut found = None;
        // What a backward under way uses stays.
        let busy = self.backward.map(|backward| backward.unit);
        for unit in self.device.in_flight_latest_first().filter(|&unit| Some(unit) != busy) {
            found = self.largest_kept(unit)?;
            if found.is_some() {
                break;
            }
        }
        if let Some(correction) = &found {
            self.apply(correction)?;
        }
        Ok(found)
    }

    fn largest_kept(&self, unit: u32) -> Result<Option<Correction>, ControllerError> {
        // A unit measured to keep less than its model says has less to give.
        let room = self.host.headroom(unit)?.min(self.ledger.kept_by(unit));
        let chunk = self.pipeline.parts(unit).1 as usize;
        let mut best: Option<Correction> = None;
        for layer in 0..self.layers_of(unit)? {
            let record = self.record(unit, layer)?;
            let kind = self.kind_of(chunk, layer)?;
            let (model, plan) = (&self.stage.types[kind], record.plan);
            let kept = self.kinds[kind].saved() - plan.recompute - plan.offload - plan.quantize;
            let tensors: Set = kept.iter().filter(|&t| model.tensors[t].offload).collect();
            let bytes = super::kind::bytes_at(model, tensors, record.rows)?;
            if bytes > 0 && bytes <= room && best.is_none_or(|b| bytes > b.bytes) {
                best = Some(Correction { unit, layer, tensors, bytes });
            }
        }
        Ok(best)
    }

    fn apply(&mut self, correction: &Correction) -> Result<(), ControllerError> {
        let &Correction { unit, layer, tensors, bytes } = correction;
        self.ledger.leaves(unit, bytes)?;
        self.device.hold(unit, self.device.held_by(unit).saturating_sub(bytes))?;
        self.host.hold(unit, self.host.held_by(unit).saturating_add(bytes))?;
        let record = self.record_mut(unit, layer)?;
        record.plan.offload |= tensors;
        record.held_bytes = record.held_bytes.saturating_sub(bytes);
        record.offload_bytes = record.offload_bytes.saturating_add(bytes);
        record.growth_bytes = record.growth_bytes.saturating_add(bytes);
        record.local_growth_bytes = record.local_growth_bytes.saturating_add(bytes);
        Ok(())
    }
}
