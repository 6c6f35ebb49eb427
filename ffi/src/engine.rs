//! `bagualu_engine`: offload and reload of tensors beside the operators.

use bagualu_exec::device::Stream;
use bagualu_exec::engine::{Engine, EngineConfig, Key};
use bagualu_exec::pool::PoolConfig;

use crate::arguments::{config, out, out_struct, own_size, versioned};
use crate::boundary::boundary;
use crate::device::{bagualu_device, bagualu_memory};
use crate::handle::{self, handle};
use crate::status::{Failure, bagualu_status};

/// Copies tensors to pinned host memory and back, on streams of its own.
///
/// Made by `bagualu_engine_new`, freed by `bagualu_engine_free`, which waits for copies under way. One call at a time.
/// A copy back always waits, on the device, for its own copy out: no order of calls lets a reload read what has not been
/// written. Names below are those of the functions:
///
/// ```text
/// forward    offload (after the work submitted to the producer's stream) gives a ticket
/// any time   copied_out: this device memory is free now; then bagualu_controller_copied_out
///            block_until_released: an operator needs bytes that are still leaving
/// backward   announce the unit; while due says something: reload it
///            wait: the consumer's stream goes on when the tensor is back, and the ticket is used up
/// ```
pub struct bagualu_engine {
    _opaque: [u8; 0],
}

handle!(bagualu_engine, Object, 7);

/// An engine.
pub(crate) struct Object(Engine);

/// How an engine is set up.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct bagualu_engine_config {
    /// sizeof(bagualu_engine_config), set by the caller.
    pub struct_size: usize,
    /// Pinned memory is never more than this, bytes.
    pub pool_bytes: u64,
    /// Pinned at a time, bytes; 0: 64 MiB, or the cap where that is less.
    pub slab_bytes: u64,
    /// Reloads due at once, bytes; 0: a quarter of the pool.
    pub window_bytes: u64,
    /// Reloads due at once; 0: 64.
    pub window_tensors: u32,
    /// Tensors that may be out at once; 0: 4096. At most 2^20.
    pub slots: u32,
    /// Units of one iteration; at least 1, at most 2^20.
    pub units: u32,
    /// 0.
    pub reserved: u32,
}

versioned!(bagualu_engine_config, reserved);

/// Which saved tensor.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct bagualu_key {
    /// The unit that saved it.
    pub unit: u32,
    /// The layer of the unit's chunk.
    pub layer: u16,
    /// The tensor of the layer.
    pub tensor: u16,
}

/// What an engine has under way, bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct bagualu_engine_state {
    /// sizeof(bagualu_engine_state), set by the caller.
    pub struct_size: usize,
    /// The most that may be pinned.
    pub pool_bytes: u64,
    /// Pinned so far.
    pub pinned_bytes: u64,
    /// Taken by tensors, rounded up.
    pub taken_bytes: u64,
    /// The most ever taken at once.
    pub high_water_bytes: u64,
    /// Leaving by copies that `bagualu_engine_copied_out` has not reported.
    pub leaving_bytes: u64,
    /// Reloaded and not yet waited for.
    pub returning_bytes: u64,
    /// Places for tensors that are taken.
    pub slots: u32,
    /// 0.
    pub reserved: u32,
}

versioned!(bagualu_engine_state, reserved);

/// Most slots and most units.
const MOST: u32 = 1 << 20;

/// Makes an engine of a device.
///
/// Thread-safe. `*engine` is the caller's, to be freed by `bagualu_engine_free`; the device's handle may be freed before.
///
/// # Safety
/// - `config` is NULL or a struct with its `struct_size` set; `engine` is NULL or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bagualu_engine_new(
    device: *const bagualu_device,
    config: *const bagualu_engine_config,
    engine: *mut *mut bagualu_engine,
) -> bagualu_status {
    boundary(|| {
        // SAFETY: the contract of this function.
        let (out, config) = unsafe { (out(engine, "engine")?, self::config(config, "config")?.checked()?) };
        let device = handle::with(device, |object| Ok(object.device.clone()))?;
        out.set(handle::insert(Object(Engine::new(device, config)?))?);
        Ok(())
    })
}

