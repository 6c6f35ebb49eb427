//! `bagualu_device`: an accelerator, or the host standing in for one.

use std::ffi::{c_char, c_void};
use std::sync::Arc;

use bagualu_exec::device::{
    Backend, Device, DeviceSlice, Event, HostFunction, PinnedSlice, Stream, StreamUse,
};
use bagualu_exec::host::{HostConfig, HostDevice, Tier};
use bagualu_exec::{Choice, open};

use crate::arguments::{config_or_default, optional_text, out, out_struct, own_size, versioned};
use crate::boundary::boundary;
use crate::handle::{self, handle};
use crate::status::{Failure, bagualu_status};

mod cast;

pub use cast::*;

/// A device: its memory, streams, events and copies.
///
/// Made by `bagualu_device_open`, freed by `bagualu_device_free`. All functions may run on any number of threads at once.
/// What was made of it (`bagualu_engine`, …) keeps it alive behind its handle. Work submitted to one stream runs in order,
/// streams run beside each other, and submissions return at once.
pub struct bagualu_device {
    _opaque: [u8; 0],
}

handle!(bagualu_device, Object, 6);

/// A device that may be shared with what is made of it.
pub(crate) struct Object {
    pub(crate) device: Arc<dyn Device>,
}

/// CUDA device 0; without one HIP device 0; without either the host.
pub const BAGUALU_DEVICE_AUTO: u32 = 0;
/// Threads of this process, ordinary memory.
pub const BAGUALU_DEVICE_HOST: u32 = 1;
/// NVIDIA.
pub const BAGUALU_DEVICE_CUDA: u32 = 2;
/// AMD and Hygon DCU.
pub const BAGUALU_DEVICE_HIP: u32 = 3;

/// Which device to open. All zeros, or NULL in its place: `BAGUALU_DEVICE_AUTO`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct bagualu_device_config {
    /// sizeof(bagualu_device_config), set by the caller.
    pub struct_size: usize,
    /// `BAGUALU_DEVICE_…`.
    pub kind: u32,
    /// The number of a CUDA or HIP device.
    pub ordinal: u32,
    /// Device memory of the host device, bytes; 0: what the machine and the process's limits have.
    pub host_device_bytes: u64,
    /// Folder of the file in which the host device keeps pinned memory, UTF-8; NULL: a file in memory.
    pub host_tier: *const c_char,
}

versioned!(bagualu_device_config);

/// What a device is and has.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct bagualu_device_info {
    /// sizeof(bagualu_device_info), set by the caller.
    pub struct_size: usize,
    /// Device memory that nobody uses, bytes.
    pub free_bytes: u64,
    /// Device memory in all, bytes.
    pub total_bytes: u64,
    /// `BAGUALU_DEVICE_HOST`, `…_CUDA` or `…_HIP`.
    pub kind: u32,
    /// 0.
    pub reserved: u32,
}

versioned!(bagualu_device_info, reserved);

/// Memory by address: of the device where a function says device memory, of the host where it says pinned memory.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct bagualu_memory {
    /// Where it starts.
    pub address: u64,
    /// Bytes.
    pub bytes: u64,
}

/// The stream runs operators.
pub const BAGUALU_STREAM_COMPUTE: u32 = 0;
/// The stream copies to the host.
pub const BAGUALU_STREAM_COPY_OUT: u32 = 1;
/// The stream copies from the host.
pub const BAGUALU_STREAM_COPY_IN: u32 = 2;

/// Opens a device; `config` may be NULL.
///
/// `BAGUALU_STATUS_DEVICE_ABSENT` if its library is not on this machine, `BAGUALU_STATUS_NO_SUCH_DEVICE` if the device is not.
///
/// Thread-safe. `*device` is the caller's, to be freed by `bagualu_device_free`.
///
/// # Safety
/// - `config` is NULL or a struct with its `struct_size` set; `device` is NULL or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bagualu_device_open(
    config: *const bagualu_device_config,
    device: *mut *mut bagualu_device,
) -> bagualu_status {
    boundary(|| {
        // SAFETY: the contract of this function.
        let (out, given, tier) = unsafe {
            let given = config_or_default(config, "config")?;
            (out(device, "device")?, given, optional_text(given.host_tier, "host_tier")?)
        };
        out.set(handle::insert(Object { device: opened(&given, tier)? })?);
        Ok(())
    })
}

