//! `bagualu_collective`: what the ranks of a group tell each other before the first iteration.

use std::ffi::c_char;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bagualu_core::group::RowThreshold;
use bagualu_exec::collective::{
    Collective, Communicator, CommunicatorConfig, Disagreement, Loopback, Nccl, Rccl, UniqueId, agree,
    agree_thresholds, merge_profile,
};
use bagualu_exec::cuda::CudaDevice;
use bagualu_exec::hip::HipDevice;

use crate::arguments::{config, elements, optional_text, out, room, versioned};
use crate::boundary::boundary;
use crate::device::{BAGUALU_DEVICE_CUDA, BAGUALU_DEVICE_HIP};
use crate::handle::{self, handle};
use crate::status::{Failure, bagualu_status};

/// A rank's place in a group. All ranks make the same calls in the same order.
///
/// Made by `bagualu_collective_join` over devices or by `bagualu_collective_threads` over threads of one process, freed by
/// `bagualu_collective_free`. One call at a time; each blocks until all ranks have come or the time-out is over. After a failure
/// the group is of no further use. Nothing here is needed in an iteration: with the all-to-all dispatcher each
/// rank holds the count matrix already (`bagualu_group_rows`).
pub struct bagualu_collective {
    _opaque: [u8; 0],
}

handle!(bagualu_collective, Object, 9);

/// A rank of a group, which need not bear two threads at once.
pub(crate) struct Object(Mutex<Box<dyn Collective>>);

/// Most ranks of a group over threads.
const MOST_THREADS: usize = 1 << 12;

/// What makes one group of its ranks (`ncclUniqueId`). One rank makes it and brings it to the others.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct bagualu_unique_id {
    /// The library's bytes.
    pub bytes: [u8; 128],
}

/// A rank's place in a group over devices.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct bagualu_collective_config {
    /// sizeof(bagualu_collective_config), set by the caller.
    pub struct_size: usize,
    /// `BAGUALU_DEVICE_CUDA` (NCCL) or `BAGUALU_DEVICE_HIP` (RCCL).
    pub kind: u32,
    /// The number of this rank's device.
    pub ordinal: u32,
    /// This rank, from 0.
    pub rank: usize,
    /// Ranks of the group.
    pub size: usize,
    /// What `bagualu_collective_unique_id` made on one of them; read during the call.
    pub id: *const bagualu_unique_id,
    /// How long the other ranks are waited for, ns.
    pub timeout_ns: u64,
    /// NCCL or RCCL, UTF-8, where its name or its folder is not one that is looked for; else NULL.
    pub library: *const c_char,
}

versioned!(bagualu_collective_config);

/// Makes a group over `size` threads of this process: writes a handle for each rank, in order.
///
/// Thread-safe. Each of `collectives` is the caller's, to be freed by `bagualu_collective_free`; then the others are told that
/// this rank has left.
///
/// # Safety
/// - `collectives` is NULL or has room for `size`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bagualu_collective_threads(
    size: usize,
    collectives: *mut *mut bagualu_collective,
) -> bagualu_status {
    boundary(|| {
        if size > MOST_THREADS {
            return Err(Failure::value("size", size, "give at most 4096"));
        }
        // One at least, so that NULL is found before a group of none is.
        // SAFETY: the contract of this function; of a group of none nothing is written.
        let to = unsafe { room(collectives, size.max(1), "collectives") }?;
        let mut made = Vec::with_capacity(size);
        for rank in Loopback::group(size)? {
            match insert(Box::new(rank)) {
                Ok(handle) => made.push(handle),
                Err(failure) => {
                    for handle in made {
                        handle::remove::<bagualu_collective>(handle)?;
                    }
                    return Err(failure);
                }
            }
        }
        to.write(made);
        Ok(())
    })
}

/// Makes the id of a group over devices; `kind` and `library` as in `bagualu_collective_config`.
///
/// `BAGUALU_STATUS_DEVICE_ABSENT` if NCCL or RCCL is not on this machine.
///
/// Thread-safe.
///
/// # Safety
/// - `library` is NULL or a string that ends with NUL; `id` is NULL or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bagualu_collective_unique_id(
    kind: u32,
    library: *const c_char,
    id: *mut bagualu_unique_id,
) -> bagualu_status {
    boundary(|| {
        // SAFETY: the contract of this function.
        let (out, library) = unsafe { (out(id, "id")?, optional_text(library, "library")?) };
        let library = library.map(AsRef::as_ref);
        let UniqueId { bytes } = match kind {
            BAGUALU_DEVICE_CUDA => Nccl::unique_id(library)?,
            BAGUALU_DEVICE_HIP => Rccl::unique_id(library)?,
            other => return Err(wrong_kind(other)),
        };
        out.set(bagualu_unique_id { bytes });
        Ok(())
    })
}

