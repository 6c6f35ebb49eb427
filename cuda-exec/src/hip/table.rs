//! The functions of the HIP runtime that the executor calls.
//!
//! Written by hand, so that a build needs neither HIP nor libclang. `cargo xtask hip-table` compares every line with what
//! bindgen makes of the installed headers. Handles are `*mut c_void`, enums `i32`.

use std::ffi::{c_char, c_void};

use crate::gpu::library::{CHostFunction, table};

/// The library's names, newest first: ROCm 7, 6 and 5 (DTK 26 too), a development link, DTK 25.
pub(super) const NAMES: [&str; 5] =
    ["libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5", "libamdhip64.so", "libgalaxyhip.so"];

/// Where hiprtc is of its own; before ROCm 6, and in DTK, it is in the runtime.
pub(super) const COMPILER_NAMES: [&str; 4] =
    ["libhiprtc.so.7", "libhiprtc.so.6", "libhiprtc.so.5", "libhiprtc.so"];

table! {
    /// The HIP runtime.
    pub(super) struct Runtime {
        hipGetDeviceCount(count: *mut i32) -> i32;
        hipGetDevice(device: *mut i32) -> i32;
        hipSetDevice(device: i32) -> i32;
        hipGetErrorString(error: i32) -> *const c_char;
        hipGetLastError() -> i32;
        hipMemGetInfo(free: *mut usize, total: *mut usize) -> i32;
        hipMalloc(address: *mut *mut c_void, bytes: usize) -> i32;
        hipFree(address: *mut c_void) -> i32;
        hipHostMalloc(address: *mut *mut c_void, bytes: usize, flags: u32) -> i32;
        hipHostFree(address: *mut c_void) -> i32;
        hipMemcpyAsync(to: *mut c_void, from: *const c_void, bytes: usize, kind: i32, stream: *mut c_void) -> i32;
        hipDeviceGetStreamPriorityRange(least: *mut i32, greatest: *mut i32) -> i32;
        hipStreamCreateWithPriority(stream: *mut *mut c_void, flags: u32, priority: i32) -> i32;
        hipStreamDestroy(stream: *mut c_void) -> i32;
        hipStreamSynchronize(stream: *mut c_void) -> i32;
        hipStreamWaitEvent(stream: *mut c_void, event: *mut c_void, flags: u32) -> i32;
        hipEventCreateWithFlags(event: *mut *mut c_void, flags: u32) -> i32;
        hipEventDestroy(event: *mut c_void) -> i32;
        hipEventRecord(event: *mut c_void, stream: *mut c_void) -> i32;
        hipEventQuery(event: *mut c_void) -> i32;
        hipEventSynchronize(event: *mut c_void) -> i32;
        hipModuleLoadData(module: *mut *mut c_void, image: *const c_void) -> i32;
        hipModuleUnload(module: *mut c_void) -> i32;
        hipModuleGetFunction(function: *mut *mut c_void, module: *mut c_void, name: *const c_char) -> i32;
        hipModuleLaunchKernel(function: *mut c_void, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32, block_z: u32, shared: u32, stream: *mut c_void, arguments: *mut *mut c_void, extra: *mut *mut c_void) -> i32;
    }
}

table! {
    /// Since ROCm 5.2; a DTK without it can do all but this.
    pub(super) struct HostFunctions {
        hipLaunchHostFunc(stream: *mut c_void, function: CHostFunction, data: *mut c_void) -> i32;
    }
}
