//! One accelerator, or the host standing in for one: memory, streams, events, copies and casts.
//!
//! Semantics are those that CUDA and HIP share, and the conformance suite holds every backend to them:
//! - Work submitted to one stream runs in order; streams run beside each other. Every submission returns at once.
//! - [`record`](Device::record) marks what has been submitted to a stream so far. An event may be recorded again; whoever
//!   waited on the earlier mark still waits for that one only. An event never recorded is done.
//! - What waits for an event of failed work fails with it, on whatever stream. No failure is a hang.
//! - Memory is named by address. Whoever submits work keeps every buffer of it alive until an event recorded after it is done.
//!   Until then nobody changes what it reads, and nobody else reads or writes what it writes; that is the safety contract
//!   of every `unsafe` method here.
//! - An error of work under way is reported by the events recorded after it, and by every later call on its stream.

use core::ffi::c_void;
use core::{fmt, ptr};

use crate::fp8::Cast;

mod error;
pub(crate) mod number;

pub use error::DeviceError;

/// An accelerator. All methods may be called from any thread.
pub trait Device: Send + Sync + fmt::Debug {
    /// Which backend this is.
    fn backend(&self) -> Backend;

    /// Bytes of device memory, free and in all.
    fn memory(&self) -> Result<MemoryInfo, DeviceError>;

    /// Device memory for programs without an allocator of their own. Contents are undefined; aligned to at least [`ALIGNMENT`].
    /// No bytes are allowed, and give an empty slice.
    fn allocate(&self, bytes: u64) -> Result<DeviceSlice, DeviceError>;

    /// Gives back what [`allocate`](Self::allocate) returned.
    ///
    /// # Safety
    /// - `memory` is a whole allocation of this device, given back once.
    /// - No work that uses it is under way.
    unsafe fn free(&self, memory: DeviceSlice) -> Result<(), DeviceError>;

    /// Host memory that copies reach directly, readable by the processor (never write-combined); aligned to at least [`ALIGNMENT`].
    /// No bytes are allowed, and give an empty slice.
    fn allocate_pinned(&self, bytes: u64) -> Result<PinnedSlice, DeviceError>;

    /// Gives back what [`allocate_pinned`](Self::allocate_pinned) returned.
    ///
    /// # Safety
    /// As for [`free`](Self::free).
    unsafe fn free_pinned(&self, memory: PinnedSlice) -> Result<(), DeviceError>;

    /// A new stream. `use_for` lets a backend choose its priority and its engine.
    fn create_stream(&self, use_for: StreamUse) -> Result<Stream, DeviceError>;

    /// A stream that a framework owns (`cudaStream_t`, `hipStream_t`; for the host a stream of another handle).
    ///
    /// # Safety
    /// - `raw` is a stream of this device (null: its default stream) and outlives its use here.
    unsafe fn adopt_stream(&self, raw: *mut c_void) -> Result<Stream, DeviceError>;

    /// The stream as [`adopt_stream`](Self::adopt_stream) takes it, for a framework that is to submit work to it.
    fn raw_stream(&self, stream: Stream) -> Result<*mut c_void, DeviceError> {
        let _ = stream;
        Err(DeviceError::Unsupported {
            backend: self.backend(),
            what: "raw_stream; adopt a stream of the framework instead",
        })
    }

    /// Ends a stream after its work; an adopted one is only forgotten.
    fn destroy_stream(&self, stream: Stream) -> Result<(), DeviceError>;

    /// A new event, not recorded.
    fn create_event(&self) -> Result<Event, DeviceError>;

    /// Ends an event. Waits that were submitted on it keep their meaning.
    fn destroy_event(&self, event: Event) -> Result<(), DeviceError>;

    /// Marks all work submitted to `stream` so far.
    fn record(&self, event: Event, stream: Stream) -> Result<(), DeviceError>;

    /// Work submitted to `stream` from now on starts after what `event` marks now.
    fn stream_wait(&self, stream: Stream, event: Event) -> Result<(), DeviceError>;

    /// Whether what `event` marks has ended.
    fn is_done(&self, event: Event) -> Result<bool, DeviceError>;

    /// Blocks until what `event` marks has ended.
    fn wait(&self, event: Event) -> Result<(), DeviceError>;

    /// Blocks until all work submitted to `stream` has ended.
    fn synchronize(&self, stream: Stream) -> Result<(), DeviceError>;

    /// Copies `from` into `to`, which has the same length.
    ///
    /// # Safety
    /// - Both name memory of this device that lives until the copy has ended. Until then nobody changes `from`, and nobody else
    ///   reads or writes `to`: work of other streams, and the processor, are kept apart by events.
    /// - They do not overlap.
    unsafe fn copy_out(&self, from: DeviceSlice, to: PinnedSlice, stream: Stream) -> Result<(), DeviceError>;

    /// Copies `from` into `to`, which has the same length.
    ///
    /// # Safety
    /// As for [`copy_out`](Self::copy_out).
    unsafe fn copy_in(&self, from: PinnedSlice, to: DeviceSlice, stream: Stream) -> Result<(), DeviceError>;

