//! `bagualu_rank`: a pipeline rank that runs its plan on real buffers.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bagualu_core::controller::Gate;
use bagualu_exec::device::{Device, DeviceSlice, Stream};
use bagualu_exec::engine::{Engine, EngineConfig};
use bagualu_exec::rank::{Rank, RankError};
use bagualu_exec::store::{Allocator, DeviceAllocator, Saved, Store};
use self_cell::self_cell;

use crate::arguments::{config, elements, optional, out, out_struct, own_size, versioned};
use crate::boundary::boundary;
use crate::cast::{bagualu_cast, parsed};
use crate::device::{bagualu_device, bagualu_memory};
use crate::handle::{self, handle};
use crate::model::bagualu_model;
use crate::plan::planned::{Choices, Description, Storage};
use crate::plan::{
    bagualu_controller_config, bagualu_controller_state, bagualu_decision, bagualu_gate, bagualu_pipeline,
    bagualu_provision, bagualu_stage, read_choices,
};
use crate::status::{Failure, bagualu_status};

mod allocator;
mod backward;
mod hook;

use allocator::Callbacks;
pub use allocator::bagualu_allocator;
pub use backward::*;
use hook::Hooked;
pub use hook::{bagualu_again, bagualu_hook};

/// Runs one pipeline rank under its plan: a controller in step with the saved tensors, which are kept, copied to the host,
/// cast or dropped, and brought back before their backward.
///
/// Made by `bagualu_rank_from_model` or `bagualu_rank_from_stage`, freed by `bagualu_rank_free`. One call at a time. The program
/// runs its operators on its compute stream. A call that admits an operator blocks until the bytes that it counts on
/// are free: when it returns, the operator may allocate and be submitted. The order, in that of the schedule; names are
/// those of the functions:
///
/// ```text
/// forward of a unit   begin_forward; for each layer: to_gate, (router), gate, (experts) save of each saved tensor, layer_done;
///                     end_forward
/// backward of a unit  begin_backward; for each layer, last first: recover, (backward, which reads tensor), layer_undone;
///                     end_backward
/// after all           end_iteration; after an error: abandon
/// ```
pub struct bagualu_rank {
    _opaque: [u8; 0],
}

handle!(bagualu_rank, Object, 8);

/// A rank. Its allocator need not bear two threads at once, so reading locks too.
pub(crate) struct Object(Mutex<Cell>);

self_cell!(
    struct Cell {
        owner: Storage,
        #[covariant]
        dependent: Rank,
    }
);

/// What a rank runs on. `compute` and `device` are needed, the rest may be 0.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct bagualu_rank_config {
    /// sizeof(bagualu_rank_config), set by the caller.
    pub struct_size: usize,
    /// The device.
    pub device: *const bagualu_device,
    /// The program's compute stream on it.
    pub compute: u64,
    /// How it plans; NULL: the default.
    pub controller: *const bagualu_controller_config,
    /// Where device memory comes from; NULL: the device.
    pub allocator: *const bagualu_allocator,
    /// Pinned memory, bytes; 0: what the plan needs, that is its host bytes and, since each tensor is rounded up, 256 for
    /// each that may be out at once. Less is refused.
    pub pool_bytes: u64,
    /// Reloads due at once, bytes; 0: a quarter of the pool.
    pub window_bytes: u64,
    /// Reloads due at once; 0: 64.
    pub window_tensors: u32,
    /// 0.
    pub reserved: u32,
}

versioned!(bagualu_rank_config, reserved);

/// What a rank has done since it was made.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct bagualu_rank_counts {
    /// sizeof(bagualu_rank_counts), set by the caller.
    pub struct_size: usize,
    /// Layers whose real rows changed the plan.
    pub replanned: u64,
    /// Waits for copies before an operator could start.
    pub waits: u64,
    /// Units brought back before their backward.
    pub early: u64,
    /// Kept tensors that were offloaded after all.
    pub corrections: u64,
    /// Bytes offloaded.
    pub offloaded_bytes: u64,
    /// Tensors offloaded.
    pub offloaded: u64,
    /// Tensors recomputed.
    pub recomputed: u64,
    /// Tensors quantised.
    pub quantized: u64,
    /// The most pinned memory ever taken at once, bytes.
    pub pinned_high_water: u64,
}

