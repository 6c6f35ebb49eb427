//! A pipeline rank with real buffers: a layer type small enough to write down, operators that compute something,
//! and a check of every tensor at its backward.
#![allow(dead_code, reason = "each test uses its part")]

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bagualu_core::controller::{Controller, ControllerError, Gate, LayerDecision, Settings};
use bagualu_core::cost::{LayerModel, LayerStorage, Rooflines};
use bagualu_core::group::{GroupRows, RowThreshold};
use bagualu_core::layer::Strategy;
use bagualu_core::provision::{Aim, Provision};
use bagualu_core::roofline::Knee;
use bagualu_core::schedule::{Event, Pipeline};
use bagualu_core::stage::StageModel;
use bagualu_exec::device::{Device, DeviceSlice, Stream, StreamUse};
use bagualu_exec::engine::{Engine, EngineConfig};
use bagualu_exec::rank::{Rank, RankError};
use bagualu_exec::recompute::{Again, HookError, NoHook};
use bagualu_exec::store::{DeviceAllocator, Saved, Store, StoreError};
use bagualu_model::{Buffers, Memory};

mod fused;
mod job;
mod operators;
mod runner;
pub mod twisted;

pub use job::{Job, Outcome};
use operators::*;
use runner::Runner;

/// Micro-batches of an iteration.
const MICRO_BATCHES: u32 = 8;
/// Layers of each model chunk.
const CHUNKS: [&[u16]; 2] = [&[0, 0], &[0]];

/// Runs a job on `device`, which has D bytes.
pub fn run(device: Arc<dyn Device>, job: Job) -> Result<Outcome, RankError> {
    run_with(device, job, &mut |_| {})
}

/// The same; `after` is called after each iteration.
pub fn run_with(device: Arc<dyn Device>, job: Job, after: &mut dyn FnMut(u64)) -> Result<Outcome, RankError> {
    let (tensors, ops) = (tensors(), ops());
    let types = [LayerModel {
        tensors: &tensors,
        ops: &ops,
        moe: [DISPATCHED, FC1, ACT].into_iter().collect(),
        experts: [4usize, 5, 6].into_iter().collect(),
        routed: true,
    }];
    let stage = stage(&types, &job);
    let pipeline = Pipeline::new(4, 0, MICRO_BATCHES).interleaved(job.chunks);
    let units = pipeline.units().expect("a schedule") as usize;
    let mut events = vec![Event::Forward(0); 2 * units];
    pipeline.events(&mut events).expect("a schedule");
    let mut buffers = Buffers::remembering(&stage, units, Memory { fronts: 16, points: 256, plans: 64 });
    let provision = {
        let (units, _) = buffers.scratch();
        let mut storage = LayerStorage::new();
        Provision::solve(&stage, &pipeline, &events, Aim::default(), units, &mut storage).expect("feasible")
    };
    let controller =
        Controller::new(stage, pipeline, &events, provision, Settings::default(), buffers.storage())
            .expect("a controller");
    let compute = device.create_stream(StreamUse::Compute).expect("a stream");
    let engine = Engine::new(Arc::clone(&device), EngineConfig::for_rank(&stage, &events))
        .map_err(|error| RankError::Store(error.into()))?;
    let allocator = Box::new(DeviceAllocator::new(Arc::clone(&device)));
    let store = Store::new(stage, pipeline, engine, allocator, compute).expect("a store");
    let runner = match job.controlled {
        true => Runner::Planned(Box::new(Rank::new(controller, store, &events))),
        false => Runner::Kept(Box::new(store)),
    };
    let mut program = Program {
        rank: runner,
        device: Arc::clone(&device),
        compute,
        rule: RowThreshold::new(&provision),
        random: job.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
        job,
        checks: Arc::new(Checks::default()),
        rows: vec![[0; 2]; units],
        own: Vec::with_capacity(64),
        beside: None,
        outcome: Outcome::default(),
        iteration: 0,
    };
    let result = program.iterations(&events, after);
    let outcome = program.end(result.is_err());
    device.destroy_stream(compute).expect("its own stream");
    result.map(|()| outcome)
}

