//! The states of the search: stored once, found by their places, and taken in the order of their bounds.
//!
//! All three structures live in the caller's slots: element i holds state i, the i-th entry of a binary heap
//! and the i-th head of a hash table.

use super::super::lanes::FOUR;

/// No state.
pub(super) const NONE: u32 = u32::MAX;

/// A state of the search: a prefix of every chain and when chains and resources are ready after it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct State {
    /// When each chain's last operator ends, or any later time before which nothing of it can happen.
    pub chains: [u64; FOUR],
    /// The same of resources.
    pub resources: [u64; FOUR],
    /// No order that goes on from here ends before.
    pub bound: u64,
    /// When the operator that was taken to come here ends.
    pub end: u64,
    /// Operators of each chain that are in.
    pub at: [u8; FOUR],
    /// The state it was made from, and the lane that was taken there.
    pub parent: u32,
    pub lane: u8,
    /// Whether bytes can no longer bind.
    pub free: bool,
    /// Whether another state is at least as good.
    pub dead: bool,
}

impl State {
    /// Places in the chains.
    pub fn places(&self) -> [usize; FOUR] {
        self.at.map(usize::from)
    }

    /// Operators in.
    pub fn depth(&self) -> u32 {
        self.at.iter().map(|&n| u32::from(n)).sum()
    }
}

/// Storage of [`Exact`](super::Exact): one state of its search.
#[derive(Clone, Copy, Debug, Default)]
pub struct ExactSlot {
    state: State,
    /// The next state in the same list of the hash table.
    next: u32,
    /// First state of a list of the hash table. Stale unless that state belongs there, so that nothing needs
    /// to be cleared between problems.
    head: u32,
    open: Open,
}

/// An entry of the heap.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
struct Open {
    bound: u64,
    /// The deeper first, then the newer.
    rank: u32,
    newer: u32,
}

/// States stored, and those of them that are open.
pub(super) struct Frontier<'s> {
    slots: &'s mut [ExactSlot],
    stored: usize,
    open: usize,
    table_bits: u32,
}

impl<'s> Frontier<'s> {
    pub fn new(slots: &'s mut [ExactSlot]) -> Self {
        let usable = slots.len().min(NONE as usize);
        let slots = &mut slots[..usable];
        let table_bits = usable.checked_ilog2().unwrap_or(0);
        Self { slots, stored: 0, open: 0, table_bits }
    }

    pub fn state(&self, state: u32) -> &State {
        &self.slots[state as usize].state
    }

    /// Stores `state` and opens it, unless `beats` says that a stored one with the same places is at least as
    /// good; those that it is at least as good as are dropped. False where no slot is left.
    pub fn insert(&mut self, state: &State, beats: impl Fn(&Self, &State, &State) -> bool) -> bool {
        let bucket = self.bucket(state.at);
        let (mut before, mut here) = (NONE, self.head(bucket));
        while here != NONE {
            let ExactSlot { state: other, next, .. } = &self.slots[here as usize];
            let next = *next;
            if other.at == state.at {
                if beats(self, other, state) {
                    return true;
                }
                if beats(self, state, other) {
                    self.slots[here as usize].state.dead = true;
                    match before {
                        NONE => self.slots[bucket].head = next,
                        _ => self.slots[before as usize].next = next,
                    }
                    here = next;
                    continue;
                }
            }
            (before, here) = (here, next);
        }
        if self.stored == self.slots.len() {
            return false;
        }
        let new = self.stored as u32;
        let head = self.head(bucket);
        let slot = &mut self.slots[self.stored];
        (slot.state, slot.next) = (*state, head);
        self.stored += 1;
        self.slots[bucket].head = new;
        self.push(Open { bound: state.bound, rank: u32::MAX - state.depth(), newer: u32::MAX - new });
        true
    }

    fn bucket(&self, at: [u8; FOUR]) -> usize {
        let key = u64::from(u32::from_le_bytes(at));
        // Fibonacci hashing: the high bits of the product.
        (key.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32 >> (32 - self.table_bits)) as usize
    }

    fn head(&self, bucket: usize) -> u32 {
        let head = self.slots.get(bucket).map_or(NONE, |slot| slot.head);
        let there = (head as usize) < self.stored && self.bucket(self.state(head).at) == bucket;
        if there { head } else { NONE }
    }

    /// The open state with the lowest bound.
    pub fn pop(&mut self) -> Option<u32> {
        while self.open > 0 {
            let first = self.slots[0].open;
            self.open -= 1;
            let last = self.slots[self.open].open;
            self.sink(last);
            let state = u32::MAX - first.newer;
            if !self.state(state).dead {
                return Some(state);
            }
        }
        None
    }

    fn push(&mut self, entry: Open) {
        let mut place = self.open;
        self.open += 1;
        while place > 0 {
            let up = (place - 1) / 2;
            if self.slots[up].open <= entry {
                break;
            }
            self.slots[place].open = self.slots[up].open;
            place = up;
        }
        self.slots[place].open = entry;
    }

    /// Puts `entry` in the place of the first.
    fn sink(&mut self, entry: Open) {
        let mut place = 0;
        loop {
            let mut down = 2 * place + 1;
            if down >= self.open {
                break;
            }
            if down + 1 < self.open && self.slots[down + 1].open < self.slots[down].open {
                down += 1;
            }
            if entry <= self.slots[down].open {
                break;
            }
            self.slots[place].open = self.slots[down].open;
            place = down;
        }
        self.slots[place].open = entry;
    }
}
