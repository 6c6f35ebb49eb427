//! Plans that were found before (§V-B, *Runtime Solving*): budgets and loads repeat, so most decisions do.
//!
//! A fixed number of entries in the caller's storage, four to a set, the oldest of a set replaced. Keys are
//! rounded to the safe side: byte limits and releases *down*, rows and allocations *up*. What is found
//! under a key was planned for less room and more need than there is, so it never exceeds the real limit.

use core::hash::{Hash, Hasher};

use crate::fingerprint::Fingerprint;
use crate::interleave::{InterleaveError, Op, Problem};
use crate::limits::MAX_CHAIN;
use crate::stage::Recompute;

/// Entries of a set.
const WAYS: usize = 4;

/// One entry of the caller's storage.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CacheSlot<K, V> {
    entry: Option<(K, V)>,
}

impl<K, V> Default for CacheSlot<K, V> {
    fn default() -> Self {
        Self { entry: None }
    }
}

/// How often a cache was asked, and how often it knew.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct CacheStatistics {
    /// Look-ups that found their key.
    pub hits: u64,
    /// Look-ups that did not.
    pub misses: u64,
}

impl CacheStatistics {
    /// Hits in a thousand look-ups; 0 before the first.
    pub fn hit_permille(&self) -> u64 {
        let all = u128::from(self.hits) + u128::from(self.misses);
        (u128::from(self.hits) * 1_000).checked_div(all).unwrap_or(0) as u64
    }
}

/// A cache of fixed capacity.
#[derive(Debug)]
pub struct PlanCache<'a, K, V> {
    slots: &'a mut [CacheSlot<K, V>],
    turn: usize,
    statistics: CacheStatistics,
}

impl<'a, K: Copy + Eq + Hash, V> PlanCache<'a, K, V> {
    /// An empty cache; without slots it never knows anything.
    pub fn new(slots: &'a mut [CacheSlot<K, V>]) -> Self {
        for slot in slots.iter_mut() {
            slot.entry = None;
        }
        Self { slots, turn: 0, statistics: CacheStatistics::default() }
    }

    /// What was stored under `key`.
    pub fn find(&mut self, key: &K) -> Option<&V> {
        let found = self.set(key).find(|&at| matches!(&self.slots[at].entry, Some((k, _)) if k == key));
        match found {
            Some(at) => {
                self.statistics.hits += 1;
                self.slots[at].entry.as_ref().map(|(_, value)| value)
            }
            None => {
                self.statistics.misses += 1;
                None
            }
        }
    }

    /// Stores `value` under `key`, in place of what was there or of an entry of its set.
    pub fn store(&mut self, key: K, value: V) {
        let set = self.set(&key);
        let same = set.clone().find(|&at| self.slots[at].entry.as_ref().is_none_or(|(k, _)| *k == key));
        let at = same.unwrap_or_else(|| {
            self.turn = self.turn.wrapping_add(1);
            set.start + self.turn % set.len().max(1)
        });
        if let Some(slot) = self.slots.get_mut(at) {
            slot.entry = Some((key, value));
        }
    }

    /// How often it was asked, and how often it knew.
    pub fn statistics(&self) -> CacheStatistics {
        self.statistics
    }

    /// The slots in which `key` may be.
    fn set(&self, key: &K) -> core::ops::Range<usize> {
        let ways = WAYS.min(self.slots.len());
        let sets = self.slots.len().checked_div(ways).unwrap_or(0);
        let mut hasher = Fnv(0xcbf2_9ce4_8422_2325);
        key.hash(&mut hasher);
        let set = hasher.finish().checked_rem(sets as u64).unwrap_or(0) as usize;
        set * ways..(set + 1) * ways
    }
}

/// FNV-1a, the same on every processor and in every build.
struct Fnv(u64);

