//! Groups over devices: NCCL and RCCL, which have the same functions under the same names.

use std::ffi::{CStr, c_char, c_void};
use std::fmt;
use std::path::{Path, PathBuf};
use std::ptr::null_mut;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::{Collective, CollectiveError};
use crate::device::{Backend, Device, DeviceError, DeviceSlice, Event, PinnedSlice, Stream, StreamUse};
use crate::gpu::Gpu;
use crate::gpu::api::{Api, Raw};
use crate::gpu::library::{Library, table};

/// A group over CUDA devices.
#[cfg(feature = "cuda")]
pub type Nccl = Communicator<crate::cuda::Cuda>;

/// A group over HIP devices.
#[cfg(feature = "hip")]
pub type Rccl = Communicator<crate::hip::Hip>;

/// What makes one group of its ranks. One rank makes it and brings it to the others by whatever means the program has.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(C)]
pub struct UniqueId {
    /// The library's bytes.
    pub bytes: [u8; 128],
}

/// A rank's place in a group over devices.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CommunicatorConfig {
    /// This rank, from 0.
    pub rank: usize,
    /// Ranks of the group.
    pub size: usize,
    /// What [`Communicator::unique_id`] made on one of them.
    pub id: UniqueId,
    /// How long the other ranks are waited for.
    pub timeout: Duration,
    /// NCCL or RCCL, where its name or its folder is not one that is looked for.
    pub library: Option<PathBuf>,
}

/// One rank of a group over devices: the communicator, and a stream of its own.
///
/// A call that fails ends the communicator on this rank (`ncclCommAbort`). The others notice by their own time-out, or
/// sooner where the network tells them.
pub struct Communicator<A: Api> {
    gpu: Arc<Gpu<A>>,
    functions: Functions,
    /// Null once it is ended.
    raw: Raw,
    rank: usize,
    size: usize,
    stream: Stream,
    event: Event,
}

impl<A: Api> Communicator<A> {
    /// A new group's id.
    pub fn unique_id(library: Option<&Path>) -> Result<UniqueId, CollectiveError> {
        let functions = Functions::load(&library_of(A::BACKEND, library)?)?;
        let mut id = UniqueId { bytes: [0; 128] };
        // SAFETY: the pointer is to a local of the library's size.
        let code = unsafe { (functions.ncclGetUniqueId)(&mut id) };
        check(&functions, "ncclGetUniqueId", code)?;
        Ok(id)
    }

    /// Joins the group, on `gpu`. Returns when all ranks have, or after the time-out.
    pub fn join(gpu: Arc<Gpu<A>>, config: &CommunicatorConfig) -> Result<Self, CollectiveError> {
        let CommunicatorConfig { rank, size, id, timeout, .. } = *config;
        let outside = CollectiveError::Rank { rank, size };
        if rank >= size {
            return Err(outside);
        }
        let (Ok(raw_rank), Ok(raw_size)) = (i32::try_from(rank), i32::try_from(size)) else {
            return Err(outside);
        };
        let functions = Functions::load(&library_of(A::BACKEND, config.library.as_deref())?)?;
        let stream = gpu.create_stream(StreamUse::Compute)?;
        let event = gpu.create_event().inspect_err(|_| drop(gpu.destroy_stream(stream)))?;
        let mut group = Self { gpu, functions, raw: Raw(null_mut()), rank, size, stream, event };
        let limit = Limit::new(timeout);
        let code = {
            let _current = group.gpu.api().enter()?;
            let mut head = ConfigHead::NOT_BLOCKING;
            // SAFETY: both pointers are to locals, and the library copies as much of the second as its length says.
            unsafe { (functions.ncclCommInitRankConfig)(&mut group.raw.0, raw_size, id, raw_rank, &mut head) }
        };
        group.settle("ncclCommInitRankConfig", code, limit)?;
        Ok(group)
    }

    /// Runs `work`, and ends the communicator if it fails, wherever: the other ranks may be in the call that this one did not
    /// make, and would take its next one for that.
    fn or_end(
        &mut self,
        work: impl FnOnce(&Self) -> Result<(), CollectiveError>,
    ) -> Result<(), CollectiveError> {
        if self.raw.0.is_null() {
            return Err(CollectiveError::Broken);
        }
        work(self).inspect_err(|_| self.end())
    }

