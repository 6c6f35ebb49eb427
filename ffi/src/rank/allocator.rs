//! A framework's allocator, as functions of C.

use std::ffi::c_void;

use bagualu_exec::device::{DeviceError, DeviceSlice, Stream};
use bagualu_exec::store::Allocator;

use crate::arguments::versioned;
use crate::status::{Failure, bagualu_status};

/// Where a rank's device memory comes from: a framework's caching allocator. Functions are called on the thread that calls
/// the rank, during that call, and do not throw. `stream` is one of the rank's device: `bagualu_device_raw_stream` gives what
/// a framework's allocator takes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct bagualu_allocator {
    /// sizeof(bagualu_allocator), set by the caller.
    pub struct_size: usize,
    /// Handed to both functions.
    pub user: *mut c_void,
    /// Returns the address of `bytes` bytes for work submitted to `stream` from now on, or 0 if there are none.
    pub allocate: Option<unsafe extern "C" fn(user: *mut c_void, bytes: u64, stream: u64) -> u64>,
    /// Takes memory back at once, though work submitted to `stream` before may still use it.
    pub release: Option<unsafe extern "C" fn(user: *mut c_void, address: u64, bytes: u64, stream: u64)>,
}

versioned!(bagualu_allocator);

/// The functions, both there.
#[derive(Debug)]
pub(super) struct Callbacks {
    user: *mut c_void,
    allocate: unsafe extern "C" fn(*mut c_void, u64, u64) -> u64,
    release: unsafe extern "C" fn(*mut c_void, u64, u64, u64),
}

// SAFETY: `user` is only handed back to the program's functions, which take calls from whichever thread calls the rank.
unsafe impl Send for Callbacks {}

impl Callbacks {
    pub(super) fn new(given: bagualu_allocator) -> Result<Self, Failure> {
        let lacks =
            |name| Failure::new(bagualu_status::NullPointer, format!("allocator.{name} is NULL; give both"));
        Ok(Self {
            user: given.user,
            allocate: given.allocate.ok_or_else(|| lacks("allocate"))?,
            release: given.release.ok_or_else(|| lacks("release"))?,
        })
    }
}

impl Allocator for Callbacks {
    fn allocate(&mut self, bytes: u64, stream: Stream) -> Result<DeviceSlice, DeviceError> {
        // SAFETY: whoever made the rank lets it be called so.
        match unsafe { (self.allocate)(self.user, bytes, stream.number()) } {
            0 if bytes > 0 => Err(DeviceError::OutOfMemory { bytes, free: 0 }),
            address => Ok(DeviceSlice::new(address, bytes)),
        }
    }

    unsafe fn free(&mut self, memory: DeviceSlice, stream: Stream) -> Result<(), DeviceError> {
        // SAFETY: whoever made the rank lets it be called so, and the memory is `allocate`'s.
        unsafe { (self.release)(self.user, memory.address(), memory.bytes(), stream.number()) };
        Ok(())
    }
}