impl bagualu_engine_config {
    fn checked(&self) -> Result<EngineConfig, Failure> {
        for (field, value, least) in [("slots", self.slots, 0), ("units", self.units, 1)] {
            if !(least..=MOST).contains(&value) {
                return Err(Failure::value(field, value, &format!("give {least} to 2^20")));
            }
        }
        let default = EngineConfig::new(self.pool_bytes, self.units);
        let or = |value: u32, default: u32| if value == 0 { default } else { value };
        Ok(EngineConfig {
            pool: PoolConfig { cap_bytes: self.pool_bytes, slab_bytes: self.slab_bytes },
            slots: or(self.slots, default.slots),
            units: self.units,
            window_bytes: if self.window_bytes == 0 { default.window_bytes } else { self.window_bytes },
            window_tensors: or(self.window_tensors, default.window_tensors),
        })
    }
}

/// Frees an engine, after the copies under way; NULL is nothing.
#[unsafe(no_mangle)]
pub extern "C" fn bagualu_engine_free(engine: *mut bagualu_engine) -> bagualu_status {
    boundary(|| handle::remove(engine).map(drop))
}

/// Pins memory now, up to `bytes`, so that no offload has to.
#[unsafe(no_mangle)]
pub extern "C" fn bagualu_engine_warm(engine: *mut bagualu_engine, bytes: u64) -> bagualu_status {
    boundary(|| handle::with_mut(engine, |object| Ok(object.0.warm(bytes)?)))
}

/// Starts copying device memory out, once all work submitted to `producer` so far has ended. `*ticket`, never 0, is
/// what the tensor is asked for by.
///
/// `BAGUALU_STATUS_POOL_FULL` if the host memory is used up: keep the tensor or offload something else.
///
/// # Safety
/// - `from` is memory of the engine's device. It lives, unchanged, until `bagualu_engine_copied_out` has reported it,
///   `bagualu_engine_drain` has succeeded or the engine is freed. `ticket` is NULL or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bagualu_engine_offload(
    engine: *mut bagualu_engine,
    key: bagualu_key,
    from: bagualu_memory,
    producer: u64,
    ticket: *mut u64,
) -> bagualu_status {
    boundary(|| {
        // SAFETY: the contract of this function.
        let out = unsafe { out(ticket, "ticket") }?;
        let ticket = handle::with_mut(engine, |object| {
            let reservation = object.0.reserve(key.into(), from.bytes)?;
            // SAFETY: the contract of this function.
            Ok(unsafe { object.0.offload(from.on_device(), Stream::numbered(producer), reservation) }?)
        })?;
        out.set(ticket.into_raw());
        Ok(())
    })
}

/// The next copy-out that has ended: `found` receives 1, and `key` and `bytes` say whose device memory may be freed;
/// or 0 if none has.
///
/// # Safety
/// - Pointers are NULL or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bagualu_engine_copied_out(
    engine: *mut bagualu_engine,
    key: *mut bagualu_key,
    bytes: *mut u64,
    found: *mut u32,
) -> bagualu_status {
    boundary(|| {
        // SAFETY: the contract of this function.
        let (key, bytes, found) = unsafe { (out(key, "key")?, out(bytes, "bytes")?, out(found, "found")?) };
        let copied = handle::with_mut(engine, |object| Ok(object.0.poll_copied_out()?))?;
        found.set(copied.is_some().into());
        key.set(copied.map_or_else(bagualu_key::default, |copied| copied.key.into()));
        bytes.set(copied.map_or(0, |copied| copied.bytes));
        Ok(())
    })
}

/// Blocks until the oldest copies under way, `bytes` in all, have ended; `bagualu_engine_copied_out` then reports them.
#[unsafe(no_mangle)]
pub extern "C" fn bagualu_engine_block_until_released(
    engine: *mut bagualu_engine,
    bytes: u64,
) -> bagualu_status {
    boundary(|| handle::with_mut(engine, |object| Ok(object.0.block_until_released(bytes)?)))
}

/// The backward of `unit` comes after those announced before: what it offloaded is due from now on.
#[unsafe(no_mangle)]
pub extern "C" fn bagualu_engine_announce(engine: *mut bagualu_engine, unit: u32) -> bagualu_status {
    boundary(|| handle::with_mut(engine, |object| Ok(object.0.announce(unit)?)))
}