/// Joins a group over devices, by NCCL or RCCL. Returns when all ranks have, or after the time-out.
///
/// Thread-safe. `*collective` is the caller's, to be freed by `bagualu_collective_free`.
///
/// # Safety
/// - `config` is NULL or a struct with its `struct_size` set, its id is NULL or may be read, its library NULL or a string that
///   ends with NUL; `collective` is NULL or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bagualu_collective_join(
    config: *const bagualu_collective_config,
    collective: *mut *mut bagualu_collective,
) -> bagualu_status {
    boundary(|| {
        // SAFETY: the contract of this function.
        let (out, given) = unsafe { (out(collective, "collective")?, self::config(config, "config")?) };
        // SAFETY: the contract of this function.
        let (id, library) =
            unsafe { (elements(given.id, 1, "id")?, optional_text(given.library, "library")?) };
        let config = CommunicatorConfig {
            rank: given.rank,
            size: given.size,
            id: UniqueId { bytes: id[0].bytes },
            timeout: Duration::from_nanos(given.timeout_ns),
            library: library.map(Into::into),
        };
        let joined: Box<dyn Collective> = match given.kind {
            BAGUALU_DEVICE_CUDA => {
                Box::new(Communicator::join(Arc::new(CudaDevice::open(given.ordinal)?), &config)?)
            }
            BAGUALU_DEVICE_HIP => {
                Box::new(Communicator::join(Arc::new(HipDevice::open(given.ordinal)?), &config)?)
            }
            other => return Err(wrong_kind(other)),
        };
        out.set(insert(joined)?);
        Ok(())
    })
}

fn insert(collective: Box<dyn Collective>) -> Result<*mut bagualu_collective, Failure> {
    handle::insert(Object(Mutex::new(collective)))
}

fn wrong_kind(kind: u32) -> Failure {
    Failure::value("kind", kind, "give BAGUALU_DEVICE_CUDA or BAGUALU_DEVICE_HIP")
}

/// Leaves a group; NULL is nothing.
#[unsafe(no_mangle)]
pub extern "C" fn bagualu_collective_free(collective: *mut bagualu_collective) -> bagualu_status {
    boundary(|| handle::remove(collective).map(drop))
}

/// Calls `body` with the rank.
fn on<R>(
    collective: *mut bagualu_collective,
    body: impl FnOnce(&mut dyn Collective) -> Result<R, Disagreement>,
) -> Result<R, Failure> {
    handle::with_mut(collective, |object| {
        let collective = object.0.get_mut().unwrap_or_else(PoisonError::into_inner);
        Ok(body(&mut **collective)?)
    })
}

/// Makes each of the `count` values of `profile` the largest that any rank has: all plan for the slowest and the largest of
/// them. `count` is the same on all, else every rank fails with `BAGUALU_STATUS_DISAGREEMENT`.
///
/// # Safety
/// - `profile` is NULL or has `count` values, which may be read and written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bagualu_collective_merge_profile(
    collective: *mut bagualu_collective,
    profile: *mut u64,
    count: usize,
    timeout_ns: u64,
) -> bagualu_status {
    boundary(|| {
        // SAFETY: the contract of this function.
        let (mut values, to) =
            unsafe { (elements(profile, count, "profile")?.to_vec(), room(profile, count, "profile")?) };
        on(collective, |group| merge_profile(group, &mut values, Duration::from_nanos(timeout_ns)))?;
        to.write(values);
        Ok(())
    })
}

/// Makes this rank's thresholds (R* and S* of `bagualu_provision`) the smallest of the group, which serve every rank.
///
/// # Safety
/// - Both are NULL or may be read and written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bagualu_collective_agree_thresholds(
    collective: *mut bagualu_collective,
    row_threshold: *mut u32,
    dispatch_threshold: *mut u32,
    timeout_ns: u64,
) -> bagualu_status {
    boundary(|| {
        // SAFETY: the contract of this function.
        let (own, rows, dispatch) = unsafe {
            let row = elements(row_threshold, 1, "row_threshold")?[0];
            let dispatch = elements(dispatch_threshold, 1, "dispatch_threshold")?[0];
            let own = RowThreshold { row_threshold: row, dispatch_threshold: dispatch };
            (own, out(row_threshold, "row_threshold")?, out(dispatch_threshold, "dispatch_threshold")?)
        };
        let agreed = on(collective, |group| agree_thresholds(group, own, Duration::from_nanos(timeout_ns)))?;
        rows.set(agreed.row_threshold);
        dispatch.set(agreed.dispatch_threshold);
        Ok(())
    })
}

/// Refuses to run where any rank's fingerprint (`bagualu_controller_state`) differs: `BAGUALU_STATUS_DISAGREEMENT` on every rank
/// then.
#[unsafe(no_mangle)]
pub extern "C" fn bagualu_collective_agree(
    collective: *mut bagualu_collective,
    fingerprint: u64,
    timeout_ns: u64,
) -> bagualu_status {
    boundary(|| on(collective, |group| agree(group, fingerprint, Duration::from_nanos(timeout_ns))))
}