fn opened(given: &bagualu_device_config, tier: Option<&str>) -> Result<Arc<dyn Device>, Failure> {
    let of_host = given.host_device_bytes > 0 || tier.is_some();
    match given.kind {
        BAGUALU_DEVICE_HOST => {
            let device_bytes = (given.host_device_bytes > 0).then_some(given.host_device_bytes);
            let tier = tier.map_or(Tier::Memory, |folder| Tier::Directory(folder.into()));
            Ok(Arc::new(HostDevice::open(HostConfig { device_bytes, tier })?))
        }
        kind if of_host => {
            let fix = "host_device_bytes and host_tier go with BAGUALU_DEVICE_HOST alone";
            Err(Failure::value("kind", kind, fix))
        }
        BAGUALU_DEVICE_AUTO => Ok(open(Choice::Auto)?),
        BAGUALU_DEVICE_CUDA => Ok(open(Choice::Cuda(given.ordinal))?),
        BAGUALU_DEVICE_HIP => Ok(open(Choice::Hip(given.ordinal))?),
        other => Err(Failure::value("kind", other, "give a BAGUALU_DEVICE_…")),
    }
}

/// Frees a device; NULL is nothing. Engines made of it live on, and the device with them.
///
/// The last of them to be freed ends the device: that blocks until the work of its streams has ended. On the host device
/// it unmaps all memory that was allocated of it, pinned memory too, given back or not: use none of it after that.
#[unsafe(no_mangle)]
pub extern "C" fn bagualu_device_free(device: *mut bagualu_device) -> bagualu_status {
    boundary(|| handle::remove(device).map(drop))
}

/// Calls `body` with the device.
fn on<R, E: Into<Failure>>(
    device: *const bagualu_device,
    body: impl FnOnce(&dyn Device) -> Result<R, E>,
) -> Result<R, Failure> {
    handle::with(device, |object| body(&*object.device).map_err(Into::into))
}

/// Writes what a device is and has.
///
/// # Safety
/// - `info` is NULL or a struct with its `struct_size` set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bagualu_device_describe(
    device: *const bagualu_device,
    info: *mut bagualu_device_info,
) -> bagualu_status {
    boundary(|| {
        // SAFETY: the contract of this function.
        let out = unsafe { out_struct(info, "info") }?;
        let (memory, backend) =
            on(device, |device| device.memory().map(|memory| (memory, device.backend())))?;
        let kind = match backend {
            Backend::Host => BAGUALU_DEVICE_HOST,
            Backend::Cuda => BAGUALU_DEVICE_CUDA,
            Backend::Hip => BAGUALU_DEVICE_HIP,
            // A backend that this header has no name for.
            _ => BAGUALU_DEVICE_AUTO,
        };
        let struct_size = own_size::<bagualu_device_info>();
        let (free_bytes, total_bytes) = (memory.free, memory.total);
        out.set_struct(bagualu_device_info { struct_size, free_bytes, total_bytes, kind, reserved: 0 });
        Ok(())
    })
}

/// Allocates device memory, for programs without an allocator of their own. On the host device it is ordinary memory at
/// `memory->address`.
///
/// `*memory` is the caller's, to be given back by `bagualu_device_release`.
///
/// # Safety
/// - `memory` is NULL or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bagualu_device_allocate(
    device: *const bagualu_device,
    bytes: u64,
    memory: *mut bagualu_memory,
) -> bagualu_status {
    boundary(|| {
        // SAFETY: the contract of this function.
        let out = unsafe { out(memory, "memory") }?;
        let found = on(device, |device| device.allocate(bytes))?;
        out.set(bagualu_memory { address: found.address(), bytes: found.bytes() });
        Ok(())
    })
}

/// Gives back what `bagualu_device_allocate` wrote.
///
/// # Safety
/// - `memory` is whole, is given back once, and no work that uses it is under way.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bagualu_device_release(
    device: *const bagualu_device,
    memory: bagualu_memory,
) -> bagualu_status {
    // SAFETY: the contract of this function.
    boundary(|| on(device, |device| unsafe { device.free(memory.on_device()) }))
}