impl Hasher for Fnv {
    fn finish(&self) -> u64 {
        self.0 ^ self.0 >> 32
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(byte.into());
        }
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = (self.0 ^ value).wrapping_mul(0x0000_0100_0000_01b3);
        self.0 ^= self.0 >> 29;
    }

    fn write_u32(&mut self, value: u32) {
        self.write_u64(value.into());
    }

    fn write_u16(&mut self, value: u16) {
        self.write_u64(value.into());
    }

    fn write_u8(&mut self, value: u8) {
        self.write_u64(value.into());
    }

    fn write_usize(&mut self, value: usize) {
        self.write_u64(value as u64);
    }

    fn write_isize(&mut self, value: isize) {
        self.write_u64(value as u64);
    }
}

/// What a selection depends on: the place in the schedule, the limits rounded down, the rows rounded up.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SelectionKey {
    /// The phase: the model chunk.
    pub chunk: u16,
    /// The first layer planned.
    pub first: u16,
    /// Whether its gate has run.
    pub gated: bool,
    /// Its rows, rounded up.
    pub rows: u32,
    /// What it recomputes whatever the budget.
    pub recompute: Recompute,
    /// Device bytes, rounded down.
    pub bytes: u64,
    /// Host bytes, rounded down.
    pub host_bytes: u64,
}

/// What an interleaving depends on: the chains of a rounded problem.
///
/// A fingerprint of them, so replay what is found under it with [`run`](crate::interleave::run) on the
/// real problem, which also says what it is worth there.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct InterleaveKey(u64);

impl InterleaveKey {
    /// The key of a problem that [`round_chains`] has rounded.
    pub fn new(problem: &Problem<'_>) -> Self {
        let mut f = Fingerprint::new().with(problem.base_bytes()).with(problem.capacity_bytes());
        for ops in problem.chains() {
            let values = ops.iter().flat_map(|o| [o.resource as u64, o.ns, o.alloc_bytes, o.free_bytes]);
            f = f.with_all(values);
        }
        f = f.with(problem.merge().is_some().into());
        Self(f.with_all(problem.merge().unwrap_or_default().iter().map(|&chain| chain as u64)).value())
    }
}

/// Storage of rounded chains.
pub type RoundedChains = [[Op; MAX_CHAIN]; 4];

/// The problem with allocations and the base rounded up, releases and the capacity rounded down: an order
/// that runs there runs in the real problem too, no later.
pub fn round_chains<'r>(
    problem: &Problem<'r>,
    granule: u64,
    storage: &'r mut RoundedChains,
) -> Result<Problem<'r>, InterleaveError> {
    for (rounded, ops) in storage.iter_mut().zip(problem.chains()) {
        for (rounded, op) in rounded.iter_mut().zip(ops) {
            let (alloc_bytes, free_bytes) =
                (round_up(op.alloc_bytes, granule), round_down(op.free_bytes, granule));
            *rounded = Op { alloc_bytes, free_bytes, ..*op };
        }
    }
    let [f, b, o, r] = problem.chains().map(<[Op]>::len);
    let chains = [&storage[0][..f], &storage[1][..b], &storage[2][..o], &storage[3][..r]];
    let (base, capacity) = (problem.base_bytes(), problem.capacity_bytes());
    Problem::new(chains, round_up(base, granule), round_down(capacity, granule), problem.merge())
}

/// `bytes` rounded down to a multiple of `granule`.
pub const fn round_down(bytes: u64, granule: u64) -> u64 {
    if granule < 2 { bytes } else { bytes - bytes % granule }
}