    /// Runs `call` from `own` into as many values as `all` holds, on this rank's stream.
    fn run(
        &self,
        own: &[u64],
        all: &mut [u64],
        timeout: Duration,
        name: &'static str,
        call: impl FnOnce(&Self, u64, u64, *mut c_void) -> i32,
    ) -> Result<(), CollectiveError> {
        if own.is_empty() {
            return Ok(());
        }
        let limit = Limit::new(timeout);
        let buffers = Buffers::new(&self.gpu, own.len(), all.len())?;
        buffers.write(own);
        let result = self.submit(&buffers, name, limit, call).and_then(|()| self.finish(limit));
        match result {
            Ok(()) => buffers.read(all),
            // What was submitted may still write to them, and waiting for it might never end.
            Err(_) => std::mem::forget(buffers),
        }
        result
    }

    fn submit(
        &self,
        buffers: &Buffers<'_, A>,
        name: &'static str,
        limit: Limit,
        call: impl FnOnce(&Self, u64, u64, *mut c_void) -> i32,
    ) -> Result<(), CollectiveError> {
        let raw = self.gpu.raw_stream(self.stream)?;
        // SAFETY: `run` keeps the buffers until the stream has ended with them, or for ever.
        unsafe { self.gpu.copy_in(buffers.pinned_own, buffers.own, self.stream) }?;
        let code = {
            let _current = self.gpu.api().enter()?;
            call(self, buffers.own.address(), buffers.all.address(), raw)
        };
        self.settle(name, code, limit)?;
        // SAFETY: as above.
        unsafe { self.gpu.copy_out(buffers.all, buffers.pinned_all, self.stream) }?;
        self.gpu.record(self.event, self.stream)?;
        Ok(())
    }

    /// Waits until the stream has ended with what was submitted.
    fn finish(&self, limit: Limit) -> Result<(), CollectiveError> {
        while !self.gpu.is_done(self.event)? {
            let code = self.state()?;
            if code != IN_PROGRESS {
                check(&self.functions, "ncclCommGetAsyncError", code)?;
            }
            limit.pause()?;
        }
        Ok(())
    }

    /// Waits until a call that returned `code` has been taken up: the communicator does not block.
    fn settle(&self, call: &'static str, mut code: i32, limit: Limit) -> Result<(), CollectiveError> {
        while code == IN_PROGRESS {
            limit.pause()?;
            code = self.state()?;
        }
        check(&self.functions, call, code)
    }

    fn state(&self) -> Result<i32, CollectiveError> {
        let mut state = SUCCESS;
        // SAFETY: the communicator lives, and the pointer is to a local.
        let code = unsafe { (self.functions.ncclCommGetAsyncError)(self.raw.0, &mut state) };
        check(&self.functions, "ncclCommGetAsyncError", code)?;
        Ok(state)
    }

    /// Ends the communicator, whatever it is doing.
    fn end(&mut self) {
        let raw = std::mem::replace(&mut self.raw.0, null_mut());
        if raw.is_null() {
            return;
        }
        if let Ok(_current) = self.gpu.api().enter() {
            // SAFETY: made by `join`, and given up here. A failure leaves nothing to be done.
            let _ = unsafe { (self.functions.ncclCommAbort)(raw) };
        }
    }
}

impl<A: Api> Collective for Communicator<A> {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn gather(&mut self, own: &[u64], all: &mut [u64], timeout: Duration) -> Result<(), CollectiveError> {
        let count = own.len();
        self.or_end(|group| {
            if count.checked_mul(group.size) != Some(all.len()) {
                return Err(CollectiveError::Length { own: count, all: all.len() });
            }
            group.run(own, all, timeout, "ncclAllGather", |group, from, to, stream| {
                let (from, to) = (from as *const c_void, to as *mut c_void);
                // SAFETY: both are device memory of `count` and `count` times the group's size of 64-bit values.
                unsafe { (group.functions.ncclAllGather)(from, to, count, UINT64, group.raw.0, stream) }
            })
        })
    }

