//! What the program calls: a rank with its controller, or a store alone that keeps everything.

use bagualu_core::controller::{Gate, LayerDecision};
use bagualu_core::layer::LayerPlan;
use bagualu_core::stage::Recompute;
use bagualu_exec::device::DeviceSlice;
use bagualu_exec::rank::{Counts, Rank, RankError};
use bagualu_exec::recompute::Hook;
use bagualu_exec::store::{Saved, Store};

pub enum Runner<'c> {
    Planned(Box<Rank<'c>>),
    Kept(Box<Store<'c>>),
}

/// Without a controller nobody decides, admits or counts.
impl<'c> Runner<'c> {
    pub fn begin_forward(&mut self, unit: u32) -> Result<(), RankError> {
        self.planned(|rank| rank.begin_forward(unit))
    }

    pub fn reach_gate(&mut self) -> Result<(), RankError> {
        self.planned(Rank::to_gate)
    }

    pub fn gate(&mut self, unit: u32, layer: usize, gate: Gate) -> Result<LayerDecision, RankError> {
        let store = match self {
            Self::Planned(rank) => return rank.gate(gate),
            Self::Kept(store) => store,
        };
        store.enter(unit, layer, gate.rows, LayerPlan::KEEP, 1)?;
        Ok(LayerDecision {
            plan: LayerPlan::KEEP,
            recompute: Recompute::Local,
            dispatch_chunks: 1,
            expert_chunks: 1,
            held_bytes: 0,
            offload_bytes: 0,
            work_bytes: 0,
            replanned: false,
        })
    }

    /// # Safety
    /// As for [`Store::save`].
    pub unsafe fn save(
        &mut self,
        unit: u32,
        layer: usize,
        tensor: usize,
        saved: Saved,
    ) -> Result<(), RankError> {
        // SAFETY: passed on to the caller.
        unsafe {
            match self {
                Self::Planned(rank) => rank.save(tensor, saved),
                Self::Kept(store) => Ok(store.save(unit, layer, tensor, saved)?),
            }
        }
    }

    pub fn remember(
        &mut self,
        unit: u32,
        layer: usize,
        op: usize,
        payload: u64,
        rng: &[u8],
    ) -> Result<(), RankError> {
        match self {
            Self::Planned(rank) => rank.remember(op, payload, rng),
            Self::Kept(store) => Ok(store.remember(unit, layer, op, payload, rng)?),
        }
    }

    pub fn layer_done(&mut self, unit: u32, layer: usize) -> Result<(), RankError> {
        match self {
            Self::Planned(rank) => rank.layer_done(),
            Self::Kept(store) => Ok(store.settle(unit, layer)?),
        }
    }

    pub fn end_forward(&mut self, measured: Option<u64>) -> Result<(), RankError> {
        self.planned(|rank| rank.end_forward(measured))
    }

    pub fn begin_backward(&mut self, unit: u32) -> Result<(), RankError> {
        self.planned(|rank| rank.begin_backward(unit))
    }

    pub fn recover(&mut self, unit: u32, layer: usize, hook: &mut dyn Hook) -> Result<(), RankError> {
        match self {
            Self::Planned(rank) => rank.recover(layer, hook),
            Self::Kept(store) => Ok(store.recover(unit, layer, hook)?),
        }
    }

    pub fn recover_part(
        &mut self,
        unit: u32,
        layer: usize,
        part: u32,
        hook: &mut dyn Hook,
    ) -> Result<(), RankError> {
        match self {
            Self::Planned(rank) => rank.recover_part(layer, part, hook),
            Self::Kept(store) => Ok(store.recover_part(unit, layer, part, hook)?),
        }
    }

    pub fn tensor(&self, unit: u32, layer: usize, tensor: usize) -> Result<DeviceSlice, RankError> {
        match self {
            Self::Planned(rank) => rank.tensor(layer, tensor),
            Self::Kept(store) => {
                store.tensor(unit, layer, tensor).ok_or(RankError::NotThere { unit, layer, tensor })
            }
        }
    }

    pub fn layer_undone(&mut self, unit: u32, layer: usize) -> Result<(), RankError> {
        match self {
            Self::Planned(rank) => rank.layer_undone(layer),
            Self::Kept(store) => Ok(store.release(unit, layer)?),
        }
    }

    pub fn end_backward(&mut self) -> Result<(), RankError> {
        self.planned(Rank::end_backward)
    }

    pub fn end_iteration(&mut self) -> Result<(), RankError> {
        self.planned(Rank::end_iteration)
    }

    pub fn drain(&mut self) -> Result<(), RankError> {
        match self {
            Self::Planned(rank) => rank.drain(),
            Self::Kept(store) => Ok(store.drain()?),
        }
    }

    pub fn abandon(&mut self) {
        match self {
            Self::Planned(rank) => rank.abandon(),
            Self::Kept(store) => store.abandon(),
        }
    }

    pub fn allocate(&mut self, bytes: u64) -> Result<DeviceSlice, RankError> {
        match self {
            Self::Planned(rank) => rank.allocate(bytes),
            Self::Kept(store) => Ok(store.allocate(bytes)?),
        }
    }

    /// # Safety
    /// As for [`Store::free`].
    pub unsafe fn free(&mut self, memory: DeviceSlice) -> Result<(), RankError> {
        // SAFETY: passed on to the caller.
        unsafe {
            match self {
                Self::Planned(rank) => rank.free(memory),
                Self::Kept(store) => Ok(store.free(memory)?),
            }
        }
    }

    pub fn store(&self) -> &Store<'c> {
        match self {
            Self::Planned(rank) => rank.store(),
            Self::Kept(store) => store,
        }
    }

    pub fn counts(&self) -> Counts {
        match self {
            Self::Planned(rank) => rank.counts(),
            Self::Kept(_) => Counts::default(),
        }
    }

    fn planned(
        &mut self,
        step: impl FnOnce(&mut Rank<'c>) -> Result<(), RankError>,
    ) -> Result<(), RankError> {
        match self {
            Self::Planned(rank) => step(rank),
            Self::Kept(_) => Ok(()),
        }
    }
}