/// Allocates pinned host memory, which copies reach directly and the processor may read and write.
///
/// `*memory` is the caller's, to be given back by `bagualu_device_release_pinned`.
///
/// # Safety
/// - `memory` is NULL or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bagualu_device_allocate_pinned(
    device: *const bagualu_device,
    bytes: u64,
    memory: *mut bagualu_memory,
) -> bagualu_status {
    boundary(|| {
        // SAFETY: the contract of this function.
        let out = unsafe { out(memory, "memory") }?;
        let found = on(device, |device| device.allocate_pinned(bytes))?;
        out.set(bagualu_memory { address: found.address(), bytes: found.bytes() });
        Ok(())
    })
}

/// Gives back what `bagualu_device_allocate_pinned` wrote.
///
/// # Safety
/// - `memory` is whole, is given back once, and no work that uses it is under way.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bagualu_device_release_pinned(
    device: *const bagualu_device,
    memory: bagualu_memory,
) -> bagualu_status {
    // SAFETY: the contract of this function.
    boundary(|| on(device, |device| unsafe { device.free_pinned(memory.pinned()) }))
}

/// Makes a stream; `use_for` is a `BAGUALU_STREAM_…`. `*stream` is the caller's, to be ended by
/// `bagualu_device_destroy_stream`.
///
/// # Safety
/// - `stream` is NULL or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bagualu_device_create_stream(
    device: *const bagualu_device,
    use_for: u32,
    stream: *mut u64,
) -> bagualu_status {
    boundary(|| {
        // SAFETY: the contract of this function.
        let out = unsafe { out(stream, "stream") }?;
        let use_for = match use_for {
            BAGUALU_STREAM_COMPUTE => StreamUse::Compute,
            BAGUALU_STREAM_COPY_OUT => StreamUse::CopyOut,
            BAGUALU_STREAM_COPY_IN => StreamUse::CopyIn,
            other => return Err(Failure::value("use_for", other, "give a BAGUALU_STREAM_…")),
        };
        out.set(on(device, |device| device.create_stream(use_for))?.number());
        Ok(())
    })
}

/// Takes a stream of a framework (`cudaStream_t`, `hipStream_t`; NULL: its default stream); `bagualu_device_destroy_stream`
/// only forgets it.
///
/// # Safety
/// - `raw` is a stream of this device and outlives its use here; `stream` is NULL or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bagualu_device_adopt_stream(
    device: *const bagualu_device,
    raw: *mut c_void,
    stream: *mut u64,
) -> bagualu_status {
    boundary(|| {
        // SAFETY: the contract of this function.
        let out = unsafe { out(stream, "stream") }?;
        // SAFETY: the contract of this function.
        out.set(on(device, |device| unsafe { device.adopt_stream(raw) })?.number());
        Ok(())
    })
}

/// Writes a stream as the framework knows it (`cudaStream_t`, `hipStream_t`), so that it can submit work to it: what
/// `bagualu_device_adopt_stream` takes. On the host device it is no pointer to anything.
///
/// `*raw` is the device's, or the framework's where it was adopted: it is not to be ended, and is not used after the stream has.
///
/// # Safety
/// - `raw` is NULL or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bagualu_device_raw_stream(
    device: *const bagualu_device,
    stream: u64,
    raw: *mut *mut c_void,
) -> bagualu_status {
    boundary(|| {
        // SAFETY: the contract of this function.
        let out = unsafe { out(raw, "raw") }?;
        out.set(on(device, |device| device.raw_stream(Stream::numbered(stream)))?);
        Ok(())
    })
}

/// Ends a stream after its work.
#[unsafe(no_mangle)]
pub extern "C" fn bagualu_device_destroy_stream(
    device: *const bagualu_device,
    stream: u64,
) -> bagualu_status {
    boundary(|| on(device, |device| device.destroy_stream(Stream::numbered(stream))))
}

/// Blocks until all work submitted to a stream has ended.
#[unsafe(no_mangle)]
pub extern "C" fn bagualu_device_synchronize(device: *const bagualu_device, stream: u64) -> bagualu_status {
    boundary(|| on(device, |device| device.synchronize(Stream::numbered(stream))))
}

/// Makes an event, which is done until it is recorded. `*event` is the caller's, to be ended by
/// `bagualu_device_destroy_event`.
///
/// # Safety
/// - `event` is NULL or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bagualu_device_create_event(
    device: *const bagualu_device,
    event: *mut u64,
) -> bagualu_status {
    boundary(|| {
        // SAFETY: the contract of this function.
        let out = unsafe { out(event, "event") }?;
        out.set(on(device, |device| device.create_event())?.number());
        Ok(())
    })
}

