//! A pipeline rank under its plan, with real buffers on the host device.

use std::sync::Arc;
use std::time::Duration;

use bagualu_exec::device::DeviceError;
use bagualu_exec::fault::{Faults, FaultyDevice};
use bagualu_exec::host::{HostConfig, HostDevice};
use bagualu_exec::rank::RankError;
use bagualu_exec::store::StoreError;

mod common;

use common::twisted::{Twist, Twisted};
use common::{Job, Outcome, run};

fn host(bytes: u64) -> HostDevice {
    let config = HostConfig { device_bytes: Some(bytes), ..HostConfig::default() };
    HostDevice::open(config).expect("a host")
}

/// Runs on a device of exactly D bytes and expects every tensor exact and all memory given back.
fn run_exactly(job: Job) -> Outcome {
    let device = Arc::new(host(job.device_bytes));
    let outcome =
        run(Arc::<HostDevice>::clone(&device), job).unwrap_or_else(|error| panic!("{job:?}: {error}"));
    assert_eq!(outcome.wrong, 0, "{job:?}: {outcome:?}");
    assert!(device.device_usage().peak <= job.device_bytes, "{job:?}");
    assert_eq!((device.device_usage().bytes, device.pinned_usage().bytes), (0, 0), "all is given back");
    outcome
}

#[test]
fn every_tensor_is_exact_and_the_device_never_holds_more_than_it_has() {
    let mut all = Outcome::default();
    for device_bytes in [1_000_000, 450_000, 320_000, 260_000] {
        for seed in 0..8 {
            let outcome = run_exactly(Job { seed, casts: seed % 2 == 1, ..Job::new(device_bytes) });
            assert!(outcome.checked >= 4 * 8 * 2 * 7, "{outcome:?}");
            all = all.plus(outcome);
        }
    }
    // The controller's means are all in use here.
    let counts = all.counts;
    for used in [counts.replanned, all.split, counts.offloaded, counts.quantized, all.hooks] {
        assert!(used > 0, "{all:?}");
    }
}

#[test]
fn interleaved_and_fused_schedules_are_exact_too() {
    let mut all = Outcome::default();
    for (seed, chunks, fused, device_bytes) in [
        (0, 2, false, 900_000),
        (1, 2, false, 600_000),
        (2, 1, true, 700_000),
        (3, 1, true, 400_000),
        (4, 2, true, 1_200_000),
        (5, 2, true, 800_000),
    ] {
        let job = Job { seed, chunks, fused, casts: seed % 2 == 0, ..Job::new(device_bytes) };
        all = all.plus(run_exactly(job));
    }
    assert!(all.counts.offloaded > 0, "{all:?}");
    assert_eq!((all.behind_forward, all.behind_backward), (0, 0), "work was set aside for both");
}

#[test]
fn a_pass_waits_for_the_one_beside_it() {
    let job = |seed| Job { seed, fused: true, work_for_both: false, ..Job::new(320_000) };
    let all = (0..6).map(|seed| run_exactly(job(seed))).fold(Outcome::default(), Outcome::plus);
    assert!(all.behind_forward > 0 && all.behind_backward > 0, "{all:?}");
}

#[test]
fn units_come_back_early_where_there_is_room() {
    let outcomes = (0..4).map(|seed| run_exactly(Job { seed, drained: true, ..Job::new(400_000) }));
    let all = outcomes.fold(Outcome::default(), Outcome::plus);
    assert!(all.counts.early > 0, "{all:?}");
}

#[test]
fn operators_wait_for_the_bytes_that_they_count_on() {
    let mut all = Outcome::default();
    for (seed, device_bytes) in (0..12).zip([450_000, 320_000, 260_000].into_iter().cycle()) {
        // Nobody learns of a copy's end but by waiting for something.
        let device = Arc::new(Twisted::new(host(device_bytes), Twist::DoneWhenWaitedFor));
        let job = Job { seed, iterations: 2, ..Job::new(device_bytes) };
        let outcome = run(Arc::<Twisted>::clone(&device), job).expect("feasible");
        assert_eq!(outcome.wrong, 0, "{outcome:?}");
        assert!(device.host.device_usage().peak <= device_bytes);
        all = all.plus(outcome);
    }
    assert!(all.counts.offloaded > 0 && all.counts.waits > 0, "{all:?}");
}