/// `bytes` rounded up to a multiple of `granule`; the largest multiple where that does not fit.
pub const fn round_up(bytes: u64, granule: u64) -> u64 {
    if granule < 2 {
        return bytes;
    }
    match bytes.checked_next_multiple_of(granule) {
        Some(rounded) => rounded,
        None => round_down(u64::MAX, granule),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interleave::{List, Scheduler, Step, run};
    use crate::layer::Resource;
    use proptest::prelude::*;

    const NO_OP: Op = Op { resource: Resource::Compute, ns: 0, alloc_bytes: 0, free_bytes: 0 };

    proptest! {
        /// Against a map that forgets nothing: what is found is what was stored last under that key.
        #[test]
        fn it_never_confuses_keys(
            slots in 0usize..20, calls in prop::collection::vec((0u64..40, any::<bool>(), any::<u32>()), 0..200),
        ) {
            let mut storage = vec![CacheSlot::default(); slots];
            let mut cache = PlanCache::new(&mut storage);
            let mut all = std::collections::BTreeMap::new();
            let mut asked = 0;
            for (key, store, value) in calls {
                if store {
                    cache.store(key, value);
                    all.insert(key, value);
                    prop_assert_eq!(cache.find(&key), (slots > 0).then_some(&value));
                    asked += 1;
                } else {
                    if let Some(found) = cache.find(&key) {
                        prop_assert_eq!(Some(found), all.get(&key));
                    }
                    asked += 1;
                }
            }
            let CacheStatistics { hits, misses } = cache.statistics();
            prop_assert_eq!(hits + misses, asked);
        }

        /// An order found for the rounded problem runs in the real one, within the capacity and no later.
        #[test]
        fn orders_of_rounded_chains_run_in_the_real_problem(
            ops in prop::collection::vec((0usize..4, 0usize..4, 0u64..50, 0u64..90, 0u64..90), 0..14),
            base in 0u64..60, spare in 0u64..120, granule in 1u64..40,
        ) {
            let mut chains: [Vec<Op>; 4] = Default::default();
            for (chain, resource, ns, alloc_bytes, free_bytes) in ops {
                let resource = [Resource::Compute, Resource::Communication, Resource::CopyOut, Resource::CopyIn]
                    [resource];
                chains[chain].push(Op { resource, ns, alloc_bytes, free_bytes });
            }
            // Nothing is freed that is not there.
            let base = base + chains.iter().flatten().map(|o| o.free_bytes).sum::<u64>();
            let [f, b, o, r] = &chains;
            let real = Problem::new([f, b, o, r], base, base + spare, None).expect("small");
            let mut storage = [[NO_OP; MAX_CHAIN]; 4];
            let rounded = round_chains(&real, granule, &mut storage).expect("small");
            let mut order = [Step::default(); 16];
            if let Ok(found) = List.schedule(&rounded, &mut order) {
                let order = &order[..real.op_count()];
                let replayed = run(&real, order).expect("an order of the rounded problem runs in the real one");
                prop_assert!(replayed.peak_bytes <= real.capacity_bytes());
                prop_assert!(replayed.makespan_ns <= found.makespan_ns);
            }
        }

        #[test]
        fn rounding_is_to_the_safe_side(bytes: u64, granule in 0u64..1 << 40) {
            prop_assert!(round_down(bytes, granule) <= bytes);
            prop_assert!(round_up(bytes, granule) >= bytes || bytes > u64::MAX - granule);
            prop_assert!(round_up(round_down(bytes, granule), granule) <= bytes);
        }
    }

    #[test]
    fn chains_that_differ_have_other_keys() {
        let op = Op { resource: Resource::Compute, ns: 5, alloc_bytes: 7, free_bytes: 9 };
        let key = |op: Op, base| {
            InterleaveKey::new(&Problem::new([&[op], &[], &[], &[]], base, 100, None).expect("small"))
        };
        for other in [Op { ns: 6, ..op }, Op { alloc_bytes: 8, ..op }, Op { free_bytes: 8, ..op }] {
            assert_ne!(key(op, 9), key(other, 9));
        }
        assert_ne!(key(op, 9), key(op, 10));
    }

    #[test]
    fn a_small_working_set_is_always_found() {
        let mut storage = vec![CacheSlot::default(); 64];
        let mut cache = PlanCache::new(&mut storage);
        for round in 0..100 {
            for key in 0u64..4 {
                if cache.find(&key).is_none() {
                    cache.store(key, round);
                }
            }
        }
        assert_eq!(cache.statistics(), CacheStatistics { hits: 396, misses: 4 });
        assert_eq!(cache.statistics().hit_permille(), 990);
    }
}
