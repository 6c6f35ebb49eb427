//! Deferred planning (§V-A): what is planned before a forward, and what the real rows change.

use super::kind::bytes_at;
use super::{Controller, ControllerError, Forward, Gate, LayerRecord, LayerState};
use crate::cost::LayerModel;
use crate::layer::{Collectives, LayerPlan};
use crate::ledger::{Admission, LedgerError, Side};
use crate::limits::MAX_LAYERS;
use crate::mitigate::Limits;
use crate::plan_cache::{SelectionKey, round_down};
use crate::planner::{Demand, PlannerError, Request};
use crate::set::Set;
use crate::stage::{Held, Recompute, StageError};

/// Row chunks of the experts are tried up to this many.
const MOST_EXPERT_CHUNKS: u32 = 64;

impl Controller<'_> {
    /// Expects balanced rows in every routed layer of a chunk, and plans none below g at R*.
    pub(super) fn expect(&mut self, chunk: usize) -> Result<(), ControllerError> {
        let layers = self.stage.chunks[chunk];
        for (demand, &kind) in self.demands.iter_mut().zip(layers) {
            let routed = self.stage.types[kind as usize].routed;
            let rows = if routed { self.stage.balanced_rows } else { 0 };
            let recompute = match self.provision.recompute {
                Recompute::Local if rows > self.provision.row_threshold => Recompute::WholeMoe,
                other => other,
            };
            let least_bytes = self.kinds[kind as usize].floor.bytes;
            *demand = Demand { rows, recompute, least_bytes };
        }
        Ok(())
    }

    /// Plans the layers of a chunk from `first` on, the first of them within `first_bytes` too; `gated` says
    /// whether its gate has run.
    ///
    /// What the budget keeps for later layers always suffices for g, the last resort.
    pub(super) fn plan(
        &mut self,
        chunk: usize,
        first: usize,
        gated: bool,
        limits: Limits,
        first_bytes: u64,
    ) -> Result<(), ControllerError> {
        if self.keep_all(chunk, first, limits.bytes, first_bytes)? {
            return self.sum_later(chunk, first);
        }
        let planned = match self.known(chunk, first, gated, limits, first_bytes)? {
            true => Ok(()),
            false => self.plan_afresh(chunk, first, limits, first_bytes),
        };
        match planned {
            Ok(()) => {}
            Err(error) if error.is_infeasible() => return self.last_resort(chunk, first),
            Err(error) => return Err(error.into()),
        }
        self.sum_later(chunk, first)?;
        // The host budget keeps for each later layer what g needs; the knapsack does not know that.
        let host = self.first_held(chunk, first)?.host_bytes.saturating_add(self.later[first + 1].host_bytes);
        if host > limits.host_bytes { self.last_resort(chunk, first) } else { Ok(()) }
    }

    /// Keeps everything where everything fits: nothing is faster.
    fn keep_all(
        &mut self,
        chunk: usize,
        first: usize,
        bytes: u64,
        first_bytes: u64,
    ) -> Result<bool, ControllerError> {
        let layers = &self.stage.chunks[chunk][first..];
        let mut sum = 0u64;
        for (place, (&kind, demand)) in layers.iter().zip(&self.demands[first..]).enumerate() {
            let full = self.kinds[kind as usize].full(demand.rows).unwrap_or(u64::MAX);
            if demand.recompute != Recompute::Local || (place == 0 && full > first_bytes) {
                return Ok(false);
            }
            sum = sum.saturating_add(full.max(demand.least_bytes));
        }
        let fits = sum <= bytes;
        if fits {
            self.plans[first..first + layers.len()].fill(LayerPlan::KEEP);
        }
        Ok(fits)
    }

    /// Takes the plan for the rounded limits and rows from the cache, planned now if it is not there;
    /// false where there is none.
    fn known(
        &mut self,
        chunk: usize,
        first: usize,
        gated: bool,
        limits: Limits,
        first_bytes: u64,
    ) -> Result<bool, ControllerError> {
        let Demand { rows, recompute, .. } = self.demands[first];
        let limits = Limits {
            bytes: round_down(limits.bytes, self.byte_granule),
            host_bytes: round_down(limits.host_bytes, self.byte_granule),
        };
        // A grant is another limit, which the key does not have.
        if first_bytes != u64::MAX {
            return Ok(false);
        }
        let key = SelectionKey {
            chunk: chunk as u16,
            first: first as u16,
            gated,
            rows: self.planner.round_up(rows),
            recompute,
            bytes: limits.bytes,
            host_bytes: limits.host_bytes,
        };
        let count = self.stage.chunks[chunk].len() - first;
        if let Some(plan) = self.cache.find(&key) {
            self.plans[first..first + count].copy_from_slice(&plan[..count]);
            return Ok(true);
        }
        // Planned for the rounded rows, so that it holds for every row count of the key.
        self.demands[first].rows = key.rows;
        let planned = self.plan_afresh(chunk, first, limits, first_bytes);
        self.demands[first].rows = rows;
        match planned {
            Ok(()) => {
                let mut plan = [LayerPlan::KEEP; MAX_LAYERS];
                plan[..count].copy_from_slice(&self.plans[first..first + count]);
                self.cache.store(key, plan);
                Ok(true)
            }
            Err(error) if error.is_infeasible() => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn plan_afresh(
        &mut self,
        chunk: usize,
        first: usize,
        limits: Limits,
        first_bytes: u64,
    ) -> Result<(), PlannerError> {
        let kinds = &self.stage.chunks[chunk][first..];
        let request = Request { kinds, demands: &self.demands[first..], limits, first_bytes };
        self.planner.plan(&self.stage, &request, &mut self.plans[first..])?;
        Ok(())
    }

    /// The strongest local strategies for the layers from `first` on.
    fn last_resort(&mut self, chunk: usize, first: usize) -> Result<(), ControllerError> {
        for layer in first..self.stage.chunks[chunk].len() {
            let kind = self.kind_of(chunk, layer)?;
            let recompute = self.demands[layer].recompute;
            let storage = self.planner.layer_storage();
            // The same choice as StageModel::least_line, whose line the budget keeps.
            let at = self.stage.layer(kind as u16, self.stage.balanced_rows, recompute, storage)?;
            let mut plan = crate::floor::strongest_local(&at, Collectives::NONE).plan;
            plan.recompute |= self.kinds[kind].forced(recompute);
            self.plans[layer] = plan;
        }
        self.sum_later(chunk, first)
    }

    /// Sums what the layers after `first` are planned to hold: never less than g at R*.
    fn sum_later(&mut self, chunk: usize, first: usize) -> Result<(), ControllerError> {
        let layers = self.stage.chunks[chunk].len();
        self.later[layers] = Held::default();
        for layer in (first + 1..layers).rev() {
            let floor = self.kinds[self.kind_of(chunk, layer)?].floor;
            let held = self.first_held(chunk, layer)?;
            let held = Held {
                bytes: held.bytes.max(floor.bytes),
                host_bytes: held.host_bytes.max(floor.host_bytes),
            };
            self.later[layer] = self.later[layer + 1].plus(held)?;
        }
        Ok(())
    }

    /// What the forward under way will hold at its end if every gate to come is as planned, bytes; 0 without
    /// one. Layers to come are counted with g at R* at least.
    pub fn promised(&self) -> Result<u64, ControllerError> {
        let Some(forward) = self.forward else { return Ok(0) };
        if forward.state != LayerState::Waiting {
            return Ok(forward.used.bytes.saturating_add(self.later[forward.layer + 1].bytes));
        }
        let Some(&kind) = self.stage.chunks[forward.chunk].get(forward.layer) else {
            return Ok(forward.used.bytes);
        };
        let here = self.first_held(forward.chunk, forward.layer)?.bytes;
        let here = here.max(self.kinds[kind as usize].floor.bytes);
        Ok(forward.used.bytes.saturating_add(here).saturating_add(self.later[forward.layer + 1].bytes))
    }

    /// What one layer's plan holds at its demand's rows.
    fn first_held(&self, chunk: usize, layer: usize) -> Result<Held, ControllerError> {
        let Some(&kind) = self.stage.chunks[chunk].get(layer) else { return Ok(Held::default()) };
        let model = &self.stage.types[kind as usize];
        Ok(self.kinds[kind as usize].held(model, &self.plans[layer], self.demands[layer].rows)?)
    }

    /// Re-checks the plan with the real rows of `layer`; plans afresh where it does not fit, and says so.
    pub(super) fn deferred(
        &mut self,
        forward: &Forward,
        layer: usize,
        gate: &Gate,
    ) -> Result<bool, ControllerError> {
        let recompute = match self.provision.recompute {
            Recompute::Local if gate.group.whole_moe => Recompute::WholeMoe,
            other => other,
        };
        let expected = self.demands[layer].recompute;
        self.demands[layer] = Demand { rows: gate.rows, recompute, least_bytes: 0 };
        let limits = Limits {
            bytes: forward.device.limit.saturating_sub(forward.used.bytes),
            host_bytes: forward.host.limit.saturating_sub(forward.used.host_bytes),
        };
        let granted = gate.granted.map_or(u64::MAX, |g| g.saturating_sub(forward.used.bytes));
        let here = self.first_held(forward.chunk, layer)?;
        let all = here.plus(self.later[layer + 1])?;
        if expected == recompute
            && all.bytes <= limits.bytes
            && all.host_bytes <= limits.host_bytes
            && here.bytes <= granted
        {
            return Ok(false);
        }
        self.plan(forward.chunk, layer, true, limits, granted)?;
        Ok(true)
    }

    /// The record of a layer under its plan and real rows.
    pub(super) fn decide(
        &self,
        kind: usize,
        layer: usize,
        gate: &Gate,
    ) -> Result<LayerRecord, ControllerError> {
        let (model, info) = (&self.stage.types[kind], &self.kinds[kind]);
        let (plan, recompute) = (self.plans[layer], self.demands[layer].recompute);
        let dispatch_chunks = gate.group.dispatch_chunks.max(1);
        let held = info.held(model, &plan, gate.rows)?;
        // A split dispatch brings one part's rows at a time.
        let rows = gate.rows.div_ceil(dispatch_chunks);
        let (forward, backward) = model.work(rows).map_err(StageError::from)?;
        let gone = plan.recompute | plan.offload | plan.quantize;
        Ok(LayerRecord {
            plan,
            recompute,
            rows: gate.rows,
            dispatch_chunks,
            expert_chunks: 1,
            held_bytes: held.bytes,
            offload_bytes: held.host_bytes,
            forward_work_bytes: forward_work(model, &plan, rows, 1)?,
            backward_work_bytes: forward.max(backward),
            growth_bytes: bytes_at(model, gone, rows)?,
            local_growth_bytes: bytes_at(model, gone - info.forced(recompute), rows)?,
        })
    }

    /// Admits the layer decided last; in row chunks of its experts where it could never start whole.
    pub(super) fn admit(&mut self, forward: &Forward) -> Result<Admission, ControllerError> {
        let kind = self.kind_of(forward.chunk, forward.layer)?;
        let mut record = *self.record(forward.unit, forward.layer)?;
        loop {
            let stays = record.held_bytes.saturating_add(record.offload_bytes);
            let work = record.forward_work_bytes;
            let admission = self.ledger.admit(Side::Forward, forward.unit, stays, record.offload_bytes, work);
            let model = &self.stage.types[kind];
            match admission {
                Err(LedgerError::Starved { .. })
                    if !model.experts.is_empty() && record.expert_chunks < MOST_EXPERT_CHUNKS =>
                {
                    record.expert_chunks *= 2;
                    let rows = record.rows.div_ceil(record.dispatch_chunks);
                    record.forward_work_bytes =
                        forward_work(model, &record.plan, rows, record.expert_chunks)?;
                }
                Ok(admission) => {
                    *self.record_mut(forward.unit, forward.layer)? = record;
                    return Ok(admission);
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    pub(super) fn kind_of(&self, chunk: usize, layer: usize) -> Result<usize, ControllerError> {
        let kind = self.stage.chunks.get(chunk).and_then(|layers| layers.get(layer));
        let kind = kind.ok_or(StageError::NoSuchLayer { chunk, layer })?;
        Ok(*kind as usize)
    }
}

/// Bytes needed only while the forward runs: tensors made and then dropped or narrowed, and the hungriest
/// operator. Experts in `chunks` row chunks need theirs one chunk at a time, beside what the other chunks
/// put out for the operators after them.
fn forward_work(
    model: &LayerModel<'_>,
    plan: &LayerPlan,
    rows: u32,
    chunks: u32,
) -> Result<u64, ControllerError> {
    let part = rows.div_ceil(chunks);
    let (mut made_by_experts, mut read_after, mut saved) = (Set::EMPTY, Set::EMPTY, Set::EMPTY);
    for (index, op) in model.ops.iter().enumerate() {
        saved |= op.saves;
        match model.experts.contains(index) {
            true => made_by_experts |= op.makes,
            false => read_after |= op.reads,
        }
    }
    let output = (made_by_experts & read_after) - saved;
    let beside = bytes_at(model, output, rows)? - bytes_at(model, output, part)?;
    let dropped = plan.recompute | plan.quantize;
    let whole = bytes_at(model, dropped - (plan.recompute & made_by_experts), rows)?;
    let in_parts = bytes_at(model, plan.recompute & made_by_experts, part)?;
    let mut most = 0;
    for (index, op) in model.ops.iter().enumerate() {
        let (rows, beside) = if model.experts.contains(index) { (part, beside) } else { (rows, 0) };
        let work = op.forward_work.at(rows).and_then(|work| work.checked_add(beside));
        most = most.max(work.ok_or(StageError::Overflow)?);
    }
    let sum = whole.checked_add(in_parts).and_then(|b| b.checked_add(most));
    Ok(sum.ok_or(StageError::Overflow)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::{Bytes, OpModel, TensorModel, Time};
    use crate::layer::Resource;

    #[test]
    fn experts_in_row_chunks_stand_beside_their_output() {
        let per_row = |bytes| TensorModel { bytes: Bytes::per_row(bytes), ..Default::default() };
        let tensors = [per_row(1), per_row(10)];
        let op = |reads, makes, work| OpModel {
            reads: Set::one(reads),
            makes,
            saves: Set::EMPTY,
            forward: Time::default(),
            backward: Time::default(),
            resource: Resource::Compute,
            collective: None,
            forward_work: Bytes::per_row(work),
            backward_work: Bytes::default(),
        };
        let ops = [op(0, Set::one(1), 30), op(1, Set::EMPTY, 20)];
        let (moe, experts) = (Set::EMPTY, Set::one(0));
        let model = LayerModel { tensors: &tensors, ops: &ops, moe, experts, routed: true };
        let work = |chunks| forward_work(&model, &LayerPlan::KEEP, 8, chunks).expect("small");
        // Whole; the half of 30 a row, beside the other half's output of 10; the operator after them.
        assert_eq!([work(1), work(2), work(8)], [240, 160, 160]);
        let model = LayerModel { ops: &ops[..1], ..model };
        let work = |chunks| forward_work(&model, &LayerPlan::KEEP, 8, chunks).expect("small");
        assert_eq!([work(1), work(2)], [240, 120], "nobody reads it after them");
        let ops = [ops[0], op(1, Set::EMPTY, 0)];
        let model = LayerModel { ops: &ops, ..model };
        let work = |chunks| forward_work(&model, &LayerPlan::KEEP, 8, chunks).expect("small");
        assert_eq!([work(1), work(2), work(8)], [240, 120 + 40, 30 + 70]);
    }
}