    fn max(&mut self, values: &mut [u64], timeout: Duration) -> Result<(), CollectiveError> {
        let own = values.to_vec();
        self.or_end(|group| {
            group.run(&own, values, timeout, "ncclAllReduce", |group, from, to, stream| {
                let (from, to) = (from as *const c_void, to as *mut c_void);
                // SAFETY: both are device memory of as many 64-bit values.
                unsafe {
                    (group.functions.ncclAllReduce)(from, to, own.len(), UINT64, MAX, group.raw.0, stream)
                }
            })
        })
    }
}

impl<A: Api> Drop for Communicator<A> {
    fn drop(&mut self) {
        // Not `ncclCommDestroy`, which waits for peers that may be gone. Every call here has ended or failed.
        self.end();
        let _ = self.gpu.destroy_event(self.event);
        let _ = self.gpu.destroy_stream(self.stream);
    }
}

impl<A: Api> fmt::Debug for Communicator<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Communicator");
        debug
            .field("gpu", &self.gpu)
            .field("rank", &self.rank)
            .field("size", &self.size)
            .finish_non_exhaustive()
    }
}

/// Memory of one call.
struct Buffers<'a, A: Api> {
    gpu: &'a Gpu<A>,
    own: DeviceSlice,
    all: DeviceSlice,
    pinned_own: PinnedSlice,
    pinned_all: PinnedSlice,
    device: DeviceSlice,
    pinned: PinnedSlice,
}

impl<'a, A: Api> Buffers<'a, A> {
    /// Memory for `own` and `all` values of 8 bytes.
    fn new(gpu: &'a Gpu<A>, own: usize, all: usize) -> Result<Self, CollectiveError> {
        let bytes = |values: usize| (values as u64).checked_mul(8);
        let too_long = CollectiveError::Length { own, all };
        let (Some(own_bytes), Some(all_bytes)) = (bytes(own), bytes(all)) else { return Err(too_long) };
        let Some(sum) = own_bytes.checked_add(all_bytes) else { return Err(too_long) };
        let device = gpu.allocate(sum)?;
        let pinned = match gpu.allocate_pinned(sum) {
            Ok(pinned) => pinned,
            Err(error) => {
                // SAFETY: allocated just now, and not used.
                let _ = unsafe { gpu.free(device) };
                return Err(error.into());
            }
        };
        Ok(Self {
            gpu,
            own: DeviceSlice::new(device.address(), own_bytes),
            all: DeviceSlice::new(device.address() + own_bytes, all_bytes),
            pinned_own: PinnedSlice::new(pinned.address(), own_bytes),
            pinned_all: PinnedSlice::new(pinned.address() + own_bytes, all_bytes),
            device,
            pinned,
        })
    }

    fn write(&self, own: &[u64]) {
        let to = self.pinned_own.address() as *mut u64;
        // SAFETY: `pinned_own` has the bytes of `own`, is aligned to far more than 8, and no copy of it is under way.
        unsafe { to.copy_from_nonoverlapping(own.as_ptr(), own.len()) };
    }

    fn read(&self, all: &mut [u64]) {
        let from = self.pinned_all.address() as *const u64;
        // SAFETY: `pinned_all` has the bytes of `all`, is a multiple of 8 from an aligned address, and the copy to it
        // has ended.
        unsafe { from.copy_to_nonoverlapping(all.as_mut_ptr(), all.len()) };
    }
}

impl<A: Api> Drop for Buffers<'_, A> {
    fn drop(&mut self) {
        // SAFETY: allocated by `new`; `run` drops them only where the stream has ended with them.
        unsafe {
            let _ = self.gpu.free(self.device);
            let _ = self.gpu.free_pinned(self.pinned);
        }
    }
}

/// Until when a call may wait.
#[derive(Clone, Copy)]
struct Limit {
    timeout: Duration,
    /// `None` beyond the clock's range.
    end: Option<Instant>,
}

