//! What a controller is told at a gate, and what it answers.

use bagualu_core::controller::{Controller, Gate, LayerDecision};
use bagualu_core::group::GroupDecision;

use super::super::config::flag;
use crate::arguments::{own_size, versioned};
use crate::layer::bagualu_layer_plan;
use crate::status::Failure;

/// What the gate of a layer says.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct bagualu_gate {
    /// sizeof(bagualu_gate), set by the caller.
    pub struct_size: usize,
    /// Rows that this rank's experts receive; 0 for a layer without a router.
    pub rows: u32,
    /// 1 if the group recomputes the whole MoE module, else 0.
    pub whole_moe: u32,
    /// In how many parts the group splits the dispatch; 0 and 1: no split.
    pub dispatch_chunks: u32,
    /// 1 if `granted_bytes` counts, else 0.
    pub has_grant: u32,
    /// Bytes that the micro-batch may hold up to and including this layer, where the group's rule grants them.
    pub granted_bytes: u64,
}

versioned!(bagualu_gate);

/// What is done with one layer of one micro-batch.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct bagualu_decision {
    /// sizeof(bagualu_decision), set by the caller.
    pub struct_size: usize,
    /// A strategy for each saved tensor.
    pub plan: bagualu_layer_plan,
    /// Device bytes held until backward.
    pub held_bytes: u64,
    /// Bytes copied out after the layer, on the device until then.
    pub offload_bytes: u64,
    /// Bytes needed only while the layer runs.
    pub work_bytes: u64,
    /// What is recomputed whatever the budget: `BAGUALU_RECOMPUTE_…`.
    pub recompute: u32,
    /// In how many parts the group splits the dispatch.
    pub dispatch_chunks: u32,
    /// In how many row chunks this rank runs its experts.
    pub expert_chunks: u32,
    /// 1 if the real rows changed the plan made before the forward, else 0.
    pub replanned: u32,
}

versioned!(bagualu_decision);

/// Kept tensors that are offloaded after all.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct bagualu_correction {
    /// sizeof(bagualu_correction), set by the caller.
    pub struct_size: usize,
    /// The set of tensors to copy out now; 0: none.
    pub tensors: u64,
    /// Their bytes: report them by `bagualu_controller_copied_out` when they have left.
    pub bytes: u64,
    /// The unit.
    pub unit: u32,
    /// Its layer.
    pub layer: u32,
}

versioned!(bagualu_correction);

/// Where a controller stands. Bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct bagualu_controller_state {
    /// sizeof(bagualu_controller_state), set by the caller.
    pub struct_size: usize,
    /// On the device now, work not included.
    pub current_bytes: u64,
    /// Of these, leaving by copies that have not ended.
    pub pending_bytes: u64,
    /// The most on the device at once so far in this iteration, work included.
    pub peak_bytes: u64,
    /// What the device has for activations.
    pub device_bytes: u64,
    /// What the units between forward and backward hold.
    pub held_bytes: u64,
    /// What they may.
    pub capacity_bytes: u64,
    /// What they hold in the host pool.
    pub host_held_bytes: u64,
    /// What they may there.
    pub host_bytes: u64,
    /// A fingerprint of every decision so far, and of profile and budgets: compare it among ranks that must agree.
    pub fingerprint: u64,
    /// Plans looked up, and found.
    pub plan_hits: u64,
    /// Plans looked up in vain.
    pub plan_misses: u64,
    /// Layers' trade-offs looked up, and found.
    pub front_hits: u64,
    /// Layers' trade-offs looked up in vain.
    pub front_misses: u64,
}

versioned!(bagualu_controller_state);

impl bagualu_gate {
    pub(crate) fn checked(&self) -> Result<Gate, Failure> {
        let whole_moe = flag("whole_moe", self.whole_moe)?;
        let granted = flag("has_grant", self.has_grant)?.then_some(self.granted_bytes);
        let group = GroupDecision { whole_moe, dispatch_chunks: self.dispatch_chunks.max(1) };
        Ok(Gate { rows: self.rows, group, granted })
    }
}

impl From<LayerDecision> for bagualu_decision {
    fn from(decision: LayerDecision) -> Self {
        Self {
            struct_size: own_size::<Self>(),
            plan: decision.plan.into(),
            held_bytes: decision.held_bytes,
            offload_bytes: decision.offload_bytes,
            work_bytes: decision.work_bytes,
            recompute: decision.recompute as u32,
            dispatch_chunks: decision.dispatch_chunks,
            expert_chunks: decision.expert_chunks,
            replanned: decision.replanned.into(),
        }
    }
}

impl From<&Controller<'_>> for bagualu_controller_state {
    fn from(controller: &Controller<'_>) -> Self {
        let (ledger, budget, host) = (controller.ledger(), controller.budget(), controller.host_budget());
        let (plans, fronts) = (controller.plan_statistics(), controller.front_statistics());
        Self {
            struct_size: own_size::<Self>(),
            current_bytes: ledger.current(),
            pending_bytes: ledger.pending(),
            peak_bytes: ledger.peak(),
            device_bytes: ledger.device_bytes(),
            held_bytes: budget.held(),
            capacity_bytes: budget.capacity(),
            host_held_bytes: host.held(),
            host_bytes: host.capacity(),
            fingerprint: controller.fingerprint(),
            plan_hits: plans.hits,
            plan_misses: plans.misses,
            front_hits: fronts.hits,
            front_misses: fronts.misses,
        }
    }
}