versioned!(bagualu_rank_counts);

/// Makes a rank of a model.
///
/// Thread-safe. `*out` is the caller's, to be freed by `bagualu_rank_free`; model and device handles may be freed before.
///
/// # Safety
/// - `config` is NULL or a struct with its `struct_size` set, as are the structs in it; its stream is one of its device, its
///   allocator's functions may be called until the rank is freed; `out` is NULL or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bagualu_rank_from_model(
    model: *const bagualu_model,
    rank: u32,
    config: *const bagualu_rank_config,
    out: *mut *mut bagualu_rank,
) -> bagualu_status {
    boundary(|| {
        // SAFETY: the contract of this function.
        let (out, parts) = unsafe { (crate::arguments::out(out, "out")?, Parts::read(config)?) };
        let describe =
            |object: &crate::model::Object| Description::of_model(&object.model, rank, parts.fused);
        let description = handle::with(model, describe)?;
        out.set(handle::insert(parts.make(description)?)?);
        Ok(())
    })
}

/// Makes a rank that arrays describe.
///
/// Thread-safe. Everything is copied. `*out` is the caller's, to be freed by `bagualu_rank_free`; the device's handle may be
/// freed before.
///
/// # Safety
/// - As for `bagualu_rank_from_model` and `bagualu_controller_from_stage`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bagualu_rank_from_stage(
    stage: *const bagualu_stage,
    pipeline: *const bagualu_pipeline,
    config: *const bagualu_rank_config,
    out: *mut *mut bagualu_rank,
) -> bagualu_status {
    boundary(|| {
        // SAFETY: the contract of this function.
        let (out, parts, description) = unsafe {
            let out = crate::arguments::out(out, "out")?;
            let parts = Parts::read(config)?;
            let pipeline = self::config(pipeline, "pipeline")?.checked()?;
            let stage = self::config(stage, "stage")?;
            let description = Description::of_stage(&stage, pipeline, parts.fused)?;
            (out, parts, description)
        };
        out.set(handle::insert(parts.make(description)?)?);
        Ok(())
    })
}

/// What a rank is made of beside its description.
struct Parts {
    given: bagualu_rank_config,
    choices: Choices,
    fused: bool,
    device: Arc<dyn Device>,
    allocator: Box<dyn Allocator>,
}

impl Parts {
    /// # Safety
    /// - As for [`bagualu_rank_from_model`].
    unsafe fn read(from: *const bagualu_rank_config) -> Result<Self, Failure> {
        // SAFETY: the contract of this function.
        let (given, (choices, fused), callbacks) = unsafe {
            let given = config(from, "config")?;
            let callbacks =
                optional(given.allocator.cast_mut(), |from| Callbacks::new(config(from, "allocator")?))?;
            (given, read_choices(given.controller)?, callbacks)
        };
        let device = handle::with(given.device, |object| Ok(Arc::clone(&object.device)))?;
        let allocator: Box<dyn Allocator> = match callbacks {
            Some(callbacks) => Box::new(callbacks),
            None => Box::new(DeviceAllocator::new(Arc::clone(&device))),
        };
        Ok(Self { given, choices, fused, device, allocator })
    }

    fn make(self, description: Description) -> Result<Object, Failure> {
        let Self { given, choices, device, allocator, .. } = self;
        description.check_tensors()?;
        let storage = Storage::new(description, choices)?;
        let cell = Cell::try_new(storage, |storage| {
            let (stage, events) = (storage.stage(), &storage.description().events);
            let mut engine = EngineConfig::for_rank(&stage, events);
            if given.pool_bytes > 0 {
                engine.pool.cap_bytes = given.pool_bytes;
                engine.window_bytes = given.pool_bytes / 4;
            }
            if given.window_bytes > 0 {
                engine.window_bytes = given.window_bytes;
            }
            if given.window_tensors > 0 {
                engine.window_tensors = given.window_tensors;
            }
            let controller = storage.controller()?;
            let engine = Engine::new(device, engine)?;
            let compute = Stream::numbered(given.compute);
            let store = Store::new(stage, storage.description().pipeline, engine, allocator, compute)?;
            Ok::<_, Failure>(Rank::new(controller, store, events))
        });
        Ok(Object(Mutex::new(cell?)))
    }
}