/// What to bring back next, in reverse order of saving: `found` receives 1, and `key` and `bytes` say what; or 0 if nothing
/// is due or as much as the window allows is under way.
///
/// # Safety
/// - Pointers are NULL or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bagualu_engine_due(
    engine: *mut bagualu_engine,
    key: *mut bagualu_key,
    bytes: *mut u64,
    found: *mut u32,
) -> bagualu_status {
    boundary(|| {
        // SAFETY: the contract of this function.
        let (key, bytes, found) = unsafe { (out(key, "key")?, out(bytes, "bytes")?, out(found, "found")?) };
        let due = handle::with_mut(engine, |object| Ok(object.0.poll_reload()?))?;
        found.set(due.is_some().into());
        key.set(due.map_or_else(bagualu_key::default, |due| due.key.into()));
        bytes.set(due.map_or(0, |due| due.bytes));
        Ok(())
    })
}

/// Starts copying a tensor back into `into`, once all work submitted to `*after` so far has ended, where that may still
/// use the memory; `after` may be NULL.
///
/// # Safety
/// - `into` is memory of the engine's device. It lives, and nothing else uses it, until work submitted to the consumer
///   after `bagualu_engine_wait` runs, `bagualu_engine_cancel` or `bagualu_engine_drain` succeeds or the engine is freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bagualu_engine_reload(
    engine: *mut bagualu_engine,
    ticket: u64,
    into: bagualu_memory,
    after: *const u64,
) -> bagualu_status {
    boundary(|| {
        // SAFETY: the contract of this function.
        let after = unsafe { crate::arguments::elements(after, usize::from(!after.is_null()), "after") }?;
        let after = after.first().map(|&stream| Stream::numbered(stream));
        handle::with_mut(engine, |object| {
            let found = object.0.ticket(ticket)?;
            // SAFETY: the contract of this function.
            let reloaded = unsafe { object.0.reload(&found, into.on_device(), after) };
            // The number stays the caller's ticket; dropping `found` would give the tensor up.
            let _ = found.into_raw();
            Ok(reloaded?)
        })
    })
}

/// Work submitted to `consumer` from now on starts after the tensor is back. Uses the ticket up, also where the tensor was
/// not reloaded.
///
/// `BAGUALU_STATUS_TICKET_SPENT` if it was used up before.
#[unsafe(no_mangle)]
pub extern "C" fn bagualu_engine_wait(
    engine: *mut bagualu_engine,
    ticket: u64,
    consumer: u64,
) -> bagualu_status {
    boundary(|| {
        handle::with_mut(engine, |object| {
            let ticket = object.0.ticket(ticket)?;
            Ok(object.0.wait(ticket, Stream::numbered(consumer))?)
        })
    })
}

/// Gives a tensor up and uses its ticket up. Blocks until its copy back has ended, if one is under way; its copy out is
/// reported as ever.
#[unsafe(no_mangle)]
pub extern "C" fn bagualu_engine_cancel(engine: *mut bagualu_engine, ticket: u64) -> bagualu_status {
    boundary(|| {
        handle::with_mut(engine, |object| {
            let ticket = object.0.ticket(ticket)?;
            Ok(object.0.cancel(ticket)?)
        })
    })
}

/// Blocks until every copy under way has ended; `bagualu_engine_copied_out` still reports each.
#[unsafe(no_mangle)]
pub extern "C" fn bagualu_engine_drain(engine: *mut bagualu_engine) -> bagualu_status {
    boundary(|| handle::with_mut(engine, |object| Ok(object.0.drain()?)))
}

/// Writes what an engine has under way.
///
/// # Safety
/// - `state` is NULL or a struct with its `struct_size` set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bagualu_engine_read(
    engine: *const bagualu_engine,
    state: *mut bagualu_engine_state,
) -> bagualu_status {
    boundary(|| {
        // SAFETY: the contract of this function.
        let out = unsafe { out_struct(state, "state") }?;
        let usage = handle::with(engine, |object| Ok(object.0.usage()))?;
        out.set_struct(bagualu_engine_state {
            struct_size: own_size::<bagualu_engine_state>(),
            pool_bytes: usage.pool.cap,
            pinned_bytes: usage.pool.pinned,
            taken_bytes: usage.pool.taken,
            high_water_bytes: usage.pool.high_water,
            leaving_bytes: usage.leaving_bytes,
            returning_bytes: usage.returning_bytes,
            slots: usage.slots,
            reserved: 0,
        });
        Ok(())
    })
}

impl From<bagualu_key> for Key {
    fn from(key: bagualu_key) -> Self {
        Self { unit: key.unit, layer: key.layer, tensor: key.tensor }
    }
}

impl From<Key> for bagualu_key {
    fn from(key: Key) -> Self {
        Self { unit: key.unit, layer: key.layer, tensor: key.tensor }
    }
}
