//! The HIP runtime's calls.

use std::ffi::{CStr, CString, c_void};
use std::fmt;
use std::marker::PhantomData;
use std::path::PathBuf;
use std::ptr::null_mut;

use super::HipConfig;
use super::table::{COMPILER_NAMES, HostFunctions, NAMES, Runtime};
use crate::device::{Backend, DeviceError, HostFunction, MemoryInfo, StreamUse};
use crate::gpu::api::{Api, LaunchSize, Raw};
use crate::gpu::compiler::Compiler;
use crate::gpu::library::{Library, c_host_function};
use crate::gpu::status;

/// `hipHostMallocPortable`: pinned for every device. Not write-combined: the processor may read what was offloaded.
const PINNED_FLAGS: u32 = 0x1;
/// `hipStreamNonBlocking`: copies do not wait for a framework's work on the default stream.
const STREAM_FLAGS: u32 = 0x1;
/// `hipEventBlockingSync | hipEventDisableTiming`: a wait leaves its core to others, and no time is taken.
const EVENT_FLAGS: u32 = 0x1 | 0x2;
/// `hipMemcpyKind`.
const HOST_TO_DEVICE: i32 = 1;
const DEVICE_TO_HOST: i32 = 2;
const DEVICE_TO_DEVICE: i32 = 3;

/// The HIP runtime, and one of its devices.
pub struct Hip {
    runtime: Runtime,
    host_functions: Option<HostFunctions>,
    device: i32,
    /// Least and greatest priority of streams; the greatest is the smaller number.
    priorities: (i32, i32),
    /// Where the runtime and the compiler were said to be.
    library: Option<PathBuf>,
    compiler: Option<PathBuf>,
    architecture: Option<String>,
}

impl Hip {
    pub(super) fn open(config: &HipConfig) -> Result<Self, DeviceError> {
        let library = Library::load(Backend::Hip, "libamdhip64.so", &NAMES, config.library.as_deref())?;
        let runtime = Runtime::load(&library)?;
        let host_functions = HostFunctions::load(&library).ok();
        let HipConfig { library, compiler, architecture, .. } = config.clone();
        let mut hip =
            Self { runtime, host_functions, device: 0, priorities: (0, 0), library, compiler, architecture };
        let mut devices = 0;
        // SAFETY: the pointer is to a local.
        match i64::from(unsafe { (runtime.hipGetDeviceCount)(&mut devices) }) {
            status::NO_DEVICE => devices = 0,
            code => hip.check("hipGetDeviceCount", code)?,
        }
        hip.device = status::among(config.ordinal, devices)?;
        hip.priorities = hip.priority_range()?;
        Ok(hip)
    }

    fn priority_range(&self) -> Result<(i32, i32), DeviceError> {
        let _current = self.enter()?;
        let (mut least, mut greatest) = (0, 0);
        // SAFETY: the device is current, and the pointers are to locals.
        let code = unsafe { (self.runtime.hipDeviceGetStreamPriorityRange)(&mut least, &mut greatest) };
        self.check("hipDeviceGetStreamPriorityRange", code)?;
        Ok((least, greatest))
    }

    fn check(&self, call: &'static str, code: impl Into<i64>) -> Result<(), DeviceError> {
        let code = code.into();
        if code != status::SUCCESS {
            self.forget_error();
        }
        status::check(call, code, || self.describe(code))
    }

    fn allocated(&self, call: &'static str, code: i32, address: u64) -> Result<Option<u64>, DeviceError> {
        let code = i64::from(code);
        if code != status::SUCCESS {
            self.forget_error();
        }
        status::allocated(call, code, address, || self.describe(code))
    }

    /// The runtime keeps a thread's last error, "not ready" too, and a framework would take it for its own.
    fn forget_error(&self) {
        // SAFETY: takes nothing.
        let _ = unsafe { (self.runtime.hipGetLastError)() };
    }

    /// What the runtime says of a status.
    fn describe(&self, code: i64) -> String {
        let Ok(code) = i32::try_from(code) else { return String::new() };
        // SAFETY: any number may be asked for.
        let text = unsafe { (self.runtime.hipGetErrorString)(code) };
        if text.is_null() {
            return String::from("a status without a text");
        }
        // SAFETY: a static, terminated string of the runtime.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    }

    /// # Safety
    /// - `stream` lives, and both are memory of `bytes` bytes, as `kind` says, until the copy has ended.
    unsafe fn copy(
        &self,
        kind: i32,
        to: u64,
        from: u64,
        bytes: usize,
        stream: Raw,
    ) -> Result<(), DeviceError> {
        let (to, from) = (to as *mut c_void, from as *const c_void);
        // SAFETY: the caller vouches for memory and stream.
        self.check("hipMemcpyAsync", unsafe {
            (self.runtime.hipMemcpyAsync)(to, from, bytes, kind, stream.0)
        })
    }
}

impl fmt::Debug for Hip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hip").field("device", &self.device).finish_non_exhaustive()
    }
}

