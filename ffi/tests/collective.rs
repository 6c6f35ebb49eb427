//! What ranks tell each other before the first iteration, over threads.

use std::ptr::null_mut;
use std::thread;

use bagualu_ffi::*;

const MINUTE: u64 = 60_000_000_000;

/// Runs `each` on a thread for every rank of a group; what it returned, in order.
fn on_ranks<const N: usize, R: Send>(each: impl Fn(usize, *mut bagualu_collective) -> R + Sync) -> Vec<R> {
    let mut handles = [null_mut(); N];
    // SAFETY: there is room for as many.
    assert_eq!(unsafe { bagualu_collective_threads(N, handles.as_mut_ptr()) }, bagualu_status::Ok);
    let each = &each;
    let rank = |(rank, handle): (usize, *mut bagualu_collective)| {
        let number = handle.addr();
        move || each(rank, std::ptr::without_provenance_mut(number))
    };
    let results = thread::scope(|scope| {
        let ranks = handles.into_iter().enumerate().map(rank);
        let ranks: Vec<_> = ranks.map(|work| scope.spawn(work)).collect();
        ranks.into_iter().map(|rank| rank.join().expect("no panic")).collect()
    });
    for handle in handles {
        assert!(matches!(bagualu_collective_free(handle), bagualu_status::Ok | bagualu_status::FreedHandle));
    }
    results
}

#[test]
fn profiles_and_thresholds_become_those_of_the_group() {
    let found = on_ranks::<3, _>(|rank, group| {
        let mut profile = [rank as u64, 10 - rank as u64];
        let (mut row, mut dispatch) = (100 - rank as u32, 50 + rank as u32);
        // SAFETY: all live.
        unsafe {
            let status = bagualu_collective_merge_profile(group, profile.as_mut_ptr(), 2, MINUTE);
            assert_eq!(status, bagualu_status::Ok);
            let status = bagualu_collective_agree_thresholds(group, &mut row, &mut dispatch, MINUTE);
            assert_eq!(status, bagualu_status::Ok);
        }
        (profile, row, dispatch)
    });
    assert_eq!(found, [([2, 10], 98, 50); 3]);
}

#[test]
fn one_fingerprint_runs_and_two_do_not() {
    let agree = |fingerprint: fn(usize) -> u64| {
        on_ranks::<2, _>(move |rank, group| bagualu_collective_agree(group, fingerprint(rank), MINUTE))
    };
    assert_eq!(agree(|_| 7), [bagualu_status::Ok; 2]);
    assert_eq!(agree(|rank| rank as u64), [bagualu_status::Disagreement; 2]);
}

#[test]
fn a_rank_that_does_not_come_or_leaves_is_told() {
    let waits =
        |rank, group| if rank == 0 { bagualu_collective_agree(group, 1, 1) } else { bagualu_status::Ok };
    assert_eq!(on_ranks::<2, _>(waits), [bagualu_status::TimedOut, bagualu_status::Ok]);
    let leaves = |rank, group| match rank {
        0 => {
            let first = bagualu_collective_agree(group, 1, MINUTE);
            [first, bagualu_collective_agree(group, 1, MINUTE)]
        }
        _ => [bagualu_collective_free(group), bagualu_status::Ok],
    };
    assert_eq!(on_ranks::<2, _>(leaves)[0], [bagualu_status::RankLeft, bagualu_status::RankLeft]);
}

#[test]
fn groups_that_cannot_be_are_refused() {
    let mut handle = null_mut();
    for size in [0, usize::MAX] {
        // SAFETY: refused before more than one is written.
        let status = unsafe { bagualu_collective_threads(size, &mut handle) };
        assert_eq!((status, handle), (bagualu_status::InvalidValue, null_mut()), "{size}");
    }
    let id = bagualu_unique_id { bytes: [0; 128] };
    // SAFETY: zeros are a value.
    let mut config: bagualu_collective_config = unsafe { std::mem::zeroed() };
    (config.struct_size, config.id, config.size) = (size_of::<bagualu_collective_config>(), &id, 1);
    for kind in [BAGUALU_DEVICE_AUTO, BAGUALU_DEVICE_HOST, 9] {
        config.kind = kind;
        // SAFETY: all live.
        let status = unsafe { bagualu_collective_join(&config, &mut handle) };
        assert_eq!((status, handle), (bagualu_status::InvalidValue, null_mut()), "{kind}");
    }
}
