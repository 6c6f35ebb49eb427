//! Replay: the same decisions in both profiles and on any number of threads, and no refusals over some hundred
//! iterations of all loads.

use bagualu_sim::controlled::{
    Controlled, Setup, fingerprint, outcomes, refused_iterations, replay_controlled,
};
use bagualu_sim::job::Job;
use bagualu_sim::policy::Static;
use bagualu_sim::replay::{excess_iterations, on_threads, replay_static};
use bagualu_sim::workload::{Kind, Workload};
use bagualu_tests::pipeline;

/// Full recompute just fits here at a load of 2.6.
const TIGHT_MIB: u64 = 13_700;

fn replay(job: &Job<'_>, kind: Kind, iterations: u32) -> Vec<Controlled> {
    let load = Workload::new(kind, *job.shape(), 1, 2_600).expect("a load");
    replay_controlled(job, &load, &Setup::default(), iterations, &|| {}).expect("feasible")
}

/// 40 iterations of each of the nine loads; `tests/examples/refusals.rs` runs 10,000 of each.
#[test]
fn where_full_recompute_fits_nothing_is_refused() {
    let model = pipeline::small(TIGHT_MIB);
    let job = Job::new(&model).expect("a job");
    for kind in Kind::ALL {
        let load = Workload::new(kind, *job.shape(), 1, 2_600).expect("a load");
        let full = replay_static(&job, &load, Static::Full, 40, &|| {});
        assert_eq!(excess_iterations(&full), 0, "{kind:?}: the premise");
        let devices = replay(&job, kind, 40);
        assert_eq!(refused_iterations(&devices), 0, "{kind:?}");
        assert_eq!(excess_iterations(&outcomes(&devices)), 0, "{kind:?}");
        assert!(devices.iter().all(|d| d.verdict.faults == 0), "{kind:?}");
    }
}

/// Pinned: the same in debug and release (`make determinism`), on 1, 2 and 4 threads. Whoever means to change
/// decisions replaces the pins.
#[test]
fn decisions_are_the_same_everywhere() {
    let model = pipeline::small(TIGHT_MIB);
    let job = Job::new(&model).expect("a job");
    let pins = [
        (Kind::HotRank, 11123395162000111398),
        (Kind::RaggedSource, 16312835137113193352),
        (Kind::Spike, 6046595208957645195),
    ];
    for (kind, pinned) in pins {
        let on = |threads| fingerprint(&on_threads(threads, || replay(&job, kind, 4)).expect("threads"));
        assert_eq!([1, 2, 4].map(on), [pinned; 3], "{kind:?}");
    }
}
