//! The calls that the CUDA driver and the HIP runtime share.

use std::ffi::{CStr, c_void};
use std::fmt;

use crate::device::{Backend, DeviceError, HostFunction, MemoryInfo, StreamUse};

/// One device of a vendor's library. Every method but [`enter`](Self::enter) is called while its guard lives.
pub trait Api: fmt::Debug + Send + Sync + 'static {
    /// Which backend this is.
    const BACKEND: Backend;

    /// Puts the calling thread back where it was.
    type Current<'a>;

    /// Makes this device the calling thread's. A framework on the same thread finds its own device again afterwards.
    fn enter(&self) -> Result<Self::Current<'_>, DeviceError>;

    /// Bytes of device memory.
    fn memory(&self) -> Result<MemoryInfo, DeviceError>;

    /// Device memory, or `None` where it is used up. `bytes` is not 0.
    fn allocate(&self, bytes: usize) -> Result<Option<u64>, DeviceError>;

    /// # Safety
    /// - `address` came from [`allocate`](Self::allocate), and nothing uses it.
    unsafe fn free(&self, address: u64) -> Result<(), DeviceError>;

    /// Pinned, cached host memory, or `None` where there is none. `bytes` is not 0.
    fn allocate_pinned(&self, bytes: usize) -> Result<Option<u64>, DeviceError>;

    /// # Safety
    /// - `address` came from [`allocate_pinned`](Self::allocate_pinned), and nothing uses it.
    unsafe fn free_pinned(&self, address: u64) -> Result<(), DeviceError>;

    /// A stream that does not wait for the default stream.
    fn create_stream(&self, use_for: StreamUse) -> Result<Raw, DeviceError>;

    /// # Safety
    /// - `stream` is one of [`create_stream`](Self::create_stream), and no call uses it from now on.
    unsafe fn destroy_stream(&self, stream: Raw);

    /// An event without a time stamp.
    fn create_event(&self) -> Result<Raw, DeviceError>;

    /// # Safety
    /// - `event` is one of [`create_event`](Self::create_event), and no call uses it from now on.
    unsafe fn destroy_event(&self, event: Raw);

    /// # Safety
    /// - Both live.
    unsafe fn record(&self, event: Raw, stream: Raw) -> Result<(), DeviceError>;

    /// # Safety
    /// - Both live.
    unsafe fn stream_wait(&self, stream: Raw, event: Raw) -> Result<(), DeviceError>;

    /// # Safety
    /// - `event` lives.
    unsafe fn is_done(&self, event: Raw) -> Result<bool, DeviceError>;

    /// # Safety
    /// - `event` lives.
    unsafe fn wait(&self, event: Raw) -> Result<(), DeviceError>;

    /// # Safety
    /// - `stream` lives.
    unsafe fn synchronize(&self, stream: Raw) -> Result<(), DeviceError>;

    /// # Safety
    /// - `stream` lives; `to` is host and `from` device memory of `bytes` bytes until the copy has ended.
    unsafe fn copy_out(&self, to: u64, from: u64, bytes: usize, stream: Raw) -> Result<(), DeviceError>;

    /// # Safety
    /// - `stream` lives; `to` is device and `from` host memory of `bytes` bytes until the copy has ended.
    unsafe fn copy_in(&self, to: u64, from: u64, bytes: usize, stream: Raw) -> Result<(), DeviceError>;

    /// # Safety
    /// - `stream` lives; both are device memory of `bytes` bytes until the copy has ended.
    unsafe fn copy_within(&self, to: u64, from: u64, bytes: usize, stream: Raw) -> Result<(), DeviceError>;

    /// Compiles kernels for this device: an image that [`load`](Self::load) takes.
    fn compile(&self, source: &CStr) -> Result<Vec<u8>, DeviceError>;

    /// # Safety
    /// - `image` is a whole cubin or code object, or PTX that a zero ends.
    unsafe fn load(&self, image: &[u8]) -> Result<Raw, DeviceError>;

    /// # Safety
    /// - `module` came from [`load`](Self::load), and nothing of it is running or used from now on.
    unsafe fn unload(&self, module: Raw);

    /// # Safety
    /// - `module` lives.
    unsafe fn function(&self, module: Raw, name: &CStr) -> Result<Raw, DeviceError>;

    /// # Safety
    /// - `function` is of a module that lives, `stream` lives.
    /// - `arguments` points to as many values of those types as the kernel takes, and the kernel may access what they
    ///   name until it has ended.
    unsafe fn launch_kernel(
        &self,
        function: Raw,
        size: LaunchSize,
        stream: Raw,
        arguments: &mut [*mut c_void],
    ) -> Result<(), DeviceError>;

    /// # Safety
    /// - `stream` lives; `function` may be called with `data` from any thread, calls nothing of the library and does not
    ///   unwind.
    unsafe fn launch_host(
        &self,
        function: HostFunction,
        data: *mut c_void,
        stream: Raw,
    ) -> Result<(), DeviceError>;
}

/// How many threads run a kernel, in one dimension.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LaunchSize {
    /// Blocks.
    pub grid: u32,
    /// Threads of a block.
    pub block: u32,
}

/// A handle of the library: `CUstream`, `hipEvent_t` and the like.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Raw(pub *mut c_void);

// SAFETY: both libraries allow their streams, events, modules and functions on any thread that has entered the device.
unsafe impl Send for Raw {}
// SAFETY: as above.
unsafe impl Sync for Raw {}