    /// Casts `from` to `values` and `scales` (FP32, aligned to four bytes), with the bits that [`Cast::quantize`] gives on the host.
    ///
    /// # Safety
    /// - All three name memory of this device that lives, `from` unchanged and the others used by nobody else, until the cast has
    ///   ended. They do not overlap.
    unsafe fn quantize(
        &self,
        cast: &Cast,
        from: DeviceSlice,
        values: DeviceSlice,
        scales: DeviceSlice,
        stream: Stream,
    ) -> Result<(), DeviceError> {
        let _ = (cast, from, values, scales, stream);
        Err(DeviceError::Unsupported { backend: self.backend(), what: "quantize; keep or offload instead" })
    }

    /// Casts back what [`quantize`](Self::quantize) has written, with the bits that [`Cast::dequantize`] gives on the host.
    ///
    /// # Safety
    /// As for [`quantize`](Self::quantize), with `to` for `from` and the other way round.
    unsafe fn dequantize(
        &self,
        cast: &Cast,
        values: DeviceSlice,
        scales: DeviceSlice,
        to: DeviceSlice,
        stream: Stream,
    ) -> Result<(), DeviceError> {
        let _ = (cast, values, scales, to, stream);
        Err(DeviceError::Unsupported { backend: self.backend(), what: "dequantize; keep or offload instead" })
    }

    /// Calls `function` with `data` on a thread of the device's choice, as a piece of work of `stream`
    /// (`cuLaunchHostFunc`, `hipLaunchHostFunc`).
    ///
    /// # Safety
    /// - `function` may be called with `data`, once, from any thread, until this work has ended.
    /// - It neither waits for the device nor, except on the host, submits work to it.
    /// - It does not unwind, except on the host, where a panic of Rust ends the stream as [`Lost`](DeviceError::Lost).
    unsafe fn launch(
        &self,
        function: HostFunction,
        data: *mut c_void,
        stream: Stream,
    ) -> Result<(), DeviceError> {
        let _ = (function, data, stream);
        Err(DeviceError::Unsupported {
            backend: self.backend(),
            what: "launch; wait for an event and call it then",
        })
    }
}

/// That the buffers of a cast are as long as its shape needs, and its scales aligned: what every backend asks first.
pub(crate) fn check_cast(
    call: &'static str,
    backend: Backend,
    cast: &Cast,
    wide: DeviceSlice,
    values: DeviceSlice,
    scales: DeviceSlice,
) -> Result<(), DeviceError> {
    let shape = &cast.shape;
    for (given, needed) in [
        (wide.bytes(), shape.source_bytes()),
        (values.bytes(), shape.elements()),
        (scales.bytes(), shape.scales() * size_of::<f32>()),
    ] {
        if given != needed as u64 {
            return Err(DeviceError::Mismatch { call, from: given, to: needed as u64 });
        }
    }
    match scales.address().is_multiple_of(align_of::<f32>() as u64) || scales.bytes() == 0 {
        true => Ok(()),
        false => Err(DeviceError::Unsupported { backend, what: "scales that are not aligned to four bytes" }),
    }
}

/// A function that runs as work of a stream: a C function of one `void *`.
pub type HostFunction = unsafe extern "C-unwind" fn(*mut c_void);

/// Alignment of device and pinned memory, bytes.
pub const ALIGNMENT: u64 = 256;

/// What stands behind a device.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Backend {
    /// Threads of this process.
    Host,
    /// NVIDIA, by the driver API.
    Cuda,
    /// AMD and Hygon DCU.
    Hip,
}

/// Bytes of device memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemoryInfo {
    /// Not in use by anyone.
    pub free: u64,
    /// In all.
    pub total: u64,
}

/// What a stream is for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum StreamUse {
    /// Operators.
    Compute,
    /// Copies from the device.
    CopyOut,
    /// Copies to the device.
    CopyIn,
}

/// A stream of the device that made or adopted it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Stream(pub(crate) u64);

/// An event of the device that made it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Event(pub(crate) u64);

macro_rules! numbered {
    ($name:ident) => {
        impl $name {
            /// Its number, for callers in other languages.
            pub const fn number(self) -> u64 {
                self.0
            }

            /// The one of this number. A device refuses numbers that it has not given.
            pub const fn numbered(number: u64) -> Self {
                Self(number)
            }
        }
    };
}

numbered!(Stream);
numbered!(Event);

/// Bytes of device memory, by address.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct DeviceSlice {
    address: u64,
    bytes: u64,
}

/// Bytes of pinned host memory, by address.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PinnedSlice {
    address: u64,
    bytes: u64,
}

macro_rules! slice {
    ($name:ident) => {
        impl $name {
            /// `bytes` bytes from `address`. Naming memory is safe, using it is not.
            pub const fn new(address: u64, bytes: u64) -> Self {
                Self { address, bytes }
            }

            /// Where it starts.
            pub const fn address(self) -> u64 {
                self.address
            }

            /// Its length, bytes.
            pub const fn bytes(self) -> u64 {
                self.bytes
            }

            /// `bytes` bytes from `offset`, or `None` where they are not inside.
            pub fn part(self, offset: u64, bytes: u64) -> Option<Self> {
                let end = offset.checked_add(bytes)?;
                let address = self.address.checked_add(offset)?;
                (end <= self.bytes).then_some(Self { address, bytes })
            }
        }
    };
}

slice!(DeviceSlice);
slice!(PinnedSlice);

impl PinnedSlice {
    /// Where it starts, for the processor. Reading or writing there is for who knows that no copy is under way.
    pub fn as_mut_ptr(self) -> *mut u8 {
        ptr::with_exposed_provenance_mut(self.address as usize)
    }
}
