//! `bagualu_controller`: the run-time workflow of one rank.

use bagualu_core::controller::{Controller, Gate};
use bagualu_core::ledger::Admission;

use super::budget::bagualu_allowance;
use super::config::{bagualu_controller_config, bagualu_provision, read_choices};
use super::planned::{Description, Planned};
use super::schedule::{bagualu_event, bagualu_pipeline, write_events};
use super::stage::bagualu_stage;
use crate::arguments::{config, elements, optional, out, out_struct, own_size, room};
use crate::boundary::boundary;
use crate::handle::{self, handle};
use crate::model::bagualu_model;
use crate::status::{Failure, bagualu_status};

mod answers;
mod backward;

pub use answers::*;
pub use backward::*;

/// Decides for one pipeline rank, micro-batch by micro-batch, what to do with each saved tensor.
///
/// Made by `bagualu_controller_from_model` or `bagualu_controller_from_stage`, freed by `bagualu_controller_free`. It owns all
/// that it needs: model, stage and pipeline may be freed. No call allocates memory but those that make it. Functions
/// that take it as `const` may run at the same time on several threads, all others one at a time.
///
/// One iteration, in the order of `bagualu_controller_events`; names are those of the functions:
///
/// ```text
/// forward of a unit   forward; for each layer: to_gate (until it may run), gate, may_start (until it may), layer_done;
///                     forward_done
/// backward of a unit  backward; for each layer, last first: may_recover (until it may), recovered; backward_done
/// at any time         copied_out, recover_early; after a forward: correct
/// ```
pub struct bagualu_controller {
    _opaque: [u8; 0],
}

handle!(bagualu_controller, Object, 4);

/// A controller and what it borrows.
pub(crate) struct Object(Planned);

/// Makes the controller of one pipeline rank of a model. `config` may be NULL.
///
/// `BAGUALU_STATUS_INFEASIBLE` if even full recomputation does not fit; `bagualu_last_shortage` then has the bytes.
///
/// Thread-safe. `*controller` is the caller's, to be freed by `bagualu_controller_free`.
///
/// # Safety
/// - `config` is NULL or a struct with its `struct_size` set; `controller` is NULL or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bagualu_controller_from_model(
    model: *const bagualu_model,
    rank: u32,
    config: *const bagualu_controller_config,
    controller: *mut *mut bagualu_controller,
) -> bagualu_status {
    boundary(|| {
        // SAFETY: the contract of this function.
        let (out, (choices, fused)) = unsafe { (out(controller, "controller")?, read_choices(config)?) };
        let description = handle::with(model, |object| Description::of_model(&object.model, rank, fused))?;
        out.set(handle::insert(Object(Planned::make(description, choices)?))?);
        Ok(())
    })
}

/// Makes the controller of a pipeline rank that arrays describe. `config` may be NULL.
///
/// `BAGUALU_STATUS_INFEASIBLE` if even full recomputation does not fit; `bagualu_last_shortage` then has the bytes.
///
/// Thread-safe. Everything is copied. `*controller` is the caller's, to be freed by `bagualu_controller_free`.
///
/// # Safety
/// - Structs are NULL or have their `struct_size` set, and arrays as long as their counts; `controller` is NULL or may be
///   written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bagualu_controller_from_stage(
    stage: *const bagualu_stage,
    pipeline: *const bagualu_pipeline,
    config: *const bagualu_controller_config,
    controller: *mut *mut bagualu_controller,
) -> bagualu_status {
    boundary(|| {
        // SAFETY: the contract of this function.
        let (out, description, choices) = unsafe {
            let out = out(controller, "controller")?;
            let (choices, fused) = read_choices(config)?;
            let pipeline = self::config(pipeline, "pipeline")?.checked()?;
            let stage = self::config(stage, "stage")?;
            (out, Description::of_stage(&stage, pipeline, fused)?, choices)
        };
        out.set(handle::insert(Object(Planned::make(description, choices)?))?);
        Ok(())
    })
}

/// Frees a controller; NULL is nothing.
#[unsafe(no_mangle)]
pub extern "C" fn bagualu_controller_free(controller: *mut bagualu_controller) -> bagualu_status {
    boundary(|| handle::remove(controller).map(drop))
}

/// Writes the static decisions.
///
/// # Safety
/// - `provision` is NULL or a struct with its `struct_size` set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bagualu_controller_provision(
    controller: *const bagualu_controller,
    provision: *mut bagualu_provision,
) -> bagualu_status {
    boundary(|| {
        // SAFETY: the contract of this function.
        let out = unsafe { out_struct(provision, "provision") }?;
        out.set_struct(handle::with(controller, |object| Ok((*object.0.controller().provision()).into()))?);
        Ok(())
    })
}

