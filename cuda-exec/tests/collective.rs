//! Start-up agreement over threads: all ranks agree, or every rank gets an error in time.

use std::thread;
use std::time::Duration;

use bagualu_core::group::{GroupError, RowThreshold};
use bagualu_exec::collective::{
    Collective, CollectiveError, Disagreement, Loopback, agree, agree_thresholds, merge_profile,
};
use proptest::prelude::*;

/// Long enough never to be reached where all ranks come, on a busy machine too.
const LONG: Duration = Duration::from_secs(600);
const SHORT: Duration = Duration::from_millis(50);

/// What `work` gives on every rank of a new group; `None` where it panicked.
fn on_all<T: Send + 'static>(
    size: usize,
    work: impl Fn(&mut Loopback) -> T + Send + Clone + 'static,
) -> Vec<Option<T>> {
    let ranks = Loopback::group(size).expect("at least one rank").into_iter();
    let threads: Vec<_> = ranks
        .map(|mut rank| {
            let work = work.clone();
            thread::spawn(move || work(&mut rank))
        })
        .collect();
    threads.into_iter().map(|thread| thread.join().ok()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn equal_fingerprints_pass_and_one_that_differs_fails_everywhere(
        size in 1..9usize, odd in any::<prop::sample::Index>(), fingerprint: u64, flip in 0..64u32,
    ) {
        let results = on_all(size, move |rank| agree(rank, fingerprint, LONG));
        prop_assert!(results.iter().all(|result| *result == Some(Ok(()))));

        let odd = odd.index(size);
        let results = on_all(size, move |rank| {
            let own = if rank.rank() == odd { fingerprint ^ 1 << flip } else { fingerprint };
            agree(rank, own, LONG)
        });
        for (rank, result) in results.into_iter().enumerate() {
            match result {
                // Alone, a rank has no one to disagree with.
                Some(Ok(())) => prop_assert_eq!(size, 1),
                Some(Err(Disagreement::Group(GroupError::Mismatch { rank: other, own, peer }))) => {
                    prop_assert_eq!(other == odd, rank != odd);
                    prop_assert_ne!(own, peer);
                }
                other => prop_assert!(false, "rank {}: {:?}", rank, other),
            }
        }
    }

    #[test]
    fn rounds_do_not_mix(size in 1..6usize, rounds in 1..20u64) {
        let results = on_all(size, move |rank| {
            let own = rank.rank() as u64;
            for round in 0..rounds {
                let mut all = vec![0; rank.size() * 2];
                rank.gather(&[round, own], &mut all, LONG).expect("all ranks are here");
                let expected: Vec<u64> = (0..rank.size() as u64).flat_map(|peer| [round, peer]).collect();
                assert_eq!(all, expected);
            }
        });
        prop_assert!(results.iter().all(Option::is_some));
    }

    #[test]
    fn profiles_become_their_maximum(profiles in (1..5usize, 0..7usize).prop_flat_map(|(ranks, len)| {
        prop::collection::vec(prop::collection::vec(any::<u64>(), len), ranks)
    })) {
        let expected: Vec<u64> = (0..profiles[0].len())
            .map(|i| profiles.iter().map(|profile| profile[i]).fold(0, u64::max))
            .collect();
        let results = on_all(profiles.len(), move |rank| {
            let mut own = profiles[rank.rank()].clone();
            merge_profile(rank, &mut own, LONG).map(|()| own)
        });
        for result in results {
            prop_assert_eq!(result, Some(Ok(expected.clone())));
        }
    }
}

#[test]
fn profiles_of_different_lengths_are_refused_everywhere() {
    let results = on_all(3, |rank| {
        let mut own = vec![1; if rank.rank() == 1 { 5 } else { 4 }];
        merge_profile(rank, &mut own, LONG)
    });
    let [zero, one, two] = &results[..] else { panic!("three ranks") };
    let error = |own, peer| Some(Err(Disagreement::Group(GroupError::ProfileLength { own, peer })));
    assert_eq!((zero, one, two), (&error(4, 5), &error(5, 4), &error(4, 5)));
}

#[test]
fn the_smallest_thresholds_serve_all() {
    let own = [(70, 900), (50, 1000), (60, u32::MAX)]
        .map(|(row, dispatch)| RowThreshold { row_threshold: row, dispatch_threshold: dispatch });
    let results = on_all(3, move |rank| {
        let own = own[rank.rank()];
        agree_thresholds(rank, own, LONG)
    });
    let expected = RowThreshold { row_threshold: 50, dispatch_threshold: 900 };
    assert!(results.iter().all(|result| *result == Some(Ok(expected))));
}

#[test]
fn a_rank_that_never_comes_is_a_time_out_on_the_others_and_then_on_itself() {
    let mut ranks = Loopback::group(3).unwrap();
    let mut late = ranks.pop().unwrap();
    let threads: Vec<_> =
        ranks.into_iter().map(|mut rank| thread::spawn(move || (agree(&mut rank, 1, SHORT), rank))).collect();
    let timed_out = CollectiveError::TimedOut { timeout: SHORT, missing: Some(2) };
    // The ranks are kept, so that it is the time-out that is seen, not their end.
    let waited: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    for (result, _) in &waited {
        assert!(
            matches!(result, Err(Disagreement::Collective(CollectiveError::TimedOut { timeout: SHORT, .. }))),
            "{result:?}"
        );
    }
    assert!(waited.iter().any(|(result, _)| *result == Err(Disagreement::Collective(timed_out.clone()))));
    assert!(
        matches!(
            agree(&mut late, 1, LONG),
            Err(Disagreement::Collective(CollectiveError::TimedOut { timeout: SHORT, .. }))
        ),
        "the late rank may not go on alone"
    );
}

#[test]
fn a_rank_that_panics_leaves_and_nobody_waits_for_it() {
    let results = on_all(4, |rank| {
        assert_ne!(rank.rank(), 2, "a panic of this test's own");
        agree(rank, 1, LONG)
    });
    for (rank, result) in results.into_iter().enumerate() {
        let left = Disagreement::Collective(CollectiveError::Left { rank: 2 });
        assert_eq!(result, (rank != 2).then_some(Err(left)));
    }
}

#[test]
fn a_rank_may_leave_after_the_last_round() {
    let results = on_all(5, |rank| agree(rank, 1, LONG).and_then(|()| agree(rank, 2, LONG)));
    assert!(results.iter().all(|result| *result == Some(Ok(()))));
}

#[test]
fn different_lengths_end_the_group() {
    let results = on_all(3, |rank| {
        let own = vec![7; 1 + rank.rank() / 2];
        let mut all = vec![0; own.len() * 3];
        (rank.gather(&own, &mut all, LONG), rank.gather(&own, &mut all, LONG))
    });
    for result in results {
        let (first, second) = result.expect("no panic");
        assert!(matches!(first, Err(CollectiveError::Length { .. })), "{first:?}");
        assert!(second.is_err());
    }
    let mut alone = Loopback::group(1).unwrap().remove(0);
    assert_eq!(alone.gather(&[1, 2], &mut [0], LONG), Err(CollectiveError::Length { own: 2, all: 1 }));
    assert_eq!(Loopback::group(0).unwrap_err(), CollectiveError::Rank { rank: 0, size: 0 });
}