fn stage<'a>(types: &'a [LayerModel<'a>], job: &Job) -> StageModel<'a> {
    let casts = if job.casts { 6_000_000_000 } else { 0 };
    let knee = |bytes_per_s| Knee { size_bytes: 1_024, bytes_per_s };
    StageModel {
        types,
        chunks: &CHUNKS[..job.chunks as usize],
        rooflines: Rooflines {
            copy_out: knee(2_000_000_000),
            copy_in: knee(3_000_000_000),
            cast: knee(casts),
            uncast: knee(casts),
        },
        balanced_rows: BALANCED,
        device_bytes: job.device_bytes,
        host_bytes: job.host_bytes,
        fused: job.fused && job.work_for_both,
    }
}

struct Program<'c> {
    rank: Runner<'c>,
    device: Arc<dyn Device>,
    compute: Stream,
    rule: RowThreshold,
    random: u64,
    job: Job,
    checks: Arc<Checks>,
    rows: Vec<[u32; 2]>,
    /// Allocated, and neither saved nor given back: the program's own.
    own: Vec<DeviceSlice>,
    /// A backward layer that has been recovered while a forward layer runs.
    beside: Option<(u32, usize)>,
    outcome: Outcome,
    iteration: u64,
}

impl Program<'_> {
    /// Frees everything; what it did.
    fn end(mut self, failed: bool) -> Outcome {
        if failed {
            self.abandon();
        }
        let _ = self.device.synchronize(self.compute);
        let checks = &self.checks;
        Outcome {
            counts: self.rank.counts(),
            checked: checks.done.load(Ordering::Relaxed),
            wrong: checks.wrong.load(Ordering::Relaxed),
            hooks: checks.hooks.load(Ordering::Relaxed),
            high_water: self.rank.store().engine().usage().pool.high_water,
            ..self.outcome
        }
    }

    fn iterations(&mut self, events: &[Event], after: &mut dyn FnMut(u64)) -> Result<(), RankError> {
        for iteration in 0..self.job.iterations {
            self.iteration = iteration;
            match self.iteration(events) {
                Err(RankError::Store(StoreError::Hook { .. })) if self.job.failing_hook.is_some() => {
                    self.abandon();
                    self.outcome.abandoned += 1;
                }
                ended => ended?,
            }
            after(iteration);
        }
        Ok(())
    }

    fn iteration(&mut self, events: &[Event]) -> Result<(), RankError> {
        let mut rest = events;
        loop {
            rest = match *rest {
                [Event::Forward(forward), Event::Backward(backward), ref rest @ ..]
                    if self.job.fused && forward != backward =>
                {
                    self.fused(forward, backward)?;
                    rest
                }
                [Event::Forward(unit), ref rest @ ..] => {
                    self.forward(unit)?;
                    rest
                }
                [Event::Backward(unit), ref rest @ ..] => {
                    self.backward(unit)?;
                    rest
                }
                [] => break,
            };
        }
        self.rank.end_iteration()
    }

    fn layers(&self, unit: u32) -> usize {
        CHUNKS[(unit / MICRO_BATCHES) as usize].len()
    }

    fn abandon(&mut self) {
        self.rank.abandon();
        for memory in std::mem::take(&mut self.own) {
            // SAFETY: the program's own, used on the compute stream alone. If that is lost, it stays.
            let _ = unsafe { self.rank.free(memory) };
        }
    }

    fn allocate(&mut self, bytes: u64) -> Result<DeviceSlice, RankError> {
        let memory = self.rank.allocate(bytes)?;
        self.own.push(memory);
        Ok(memory)
    }

    fn free(&mut self, memory: DeviceSlice) -> Result<(), RankError> {
        self.own.retain(|own| *own != memory);
        // SAFETY: allocated by the rank, used on the compute stream alone, given back once.
        unsafe { self.rank.free(memory) }
    }

    fn forward(&mut self, unit: u32) -> Result<(), RankError> {
        if self.job.drained {
            self.rank.drain()?;
        }
        self.rank.begin_forward(unit)?;
        let mut held = 0;
        for layer in 0..self.layers(unit) {
            held += self.begin_layer(unit, layer)?.held_bytes;
            self.rank.layer_done(unit, layer)?;
        }
        let above = self.job.measured_above;
        self.rank.end_forward((above > 0).then_some(held + above))
    }

    /// Runs a layer's forward, but for its end.
    fn begin_layer(&mut self, unit: u32, layer: usize) -> Result<LayerDecision, RankError> {
        self.step(|rank| rank.reach_gate())?;
        let mut memory = [DeviceSlice::new(0, 0); 7];
        for (tensor, bytes) in FIXED.into_iter().enumerate() {
            memory[tensor] = self.allocate(bytes)?;
        }
        self.launch(Operator::Input { seed: self.seed_of(unit, layer), out: memory[X_IN] });
        for op in 0..3 {
            self.operate(op, &memory, 0, memory[MAKES[op].1]);
        }
        let rows = self.draw_rows();
        self.rows[unit as usize][layer] = rows;
        let decision = self.decide(unit, layer, rows)?;
        self.experts(&decision, rows, &mut memory)?;
        for (tensor, &memory) in memory.iter().enumerate().filter(|(_, memory)| memory.address() != 0) {
            self.save(unit, layer, tensor, memory)?;
        }
        for op in 0..6 {
            self.note(unit, layer, op)?;
        }
        Ok(decision)
    }

    fn decide(&mut self, unit: u32, layer: usize, rows: u32) -> Result<LayerDecision, RankError> {
        let group = self.rule.decide(&GroupRows::new(&[rows]).expect("one rank"));
        let gate = Gate { rows, group, granted: None };
        let decision = self.step(|rank| rank.gate(unit, layer, gate))?;
        self.outcome.split += u64::from(decision.dispatch_chunks > 1);
        self.outcome.in_row_chunks += u64::from(decision.expert_chunks > 1);
        Ok(decision)
    }

    /// Dispatch and experts, in as many parts as decided. What is dropped and exists in parts is freed here.
    fn experts(
        &mut self,
        decision: &LayerDecision,
        rows: u32,
        memory: &mut [DeviceSlice; 7],
    ) -> Result<(), RankError> {
        let in_parts = |tensor: usize| {
            let split = decision.dispatch_chunks > 1 || (decision.expert_chunks > 1 && tensor != DISPATCHED);
            split && decision.plan.strategy(tensor) == Strategy::Recompute
        };
        for tensor in [DISPATCHED, FC1, ACT].into_iter().filter(|&tensor| !in_parts(tensor)) {
            memory[tensor] = self.allocate(u64::from(rows) * ROW)?;
        }
        for (first, end) in ranges(0, rows, decision.dispatch_chunks) {
            // Dispatched rows of this part.
            let dispatched = self.part(memory[DISPATCHED], first, end)?;
            self.operate(3, memory, first, dispatched.memory);
            for (from, to) in ranges(first, end, decision.expert_chunks) {
                let read = u64::from(from - first) * ROW;
                let read = dispatched.memory.part(read, u64::from(to - from) * ROW).expect("inside");
                let fc1 = self.part(memory[FC1], from, to)?;
                self.launch(Operator::Map { op: 4, from: read, first: 0, out: fc1.memory });
                let act = self.part(memory[ACT], from, to)?;
                self.launch(Operator::Map { op: 5, from: fc1.memory, first: 0, out: act.memory });
                // Work of the last operator.
                let work = self.allocate(u64::from(to - from) * ROW)?;
                self.launch(Operator::Map { op: 6, from: act.memory, first: 0, out: work });
                self.give_back(Part { memory: work, own: true })?;
                self.give_back(act)?;
                self.give_back(fc1)?;
            }
            self.give_back(dispatched)?;
        }
        Ok(())
    }

    /// Rows of a tensor that is there whole, or memory for them alone.
    fn part(&mut self, whole: DeviceSlice, first: u32, end: u32) -> Result<Part, RankError> {
        let bytes = u64::from(end - first) * ROW;
        if whole.address() != 0 {
            let memory = whole.part(u64::from(first) * ROW, bytes).expect("inside");
            return Ok(Part { memory, own: false });
        }
        Ok(Part { memory: self.allocate(bytes)?, own: true })
    }

    fn give_back(&mut self, part: Part) -> Result<(), RankError> {
        if part.own { self.free(part.memory) } else { Ok(()) }
    }

    fn save(&mut self, unit: u32, layer: usize, tensor: usize, memory: DeviceSlice) -> Result<(), RankError> {
        let saved = Saved { memory, cast: cast_of(tensor, memory.bytes()) };
        self.own.retain(|own| *own != memory);
        // SAFETY: the memory is the rank's allocator's and written on the compute stream alone.
        unsafe { self.rank.save(unit, layer, tensor, saved) }
    }

    /// What the hook is given must be what was left here.
    fn note(&mut self, unit: u32, layer: usize, op: usize) -> Result<(), RankError> {
        let payload = self.seed_of(unit, layer) ^ op as u64;
        let rng = payload.to_le_bytes();
        self.rank.remember(unit, layer, op, payload, &rng)
    }

    fn backward(&mut self, unit: u32) -> Result<(), RankError> {
        self.rank.begin_backward(unit)?;
        for layer in (0..self.layers(unit)).rev() {
            self.misuse(unit, None);
            self.recover(unit, layer)?;
            self.misuse(unit, Some(layer));
            self.undo(unit, layer)?;
        }
        self.rank.end_backward()
    }

    /// Takes every step of a backward that is not the next one.
    fn misuse(&mut self, unit: u32, recovered: Option<usize>) {
        if !self.job.misused {
            return;
        }
        let refused = |step: &str, result: Result<(), RankError>| match result {
            Err(RankError::Store(StoreError::OutOfOrder { .. }))
            | Err(RankError::Controller(ControllerError::OutOfOrder { .. })) => {}
            other => panic!("{step} of {unit}, {recovered:?} recovered: {other:?}"),
        };
        for layer in (0..self.layers(unit)).filter(|&layer| Some(layer) != recovered) {
            refused("layer_undone", self.rank.layer_undone(unit, layer));
            if recovered.is_some() {
                refused("recover", self.rank.recover(unit, layer, &mut NoHook));
            }
        }
        if let Some(layer) = recovered {
            refused("recover", self.rank.recover(unit, layer, &mut NoHook));
        }
        refused("end_backward", self.rank.end_backward());
        refused("begin_backward", self.rank.begin_backward(unit));
    }

    fn recover(&mut self, unit: u32, layer: usize) -> Result<(), RankError> {
        let mut hook = self.hook(unit, layer);
        self.rank.recover(unit, layer, &mut hook)
    }

    /// Runs a recovered layer's backward.
    fn undo(&mut self, unit: u32, layer: usize) -> Result<(), RankError> {
        let mut hook = self.hook(unit, layer);
        let parts = self.rank.store().parts(unit, layer)?;
        let rows = self.rows[unit as usize][layer];
        let work = self.allocate(u64::from(rows.div_ceil(parts)) * ROW)?;
        for (part, (first, end)) in ranges(0, rows, parts).enumerate() {
            if parts > 1 {
                self.rank.recover_part(unit, layer, part as u32, &mut hook)?;
            }
            for tensor in X_IN..=ACT {
                self.check(unit, layer, tensor, first, end, parts > 1)?;
            }
        }
        self.free(work)?;
        self.rank.layer_undone(unit, layer)
    }

    fn hook(&self, unit: u32, layer: usize) -> impl FnMut(&Again<'_>) -> Result<(), HookError> + use<> {
        let (seed, device, calls) =
            (self.seed_of(unit, layer), Arc::clone(&self.device), Arc::clone(&self.checks));
        let (operators, failing) = (self.job.operators, self.job.failing_hook);
        move |again| {
            let call = calls.hooks.fetch_add(1, Ordering::Relaxed);
            match (failing == Some(call), operators) {
                (true, _) => Err("it was to fail".into()),
                (_, true) => again_of(&device, seed, again),
                _ => Ok(()),
            }
        }
    }

    /// Compares a tensor with what its operators make from scratch; rows `first..end` where it came in parts.
    fn check(
        &mut self,
        unit: u32,
        layer: usize,
        tensor: usize,
        first: u32,
        end: u32,
        in_parts: bool,
    ) -> Result<(), RankError> {
        let memory = self.rank.tensor(unit, layer, tensor)?;
        let routed = tensor >= DISPATCHED;
        let bytes = if routed { u64::from(end - first) * ROW } else { memory.bytes() };
        let memory = memory.part(0, bytes).expect("inside");
        let start = if routed && in_parts { first } else { 0 };
        let (seed, checks) = (self.seed_of(unit, layer), Arc::clone(&self.checks));
        self.launch(Operator::Check { seed, tensor, start, memory, checks });
        Ok(())
    }

    fn operate(&self, op: usize, memory: &[DeviceSlice; 7], first: u32, out: DeviceSlice) {
        self.launch(Operator::Map { op, from: memory[MAKES[op].0], first, out });
    }

    fn launch(&self, operator: Operator) {
        if self.job.operators {
            launch(&*self.device, self.compute, operator);
        }
    }

    fn seed_of(&self, unit: u32, layer: usize) -> u64 {
        self.job.seed ^ self.iteration << 20 ^ u64::from(unit) << 4 ^ layer as u64
    }

    /// Mostly around the balanced rows, sometimes none, sometimes a spike of three times as many.
    fn draw_rows(&mut self) -> u32 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        match self.random % 16 {
            0 => 0,
            1 | 2 => BALANCED * 3,
            3 => BALANCED * 2,
            _ => BALANCED / 2 + (self.random >> 8) as u32 % BALANCED,
        }
    }
}

#[derive(Clone, Copy)]
struct Part {
    memory: DeviceSlice,
    own: bool,
}
