//! What was decided for one layer of one unit, kept until its backward.

use crate::controller::LayerDecision;
use crate::fingerprint::Fingerprint;
use crate::layer::LayerPlan;
use crate::stage::Recompute;

/// One layer of one unit in flight.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LayerRecord {
    /// A strategy for each saved tensor.
    pub plan: LayerPlan,
    /// What is recomputed whatever the budget.
    pub recompute: Recompute,
    /// Real rows.
    pub rows: u32,
    /// In how many parts the group splits the dispatch.
    pub dispatch_chunks: u32,
    /// In how many row chunks this rank runs its experts.
    pub expert_chunks: u32,
    /// Device bytes held until backward.
    pub held_bytes: u64,
    /// Bytes offloaded.
    pub offload_bytes: u64,
    /// Bytes needed only while its forward runs.
    pub forward_work_bytes: u64,
    /// Bytes needed only while its backward runs, recovered tensors not included.
    pub backward_work_bytes: u64,
    /// Bytes of all tensors to be recovered before backward; less once they are.
    pub growth_bytes: u64,
    /// Those that need no collective.
    pub local_growth_bytes: u64,
}

impl Default for LayerRecord {
    fn default() -> Self {
        Self {
            plan: LayerPlan::KEEP,
            recompute: Recompute::Local,
            rows: 0,
            dispatch_chunks: 1,
            expert_chunks: 1,
            held_bytes: 0,
            offload_bytes: 0,
            forward_work_bytes: 0,
            backward_work_bytes: 0,
            growth_bytes: 0,
            local_growth_bytes: 0,
        }
    }
}

impl LayerRecord {
    pub(super) fn decision(&self, replanned: bool) -> LayerDecision {
        LayerDecision {
            plan: self.plan,
            recompute: self.recompute,
            dispatch_chunks: self.dispatch_chunks,
            expert_chunks: self.expert_chunks,
            held_bytes: self.held_bytes,
            offload_bytes: self.offload_bytes,
            work_bytes: self.forward_work_bytes,
            replanned,
        }
    }

    pub(super) fn fold(&self, fingerprint: Fingerprint) -> Fingerprint {
        let LayerPlan { recompute, offload, quantize } = self.plan;
        fingerprint
            .with(recompute.bits())
            .with(offload.bits())
            .with(quantize.bits())
            .with(self.recompute as u64)
            .with(self.rows.into())
            .with(self.dispatch_chunks.into())
            .with(self.held_bytes)
            .with(self.offload_bytes)
            .with(self.forward_work_bytes)
            .with(self.growth_bytes)
    }
}
