//! The driver API's calls.

use std::ffi::{CStr, CString, c_void};
use std::marker::PhantomData;
use std::path::PathBuf;
use std::ptr::null_mut;

use cudarc::driver::sys::{self, CUresult};

use super::CudaConfig;
use super::probe::Driver;
use crate::device::{Backend, DeviceError, HostFunction, MemoryInfo, StreamUse};
use crate::gpu::api::{Api, LaunchSize, Raw};
use crate::gpu::compiler::Compiler;
use crate::gpu::library::c_host_function;
use crate::gpu::status;

/// `CU_MEMHOSTALLOC_PORTABLE`: pinned for every context of the process. Not write-combined: the processor may read what
/// was offloaded.
const PINNED_FLAGS: u32 = 0x1;
/// `CU_STREAM_NON_BLOCKING`: copies do not wait for a framework's work on the default stream.
const STREAM_FLAGS: u32 = 0x1;
/// `CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING`: a wait leaves its core to others, and no time is taken.
const EVENT_FLAGS: u32 = 0x1 | 0x2;

/// The CUDA driver, and the primary context of one device.
#[derive(Debug)]
pub struct Cuda {
    device: sys::CUdevice,
    context: Raw,
    /// Least and greatest priority of streams; the greatest is the smaller number.
    priorities: (i32, i32),
    /// NVRTC, where it is not under one of its names.
    compiler: Option<PathBuf>,
}

impl Cuda {
    pub(super) fn open(_present: Driver, config: &CudaConfig) -> Result<Self, DeviceError> {
        let ordinal = config.ordinal;
        // SAFETY: the driver is present; 0 is the only value of the flags.
        match unsafe { sys::cuInit(0) } {
            CUresult::CUDA_ERROR_NO_DEVICE => return Err(DeviceError::NoSuchDevice { ordinal, devices: 0 }),
            CUresult::CUDA_ERROR_STUB_LIBRARY => {
                return Err(DeviceError::Absent {
                    backend: Backend::Cuda,
                    library: "libcuda.so.1",
                    reason: "the toolkit's stub was found in place of the driver".to_owned(),
                });
            }
            result => check("cuInit", result)?,
        }
        let mut devices = 0;
        // SAFETY: the driver is initialised, and the pointer is to a local.
        check("cuDeviceGetCount", unsafe { sys::cuDeviceGetCount(&mut devices) })?;
        let number = status::among(ordinal, devices)?;
        let (mut device, mut context) = (0, null_mut());
        // SAFETY: as above; the number is in range.
        check("cuDeviceGet", unsafe { sys::cuDeviceGet(&mut device, number) })?;
        // SAFETY: `device` was returned just now. `Drop` releases what is retained here.
        check("cuDevicePrimaryCtxRetain", unsafe { sys::cuDevicePrimaryCtxRetain(&mut context, device) })?;
        let compiler = config.compiler.clone();
        let mut cuda = Self { device, context: Raw(context.cast()), priorities: (0, 0), compiler };
        cuda.priorities = cuda.priority_range()?;
        Ok(cuda)
    }

    fn attribute(&self, attribute: sys::CUdevice_attribute) -> Result<i32, DeviceError> {
        let mut value = 0;
        // SAFETY: the device was returned by the driver, and the pointer is to a local.
        check("cuDeviceGetAttribute", unsafe {
            sys::cuDeviceGetAttribute(&mut value, attribute, self.device)
        })?;
        Ok(value)
    }

    fn priority_range(&self) -> Result<(i32, i32), DeviceError> {
        let _current = self.enter()?;
        let (mut least, mut greatest) = (0, 0);
        // SAFETY: the context is current, and the pointers are to locals.
        let result = unsafe { sys::cuCtxGetStreamPriorityRange(&mut least, &mut greatest) };
        check("cuCtxGetStreamPriorityRange", result)?;
        Ok((least, greatest))
    }
}

impl Drop for Cuda {
    fn drop(&mut self) {
        // SAFETY: retained once by `open`. At the end of a process the driver may be gone, and says so.
        let _ = unsafe { sys::cuDevicePrimaryCtxRelease_v2(self.device) };
    }
}

/// While it lives, the context is the calling thread's.
pub struct Current<'a> {
    pushed: bool,
    /// A context is current on one thread.
    _thread: PhantomData<(&'a Cuda, *const ())>,
}

impl Drop for Current<'_> {
    fn drop(&mut self) {
        if self.pushed {
            let mut context = null_mut();
            // SAFETY: pops what `enter` pushed on this thread.
            let _ = unsafe { sys::cuCtxPopCurrent_v2(&mut context) };
        }
    }
}

impl Api for Cuda {
    const BACKEND: Backend = Backend::Cuda;

    type Current<'a> = Current<'a>;