/// Writes the events of an iteration in order; as `bagualu_pipeline_events`.
///
/// # Safety
/// - `events` is NULL or has room for `capacity`; `count` is NULL or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bagualu_controller_events(
    controller: *const bagualu_controller,
    events: *mut bagualu_event,
    capacity: usize,
    count: *mut usize,
) -> bagualu_status {
    boundary(|| {
        // SAFETY: the contract of this function.
        let (to, count) = unsafe { (room(events, capacity, "events")?, out(count, "count")?) };
        handle::with(controller, |object| {
            let events = &object.0.description().events;
            count.set(events.len());
            write_events(events, to)
        })
    })
}

/// Writes the type of each layer of a unit, in program order.
///
/// `count` always receives their number; if `capacity` is smaller, nothing else is written and the status is
/// `BAGUALU_STATUS_BUFFER_TOO_SMALL`.
///
/// # Safety
/// - `types` is NULL or has room for `capacity`; `count` is NULL or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bagualu_controller_layers(
    controller: *const bagualu_controller,
    unit: u32,
    types: *mut u16,
    capacity: usize,
    count: *mut usize,
) -> bagualu_status {
    boundary(|| {
        // SAFETY: the contract of this function.
        let (to, count) = unsafe { (room(types, capacity, "types")?, out(count, "count")?) };
        handle::with(controller, |object| {
            let description = object.0.description();
            let chunk = description.pipeline.parts(unit).1 as usize;
            let units = description.events.len() / 2;
            let layers = description.chunks.get(chunk);
            let layers = layers.ok_or_else(|| Failure::index("unit", unit as usize, units))?;
            count.set(layers.len());
            if to.count() < layers.len() {
                return Err(Failure::buffer("types", layers.len(), to.count()));
            }
            to.write(layers.iter().copied());
            Ok(())
        })
    })
}

/// Writes where a controller stands.
///
/// # Safety
/// - `state` is NULL or a struct with its `struct_size` set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bagualu_controller_read(
    controller: *const bagualu_controller,
    state: *mut bagualu_controller_state,
) -> bagualu_status {
    boundary(|| {
        // SAFETY: the contract of this function.
        let out = unsafe { out_struct(state, "state") }?;
        out.set_struct(handle::with(controller, |object| Ok(object.0.controller().into()))?);
        Ok(())
    })
}

/// Calls a step of the controller that gives a result of the core.
#[inline]
fn step<R, E: Into<Failure>>(
    controller: *mut bagualu_controller,
    body: impl FnOnce(&mut Controller<'_>) -> Result<R, E>,
) -> Result<R, Failure> {
    handle::with_mut(controller, |object| object.0.step(body).map_err(Into::into))
}

/// What an admission is in C: 0 to run, else the bytes to wait for.
fn bytes_to_wait(admission: Admission) -> u64 {
    match admission {
        Admission::Run => 0,
        Admission::Wait { bytes } => bytes,
    }
}

/// The forward of `unit` starts: its layers are planned at the rows expected. `allowance` may be NULL.
///
/// # Safety
/// - `allowance` is NULL or a struct with its `struct_size` set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bagualu_controller_forward(
    controller: *mut bagualu_controller,
    unit: u32,
    allowance: *mut bagualu_allowance,
) -> bagualu_status {
    boundary(|| {
        // SAFETY: the contract of this function.
        let out = optional(allowance, |to| unsafe { out_struct(to, "allowance") })?;
        let found = step(controller, |controller| controller.handle_forward(unit))?;
        if let Some(out) = out {
            out.set_struct(found.into());
        }
        Ok(())
    })
}

/// Whether the operators before the next layer's gate may start: `wait_bytes` receives 0 if so, else the bytes that
/// copies to the host must free first.
///
/// # Safety
/// - `wait_bytes` is NULL or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bagualu_controller_to_gate(
    controller: *mut bagualu_controller,
    wait_bytes: *mut u64,
) -> bagualu_status {
    boundary(|| {
        // SAFETY: the contract of this function.
        let out = unsafe { out(wait_bytes, "wait_bytes") }?;
        out.set(bytes_to_wait(step(controller, |controller| controller.poll_to_gate())?));
        Ok(())
    })
}

/// The gate of `layer` has run (`gate` may be NULL for a layer without a router): the plan is checked against the real
/// rows, changed where it does not fit, and written.
///
/// # Safety
/// - `gate` is NULL or a struct with its `struct_size` set; so is `decision`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bagualu_controller_gate(
    controller: *mut bagualu_controller,
    layer: usize,
    gate: *const bagualu_gate,
    decision: *mut bagualu_decision,
) -> bagualu_status {
    boundary(|| {
        // SAFETY: the contract of this function.
        let (out, gate) = unsafe {
            let gate = optional(gate.cast_mut(), |gate| config(gate, "gate"))?;
            (out_struct(decision, "decision")?, gate)
        };
        let gate = gate.map_or(Ok(Gate::DENSE), |gate| gate.checked())?;
        out.set_struct(step(controller, |controller| controller.handle_layer(layer, gate))?.into());
        Ok(())
    })
}