impl Object {
    fn read(&self) -> MutexGuard<'_, Cell> {
        // Nothing panics while it is read.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Frees a rank, after the copies under way; NULL is nothing. Device memory that the program has allocated by it is its own.
#[unsafe(no_mangle)]
pub extern "C" fn bagualu_rank_free(rank: *mut bagualu_rank) -> bagualu_status {
    boundary(|| handle::remove(rank).map(drop))
}

/// Calls a step of the rank.
fn step<R>(
    rank: *mut bagualu_rank,
    body: impl FnOnce(&mut Rank<'_>) -> Result<R, RankError>,
) -> Result<R, Failure> {
    handle::with_mut(rank, |object| {
        let cell = object.0.get_mut().unwrap_or_else(PoisonError::into_inner);
        Ok(cell.with_dependent_mut(|_, rank| body(rank))?)
    })
}

/// The forward of `unit` starts; what the next backward needs begins to come back, if there is room.
#[unsafe(no_mangle)]
pub extern "C" fn bagualu_rank_begin_forward(rank: *mut bagualu_rank, unit: u32) -> bagualu_status {
    boundary(|| step(rank, |rank| rank.begin_forward(unit)))
}

/// Waits until the operators before the next layer's gate may start.
#[unsafe(no_mangle)]
pub extern "C" fn bagualu_rank_to_gate(rank: *mut bagualu_rank) -> bagualu_status {
    boundary(|| step(rank, |rank| rank.to_gate()))
}

/// The gate of the next layer has run (`gate` may be NULL for a layer without a router): decides what is done with it,
/// reserves host memory for what it offloads, and waits until its other operators may start.
///
/// # Safety
/// - `gate` is NULL or a struct with its `struct_size` set; so is `decision`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bagualu_rank_gate(
    rank: *mut bagualu_rank,
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
        out.set_struct(step(rank, |rank| rank.gate(gate))?.into());
        Ok(())
    })
}

/// Device memory for an operator that was admitted, from the rank's allocator. Saved by `bagualu_rank_save`, or given back by
/// `bagualu_rank_give_back`.
///
/// # Safety
/// - `memory` is NULL or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bagualu_rank_allocate(
    rank: *mut bagualu_rank,
    bytes: u64,
    memory: *mut bagualu_memory,
) -> bagualu_status {
    boundary(|| {
        // SAFETY: the contract of this function.
        let out = unsafe { out(memory, "memory") }?;
        out.set(step(rank, |rank| rank.allocate(bytes))?.into());
        Ok(())
    })
}

/// Gives back what `bagualu_rank_allocate` wrote and was not saved, after the work of the compute stream so far.
///
/// # Safety
/// - `memory` is whole and is given back once; no work uses it but what was submitted to the compute stream before.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bagualu_rank_give_back(
    rank: *mut bagualu_rank,
    memory: bagualu_memory,
) -> bagualu_status {
    // SAFETY: the contract of this function.
    boundary(|| step(rank, |rank| unsafe { rank.free(memory.on_device()) }))
}

/// Hands a saved tensor of the layer under way over, a block input too. `cast` says what it is to whom would quantise it;
/// it may be NULL for a tensor that may not be quantised.
///
/// # Safety
/// - `memory` is from the rank's allocator; it is written by work submitted to the compute stream before, and read by
///   nothing but that stream's work and the rank from now on. `cast` is NULL or a struct with its `struct_size` set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bagualu_rank_save(
    rank: *mut bagualu_rank,
    tensor: usize,
    memory: bagualu_memory,
    cast: *const bagualu_cast,
) -> bagualu_status {
    boundary(|| {
        // SAFETY: the contract of this function.
        let cast = optional(cast.cast_mut(), |cast| unsafe { parsed(cast) })?;
        let saved = Saved { memory: memory.on_device(), cast };
        // SAFETY: the contract of this function.
        step(rank, |rank| unsafe { rank.save(tensor, saved) })
    })
}

