//! Device memory and pinned memory of the host.
//!
//! Device memory is private anonymous memory, which `RLIMIT_DATA` counts, so that an allocation can fail for real.
//! Pinned memory is a shared mapping of a file without a name, which it does not count: what is offloaded leaves the
//! private memory of the process. Both are mapped at page boundaries and given back to the system when freed.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::{Mutex, PoisonError};

use rustix::fs::FallocateFlags;
use rustix::mm::{self, MapFlags, ProtFlags};
use rustix::process::{Resource, getrlimit};

use super::Usage;
use super::machine::{Room, kilobytes};
use crate::device::{ALIGNMENT, DeviceError, DeviceSlice, MemoryInfo, PinnedSlice};

/// Where pinned memory lives.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Tier {
    /// A file in memory (`memfd_create`).
    #[default]
    Memory,
    /// A file without a name in this directory, on any file system that can reserve room and be mapped.
    Directory(PathBuf),
}

/// Allocations kept track of without the book growing.
const LIVE: usize = 1024;

/// The memory of one device.
#[derive(Debug)]
pub(super) struct Memory {
    capacity: Option<u64>,
    tier: Tier,
    device: Mutex<Book>,
    pinned: Mutex<Book>,
}

/// What is allocated.
#[derive(Debug)]
struct Book {
    /// Bytes by address.
    live: HashMap<u64, u64>,
    usage: Usage,
}

impl Memory {
    /// No memory yet; at most `capacity` bytes of device memory, or what the machine has. A directory is tried first: later
    /// a failure there means that room has run out.
    pub(super) fn new(capacity: Option<u64>, tier: Tier) -> Result<Self, DeviceError> {
        if let Tier::Directory(directory) = &tier {
            let tried = unnamed_file(directory).and_then(|file| reserve(&file, 1));
            tried.map_err(|error| DeviceError::Library {
                call: "a file for pinned memory",
                code: error.raw_os_error().unwrap_or_default().into(),
                message: format!(
                    "{}: {error}; give a directory that can be written, where room can be reserved",
                    directory.display()
                ),
            })?;
        }
        Ok(Self { capacity, tier, device: Mutex::new(Book::new()), pinned: Mutex::new(Book::new()) })
    }

    pub(super) fn info(&self) -> MemoryInfo {
        match self.capacity {
            Some(total) => MemoryInfo { free: total.saturating_sub(self.device_usage().bytes), total },
            None => machine(),
        }
    }

    pub(super) fn device_usage(&self) -> Usage {
        book(&self.device).usage
    }

    pub(super) fn pinned_usage(&self) -> Usage {
        book(&self.pinned).usage
    }

    pub(super) fn forget_peaks(&self) {
        for ledger in [&self.device, &self.pinned] {
            let mut ledger = book(ledger);
            ledger.usage.peak = ledger.usage.bytes;
        }
    }

    pub(super) fn allocate(&self, bytes: u64) -> Result<DeviceSlice, DeviceError> {
        if bytes == 0 {
            return Ok(DeviceSlice::new(ALIGNMENT, 0));
        }
        let mut device = book(&self.device);
        if let Some(capacity) = self.capacity {
            let free = capacity.saturating_sub(device.usage.bytes);
            if bytes > free {
                return Err(DeviceError::OutOfMemory { bytes, free });
            }
        }
        match map_private(bytes) {
            Ok(address) => {
                device.add(address, bytes);
                Ok(DeviceSlice::new(address, bytes))
            }
            Err(_) => {
                drop(device);
                Err(DeviceError::OutOfMemory { bytes, free: machine().free })
            }
        }
    }

    pub(super) fn allocate_pinned(&self, bytes: u64) -> Result<PinnedSlice, DeviceError> {
        if bytes == 0 {
            return Ok(PinnedSlice::new(ALIGNMENT, 0));
        }
        let address = self.map_shared(bytes).map_err(|_| DeviceError::OutOfPinnedMemory { bytes })?;
        book(&self.pinned).add(address, bytes);
        Ok(PinnedSlice::new(address, bytes))
    }

    /// # Safety
    /// - Nothing uses the memory any more.
    pub(super) unsafe fn free(&self, memory: DeviceSlice) -> Result<(), DeviceError> {
        let (address, bytes) = (memory.address(), memory.bytes());
        // SAFETY: as required of the caller.
        unsafe { release(&self.device, "device memory at", address, bytes) }
    }

    /// # Safety
    /// - Nothing uses the memory any more.
    pub(super) unsafe fn free_pinned(&self, memory: PinnedSlice) -> Result<(), DeviceError> {
        let (address, bytes) = (memory.address(), memory.bytes());
        // SAFETY: as required of the caller.
        unsafe { release(&self.pinned, "pinned memory at", address, bytes) }
    }

