//! Chains as the schedulers see them: lanes from which the next operator of an order is taken.
//!
//! Without a merge each chain is a lane. With one, F and B share the first lane, in the given order.

use super::{Chain, MAX_ORDER, Op, Problem, Step};

/// Number of lanes, of chains and of resources.
pub(super) const FOUR: usize = 4;

/// An operator, or a stage of several, in a lane.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Item {
    pub ns: u64,
    pub alloc: i64,
    pub free: i64,
    pub resource: u8,
    pub chain: u8,
    /// Place of the (first) operator in its chain.
    pub index: u8,
    /// Operators in the stage.
    pub count: u8,
}

impl Item {
    fn new(chain: usize, index: usize, op: &Op) -> Self {
        Self {
            ns: op.ns,
            // Problem::new has checked that all bytes together fit.
            alloc: op.alloc_bytes as i64,
            free: op.free_bytes as i64,
            resource: op.resource as u8,
            chain: chain as u8,
            index: index as u8,
            count: 1,
        }
    }

    /// Bytes more in use after it than before.
    pub fn net(&self) -> i64 {
        self.alloc - self.free
    }

    /// The steps of the operators in it.
    pub fn steps(&self) -> impl Iterator<Item = Step> {
        let chain = Chain::ALL[self.chain as usize];
        (self.index..self.index + self.count).map(move |index| Step { chain, index })
    }
}

/// The lanes of a problem.
#[derive(Clone, Debug)]
pub(super) struct Lanes {
    items: [Item; MAX_ORDER],
    bounds: [usize; FOUR + 1],
    chain_lengths: [usize; FOUR],
    /// Whether F and B share the first lane.
    pub merged: bool,
    /// Bytes in use before the first operator.
    pub base: i64,
    /// Bytes never to be passed.
    pub capacity: i64,
}

impl Lanes {
    pub fn new(problem: &Problem<'_>) -> Self {
        let mut lanes = Self {
            items: [Item::default(); MAX_ORDER],
            bounds: [0; FOUR + 1],
            chain_lengths: problem.chains().map(<[_]>::len),
            merged: problem.merge().is_some(),
            base: problem.base_bytes() as i64,
            capacity: 0,
        };
        let mut count = 0;
        for lane in 0..FOUR {
            if !lanes.merged || lane >= 2 {
                for (index, op) in problem.chains()[lane].iter().enumerate() {
                    lanes.items[count] = Item::new(lane, index, op);
                    count += 1;
                }
            } else if lane == 0 {
                count = lanes.fill_merged(problem);
            }
            lanes.bounds[lane + 1] = count;
        }
        // No level is above this sum, so that a larger capacity makes no difference.
        let most = lanes.base + lanes.items[..count].iter().map(|item| item.alloc).sum::<i64>();
        lanes.capacity = i64::try_from(problem.capacity_bytes()).map_or(most, |capacity| capacity.min(most));
        lanes
    }

    fn fill_merged(&mut self, problem: &Problem<'_>) -> usize {
        let mut next = [0; FOUR];
        let merge = problem.merge().unwrap_or_default();
        for (item, &chain) in self.items.iter_mut().zip(merge) {
            let index = &mut next[chain as usize];
            *item = Item::new(chain as usize, *index, &problem.chain(chain)[*index]);
            *index += 1;
        }
        merge.len()
    }

    /// The same lanes with neighbours for which `join` gives a stage joined.
    pub fn compacted(&self, join: impl Fn(&Item, &Item) -> Option<Item>) -> Self {
        let mut stages = self.clone();
        let mut count = 0;
        for lane in 0..FOUR {
            stages.bounds[lane] = count;
            for item in self.lane(lane) {
                let stage = match count > stages.bounds[lane] {
                    true => join(&stages.items[count - 1], item),
                    false => None,
                };
                count += usize::from(stage.is_none());
                stages.items[count - 1] = stage.unwrap_or(*item);
            }
        }
        stages.bounds[FOUR] = count;
        stages
    }

    /// The items of a lane.
    pub fn lane(&self, lane: usize) -> &[Item] {
        &self.items[self.bounds[lane]..self.bounds[lane + 1]]
    }

    /// Operators of each chain.
    pub fn chain_lengths(&self) -> [usize; FOUR] {
        self.chain_lengths
    }

    /// The lane that `chain` is in.
    pub fn lane_of(&self, chain: Chain) -> usize {
        if self.merged && chain == Chain::Backward { 0 } else { chain as usize }
    }

    /// Places in the lanes, from places in the chains.
    pub fn places(&self, chains: [usize; FOUR]) -> [usize; FOUR] {
        let [f, b, o, r] = chains;
        if self.merged { [f + b, 0, o, r] } else { chains }
    }

    /// The next item of each lane, from places in the chains.
    pub fn heads(&self, chains: [usize; FOUR]) -> [Option<&Item>; FOUR] {
        let places = self.places(chains);
        core::array::from_fn(|lane| self.lane(lane).get(places[lane]))
    }

    /// The lengths of all lanes.
    pub fn lengths(&self) -> [usize; FOUR] {
        core::array::from_fn(|lane| self.bounds[lane + 1] - self.bounds[lane])
    }
}