#[test]
fn a_backward_out_of_order_is_refused_and_changes_nothing() {
    for (seed, chunks, device_bytes) in [(0, 1, 320_000), (1, 1, 260_000), (2, 2, 600_000)] {
        let job = Job { seed, chunks, iterations: 2, misused: true, ..Job::new(device_bytes) };
        assert!(run_exactly(job).checked > 0);
    }
}

#[test]
fn with_everything_kept_the_same_job_fails() {
    let job = Job { controlled: false, ..Job::new(320_000) };
    let error = run(Arc::new(host(job.device_bytes)), job).expect_err("more than there is");
    assert!(
        matches!(error, RankError::Store(StoreError::Device(DeviceError::OutOfMemory { .. }))),
        "{error}"
    );
    run_exactly(Job { device_bytes: 4_000_000, ..job });
}

#[test]
fn a_hook_that_fails_ends_its_iteration_alone() {
    let job = Job { iterations: 6, ..Job::new(260_000) };
    let hooks = run_exactly(job).hooks;
    assert!(hooks > 10, "{hooks}");
    for failing in [0, 1, hooks / 2] {
        let outcome = run_exactly(Job { failing_hook: Some(failing), ..job });
        assert_eq!(outcome.abandoned, 1, "{outcome:?}");
    }
}

#[test]
fn what_holds_more_than_planned_is_offloaded_after_all() {
    let job = |seed| Job { seed, measured_above: 20_000, drained: true, ..Job::new(450_000) };
    let all = (0..6).map(|seed| run_exactly(job(seed))).fold(Outcome::default(), Outcome::plus);
    assert!(all.counts.corrections > 0 && all.counts.early > 0, "{all:?}");
}

#[test]
fn late_copies_change_no_byte() {
    let mut late = 0;
    for seed in 0..8 {
        let faults =
            Faults { seed, late_copies: 160, late_by: Duration::from_micros(300), ..Faults::default() };
        let device = FaultyDevice::new(host(320_000), faults).expect("a device");
        let device = Arc::new(device);
        let job = Job { seed, iterations: 2, ..Job::new(320_000) };
        let outcome = run(Arc::<FaultyDevice<HostDevice>>::clone(&device), job)
            .unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        assert_eq!(outcome.wrong, 0, "seed {seed}: {outcome:?}");
        late += device.injected().late_copies;
        assert!(device.inner().device_usage().peak <= 320_000);
    }
    assert!(late > 50, "{late}");
}

#[test]
fn every_fault_is_a_typed_error_and_never_a_hang() {
    let job = Job { iterations: 2, ..Job::new(320_000) };
    let (mut seen, mut deaths) = ([0u32; 2], 0);
    for seed in 0..12 {
        let none = Faults { seed, ..Faults::default() };
        let kinds = [
            Faults { pinned_failures: 255, ..none },
            Faults { device_failures: 2, ..none },
            Faults { death_at_copy: Some(seed * 5), ..none },
        ];
        for (kind, faults) in kinds.into_iter().enumerate() {
            let device = Arc::new(FaultyDevice::new(host(320_000), faults).expect("a device"));
            let ended = run(Arc::<FaultyDevice<HostDevice>>::clone(&device), Job { seed, ..job });
            match (kind, &ended) {
                (0 | 1, Err(RankError::Store(_))) => {
                    seen[kind] += 1;
                    let usage = (device.inner().device_usage().bytes, device.inner().pinned_usage().bytes);
                    assert_eq!(usage, (0, 0), "{faults:?}: nothing was lost");
                }
                (2, Err(RankError::Store(_))) => deaths += 1,
                // The fault never came, or an allocation waited and was tried again.
                (_, Ok(outcome)) => assert_eq!(outcome.wrong, 0, "{faults:?}"),
                (_, Err(error)) => panic!("{faults:?}: {error}"),
            }
        }
    }
    assert!(seen[0] > 0 && seen[1] > 0 && deaths > 0, "{seen:?}, {deaths}");
}