impl Limit {
    fn new(timeout: Duration) -> Self {
        Self { timeout, end: Instant::now().checked_add(timeout) }
    }

    /// A short pause, unless time is up.
    fn pause(self) -> Result<(), CollectiveError> {
        if self.end.is_some_and(|end| Instant::now() >= end) {
            return Err(CollectiveError::TimedOut { timeout: self.timeout, missing: None });
        }
        thread::sleep(Duration::from_micros(100));
        Ok(())
    }
}

/// `ncclResult_t`.
const SUCCESS: i32 = 0;
const IN_PROGRESS: i32 = 7;
/// `ncclUint64`, `ncclMax`.
const UINT64: i32 = 5;
const MAX: i32 = 2;

/// The head of `ncclConfig_t` as of 2.14, the first to have one. Later versions take it by its length and its version
/// (`parseCommConfig` in NCCL's `src/init.cc`) and put their defaults into the rest.
#[repr(C)]
struct ConfigHead {
    bytes: usize,
    magic: u32,
    version: u32,
    blocking: i32,
}

impl ConfigHead {
    const NOT_BLOCKING: Self =
        Self { bytes: size_of::<Self>(), magic: 0xcafe_beef, version: 21_400, blocking: 0 };
}

table! {
    /// NCCL and RCCL, since 2.14.
    struct Functions {
        ncclGetErrorString(code: i32) -> *const c_char;
        ncclGetUniqueId(id: *mut UniqueId) -> i32;
        ncclCommInitRankConfig(communicator: *mut *mut c_void, ranks: i32, id: UniqueId, rank: i32, config: *mut ConfigHead) -> i32;
        ncclCommGetAsyncError(communicator: *mut c_void, state: *mut i32) -> i32;
        ncclCommAbort(communicator: *mut c_void) -> i32;
        ncclAllGather(from: *const c_void, to: *mut c_void, count: usize, kind: i32, communicator: *mut c_void, stream: *mut c_void) -> i32;
        ncclAllReduce(from: *const c_void, to: *mut c_void, count: usize, kind: i32, operation: i32, communicator: *mut c_void, stream: *mut c_void) -> i32;
    }
}

fn library_of(backend: Backend, path: Option<&Path>) -> Result<Library, DeviceError> {
    match backend {
        Backend::Hip => Library::load(backend, "librccl.so.1", &["librccl.so.1", "librccl.so"], path),
        _ => Library::load(backend, "libnccl.so.2", &["libnccl.so.2", "libnccl.so"], path),
    }
}

fn check(functions: &Functions, call: &'static str, code: i32) -> Result<(), CollectiveError> {
    if code == SUCCESS {
        return Ok(());
    }
    // SAFETY: any number may be asked for; the text is static and terminated.
    let message = unsafe {
        let text = (functions.ncclGetErrorString)(code);
        if text.is_null() { String::new() } else { CStr::from_ptr(text).to_string_lossy().into_owned() }
    };
    Err(CollectiveError::Library { call, code, message })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A library that is here has every function of the table and makes ids; one that is not is absent by its name.
    fn makes_ids<A: Api>(name: &str) {
        match Communicator::<A>::unique_id(None) {
            Ok(id) => {
                println!("{name} is here");
                let other = Communicator::<A>::unique_id(None).expect("a second one");
                assert_ne!(id, other);
            }
            Err(CollectiveError::Device(DeviceError::Absent { library, reason, .. })) => {
                println!("skipped: {reason}");
                assert_eq!(library, name);
            }
            Err(CollectiveError::Library { call, message, .. }) => {
                println!("{name} is here, and cannot be used: {message}");
                assert_eq!(call, "ncclGetUniqueId");
            }
            Err(other) => panic!("{other}"),
        }
    }

    #[cfg(feature = "cuda")]
    #[test]
    fn nccl_makes_ids_where_it_is() {
        makes_ids::<crate::cuda::Cuda>("libnccl.so.2");
    }

    #[cfg(feature = "hip")]
    #[test]
    fn rccl_makes_ids_where_it_is() {
        makes_ids::<crate::hip::Hip>("librccl.so.1");
    }
}