    /// A shared mapping with all its room reserved: writing to one without would end the process when the file system is full.
    fn map_shared(&self, bytes: u64) -> io::Result<u64> {
        let file = match &self.tier {
            // Reserving takes the pages one by one: asked for more than there is, the system would end processes first.
            Tier::Memory if bytes > available() => return Err(io::ErrorKind::OutOfMemory.into()),
            Tier::Memory => memory_file()?,
            Tier::Directory(directory) => unnamed_file(directory)?,
        };
        reserve(&file, bytes)?;
        let length = usize::try_from(bytes).map_err(io::Error::other)?;
        // SAFETY: a new mapping at an address of the system's choice touches no other memory; the file has no name
        // and is `length` bytes long for as long as it is mapped.
        let mapped =
            unsafe { mm::mmap(ptr::null_mut(), length, READ_WRITE, MapFlags::SHARED, file.as_fd(), 0) };
        Ok(mapped?.expose_provenance() as u64)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        for book in [&mut self.device, &mut self.pinned] {
            for (address, bytes) in book.get_mut().unwrap_or_else(PoisonError::into_inner).live.drain() {
                // SAFETY: the device is dropped, and its memory with it: nothing of it is used any more.
                let _ = unsafe { unmap(address, bytes) };
            }
        }
    }
}

impl Book {
    fn new() -> Self {
        Self { live: HashMap::with_capacity(LIVE), usage: Usage { bytes: 0, peak: 0 } }
    }

    fn add(&mut self, address: u64, bytes: u64) {
        self.live.insert(address, bytes);
        self.usage.bytes = self.usage.bytes.saturating_add(bytes);
        self.usage.peak = self.usage.peak.max(self.usage.bytes);
    }
}

const READ_WRITE: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

fn book(of: &Mutex<Book>) -> std::sync::MutexGuard<'_, Book> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

fn map_private(bytes: u64) -> io::Result<u64> {
    let length = usize::try_from(bytes).map_err(io::Error::other)?;
    // SAFETY: a new mapping at an address of the system's choice touches no other memory.
    let mapped = unsafe { mm::mmap_anonymous(ptr::null_mut(), length, READ_WRITE, MapFlags::PRIVATE) };
    Ok(mapped?.expose_provenance() as u64)
}

/// Takes `address` out of the book and unmaps it.
///
/// # Safety
/// - Nothing uses the memory any more.
unsafe fn release(
    from: &Mutex<Book>,
    kind: &'static str,
    address: u64,
    bytes: u64,
) -> Result<(), DeviceError> {
    if bytes == 0 {
        return Ok(());
    }
    let mut book = book(from);
    if book.live.get(&address) != Some(&bytes) {
        return Err(DeviceError::NoSuchHandle { kind, handle: address });
    }
    // SAFETY: it is a whole mapping of ours, and nothing uses it as the caller says.
    unsafe { unmap(address, bytes) }.map_err(|error| DeviceError::Library {
        call: "munmap",
        code: i64::from(error.raw_os_error()),
        message: error.to_string(),
    })?;
    book.live.remove(&address);
    book.usage.bytes = book.usage.bytes.saturating_sub(bytes);
    Ok(())
}

/// # Safety
/// - The bytes are a whole mapping of ours that nothing uses any more.
unsafe fn unmap(address: u64, bytes: u64) -> rustix::io::Result<()> {
    // SAFETY: as required of the caller.
    unsafe { mm::munmap(ptr::with_exposed_provenance_mut(address as usize), bytes as usize) }
}

fn memory_file() -> io::Result<OwnedFd> {
    Ok(rustix::fs::memfd_create("bagualu-pinned", rustix::fs::MemfdFlags::CLOEXEC)?)
}

fn reserve(file: &OwnedFd, bytes: u64) -> io::Result<()> {
    Ok(rustix::fs::fallocate(file, FallocateFlags::empty(), 0, bytes)?)
}

/// A file in `directory` that loses its name at once, so that nothing is left behind.
fn unnamed_file(directory: &Path) -> io::Result<OwnedFd> {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(0);

    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let path = directory.join(format!("bagualu-{}-{number}", std::process::id()));
    let file = fs::OpenOptions::new().read(true).write(true).create_new(true).open(&path)?;
    fs::remove_file(&path)?;
    Ok(file.into())
}

/// Memory of the machine, and no more than what its control groups and `RLIMIT_DATA` leave.
fn machine() -> MemoryInfo {
    let MemoryInfo { free, total } = room();
    match getrlimit(Resource::Data).current {
        None => MemoryInfo { free, total },
        Some(limit) => {
            let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
            let left = limit.saturating_sub(kilobytes(&status, "VmData").unwrap_or(0));
            MemoryInfo { free: free.min(left), total: total.min(limit) }
        }
    }
}

/// Bytes that a file in memory may take: what the system has to spare, without the last sixteenth.
fn available() -> u64 {
    let free = room().free;
    free - free / 16
}

/// What the machine and its control groups have. Where `/proc` does not say, `sysinfo` does, but counts less as free.
fn room() -> MemoryInfo {
    let room = Room::of_process(Path::new("/"));
    let machine = rustix::system::sysinfo();
    let bytes = |units: u64| units.saturating_mul(machine.mem_unit.into());
    let free = bytes((machine.freeram as u64).saturating_add(machine.bufferram as u64));
    MemoryInfo {
        free: room.free.unwrap_or(free),
        total: room.total.unwrap_or(bytes(machine.totalram as u64)),
    }
}
