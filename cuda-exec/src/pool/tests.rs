use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::host::{HostConfig, HostDevice};

fn pool(cap_bytes: u64, slab_bytes: u64) -> PinnedPool {
    let device = HostDevice::open(HostConfig::default()).expect("a host device");
    PinnedPool::new(Arc::new(device), PoolConfig { cap_bytes, slab_bytes })
}

/// Every byte is in one lease or free, never both, and no two leases share one.
fn check(pool: &PinnedPool, leases: &[Lease]) {
    let mut owned = BTreeMap::new();
    for lease in leases {
        assert_eq!(pool.pieces(lease).map(PinnedSlice::bytes).sum::<u64>(), lease.bytes);
        for piece in pool.pieces(lease) {
            assert_eq!(piece.address() % ALIGNMENT, 0);
            owned.insert(piece.address(), piece.address() + piece.bytes());
            let inside = |slab: &PinnedSlice| {
                slab.address() <= piece.address()
                    && piece.address() + piece.bytes() <= slab.address() + slab.bytes()
            };
            assert!(pool.pinned.iter().any(inside), "outside every slab");
        }
    }
    let ends = owned.values();
    assert!(owned.keys().skip(1).zip(ends).all(|(start, end)| end <= start), "leases overlap: {owned:?}");
    let taken: u64 = leases.iter().map(|lease| lease.bytes.next_multiple_of(ALIGNMENT)).sum();
    let usage = pool.usage();
    assert_eq!(usage.taken, taken);
    assert!(usage.pinned <= usage.cap && usage.taken <= usage.high_water);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Within the free bytes every lease is granted, however the pool is cut up; beyond them none is.
    #[test]
    fn no_byte_is_lost_or_leased_twice(
        steps in prop::collection::vec((0u64..6_000, any::<prop::sample::Index>(), 0u8..5), 1..120),
        slab_bytes in prop::sample::select(vec![256u64, 1_024, 4_096, 100_000]),
    ) {
        let mut pool = pool(16_384, slab_bytes);
        let mut leases = Vec::new();
        for (bytes, which, kind) in steps {
            if kind < 3 {
                let usage = pool.usage();
                let free = usage.cap - usage.taken;
                let fits = bytes.next_multiple_of(ALIGNMENT) <= free;
                match pool.reserve(bytes) {
                    Ok(lease) => {
                        prop_assert!(fits);
                        leases.push(lease);
                    }
                    Err(error) => {
                        prop_assert!(!fits);
                        prop_assert_eq!(error, PoolError::Full(PoolFull { needed: bytes, free, cap: 16_384 }));
                    }
                }
            } else if !leases.is_empty() {
                let lease = leases.swap_remove(which.index(leases.len()));
                pool.release(lease);
            }
            check(&pool, &leases);
        }
        leases.drain(..).for_each(|lease| pool.release(lease));
        // Joined again: each slab in one piece.
        let largest = pool.pinned.iter().map(|slab| slab.bytes()).max().unwrap_or(0);
        prop_assert_eq!(pool.usage().largest_free, largest);
        prop_assert_eq!(pool.slabs.free_bytes(), pool.usage().pinned);
    }
}

#[test]
fn the_smallest_block_that_fits_is_taken() {
    let mut pool = pool(4_096, 4_096);
    let leases: Vec<_> = [512, 256, 1_024, 256].map(|bytes| pool.reserve(bytes).expect("room")).into();
    let [a, _b, c, _d]: [Lease; 4] = leases.try_into().expect("four");
    let (small, large) = (pool.pieces(&a).next(), pool.pieces(&c).next());
    pool.release(a);
    pool.release(c);
    let again = pool.reserve(400).expect("room");
    assert_eq!(pool.pieces(&again).next().map(PinnedSlice::address), small.map(PinnedSlice::address));
    let again = pool.reserve(600).expect("room");
    assert_eq!(pool.pieces(&again).next().map(PinnedSlice::address), large.map(PinnedSlice::address));
}

#[test]
fn where_no_block_has_it_whole_it_comes_in_pieces() {
    let mut pool = pool(1_024, 1_024);
    let [a, b, c, _d] = [0; 4].map(|_| pool.reserve(256).expect("room"));
    pool.release(a);
    pool.release(c);
    let scattered = pool.reserve(500).expect("512 bytes are free");
    let pieces: Vec<_> = pool.pieces(&scattered).collect();
    assert_eq!(pieces.iter().map(|piece| piece.bytes()).collect::<Vec<_>>(), [256, 244]);
    assert_ne!(pieces[0].address() + 256, pieces[1].address(), "not neighbours");
    assert_eq!(pool.reserve(1), Err(PoolError::Full(PoolFull { needed: 1, free: 0, cap: 1_024 })));
    pool.release(scattered);
    pool.release(b);
    assert_eq!(pool.usage().largest_free, 768);
    assert_eq!(pool.usage().high_water, 1_024);
}

#[test]
fn odd_requests() {
    let mut pool = pool(1_000, 0);
    assert_eq!(pool.usage().cap, 768, "a whole number of aligned pieces");
    let nothing = pool.reserve(0).expect("nothing");
    assert_eq!(pool.pieces(&nothing).count(), 0);
    pool.release(nothing);
    assert!(matches!(pool.reserve(u64::MAX), Err(PoolError::Full(PoolFull { free: 768, .. }))));
    assert_eq!(pool.usage().pinned, 0, "nothing is pinned for what is refused");
    pool.warm(u64::MAX).expect("up to the cap");
    assert_eq!(pool.usage().pinned, 768);
}
