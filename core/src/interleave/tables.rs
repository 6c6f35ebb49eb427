//! What is left of a chain from each of its places on, and the lower bounds that follow.

use super::Problem;
use super::lanes::{FOUR, Lanes};
use crate::limits::MAX_CHAIN;

/// No operator left.
pub(super) const NEVER: u64 = u64::MAX;

/// What is left of a chain.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rest {
    /// Its run time.
    pub tail: u64,
    /// Its run time on each resource.
    pub load: [u64; FOUR],
    /// Run time before its next operator on each resource; [`NEVER`] where there is none.
    pub until: [u64; FOUR],
    /// Bytes in use by the chain so far.
    pub level: i64,
    /// The most bytes in use by the chain from the start of the operator before on.
    pub most: i64,
}

const NOTHING: Rest = Rest { tail: 0, load: [0; FOUR], until: [NEVER; FOUR], level: 0, most: 0 };

/// [`Rest`] of all chains and places.
#[derive(Clone, Debug)]
pub(super) struct Tables {
    rest: [[Rest; MAX_CHAIN + 1]; FOUR],
    /// Run time after a chain's last operator on a resource.
    after: [[u64; FOUR]; FOUR],
    /// Operators of each chain.
    pub lengths: [usize; FOUR],
}

impl Tables {
    pub fn new(problem: &Problem<'_>) -> Self {
        let mut tables = Self {
            rest: [[NOTHING; MAX_CHAIN + 1]; FOUR],
            after: [[0; FOUR]; FOUR],
            lengths: problem.chains().map(<[_]>::len),
        };
        for (chain, ops) in problem.chains().iter().enumerate() {
            let mut level = 0;
            for (place, op) in ops.iter().enumerate() {
                level += op.alloc_bytes as i64 - op.free_bytes as i64;
                tables.rest[chain][place + 1].level = level;
            }
            let mut rest = Rest { most: level, ..NOTHING };
            for (place, op) in ops.iter().enumerate().rev() {
                let resource = op.resource as usize;
                if rest.until[resource] == NEVER {
                    tables.after[chain][resource] = rest.tail;
                }
                rest.tail += op.ns;
                rest.load[resource] += op.ns;
                rest.until.iter_mut().filter(|t| **t != NEVER).for_each(|t| *t += op.ns);
                rest.until[resource] = 0;
                rest.level = tables.rest[chain][place].level;
                // At the next place this operator may still run.
                rest.most = rest.most.max(rest.level + op.alloc_bytes as i64);
                tables.rest[chain][place + 1].most = rest.most;
                tables.rest[chain][place] = rest;
            }
            tables.rest[chain][0].most = rest.most.max(0);
        }
        tables
    }

    /// What is left of `chain` from `place` on.
    pub fn rest(&self, chain: usize, place: usize) -> &Rest {
        &self.rest[chain][place]
    }

    /// Bytes in use when the operators before `places` have run and no other has started.
    pub fn level(&self, lanes: &Lanes, places: [usize; FOUR]) -> i64 {
        lanes.base + (0..FOUR).map(|chain| self.rest(chain, places[chain]).level).sum::<i64>()
    }

    /// Whether any operator of any order could ever have to wait for bytes.
    pub fn memory_binds(&self, lanes: &Lanes) -> bool {
        self.may_bind(lanes, [0; FOUR])
    }

    /// The same, from `places` on, where every chain has come as far as the operator before its place.
    pub fn may_bind(&self, lanes: &Lanes, places: [usize; FOUR]) -> bool {
        let most = (0..FOUR).map(|chain| self.rest(chain, places[chain]).most).sum::<i64>();
        lanes.base + most > lanes.capacity
    }

    /// A lower bound of the end of every order that goes on from `places`, with chains ready at `chains`
    /// and resources free at `resources`: the longest remaining chain, and for each resource the best of
    /// head + load + tail over sets of chains.
    pub fn bound(&self, places: [usize; FOUR], chains: &[u64; FOUR], resources: &[u64; FOUR]) -> u64 {
        let rests: [&Rest; FOUR] = core::array::from_fn(|chain| self.rest(chain, places[chain]));
        let mut bound = 0;
        for chain in 0..FOUR {
            bound = bound.max(chains[chain] + rests[chain].tail);
        }
        for resource in 0..FOUR {
            bound = bound.max(self.resource_bound(&rests, resource, chains, resources[resource]));
        }
        bound
    }

    /// Of the chains that still need `resource`, those whose head is at least some h and whose tail is at
    /// least some q take h + their load + q together.
    fn resource_bound(&self, rests: &[&Rest; FOUR], resource: usize, chains: &[u64; FOUR], free: u64) -> u64 {
        let (mut heads, mut tails, mut loads) = ([0; FOUR], [0; FOUR], [0; FOUR]);
        let mut count = 0;
        for chain in 0..FOUR {
            let until = rests[chain].until[resource];
            if until != NEVER {
                heads[count] = free.max(chains[chain] + until);
                tails[count] = self.after[chain][resource];
                loads[count] = rests[chain].load[resource];
                count += 1;
            }
        }
        let mut bound = 0;
        for h in 0..count {
            for q in 0..count {
                let (head, tail) = (heads[h].min(heads[q]), tails[q].min(tails[h]));
                let load: u64 =
                    (0..count).filter(|&c| heads[c] >= head && tails[c] >= tail).map(|c| loads[c]).sum();
                bound = bound.max(head + load + tail);
            }
        }
        bound
    }
}