/// Whether the layer decided last may start: `wait_bytes` receives 0 if so, and its bytes are counted; else the bytes
/// that copies to the host must free first.
///
/// A layer that could never start whole runs its experts in row chunks: `bagualu_controller_decided` has what stands.
///
/// # Safety
/// - `wait_bytes` is NULL or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bagualu_controller_may_start(
    controller: *mut bagualu_controller,
    wait_bytes: *mut u64,
) -> bagualu_status {
    boundary(|| {
        // SAFETY: the contract of this function.
        let out = unsafe { out(wait_bytes, "wait_bytes") }?;
        out.set(bytes_to_wait(step(controller, |controller| controller.poll_layer())?));
        Ok(())
    })
}

/// The layer has run; its offloaded tensors are copied out now: `offload_bytes` (may be NULL) of them.
///
/// # Safety
/// - `offload_bytes` is NULL or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bagualu_controller_layer_done(
    controller: *mut bagualu_controller,
    offload_bytes: *mut u64,
) -> bagualu_status {
    boundary(|| {
        // SAFETY: the contract of this function.
        let out = optional(offload_bytes, |to| unsafe { out(to, "offload_bytes") })?;
        let bytes = step(controller, |controller| controller.handle_layer_done())?;
        if let Some(out) = out {
            out.set(bytes);
        }
        Ok(())
    })
}

/// The forward has ended; `measured` is what it really holds, NULL if that was not measured.
///
/// # Safety
/// - `measured` is NULL or may be read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bagualu_controller_forward_done(
    controller: *mut bagualu_controller,
    measured: *const u64,
) -> bagualu_status {
    boundary(|| {
        // SAFETY: the contract of this function.
        let measured = unsafe { elements(measured, usize::from(!measured.is_null()), "measured") }?;
        step(controller, |controller| controller.handle_forward_done(measured.first().copied()))
    })
}

/// A copy of `bytes` of `unit` to the host has ended.
#[unsafe(no_mangle)]
pub extern "C" fn bagualu_controller_copied_out(
    controller: *mut bagualu_controller,
    unit: u32,
    bytes: u64,
) -> bagualu_status {
    boundary(|| step(controller, |controller| controller.handle_copied_out(unit, bytes)))
}

/// What to offload because something holds more than its limit; `correction->tensors` is 0 if nothing. Call it after a
/// forward until it is.
///
/// # Safety
/// - `correction` is NULL or a struct with its `struct_size` set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bagualu_controller_correct(
    controller: *mut bagualu_controller,
    correction: *mut bagualu_correction,
) -> bagualu_status {
    boundary(|| {
        // SAFETY: the contract of this function.
        let out = unsafe { out_struct(correction, "correction") }?;
        let found = step(controller, |controller| controller.poll_correction())?;
        out.set_struct(bagualu_correction {
            struct_size: own_size::<bagualu_correction>(),
            tensors: found.map_or(0, |c| c.tensors.bits()),
            bytes: found.map_or(0, |c| c.bytes),
            unit: found.map_or(0, |c| c.unit),
            // A chunk has few layers.
            layer: found.map_or(0, |c| c.layer as u32),
        });
        Ok(())
    })
}

/// What was decided for a layer of a unit between its forward and its backward; `replanned` is 0.
///
/// # Safety
/// - `decision` is NULL or a struct with its `struct_size` set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bagualu_controller_decided(
    controller: *const bagualu_controller,
    unit: u32,
    layer: usize,
    decision: *mut bagualu_decision,
) -> bagualu_status {
    boundary(|| {
        // SAFETY: the contract of this function.
        let out = unsafe { out_struct(decision, "decision") }?;
        let record = handle::with(controller, |object| Ok(*object.0.controller().decided(unit, layer)?))?;
        out.set_struct(bagualu_decision {
            struct_size: own_size::<bagualu_decision>(),
            plan: record.plan.into(),
            held_bytes: record.held_bytes,
            offload_bytes: record.offload_bytes,
            work_bytes: record.forward_work_bytes,
            recompute: record.recompute as u32,
            dispatch_chunks: record.dispatch_chunks,
            expert_chunks: record.expert_chunks,
            replanned: 0,
        });
        Ok(())
    })
}

/// Starts the next iteration; everything of the last one must have ended.
#[unsafe(no_mangle)]
pub extern "C" fn bagualu_controller_restart(controller: *mut bagualu_controller) -> bagualu_status {
    boundary(|| step(controller, |controller| controller.restart()))
}

/// Forgets the iteration under way, for a program that has freed everything of it.
#[unsafe(no_mangle)]
pub extern "C" fn bagualu_controller_abandon(controller: *mut bagualu_controller) -> bagualu_status {
    boundary(|| {
        handle::with_mut(controller, |object| {
            object.0.step(|controller| controller.abandon());
            Ok(())
        })
    })
}
