//! What is left of a chain from each of its places on, and the lower bounds that follow.

use super::lanes::{FOUR, Lanes};
use super::tails::{Levels, Tails, tails};
use crate::limits::MAX_CHAIN;

/// No operator left.
pub(super) const NEVER: u64 = u64::MAX;

/// What is left of a chain.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rest {
    /// No order ends sooner after its next operator starts.
    pub tail: u64,
    /// Its run time on each resource.
    pub load: [u64; FOUR],
    /// Run time before its next operator on each resource; [`NEVER`] where there is none.
    pub until: [u64; FOUR],
    /// No order ends sooner after its next operator on each resource starts.
    pub left: [u64; FOUR],
    /// Bytes in use by the chain so far.
    pub level: i64,
    /// The most bytes in use by the chain from the start of the operator before on.
    pub most: i64,
    /// The most bytes that it adds to those in use by it so far.
    pub rise: i64,
    /// The resource of its next operator; [`FOUR`] where there is none.
    pub next: u8,
}

impl Rest {
    /// Whether nothing is left.
    pub fn is_done(&self) -> bool {
        usize::from(self.next) == FOUR
    }
}

const NOTHING: Rest = Rest {
    tail: 0,
    load: [0; FOUR],
    until: [NEVER; FOUR],
    left: [0; FOUR],
    level: 0,
    most: 0,
    rise: 0,
    next: FOUR as u8,
};

/// [`Rest`] of all chains and places.
#[derive(Clone, Debug)]
pub(super) struct Tables {
    rest: [[Rest; MAX_CHAIN + 1]; FOUR],
    /// No order ends sooner after a chain's last operator on a resource ends.
    after: [[u64; FOUR]; FOUR],
}

impl Tables {
    pub fn new(lanes: &Lanes) -> Self {
        let mut tables = Self { rest: [[NOTHING; MAX_CHAIN + 1]; FOUR], after: [[0; FOUR]; FOUR] };
        let mut levels = [[0; MAX_CHAIN + 1]; FOUR];
        for item in (0..FOUR).flat_map(|lane| lanes.lane(lane)) {
            let (chain, place) = (usize::from(item.chain), usize::from(item.index));
            levels[chain][place + 1] = levels[chain][place] + item.net();
        }
        tables.fill_bytes(lanes, &levels);
        let tails = tails(lanes, &levels, tables.may_bind(lanes, [0; FOUR]));
        tables.fill_times(lanes, &tails);
        tables
    }

    fn fill_bytes(&mut self, lanes: &Lanes, levels: &Levels) {
        let ends = lanes.chain_lengths();
        for (chain, &end) in ends.iter().enumerate() {
            let level = levels[chain][end];
            self.rest[chain][end] = Rest { level, most: level, ..NOTHING };
        }
        for item in (0..FOUR).flat_map(|lane| lanes.lane(lane).iter().rev()) {
            let (chain, place) = (usize::from(item.chain), usize::from(item.index));
            let [rest, next, ..] = &mut self.rest[chain][place..] else { continue };
            rest.level = levels[chain][place];
            rest.rise = item.alloc.max(item.net() + next.rise);
            // At the next place this operator may still run.
            next.most = next.most.max(rest.level + item.alloc);
            rest.most = next.most;
        }
        self.rest.iter_mut().for_each(|rest| rest[0].most = rest[0].most.max(0));
    }

    fn fill_times(&mut self, lanes: &Lanes, tails: &Tails) {
        for item in (0..FOUR).flat_map(|lane| lanes.lane(lane).iter().rev()) {
            let (chain, place) = (usize::from(item.chain), usize::from(item.index));
            let resource = usize::from(item.resource);
            let [rest, next, ..] = &mut self.rest[chain][place..] else { continue };
            (rest.load, rest.until, rest.left) = (next.load, next.until, next.left);
            if rest.until[resource] == NEVER {
                self.after[chain][resource] = tails[chain][place] - item.ns;
            }
            rest.until.iter_mut().filter(|t| **t != NEVER).for_each(|t| *t += item.ns);
            rest.load[resource] += item.ns;
            rest.until[resource] = 0;
            rest.left[resource] = tails[chain][place];
            rest.tail = tails[chain][place];
            rest.next = item.resource;
        }
    }