/// Ends an event. Waits that were submitted on it keep their meaning.
#[unsafe(no_mangle)]
pub extern "C" fn bagualu_device_destroy_event(device: *const bagualu_device, event: u64) -> bagualu_status {
    boundary(|| on(device, |device| device.destroy_event(Event::numbered(event))))
}

/// Marks all work submitted to `stream` so far.
#[unsafe(no_mangle)]
pub extern "C" fn bagualu_device_record(
    device: *const bagualu_device,
    event: u64,
    stream: u64,
) -> bagualu_status {
    boundary(|| on(device, |device| device.record(Event::numbered(event), Stream::numbered(stream))))
}

/// Work submitted to `stream` from now on starts after what `event` marks now.
#[unsafe(no_mangle)]
pub extern "C" fn bagualu_device_stream_wait(
    device: *const bagualu_device,
    stream: u64,
    event: u64,
) -> bagualu_status {
    boundary(|| on(device, |device| device.stream_wait(Stream::numbered(stream), Event::numbered(event))))
}

/// Whether what `event` marks has ended: `done` receives 1 if so, else 0.
///
/// # Safety
/// - `done` is NULL or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bagualu_device_is_done(
    device: *const bagualu_device,
    event: u64,
    done: *mut u32,
) -> bagualu_status {
    boundary(|| {
        // SAFETY: the contract of this function.
        let out = unsafe { out(done, "done") }?;
        out.set(on(device, |device| device.is_done(Event::numbered(event)))?.into());
        Ok(())
    })
}

/// Blocks until what `event` marks has ended.
#[unsafe(no_mangle)]
pub extern "C" fn bagualu_device_wait(device: *const bagualu_device, event: u64) -> bagualu_status {
    boundary(|| on(device, |device| device.wait(Event::numbered(event))))
}

/// Copies device memory into pinned memory of the same length, as work of `stream`.
///
/// # Safety
/// - Both are memory of this device that lives, and `from` unchanged, until the copy has ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bagualu_device_copy_out(
    device: *const bagualu_device,
    from: bagualu_memory,
    to: bagualu_memory,
    stream: u64,
) -> bagualu_status {
    boundary(|| {
        on(device, |device| {
            // SAFETY: the contract of this function.
            unsafe { device.copy_out(from.on_device(), to.pinned(), Stream::numbered(stream)) }
        })
    })
}

/// Copies pinned memory into device memory of the same length, as work of `stream`.
///
/// # Safety
/// - Both are memory of this device that lives, and `from` unchanged, until the copy has ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bagualu_device_copy_in(
    device: *const bagualu_device,
    from: bagualu_memory,
    to: bagualu_memory,
    stream: u64,
) -> bagualu_status {
    boundary(|| {
        on(device, |device| {
            // SAFETY: the contract of this function.
            unsafe { device.copy_in(from.pinned(), to.on_device(), Stream::numbered(stream)) }
        })
    })
}

/// Calls `function` with `data` as a piece of work of `stream`, on a thread of the device's choice.
///
/// # Safety
/// - `function` may be called with `data`, once, from any thread, until this work has ended; it neither waits for the
///   device nor throws.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bagualu_device_launch(
    device: *const bagualu_device,
    function: Option<unsafe extern "C" fn(data: *mut c_void)>,
    data: *mut c_void,
    stream: u64,
) -> bagualu_status {
    boundary(|| {
        let Some(function) = function else {
            return Err(Failure::new(bagualu_status::NullPointer, "function is NULL; give a function"));
        };
        // SAFETY: the two differ in whether unwinding is allowed, and `function` does not unwind.
        let function =
            unsafe { std::mem::transmute::<unsafe extern "C" fn(*mut c_void), HostFunction>(function) };
        // SAFETY: the contract of this function.
        on(device, |device| unsafe { device.launch(function, data, Stream::numbered(stream)) })
    })
}

impl bagualu_memory {
    pub(crate) fn on_device(self) -> DeviceSlice {
        DeviceSlice::new(self.address, self.bytes)
    }

    fn pinned(self) -> PinnedSlice {
        PinnedSlice::new(self.address, self.bytes)
    }
}
