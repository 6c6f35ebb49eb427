//! The smallest capacity for which an order exists.
//!
//! Whether an order fits does not depend on times: an operator that waits long enough starts after all
//! releases before it. So the question is how to thread chains with the lowest peak, and that has an exact
//! greedy answer (Abdel-Wahab and Kameda, 1978). Every chain passes through its lowest level; an order with
//! the lowest peak exists in which all chains are at theirs at once. Up to there, repeatedly take the chain
//! that comes back to its present level or below with the lowest rise. From there on, the same backwards.

use super::lanes::{FOUR, Item, Lanes};

/// Bytes that the items from `at` on need in the best order, where `level` bytes are in use before.
pub(super) fn smallest_capacity(lanes: &Lanes, at: [usize; FOUR], level: i64) -> i64 {
    order_of_smallest(lanes, at, level, |_, _| ())
}

/// The same, and gives `emit` the lanes of such an order: those of its first part from the front
/// ([`Part::Down`]), then those of its second part from the back ([`Part::Up`]).
pub(super) fn order_of_smallest(
    lanes: &Lanes,
    at: [usize; FOUR],
    level: i64,
    mut emit: impl FnMut(Part, usize),
) -> i64 {
    let rest: [&[Item]; FOUR] = core::array::from_fn(|l| &lanes.lane(l)[at[l]..]);
    let low = rest.map(lowest);
    let down = core::array::from_fn(|l| &rest[l][..low[l]]);
    let up = core::array::from_fn(|l| &rest[l][low[l]..]);
    let end = level + rest.iter().flat_map(|items| items.iter()).map(Item::net).sum::<i64>();
    let first = descend(down, Part::Down, level, |lane| emit(Part::Down, lane));
    first.max(descend(up, Part::Up, end, |lane| emit(Part::Up, lane)))
}

/// The two parts of an order with the lowest peak.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Part {
    /// To the lowest level of every chain.
    Down,
    /// From there to the end, seen from the end: what was taken is given back.
    Up,
}

/// Items up to the first lowest level.
fn lowest(items: &[Item]) -> usize {
    let (mut level, mut low, mut place) = (0, 0, 0);
    for (index, item) in items.iter().enumerate() {
        level += item.net();
        if level < low {
            (low, place) = (level, index + 1);
        }
    }
    place
}

/// Peak of the best order of lanes that all end at their lowest level.
fn descend(mut lanes: [&[Item]; FOUR], part: Part, mut level: i64, mut emit: impl FnMut(usize)) -> i64 {
    let mut peak = level;
    let mut blocks = lanes.map(|items| Block::next(items, part));
    while let Some(lane) = (0..FOUR).filter(|&l| blocks[l].len > 0).min_by_key(|&l| blocks[l].rise) {
        let Block { rise, net, len } = blocks[lane];
        peak = peak.max(level + rise);
        level += net;
        (0..len).for_each(|_| emit(lane));
        lanes[lane] = match part {
            Part::Down => &lanes[lane][len..],
            Part::Up => &lanes[lane][..lanes[lane].len() - len],
        };
        blocks[lane] = Block::next(lanes[lane], part);
    }
    peak
}

/// How far a lane goes before it is back at its present level or below.
#[derive(Clone, Copy)]
struct Block {
    rise: i64,
    net: i64,
    len: usize,
}

impl Block {
    fn next(items: &[Item], part: Part) -> Self {
        let mut block = Self { rise: 0, net: 0, len: 0 };
        for place in 0..items.len() {
            let (taken, given) = match part {
                Part::Down => (items[place].alloc, items[place].free),
                Part::Up => (items[items.len() - 1 - place].free, items[items.len() - 1 - place].alloc),
            };
            block.rise = block.rise.max(block.net + taken);
            block.net += taken - given;
            block.len += 1;
            if block.net <= 0 {
                break;
            }
        }
        block
    }
}
