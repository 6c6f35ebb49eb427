//! Whether the CUDA driver is here.

use std::sync::OnceLock;

use cudarc::driver::sys;

use crate::device::{Backend, DeviceError};

/// That the driver library is loaded and has every function called here. Only [`probe`] makes one, and whatever calls
/// cudarc starts from one.
#[derive(Clone, Copy, Debug)]
pub struct Driver(());

/// Looks for the driver library (`libcuda.so.1`) and the functions called here. An absence is looked for afresh each time.
pub fn probe() -> Result<Driver, DeviceError> {
    static PRESENT: OnceLock<()> = OnceLock::new();
    if PRESENT.get().is_some() {
        return Ok(Driver(()));
    }
    // SAFETY: tries to load the driver under its names, and nothing else.
    if !unsafe { sys::is_culib_present() } {
        return Err(absent(
            "libcuda.so.1",
            "no NVIDIA driver is installed, or it is not on the library path",
        ));
    }
    for function in FUNCTIONS {
        // SAFETY: the library is present, so this cannot panic; the symbol is looked for and not called.
        if let Err(error) = unsafe { sys::culib().get::<*const ()>(function.as_bytes()) } {
            return Err(absent(function, &format!("not in libcuda.so.1: {error}")));
        }
    }
    PRESENT.get_or_init(|| ());
    Ok(Driver(()))
}

fn absent(library: &'static str, reason: &str) -> DeviceError {
    DeviceError::Absent { backend: Backend::Cuda, library, reason: reason.to_owned() }
}

/// All that is called, cudarc's error texts included.
const FUNCTIONS: [&str; 34] = [
    "cuInit",
    "cuDriverGetVersion",
    "cuGetErrorString",
    "cuDeviceGetCount",
    "cuDeviceGet",
    "cuDeviceGetAttribute",
    "cuDevicePrimaryCtxRetain",
    "cuDevicePrimaryCtxRelease_v2",
    "cuCtxGetCurrent",
    "cuCtxPushCurrent_v2",
    "cuCtxPopCurrent_v2",
    "cuCtxGetStreamPriorityRange",
    "cuMemGetInfo_v2",
    "cuMemAlloc_v2",
    "cuMemFree_v2",
    "cuMemHostAlloc",
    "cuMemFreeHost",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyHtoDAsync_v2",
    "cuMemcpyDtoDAsync_v2",
    "cuStreamCreateWithPriority",
    "cuStreamDestroy_v2",
    "cuStreamSynchronize",
    "cuStreamWaitEvent",
    "cuEventCreate",
    "cuEventDestroy_v2",
    "cuEventRecord",
    "cuEventQuery",
    "cuEventSynchronize",
    "cuModuleLoadData",
    "cuModuleUnload",
    "cuModuleGetFunction",
    "cuLaunchKernel",
    "cuLaunchHostFunc",
];