/// Leaves a payload and the state of the random numbers (`rng_bytes` of it, copied) for an operator of the layer under way,
/// should it run again.
///
/// # Safety
/// - `rng` is NULL or has `rng_bytes`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bagualu_rank_remember(
    rank: *mut bagualu_rank,
    op: usize,
    payload: u64,
    rng: *const u8,
    rng_bytes: usize,
) -> bagualu_status {
    boundary(|| {
        // SAFETY: the contract of this function.
        let rng = unsafe { elements(rng, rng_bytes, "rng") }?;
        step(rank, |rank| rank.remember(op, payload, rng))
    })
}

/// The layer's forward has been submitted: its tensors are dropped, cast or copied out as decided.
#[unsafe(no_mangle)]
pub extern "C" fn bagualu_rank_layer_done(rank: *mut bagualu_rank) -> bagualu_status {
    boundary(|| step(rank, |rank| rank.layer_done()))
}

/// The forward has ended; `measured` is what it really holds, NULL if that was not measured.
///
/// # Safety
/// - `measured` is NULL or may be read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bagualu_rank_end_forward(
    rank: *mut bagualu_rank,
    measured: *const u64,
) -> bagualu_status {
    boundary(|| {
        // SAFETY: the contract of this function.
        let measured = unsafe { elements(measured, usize::from(!measured.is_null()), "measured") }?;
        step(rank, |rank| rank.end_forward(measured.first().copied()))
    })
}

/// The iteration has ended.
#[unsafe(no_mangle)]
pub extern "C" fn bagualu_rank_end_iteration(rank: *mut bagualu_rank) -> bagualu_status {
    boundary(|| step(rank, |rank| rank.end_iteration()))
}

/// Ends the iteration in the middle, after an error: what it has on the device and in host memory is freed.
#[unsafe(no_mangle)]
pub extern "C" fn bagualu_rank_abandon(rank: *mut bagualu_rank) -> bagualu_status {
    boundary(|| {
        step(rank, |rank| {
            rank.abandon();
            Ok(())
        })
    })
}

/// Writes the static decisions.
///
/// # Safety
/// - `provision` is NULL or a struct with its `struct_size` set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bagualu_rank_provision(
    rank: *const bagualu_rank,
    provision: *mut bagualu_provision,
) -> bagualu_status {
    boundary(|| {
        // SAFETY: the contract of this function.
        let out = unsafe { out_struct(provision, "provision") }?;
        let found =
            handle::with(rank, |object| Ok(*object.read().borrow_dependent().controller().provision()))?;
        out.set_struct(found.into());
        Ok(())
    })
}

/// Writes what a rank has done.
///
/// # Safety
/// - `counts` is NULL or a struct with its `struct_size` set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bagualu_rank_count(
    rank: *mut bagualu_rank,
    counts: *mut bagualu_rank_counts,
) -> bagualu_status {
    boundary(|| {
        // SAFETY: the contract of this function.
        let out = unsafe { out_struct(counts, "counts") }?;
        let (counts, pool) = step(rank, |rank| Ok((rank.counts(), rank.store().engine().usage().pool)))?;
        out.set_struct(bagualu_rank_counts {
            struct_size: own_size::<bagualu_rank_counts>(),
            replanned: counts.replanned,
            waits: counts.waits,
            early: counts.early,
            corrections: counts.corrections,
            offloaded_bytes: counts.offloaded_bytes,
            offloaded: counts.offloaded,
            recomputed: counts.recomputed,
            quantized: counts.quantized,
            pinned_high_water: pool.high_water,
        });
        Ok(())
    })
}

/// Writes where the rank's controller stands.
///
/// # Safety
/// - `state` is NULL or a struct with its `struct_size` set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bagualu_rank_read(
    rank: *const bagualu_rank,
    state: *mut bagualu_controller_state,
) -> bagualu_status {
    boundary(|| {
        // SAFETY: the contract of this function.
        let out = unsafe { out_struct(state, "state") }?;
        out.set_struct(handle::with(rank, |object| {
            Ok(object.read().borrow_dependent().controller().into())
        })?);
        Ok(())
    })
}

impl From<DeviceSlice> for bagualu_memory {
    fn from(memory: DeviceSlice) -> Self {
        Self { address: memory.address(), bytes: memory.bytes() }
    }
}
