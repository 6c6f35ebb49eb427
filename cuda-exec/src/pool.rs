//! Pinned host memory with a byte cap, for offloaded tensors (design §6).
//!
//! A full pool is a typed answer, never a silent Keep: whoever offloads reserves first. Memory is pinned in
//! slabs, because pinning is slow, and stays pinned. A reservation comes from the smallest free block that
//! has it; where no block has it whole it is made of the largest ones, so that *every* reservation within the
//! free bytes succeeds, however the pool is cut up. Taking and giving back allocates nothing.

use core::fmt;
use std::sync::Arc;

use crate::device::{ALIGNMENT, Device, DeviceError, PinnedSlice};

mod slabs;

use slabs::{NONE, Slabs};

/// Blocks for which the lists have room from the start.
const ROOM: usize = 1_024;

/// How much a pool may pin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PoolConfig {
    /// Never more than this, bytes. Give the planner's host bytes and [`ALIGNMENT`] for each tensor that may be out at once.
    pub cap_bytes: u64,
    /// Pinned at a time, bytes; 0 takes 64 MiB, or the cap where that is less.
    pub slab_bytes: u64,
}

/// Host memory taken from a pool. It goes back by [`PinnedPool::release`].
#[must_use = "what is not released stays taken"]
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct Lease {
    first: u32,
    bytes: u64,
}

/// What a pool holds, bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PoolUsage {
    /// The cap.
    pub cap: u64,
    /// Pinned so far.
    pub pinned: u64,
    /// Taken, rounded up to [`ALIGNMENT`].
    pub taken: u64,
    /// The most ever taken at once.
    pub high_water: u64,
    /// The largest piece that can be had without pinning more.
    pub largest_free: u64,
}

/// The pinned memory of one engine.
#[derive(Debug)]
pub(crate) struct PinnedPool {
    device: Arc<dyn Device>,
    cap: u64,
    slab_bytes: u64,
    pinned: Vec<PinnedSlice>,
    pinned_bytes: u64,
    slabs: Slabs,
    high_water: u64,
}

impl PinnedPool {
    /// A pool that has pinned nothing yet.
    pub fn new(device: Arc<dyn Device>, config: PoolConfig) -> Self {
        let cap = config.cap_bytes / ALIGNMENT * ALIGNMENT;
        let slab_bytes = match config.slab_bytes {
            0 => 64 << 20,
            bytes => bytes.max(ALIGNMENT).checked_next_multiple_of(ALIGNMENT).unwrap_or(cap),
        };
        Self {
            device,
            cap,
            slab_bytes,
            pinned: Vec::new(),
            pinned_bytes: 0,
            slabs: Slabs::with_room(ROOM),
            high_water: 0,
        }
    }

    /// Pins memory now, so that no reservation up to `bytes` in all has to.
    pub fn warm(&mut self, bytes: u64) -> Result<(), PoolError> {
        while self.pinned_bytes < bytes.min(self.cap) {
            self.grow()?;
        }
        Ok(())
    }

    /// Takes `bytes`, pinning more memory where that is needed and the cap allows it.
    pub fn reserve(&mut self, bytes: u64) -> Result<Lease, PoolError> {
        let taken = self.pinned_bytes - self.slabs.free_bytes();
        let full = PoolFull { needed: bytes, free: self.cap - taken, cap: self.cap };
        let rounded = bytes.checked_next_multiple_of(ALIGNMENT).filter(|&needed| needed <= full.free);
        let needed = rounded.ok_or(PoolError::Full(full))?;
        if needed == 0 {
            return Ok(Lease { first: NONE, bytes });
        }
        let first = match self.take_whole(needed)? {
            Some(block) => block,
            None => self.take_pieces(needed)?,
        };
        self.high_water = self.high_water.max(taken + needed);
        Ok(Lease { first, bytes })
    }