    /// What is left of `chain` from `place` on.
    pub fn rest(&self, chain: usize, place: usize) -> &Rest {
        &self.rest[chain][place]
    }

    /// Bytes in use when the operators before `places` have run and no other has started.
    pub fn level(&self, lanes: &Lanes, places: [usize; FOUR]) -> i64 {
        lanes.base + (0..FOUR).map(|chain| self.rest(chain, places[chain]).level).sum::<i64>()
    }

    /// Whether any operator from `places` on could ever have to wait for bytes, where every chain has come as
    /// far as the operator before its place.
    pub fn may_bind(&self, lanes: &Lanes, places: [usize; FOUR]) -> bool {
        let most = (0..FOUR).map(|chain| self.rest(chain, places[chain]).most).sum::<i64>();
        lanes.base + most > lanes.capacity
    }

    /// The most bytes that operators from `places` on can ever add to those before.
    pub fn rise(&self, places: [usize; FOUR]) -> i64 {
        (0..FOUR).map(|chain| self.rest(chain, places[chain]).rise).sum()
    }

    /// When each chain can be at each resource, with chains ready at `chains` and resources free at
    /// `resources`.
    pub fn ahead(&self, places: [usize; FOUR], chains: &[u64; FOUR], resources: &[u64; FOUR]) -> Ahead<'_> {
        let rests: [&Rest; FOUR] = core::array::from_fn(|chain| self.rest(chain, places[chain]));
        let mut ahead = Ahead { ready: *chains, arrive: [[NEVER; FOUR]; FOUR], rests, after: &self.after };
        for (chain, rest) in rests.iter().enumerate() {
            if let Some(&free) = resources.get(rest.next as usize) {
                ahead.ready[chain] = chains[chain].max(free);
            }
            for (resource, &free) in resources.iter().enumerate() {
                let until = rest.until[resource];
                if until != NEVER {
                    ahead.arrive[chain][resource] = free.max(ahead.ready[chain] + until);
                }
            }
        }
        ahead
    }

    /// A lower bound of the makespan of every order.
    pub fn root_bound(&self) -> u64 {
        self.ahead([0; FOUR], &[0; FOUR], &[0; FOUR]).bound()
    }
}

/// A point of a run, seen from the operators that are left.
pub(super) struct Ahead<'t> {
    /// When each chain can go on; where it has ended, when it did.
    pub ready: [u64; FOUR],
    /// By chain and resource; [`NEVER`] where the chain needs it no more.
    pub arrive: [[u64; FOUR]; FOUR],
    rests: [&'t Rest; FOUR],
    after: &'t [[u64; FOUR]; FOUR],
}

impl Ahead<'_> {
    /// Whether nothing of `chain` is left.
    pub fn is_done(&self, chain: usize) -> bool {
        self.rests[chain].is_done()
    }

    /// A lower bound of the end of every order that goes on from here: the longest remaining chain, and for
    /// each resource the best of head + load + tail over sets of chains.
    pub fn bound(&self) -> u64 {
        let mut bound = 0;
        for (chain, rest) in self.rests.iter().enumerate() {
            bound = bound.max(self.ready[chain] + rest.tail);
            for resource in 0..FOUR {
                if rest.until[resource] != NEVER {
                    bound = bound.max(self.arrive[chain][resource] + rest.left[resource]);
                }
            }
        }
        (0..FOUR).fold(bound, |bound, resource| bound.max(self.resource_bound(resource)))
    }

    /// Of the chains that still need `resource`, those that arrive at h or later and have q or more to run
    /// behind it take h + their load + q together.
    fn resource_bound(&self, resource: usize) -> u64 {
        let (mut heads, mut tails, mut loads) = ([0; FOUR], [0; FOUR], [0; FOUR]);
        let mut count = 0;
        for chain in 0..FOUR {
            if self.arrive[chain][resource] != NEVER {
                heads[count] = self.arrive[chain][resource];
                tails[count] = self.after[chain][resource];
                loads[count] = self.rests[chain].load[resource];
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
