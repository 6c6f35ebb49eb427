//! The cxx bridge (feature `cxx`): the planner for C++ programs that are built together with Rust.
//!
//! Its ABI is that of one version of cxx, so it is an API of sources; the stable one is `bagualu.h`. What fails throws
//! `rust::Error`.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use ::bagualu_model::Memory;
use bagualu_core::controller::{Controller, Gate, Settings};
use bagualu_core::group::GroupDecision;
use bagualu_core::ledger::Admission;
use bagualu_core::provision::Aim;
use bagualu_core::schedule::Event;

use crate::model::Source;
use crate::plan::planned::{Choices, Description, Planned};
use crate::status::{Failure, bagualu_status};

#[cxx::bridge(namespace = "bagualu::bridge")]
#[allow(missing_docs, reason = "the generated half")]
mod ffi {
    /// A forward or a backward of one unit.
    struct ScheduledEvent {
        unit: u32,
        backward: bool,
    }

    /// What a forward may hold, bytes.
    struct Allowance {
        free: u64,
        limit: u64,
        quota: u64,
    }

    /// What is done with one layer of one micro-batch.
    struct Decision {
        /// A `bagualu_strategy` for each tensor of the layer.
        strategies: Vec<u8>,
        held_bytes: u64,
        offload_bytes: u64,
        work_bytes: u64,
        dispatch_chunks: u32,
        expert_chunks: u32,
        replanned: bool,
    }

    extern "Rust" {
        type Planner;

        /// Reads a launch script (or config, YAML, flags) and makes the controller of a pipeline rank on a device preset.
        /// `gpus` 0: what the launcher says.
        fn plan(script: &str, device: &str, gpus: u64, rank: u32) -> Result<Box<Planner>>;

        fn events(self: &Planner) -> Vec<ScheduledEvent>;
        fn layers(self: &Planner, unit: u32) -> Result<usize>;
        fn balanced_rows(self: &Planner) -> u32;
        fn fingerprint(self: &Planner) -> u64;

        // The order of calls is that of `bagualu_controller`; what returns bytes to wait for returns 0 to go on.
        fn forward(self: &mut Planner, unit: u32) -> Result<Allowance>;
        fn to_gate(self: &mut Planner) -> Result<u64>;
        fn gate(
            self: &mut Planner,
            layer: usize,
            rows: u32,
            whole_moe: bool,
            dispatch_chunks: u32,
        ) -> Result<Decision>;
        fn may_start(self: &mut Planner) -> Result<u64>;
        fn layer_done(self: &mut Planner) -> Result<u64>;
        fn forward_done(self: &mut Planner) -> Result<()>;
        fn copied_out(self: &mut Planner, unit: u32, bytes: u64) -> Result<()>;
        fn backward(self: &mut Planner, unit: u32) -> Result<()>;
        fn may_recover(self: &mut Planner, layer: usize) -> Result<u64>;
        fn recovered(self: &mut Planner) -> Result<()>;
        fn backward_done(self: &mut Planner) -> Result<()>;
        fn restart(self: &mut Planner) -> Result<()>;
    }
}

/// A controller for C++.
pub struct Planner {
    planned: Planned,
    /// Whose forward is under way.
    unit: u32,
    /// After a panic nothing can be said of it.
    broken: bool,
}

/// Makes the controller of a pipeline rank.
fn plan(script: &str, device: &str, gpus: u64, rank: u32) -> Result<Box<Planner>, Failure> {
    caught(|| {
        let (model, _) = Source::script(script, device, gpus)?.load()?;
        let choices = Choices {
            settings: Settings::default(),
            aim: Aim::default(),
            memory: Memory::default(),
            provision: None,
        };
        let planned = Planned::make(Description::of_model(&model, rank, false)?, choices)?;
        Ok(Box::new(Planner { planned, unit: 0, broken: false }))
    })
}

impl Planner {
    fn events(&self) -> Vec<ffi::ScheduledEvent> {
        let event = |event: &Event| match *event {
            Event::Forward(unit) => ffi::ScheduledEvent { unit, backward: false },
            Event::Backward(unit) => ffi::ScheduledEvent { unit, backward: true },
        };
        self.planned.description().events.iter().map(event).collect()
    }

    fn layers(&self, unit: u32) -> Result<usize, Failure> {
        Ok(self.kinds(unit)?.len())
    }

    fn balanced_rows(&self) -> u32 {
        self.planned.description().balanced_rows
    }

