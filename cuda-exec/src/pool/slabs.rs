//! Addresses shared out of slabs: best fit, split, and joined again with free neighbours.
//!
//! Nothing here touches memory. Blocks are named by an index that stays theirs until they are given back.

/// No block.
pub(super) const NONE: u32 = u32::MAX;

/// A run of addresses in one slab, free or taken.
#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    pub start: u64,
    pub bytes: u64,
    /// Neighbours by address in the same slab.
    before: u32,
    after: u32,
    /// The next piece of the same reservation.
    pub next: u32,
    free: bool,
}

/// All blocks of all slabs.
#[derive(Debug, Default)]
pub(super) struct Slabs {
    blocks: Vec<Block>,
    /// Indices in `blocks` that name nothing now.
    spare: Vec<u32>,
    /// Free blocks as (bytes, start, index), sorted.
    free: Vec<(u64, u64, u32)>,
    free_bytes: u64,
}

impl Slabs {
    /// None yet, with room for `blocks` blocks before any list must grow.
    pub fn with_room(blocks: usize) -> Self {
        Self {
            blocks: Vec::with_capacity(blocks),
            spare: Vec::with_capacity(blocks),
            free: Vec::with_capacity(blocks),
            free_bytes: 0,
        }
    }

    /// Adds a slab, all of it free.
    pub fn add(&mut self, start: u64, bytes: u64) {
        let index = self.insert(Block { start, bytes, before: NONE, after: NONE, next: NONE, free: true });
        self.list(index);
    }

    /// Takes `bytes` in one piece from the smallest free block that has them, the lowest address of equals.
    pub fn take(&mut self, bytes: u64) -> Option<u32> {
        let at = self.free.partition_point(|&(size, ..)| size < bytes);
        let &(.., index) = self.free.get(at)?;
        Some(self.take_from(at, index, bytes))
    }

    /// Takes up to `bytes` from the largest free block.
    pub fn take_largest(&mut self, bytes: u64) -> Option<u32> {
        let &(size, _, index) = self.free.last()?;
        Some(self.take_from(self.free.len() - 1, index, bytes.min(size)))
    }

    /// Gives a block back; it joins its free neighbours.
    pub fn give_back(&mut self, index: u32) {
        let mut index = index;
        let Block { before, after, .. } = self.blocks[index as usize];
        if after != NONE && self.blocks[after as usize].free {
            self.unlist(after);
            self.join(index, after);
        }
        if before != NONE && self.blocks[before as usize].free {
            self.unlist(before);
            self.join(before, index);
            index = before;
        }
        self.blocks[index as usize].next = NONE;
        self.list(index);
    }

    /// One block.
    pub fn block(&self, index: u32) -> &Block {
        &self.blocks[index as usize]
    }

    /// Makes `next` the piece after `index`.
    pub fn chain(&mut self, index: u32, next: u32) {
        self.blocks[index as usize].next = next;
    }

    /// Bytes in free blocks.
    pub fn free_bytes(&self) -> u64 {
        self.free_bytes
    }

    /// Bytes of the largest free block.
    pub fn largest_free(&self) -> u64 {
        self.free.last().map_or(0, |&(bytes, ..)| bytes)
    }

    fn take_from(&mut self, at: usize, index: u32, bytes: u64) -> u32 {
        let (size, ..) = self.free.remove(at);
        self.free_bytes -= size;
        self.blocks[index as usize].free = false;
        if size > bytes {
            self.split(index, bytes);
        }
        index
    }

    /// Cuts a taken block after `bytes`; the rest is free.
    fn split(&mut self, index: u32, bytes: u64) {
        let block = self.blocks[index as usize];
        let rest = Block {
            start: block.start + bytes,
            bytes: block.bytes - bytes,
            before: index,
            after: block.after,
            next: NONE,
            free: true,
        };
        let rest = self.insert(rest);
        if block.after != NONE {
            self.blocks[block.after as usize].before = rest;
        }
        let block = &mut self.blocks[index as usize];
        (block.bytes, block.after) = (bytes, rest);
        self.list(rest);
    }

    /// Joins `right` to its neighbour `left`.
    fn join(&mut self, left: u32, right: u32) {
        let Block { bytes, after, .. } = self.blocks[right as usize];
        let block = &mut self.blocks[left as usize];
        block.bytes += bytes;
        block.after = after;
        if after != NONE {
            self.blocks[after as usize].before = left;
        }
        self.spare.push(right);
    }

    fn insert(&mut self, block: Block) -> u32 {
        match self.spare.pop() {
            Some(index) => {
                self.blocks[index as usize] = block;
                index
            }
            None => {
                self.blocks.push(block);
                (self.blocks.len() - 1) as u32
            }
        }
    }

    fn list(&mut self, index: u32) {
        let block = &mut self.blocks[index as usize];
        block.free = true;
        let entry = (block.bytes, block.start, index);
        self.free_bytes += block.bytes;
        let at = self.free.partition_point(|e| *e < entry);
        self.free.insert(at, entry);
    }

    fn unlist(&mut self, index: u32) {
        let block = &self.blocks[index as usize];
        let entry = (block.bytes, block.start, index);
        self.free_bytes -= block.bytes;
        let at = self.free.partition_point(|e| *e < entry);
        self.free.remove(at);
    }
}
