//! In which order an executor runs the operators of a layer type, and how long it needs each tensor.

use bagualu_core::cost::{LayerModel, OpModel};
use bagualu_core::set::Set;

/// The order of one layer type.
#[derive(Clone, Debug)]
pub(crate) struct Order {
    /// Operators that need no routed row: they run before the gate's answer matters.
    pub before: Vec<u8>,
    /// Operators on routed rows, from dispatch to combine: what runs in row chunks.
    pub routed: Vec<u8>,
    /// The rest.
    pub after: Vec<u8>,
    /// All of them.
    pub all: Vec<u8>,
    /// Tensors that are stored somewhere: saved ones and block inputs.
    pub tracked: Set,
    /// Tracked tensors that no operator of the layer makes.
    pub received: Set,
    /// Tracked tensors that only routed operators make, read and save: they can exist in row chunks.
    pub routed_only: Set,
    /// Of these, what only the experts touch: it can exist in row chunks of the experts.
    pub experts_only: Set,
    /// Tracked tensors whose last forward reader is in `before`.
    pub done_before_gate: Set,
    last_read: Vec<Set>,
    released: Vec<Set>,
}

impl Order {
    pub fn new(model: &LayerModel<'_>) -> Self {
        let ops = model.ops;
        // Whatever the rows make slower or larger, or that touches a tensor of theirs.
        let is_routed = |op: &OpModel| {
            let scaled = op.forward.per_row_ps | op.backward.per_row_ps;
            let work = op.forward_work.per_row | op.backward_work.per_row;
            !((op.reads | op.makes | op.saves) & model.moe).is_empty() || scaled | work != 0
        };
        let (mut before, mut routed, mut after) = (Vec::new(), Vec::new(), Vec::new());
        // What can only be made once routed rows have come back.
        let mut late = Set::EMPTY;
        for (op, index) in ops.iter().zip(0u8..) {
            if is_routed(op) {
                routed.push(index);
                late |= op.makes;
            } else if !(op.reads & late).is_empty() {
                after.push(index);
                late |= op.makes;
            } else {
                before.push(index);
            }
        }
        let all: Vec<u8> = before.iter().chain(&routed).chain(&after).copied().collect();
        let experts: Vec<u8> = model.experts.iter().map(|op| op as u8).collect();
        let makes = ops.iter().fold(Set::EMPTY, |all, op| all | op.makes);
        let saves = ops.iter().fold(Set::EMPTY, |all, op| all | op.saves);
        let inputs: Set = (0..model.tensors.len()).filter(|&t| model.tensors[t].block_input).collect();
        let tracked = saves | inputs;

        let mut order = Self {
            tracked,
            received: tracked - makes,
            routed_only: (tracked - inputs) - touched_outside(model, &routed),
            experts_only: (tracked - inputs) - touched_outside(model, &experts),
            done_before_gate: Set::EMPTY,
            last_read: vec![Set::EMPTY; ops.len()],
            released: vec![Set::EMPTY; ops.len()],
            before,
            routed,
            after,
            all,
        };
        for tensor in (saves - inputs).iter() {
            order.link(model, tensor);
        }
        order
    }

    /// Notes after which operator's forward and backward `tensor` is not needed any more.
    fn link(&mut self, model: &LayerModel<'_>, tensor: usize) {
        let touches = |op: &&u8| {
            let op = &model.ops[**op as usize];
            (op.reads | op.makes).contains(tensor)
        };
        if let Some(&op) = self.all.iter().rev().find(touches) {
            self.last_read[op as usize].insert(tensor);
            if self.before.contains(&op) {
                self.done_before_gate.insert(tensor);
            }
        }
        if let Some(&op) = self.all.iter().find(|&&op| model.ops[op as usize].saves.contains(tensor)) {
            self.released[op as usize].insert(tensor);
        }
    }

    /// Saved tensors that no forward reads after `op`'s.
    pub fn last_read_by(&self, op: u8) -> Set {
        self.last_read[op as usize]
    }

    /// Saved tensors that no backward reads after `op`'s.
    pub fn released_by(&self, op: u8) -> Set {
        self.released[op as usize]
    }
}

/// Tensors that an operator outside `ops` touches.
fn touched_outside(model: &LayerModel<'_>, ops: &[u8]) -> Set {
    let outside = model.ops.iter().zip(0u8..).filter(|(_, index)| !ops.contains(index));
    outside.fold(Set::EMPTY, |all, (op, _)| all | op.reads | op.makes | op.saves)
}