    fn fingerprint(&self) -> u64 {
        self.planned.controller().fingerprint()
    }

    fn forward(&mut self, unit: u32) -> Result<ffi::Allowance, Failure> {
        let allowance = self.step(|controller| controller.handle_forward(unit))?;
        self.unit = unit;
        Ok(ffi::Allowance { free: allowance.free, limit: allowance.limit, quota: allowance.quota })
    }

    fn to_gate(&mut self) -> Result<u64, Failure> {
        self.step(|controller| controller.poll_to_gate()).map(bytes_to_wait)
    }

    fn gate(
        &mut self,
        layer: usize,
        rows: u32,
        whole_moe: bool,
        dispatch_chunks: u32,
    ) -> Result<ffi::Decision, Failure> {
        let group = GroupDecision { whole_moe, dispatch_chunks: dispatch_chunks.max(1) };
        let gate = Gate { rows, group, granted: None };
        let decision = self.step(|controller| controller.handle_layer(layer, gate))?;
        let kinds = self.kinds(self.unit)?;
        let kind = *kinds.get(layer).ok_or_else(|| Failure::index("layer", layer, kinds.len()))?;
        let tensors = self.planned.description().types[kind as usize].tensors.len();
        Ok(ffi::Decision {
            strategies: (0..tensors).map(|tensor| decision.plan.strategy(tensor) as u8).collect(),
            held_bytes: decision.held_bytes,
            offload_bytes: decision.offload_bytes,
            work_bytes: decision.work_bytes,
            dispatch_chunks: decision.dispatch_chunks,
            expert_chunks: decision.expert_chunks,
            replanned: decision.replanned,
        })
    }

    fn may_start(&mut self) -> Result<u64, Failure> {
        self.step(|controller| controller.poll_layer()).map(bytes_to_wait)
    }

    fn layer_done(&mut self) -> Result<u64, Failure> {
        self.step(|controller| controller.handle_layer_done())
    }

    fn forward_done(&mut self) -> Result<(), Failure> {
        self.step(|controller| controller.handle_forward_done(None))
    }

    fn copied_out(&mut self, unit: u32, bytes: u64) -> Result<(), Failure> {
        self.step(|controller| controller.handle_copied_out(unit, bytes))
    }

    fn backward(&mut self, unit: u32) -> Result<(), Failure> {
        self.step(|controller| controller.handle_backward(unit))
    }

    fn may_recover(&mut self, layer: usize) -> Result<u64, Failure> {
        self.step(|controller| controller.poll_recovery(layer)).map(bytes_to_wait)
    }

    fn recovered(&mut self) -> Result<(), Failure> {
        self.step(|controller| controller.handle_recovery_done())
    }

    fn backward_done(&mut self) -> Result<(), Failure> {
        self.step(|controller| controller.handle_backward_done())
    }

    fn restart(&mut self) -> Result<(), Failure> {
        self.step(|controller| controller.restart())
    }

    /// The kind of each layer of a unit.
    fn kinds(&self, unit: u32) -> Result<&[u16], Failure> {
        let description = self.planned.description();
        let chunk = description.pipeline.parts(unit).1 as usize;
        let kinds = description.chunks.get(chunk).map(Vec::as_slice);
        kinds.ok_or_else(|| Failure::index("unit", unit as usize, description.events.len() / 2))
    }

    fn step<R, E: Into<Failure>>(
        &mut self,
        body: impl FnOnce(&mut Controller<'_>) -> Result<R, E>,
    ) -> Result<R, Failure> {
        if self.broken {
            let message = "an earlier call ended in an error of the library; make another planner";
            return Err(Failure::new(bagualu_status::Panic, message));
        }
        self.broken = true;
        let result = caught(|| self.planned.step(body).map_err(Into::into));
        self.broken = result.as_ref().is_err_and(|failure| failure.status == bagualu_status::Panic);
        result
    }
}

fn bytes_to_wait(admission: Admission) -> u64 {
    match admission {
        Admission::Run => 0,
        Admission::Wait { bytes } => bytes,
    }
}

/// cxx ends the process where a panic reaches it; here it is an error like any other.
fn caught<R>(body: impl FnOnce() -> Result<R, Failure>) -> Result<R, Failure> {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|payload| {
        std::mem::forget(payload);
        Err(Failure::new(bagualu_status::Panic, "an error in the library itself"))
    })
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}