/// While it lives, the device is the calling thread's.
pub struct Current<'a> {
    hip: &'a Hip,
    /// The device to go back to.
    previous: Option<i32>,
    /// A device is current on one thread.
    _thread: PhantomData<*const ()>,
}

impl Drop for Current<'_> {
    fn drop(&mut self) {
        if let Some(previous) = self.previous {
            // SAFETY: the device was this thread's before.
            let _ = unsafe { (self.hip.runtime.hipSetDevice)(previous) };
        }
    }
}

impl Api for Hip {
    const BACKEND: Backend = Backend::Hip;

    type Current<'a> = Current<'a>;

    fn enter(&self) -> Result<Current<'_>, DeviceError> {
        let mut current = 0;
        // SAFETY: the pointer is to a local.
        self.check("hipGetDevice", unsafe { (self.runtime.hipGetDevice)(&mut current) })?;
        let previous = (current != self.device).then_some(current);
        if previous.is_some() {
            // SAFETY: the device was found to be there.
            self.check("hipSetDevice", unsafe { (self.runtime.hipSetDevice)(self.device) })?;
        }
        Ok(Current { hip: self, previous, _thread: PhantomData })
    }

    fn memory(&self) -> Result<MemoryInfo, DeviceError> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: the device is current, and the pointers are to locals.
        self.check("hipMemGetInfo", unsafe { (self.runtime.hipMemGetInfo)(&mut free, &mut total) })?;
        Ok(MemoryInfo { free: free as u64, total: total as u64 })
    }

    fn allocate(&self, bytes: usize) -> Result<Option<u64>, DeviceError> {
        let mut address = null_mut();
        // SAFETY: the device is current, and the pointer is to a local.
        let code = unsafe { (self.runtime.hipMalloc)(&mut address, bytes) };
        self.allocated("hipMalloc", code, address as u64)
    }

    unsafe fn free(&self, address: u64) -> Result<(), DeviceError> {
        // SAFETY: the caller gives back an allocation of this device.
        self.check("hipFree", unsafe { (self.runtime.hipFree)(address as *mut c_void) })
    }

    fn allocate_pinned(&self, bytes: usize) -> Result<Option<u64>, DeviceError> {
        let mut address = null_mut();
        // SAFETY: the device is current, and the pointer is to a local.
        let code = unsafe { (self.runtime.hipHostMalloc)(&mut address, bytes, PINNED_FLAGS) };
        self.allocated("hipHostMalloc", code, address as u64)
    }

    unsafe fn free_pinned(&self, address: u64) -> Result<(), DeviceError> {
        // SAFETY: the caller gives back an allocation of `allocate_pinned`.
        self.check("hipHostFree", unsafe { (self.runtime.hipHostFree)(address as *mut c_void) })
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
        // SAFETY: the device is current, and the pointer is to a local.
        let code = unsafe { (self.runtime.hipStreamCreateWithPriority)(&mut stream, STREAM_FLAGS, priority) };
        self.check("hipStreamCreateWithPriority", code)?;
        Ok(Raw(stream))
    }

    unsafe fn destroy_stream(&self, stream: Raw) {
        // SAFETY: the caller gives up a stream of this device. A failure leaves nothing to be done.
        let code = unsafe { (self.runtime.hipStreamDestroy)(stream.0) };
        let _ = self.check("hipStreamDestroy", code);
    }

    fn create_event(&self) -> Result<Raw, DeviceError> {
        let mut event = null_mut();
        // SAFETY: the device is current, and the pointer is to a local.
        let code = unsafe { (self.runtime.hipEventCreateWithFlags)(&mut event, EVENT_FLAGS) };
        self.check("hipEventCreateWithFlags", code)?;
        Ok(Raw(event))
    }

    unsafe fn destroy_event(&self, event: Raw) {
        // SAFETY: the caller gives up an event of this device. A failure leaves nothing to be done.
        let code = unsafe { (self.runtime.hipEventDestroy)(event.0) };
        let _ = self.check("hipEventDestroy", code);
    }

    unsafe fn record(&self, event: Raw, stream: Raw) -> Result<(), DeviceError> {
        // SAFETY: the caller vouches that both live.
        self.check("hipEventRecord", unsafe { (self.runtime.hipEventRecord)(event.0, stream.0) })
    }

    unsafe fn stream_wait(&self, stream: Raw, event: Raw) -> Result<(), DeviceError> {
        // SAFETY: the caller vouches that both live; no flag is defined.
        let code = unsafe { (self.runtime.hipStreamWaitEvent)(stream.0, event.0, 0) };
        self.check("hipStreamWaitEvent", code)
    }

    unsafe fn is_done(&self, event: Raw) -> Result<bool, DeviceError> {
        // SAFETY: the caller vouches that the event lives.
        match i64::from(unsafe { (self.runtime.hipEventQuery)(event.0) }) {
            status::NOT_READY => {
                self.forget_error();
                Ok(false)
            }
            code => self.check("hipEventQuery", code).map(|()| true),
        }
    }

    unsafe fn wait(&self, event: Raw) -> Result<(), DeviceError> {
        // SAFETY: the caller vouches that the event lives.
        self.check("hipEventSynchronize", unsafe { (self.runtime.hipEventSynchronize)(event.0) })
    }

    unsafe fn synchronize(&self, stream: Raw) -> Result<(), DeviceError> {
        // SAFETY: the caller vouches that the stream lives.
        self.check("hipStreamSynchronize", unsafe { (self.runtime.hipStreamSynchronize)(stream.0) })
    }

    unsafe fn copy_out(&self, to: u64, from: u64, bytes: usize, stream: Raw) -> Result<(), DeviceError> {
        // SAFETY: the caller vouches for memory and stream.
        unsafe { self.copy(DEVICE_TO_HOST, to, from, bytes, stream) }
    }

    unsafe fn copy_in(&self, to: u64, from: u64, bytes: usize, stream: Raw) -> Result<(), DeviceError> {
        // SAFETY: the caller vouches for memory and stream.
        unsafe { self.copy(HOST_TO_DEVICE, to, from, bytes, stream) }
    }

    unsafe fn copy_within(&self, to: u64, from: u64, bytes: usize, stream: Raw) -> Result<(), DeviceError> {
        // SAFETY: the caller vouches for memory and stream.
        unsafe { self.copy(DEVICE_TO_DEVICE, to, from, bytes, stream) }
    }

    fn compile(&self, source: &CStr) -> Result<Vec<u8>, DeviceError> {
        let given = self.compiler.as_deref();
        let compiler = match Compiler::hiprtc(&COMPILER_NAMES, given) {
            Err(_) if given.is_none() => Compiler::hiprtc(&NAMES, self.library.as_deref()),
            found => found,
        }?;
        // Without a name of an architecture it compiles for the current device, whose name only a struct that differs
        // between ROCm and DTK would give.
        let option = self.architecture.as_ref().map(|name| format!("--offload-arch={name}"));
        let options: Vec<_> = option.into_iter().filter_map(|option| CString::new(option).ok()).collect();
        compiler.compile(source, &options)
    }

    unsafe fn load(&self, image: &[u8]) -> Result<Raw, DeviceError> {
        let mut module = null_mut();
        // SAFETY: the device is current; the caller vouches for the image, which the runtime copies.
        let code = unsafe { (self.runtime.hipModuleLoadData)(&mut module, image.as_ptr().cast()) };
        self.check("hipModuleLoadData", code)?;
        Ok(Raw(module))
    }

    unsafe fn unload(&self, module: Raw) {
        // SAFETY: the caller gives up a module of this device. A failure leaves nothing to be done.
        let code = unsafe { (self.runtime.hipModuleUnload)(module.0) };
        let _ = self.check("hipModuleUnload", code);
    }

    unsafe fn function(&self, module: Raw, name: &CStr) -> Result<Raw, DeviceError> {
        let mut function = null_mut();
        // SAFETY: the caller vouches for the module; the name is terminated.
        let code = unsafe { (self.runtime.hipModuleGetFunction)(&mut function, module.0, name.as_ptr()) };
        self.check("hipModuleGetFunction", code)?;
        Ok(Raw(function))
    }

    unsafe fn launch_kernel(
        &self,
        function: Raw,
        size: LaunchSize,
        stream: Raw,
        arguments: &mut [*mut c_void],
    ) -> Result<(), DeviceError> {
        let LaunchSize { grid, block } = size;
        let (launch, arguments) = (self.runtime.hipModuleLaunchKernel, arguments.as_mut_ptr());
        // SAFETY: the caller vouches for function, stream and arguments, which are read before the call returns.
        let code = unsafe { launch(function.0, grid, 1, 1, block, 1, 1, 0, stream.0, arguments, null_mut()) };
        self.check("hipModuleLaunchKernel", code)
    }

    unsafe fn launch_host(
        &self,
        function: HostFunction,
        data: *mut c_void,
        stream: Raw,
    ) -> Result<(), DeviceError> {
        let Some(functions) = self.host_functions else {
            let what = "launch: hipLaunchHostFunc is not in this runtime; wait for an event and call it then";
            return Err(DeviceError::Unsupported { backend: Backend::Hip, what });
        };
        let function = c_host_function(function);
        // SAFETY: the caller vouches for function, data and stream.
        let code = unsafe { (functions.hipLaunchHostFunc)(stream.0, function, data) };
        self.check("hipLaunchHostFunc", code)
    }
}