    fn enter(&self) -> Result<Current<'_>, DeviceError> {
        let mut current = null_mut();
        // SAFETY: the driver is initialised, and the pointer is to a local.
        check("cuCtxGetCurrent", unsafe { sys::cuCtxGetCurrent(&mut current) })?;
        let pushed = current.cast() != self.context.0;
        if pushed {
            // SAFETY: the context is retained as long as `self` lives.
            check("cuCtxPushCurrent", unsafe { sys::cuCtxPushCurrent_v2(self.context.0.cast()) })?;
        }
        Ok(Current { pushed, _thread: PhantomData })
    }

    fn memory(&self) -> Result<MemoryInfo, DeviceError> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: the context is current, and the pointers are to locals.
        check("cuMemGetInfo", unsafe { sys::cuMemGetInfo_v2(&mut free, &mut total) })?;
        Ok(MemoryInfo { free: free as u64, total: total as u64 })
    }

    fn allocate(&self, bytes: usize) -> Result<Option<u64>, DeviceError> {
        let mut address = 0;
        // SAFETY: the context is current, and the pointer is to a local.
        let result = unsafe { sys::cuMemAlloc_v2(&mut address, bytes) };
        status::allocated("cuMemAlloc", result as i64, address, || describe(result))
    }

    unsafe fn free(&self, address: u64) -> Result<(), DeviceError> {
        // SAFETY: the caller gives back an allocation of this context.
        check("cuMemFree", unsafe { sys::cuMemFree_v2(address) })
    }

    fn allocate_pinned(&self, bytes: usize) -> Result<Option<u64>, DeviceError> {
        let mut address = null_mut();
        // SAFETY: the context is current, and the pointer is to a local.
        let result = unsafe { sys::cuMemHostAlloc(&mut address, bytes, PINNED_FLAGS) };
        status::allocated("cuMemHostAlloc", result as i64, address as u64, || describe(result))
    }

    unsafe fn free_pinned(&self, address: u64) -> Result<(), DeviceError> {
        // SAFETY: the caller gives back an allocation of `allocate_pinned`.
        check("cuMemFreeHost", unsafe { sys::cuMemFreeHost(address as *mut _) })
    }

    fn create_stream(&self, use_for: StreamUse) -> Result<Raw, DeviceError> {
        let priority = match use_for {
            // Backward waits for what is brought back, and its casts are small.
            StreamUse::CopyIn => self.priorities.1,
            // Nobody waits for a copy-out yet when it is submitted.
            StreamUse::CopyOut => self.priorities.0,
            StreamUse::Compute => 0,
        };
        let mut stream = null_mut();
        // SAFETY: the context is current, and the pointer is to a local.
        let result = unsafe { sys::cuStreamCreateWithPriority(&mut stream, STREAM_FLAGS, priority) };
        check("cuStreamCreateWithPriority", result)?;
        Ok(Raw(stream.cast()))
    }

    unsafe fn destroy_stream(&self, stream: Raw) {
        // SAFETY: the caller gives up a stream of this context. A failure leaves nothing to be done.
        let _ = unsafe { sys::cuStreamDestroy_v2(stream.0.cast()) };
    }

    fn create_event(&self) -> Result<Raw, DeviceError> {
        let mut event = null_mut();
        // SAFETY: the context is current, and the pointer is to a local.
        check("cuEventCreate", unsafe { sys::cuEventCreate(&mut event, EVENT_FLAGS) })?;
        Ok(Raw(event.cast()))
    }

    unsafe fn destroy_event(&self, event: Raw) {
        // SAFETY: the caller gives up an event of this context. A failure leaves nothing to be done.
        let _ = unsafe { sys::cuEventDestroy_v2(event.0.cast()) };
    }

    unsafe fn record(&self, event: Raw, stream: Raw) -> Result<(), DeviceError> {
        // SAFETY: the caller vouches that both live.
        check("cuEventRecord", unsafe { sys::cuEventRecord(event.0.cast(), stream.0.cast()) })
    }

    unsafe fn stream_wait(&self, stream: Raw, event: Raw) -> Result<(), DeviceError> {
        // SAFETY: the caller vouches that both live; 0 is the default of the flags.
        check("cuStreamWaitEvent", unsafe { sys::cuStreamWaitEvent(stream.0.cast(), event.0.cast(), 0) })
    }

    unsafe fn is_done(&self, event: Raw) -> Result<bool, DeviceError> {
        // SAFETY: the caller vouches that the event lives.
        match unsafe { sys::cuEventQuery(event.0.cast()) } {
            CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            result => check("cuEventQuery", result).map(|()| true),
        }
    }

    unsafe fn wait(&self, event: Raw) -> Result<(), DeviceError> {
        // SAFETY: the caller vouches that the event lives.
        check("cuEventSynchronize", unsafe { sys::cuEventSynchronize(event.0.cast()) })
    }

    unsafe fn synchronize(&self, stream: Raw) -> Result<(), DeviceError> {
        // SAFETY: the caller vouches that the stream lives.
        check("cuStreamSynchronize", unsafe { sys::cuStreamSynchronize(stream.0.cast()) })
    }

    unsafe fn copy_out(&self, to: u64, from: u64, bytes: usize, stream: Raw) -> Result<(), DeviceError> {
        // SAFETY: the caller vouches for memory and stream.
        let result = unsafe { sys::cuMemcpyDtoHAsync_v2(to as *mut _, from, bytes, stream.0.cast()) };
        check("cuMemcpyDtoHAsync", result)
    }

    unsafe fn copy_in(&self, to: u64, from: u64, bytes: usize, stream: Raw) -> Result<(), DeviceError> {
        // SAFETY: the caller vouches for memory and stream.
        let result = unsafe { sys::cuMemcpyHtoDAsync_v2(to, from as *const _, bytes, stream.0.cast()) };
        check("cuMemcpyHtoDAsync", result)
    }

    unsafe fn copy_within(&self, to: u64, from: u64, bytes: usize, stream: Raw) -> Result<(), DeviceError> {
        // SAFETY: the caller vouches for memory and stream.
        let result = unsafe { sys::cuMemcpyDtoDAsync_v2(to, from, bytes, stream.0.cast()) };
        check("cuMemcpyDtoDAsync", result)
    }

    fn compile(&self, source: &CStr) -> Result<Vec<u8>, DeviceError> {
        let mut version = 0;
        // SAFETY: the pointer is to a local.
        check("cuDriverGetVersion", unsafe { sys::cuDriverGetVersion(&mut version) })?;
        let major = self.attribute(sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
        let minor = self.attribute(sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
        let compiler = Compiler::nvrtc(nvrtc_names(version), self.compiler.as_deref())?;
        let architecture = format!("--gpu-architecture=sm_{major}{minor}");
        let architecture = CString::new(architecture).unwrap_or_default();
        compiler.compile(source, &[architecture])
    }

    unsafe fn load(&self, image: &[u8]) -> Result<Raw, DeviceError> {
        let mut module = null_mut();
        // SAFETY: the context is current; the caller vouches for the image, which the driver copies.
        let result = unsafe { sys::cuModuleLoadData(&mut module, image.as_ptr().cast()) };
        check("cuModuleLoadData", result)?;
        Ok(Raw(module.cast()))
    }

    unsafe fn unload(&self, module: Raw) {
        // SAFETY: the caller gives up a module of this context. A failure leaves nothing to be done.
        let _ = unsafe { sys::cuModuleUnload(module.0.cast()) };
    }

    unsafe fn function(&self, module: Raw, name: &CStr) -> Result<Raw, DeviceError> {
        let mut function = null_mut();
        // SAFETY: the caller vouches for the module; the name is terminated.
        let result = unsafe { sys::cuModuleGetFunction(&mut function, module.0.cast(), name.as_ptr()) };
        check("cuModuleGetFunction", result)?;
        Ok(Raw(function.cast()))
    }

    unsafe fn launch_kernel(
        &self,
        function: Raw,
        size: LaunchSize,
        stream: Raw,
        arguments: &mut [*mut c_void],
    ) -> Result<(), DeviceError> {
        let (function, stream, LaunchSize { grid, block }) = (function.0.cast(), stream.0.cast(), size);
        let (arguments, extra) = (arguments.as_mut_ptr(), null_mut());
        // SAFETY: the caller vouches for function, stream and arguments, which are read before the call returns.
        let result =
            unsafe { sys::cuLaunchKernel(function, grid, 1, 1, block, 1, 1, 0, stream, arguments, extra) };
        check("cuLaunchKernel", result)
    }

    unsafe fn launch_host(
        &self,
        function: HostFunction,
        data: *mut c_void,
        stream: Raw,
    ) -> Result<(), DeviceError> {
        let function = c_host_function(function);
        // SAFETY: the caller vouches for function, data and stream.
        let result = unsafe { sys::cuLaunchHostFunc(stream.0.cast(), Some(function), data) };
        check("cuLaunchHostFunc", result)
    }
}

/// NVRTC's names for a driver of this version (13000 is CUDA 13.0): a driver takes code of its own major version and of
/// older ones.
fn nvrtc_names(version: i32) -> &'static [&'static str] {
    const NAMES: [&str; 4] = ["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so.11.2", "libnvrtc.so"];
    match version / 1000 {
        ..12 => &NAMES[2..],
        12 => &NAMES[1..],
        _ => &NAMES,
    }
}

fn check(call: &'static str, result: CUresult) -> Result<(), DeviceError> {
    status::check(call, result as i64, || describe(result))
}

/// What the driver says of a status.
fn describe(result: CUresult) -> String {
    let mut text = std::ptr::null();
    // SAFETY: the pointer is to a local; the driver sets it to a static string, or fails for a status it does not know.
    let found = unsafe { sys::cuGetErrorString(result, &mut text) };
    if found != CUresult::CUDA_SUCCESS || text.is_null() {
        return format!("{result:?}");
    }
    // SAFETY: a static, terminated string of the driver.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}