    /// Where a reservation lies, piece after piece; together they are as long as it is.
    pub fn pieces<'p>(&'p self, lease: &Lease) -> impl Iterator<Item = PinnedSlice> + use<'p> {
        let (mut next, mut left) = (lease.first, lease.bytes);
        core::iter::from_fn(move || {
            if next == NONE {
                return None;
            }
            let block = self.slabs.block(next);
            let bytes = block.bytes.min(left);
            (next, left) = (block.next, left - bytes);
            Some(PinnedSlice::new(block.start, bytes))
        })
    }

    /// Gives a reservation back. No copy may use it any more.
    pub fn release(&mut self, lease: Lease) {
        let mut index = lease.first;
        while index != NONE {
            let next = self.slabs.block(index).next;
            self.slabs.give_back(index);
            index = next;
        }
    }

    /// What it holds now.
    pub fn usage(&self) -> PoolUsage {
        PoolUsage {
            cap: self.cap,
            pinned: self.pinned_bytes,
            taken: self.pinned_bytes - self.slabs.free_bytes(),
            high_water: self.high_water,
            largest_free: self.slabs.largest_free(),
        }
    }

    /// Never unpins what it has: for memory that lost copies may still be writing.
    pub(crate) fn leak(&mut self) {
        self.pinned.clear();
    }

    /// In one piece: from what is pinned, else from a new slab.
    fn take_whole(&mut self, needed: u64) -> Result<Option<u32>, PoolError> {
        if let Some(block) = self.slabs.take(needed) {
            return Ok(Some(block));
        }
        if needed > self.next_slab() {
            return Ok(None);
        }
        match self.grow() {
            Ok(()) => Ok(self.slabs.take(needed)),
            // Pieces of what there is will do.
            Err(_) if needed <= self.slabs.free_bytes() => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn take_pieces(&mut self, needed: u64) -> Result<u32, PoolError> {
        while self.slabs.free_bytes() < needed {
            self.grow()?;
        }
        let (mut first, mut last, mut left) = (NONE, NONE, needed);
        while left > 0 {
            let Some(piece) = self.slabs.take_largest(left) else { break };
            left -= self.slabs.block(piece).bytes;
            match last {
                NONE => first = piece,
                last => self.slabs.chain(last, piece),
            }
            last = piece;
        }
        Ok(first)
    }

    /// Bytes of the slab that would be pinned next.
    fn next_slab(&self) -> u64 {
        self.slab_bytes.min(self.cap - self.pinned_bytes)
    }

    fn grow(&mut self) -> Result<(), PoolError> {
        let slab = self.device.allocate_pinned(self.next_slab()).map_err(PoolError::Device)?;
        self.pinned.push(slab);
        self.pinned_bytes += slab.bytes();
        self.slabs.add(slab.address(), slab.bytes());
        Ok(())
    }
}

impl Drop for PinnedPool {
    fn drop(&mut self) {
        for slab in self.pinned.drain(..) {
            // SAFETY: the slab is this pool's, whole and given back once; whoever submits copies keeps the pool until they have ended.
            // A device that cannot take it back leaves it pinned, and there is nobody to tell.
            let _ = unsafe { self.device.free_pinned(slab) };
        }
    }
}

/// The pool has not as many bytes free as are needed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PoolFull {
    /// Bytes asked for.
    pub needed: u64,
    /// Bytes free, in however many pieces, memory that may still be pinned included.
    pub free: u64,
    /// The cap.
    pub cap: u64,
}

impl fmt::Display for PoolFull {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { needed, free, cap } = self;
        write!(
            f,
            "{needed} bytes of pinned memory were asked for, and {free} of the pool's {cap} are free; raise \
             `cap_bytes`, or give the planner fewer host bytes"
        )
    }
}

impl core::error::Error for PoolFull {}

/// Why a pool gives nothing.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum PoolError {
    /// The cap is reached.
    Full(PoolFull),
    /// The machine pins no more.
    Device(DeviceError),
}

impl fmt::Display for PoolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full(full) => full.fmt(f),
            Self::Device(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for PoolError {}

#[cfg(all(test, not(loom)))]
mod tests;
