//! The smallest capacity for which an order exists.
//!
//! Whether an order fits does not depend on times: an operator that waits long enough starts after all
//! releases before it. So the question is how to thread chains with the lowest peak, and that has an exact
//! greedy answer (Abdel-Wahab and Kameda, 1978). Every chain passes through its lowest level; an order with
//! the lowest peak exists in which all chains are at theirs at once. Up to there, repeatedly take the chain
//! that comes back to its present level or below with the lowest rise. From there on, the same backwards.

use super::MAX_ORDER;
use super::lanes::{FOUR, Lanes};

/// How far a lane goes before it is back at its present level or below.
#[derive(Clone, Copy, Debug, Default)]
struct Block {
    rise: i64,
    net: i64,
    len: usize,
}

/// A place between two items of a lane.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    /// From here forwards.
    down: Block,
    /// From here backwards: what was taken is given back.
    up: Block,
    /// Items from here to the lowest level of what follows.
    low: usize,
    /// Bytes more in use at the end than here.
    net: i64,
}

/// The places of all lanes.
#[derive(Clone, Debug)]
pub(super) struct Needs {
    places: [Place; MAX_ORDER + FOUR],
    first: [usize; FOUR],
    lengths: [usize; FOUR],
    base: i64,
    capacity: i64,
}

impl Needs {
    pub fn new(lanes: &Lanes) -> Self {
        let mut needs = Self {
            places: [Place::default(); MAX_ORDER + FOUR],
            first: [0; FOUR],
            lengths: lanes.lengths(),
            base: lanes.base,
            capacity: lanes.capacity,
        };
        let mut first = 0;
        for lane in 0..FOUR {
            needs.first[lane] = first;
            let items = lanes.lane(lane);
            let (mut net, mut low, mut place) = (0, 0, items.len());
            for at in (0..=items.len()).rev() {
                // Level of the lowest place behind, seen from here.
                (net, low) = items.get(at).map_or((0, 0), |item| (net + item.net(), low + item.net()));
                if low >= 0 {
                    (low, place) = (0, at);
                }
                needs.places[first + at] = Place {
                    down: block(items[at..].iter().map(|item| (item.alloc, item.free))),
                    up: block(items[..at].iter().rev().map(|item| (item.free, item.alloc))),
                    low: place - at,
                    net,
                };
            }
            first += items.len() + 1;
        }
        needs
    }

    /// The smallest capacity for which an order exists.
    pub fn smallest_capacity(&self) -> i64 {
        let start = [0; FOUR];
        let low = self.lowest(start);
        let end = self.base + self.net(start);
        self.peak(Part::Down, start, low, self.base).max(self.peak(Part::Up, self.lengths, low, end))
    }

    /// Whether what follows `places` fits, where `level` bytes are in use by what is before them.
    pub fn fits(&self, places: [usize; FOUR], level: i64) -> bool {
        let low = self.lowest(places);
        let end = level + self.net(places);
        level.max(end) <= self.capacity
            && self.clears(Part::Down, places, low, level)
            && self.clears(Part::Up, self.lengths, low, end)
    }

    fn place(&self, lane: usize, at: usize) -> &Place {
        &self.places[self.first[lane] + at]
    }

    fn lowest(&self, places: [usize; FOUR]) -> [usize; FOUR] {
        core::array::from_fn(|lane| places[lane] + self.place(lane, places[lane]).low)
    }

    fn net(&self, places: [usize; FOUR]) -> i64 {
        (0..FOUR).map(|lane| self.place(lane, places[lane]).net).sum()
    }

    /// Peak of the best order from `at` to `low`, forwards or backwards.
    fn peak(&self, part: Part, mut at: [usize; FOUR], low: [usize; FOUR], mut level: i64) -> i64 {
        let mut peak = level;
        loop {
            let left = (0..FOUR).filter(|&lane| at[lane] != low[lane]);
            let blocks = left.map(|lane| (lane, part.block(self.place(lane, at[lane]))));
            let Some((lane, block)) = blocks.min_by_key(|(_, block)| block.rise) else { return peak };
            peak = peak.max(level + block.rise);
            level += block.net;
            at[lane] = part.step(at[lane], block);
        }
    }

    /// Whether that peak is within the capacity: then any block that fits may be next.
    fn clears(&self, part: Part, mut at: [usize; FOUR], low: [usize; FOUR], mut level: i64) -> bool {
        while at != low {
            let before = at;
            for lane in 0..FOUR {
                while at[lane] != low[lane] {
                    let block = part.block(self.place(lane, at[lane]));
                    if level + block.rise > self.capacity {
                        break;
                    }
                    level += block.net;
                    at[lane] = part.step(at[lane], block);
                }
            }
            if at == before {
                return false;
            }
        }
        true
    }
}

/// The two parts of an order with the lowest peak.
#[derive(Clone, Copy)]
enum Part {
    /// To the lowest level of every chain.
    Down,
    /// To there from the end, backwards.
    Up,
}

impl Part {
    fn block(self, place: &Place) -> &Block {
        match self {
            Self::Down => &place.down,
            Self::Up => &place.up,
        }
    }

    fn step(self, at: usize, block: &Block) -> usize {
        match self {
            Self::Down => at + block.len,
            Self::Up => at - block.len,
        }
    }
}

/// The first items of a lane as one block. Items are (taken, given back).
fn block(items: impl Iterator<Item = (i64, i64)>) -> Block {
    let mut block = Block::default();
    for (taken, given) in items {
        block.rise = block.rise.max(block.net + taken);
        block.net += taken - given;
        block.len += 1;
        if block.net <= 0 {
            break;
        }
    }
    block
}
