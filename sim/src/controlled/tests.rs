use bagualu_core::provision::ProvisionError;
use bagualu_core::set::Set;

use bagualu_model::{Device, Model, Preset, Workspaces};

use super::*;
use crate::policy::Static;
use crate::replay::{excess_iterations, on_threads, replay_static};
use crate::workload::{DEFAULT_PEAK_PERMILLE, Kind, Workload};

/// PP 4 × EP 8, two MoE layers a pipeline rank, 8 micro-batches.
fn model(memory_mib: u64) -> Model {
    let mut preset = Preset::named("mixtral-8x7b", None).expect("a preset");
    preset.config.layers = 8;
    let parallelism = &mut preset.parallelism;
    (parallelism.pp, parallelism.ep, parallelism.chunks) = (4, 8, 1);
    parallelism.gpus = 4 * 8 * parallelism.tp;
    parallelism.global_batch = 8 * parallelism.dp() * parallelism.micro_batch;
    // The memory is for activations: no placeholders of gradients in it.
    parallelism.fused_gradients = false;
    let mut device = Device::named("h100-80g").expect("a device");
    device.memory_bytes = memory_mib << 20;
    device.workspaces = Workspaces::NONE;
    Model::new(&preset.config, parallelism, &device).expect("a model")
}

fn workload(job: &Job<'_>, kind: Kind) -> Workload {
    Workload::new(kind, *job.shape(), 1, DEFAULT_PEAK_PERMILLE).expect("a load")
}

fn replay(job: &Job<'_>, kind: Kind, setup: &Setup, iterations: u32) -> Vec<Controlled> {
    replay_controlled(job, &workload(job, kind), setup, iterations, &|| {}).expect("feasible")
}

fn excesses(devices: &[Controlled]) -> usize {
    excess_iterations(&outcomes(devices))
}

fn counts(devices: &[Controlled]) -> Counts {
    devices.iter().fold(Counts::default(), |sum, device| sum.plus(&device.counts))
}

/// Ample memory, then less and less; the last is less than full recompute needs at the peak.
const MEMORIES: [u64; 5] = [40_000, 20_000, 17_000, 16_000, 15_000];

#[test]
fn no_load_is_refused_or_runs_out_of_memory() {
    let mut seen = Counts::default();
    for memory in MEMORIES {
        let model = model(memory);
        let job = Job::new(&model).expect("a job");
        for kind in Kind::ALL {
            let devices = replay(&job, kind, &Setup::default(), 3);
            for device in &devices {
                let context = format!("{memory} MiB, {kind:?}: {device:?}");
                assert_eq!(device.first_refusal, None, "{context}");
                assert_eq!(device.verdict.first_fault, None, "{context}");
                assert!(device.verdict.first_excess.is_none() && !device.verdict.host_excess, "{context}");
            }
            seen = seen.plus(&counts(&devices));
        }
    }
    // All of the controller's means are in use here.
    for used in [seen.replanned, seen.whole_moe, seen.split, seen.waits, seen.early, seen.offloaded_bytes] {
        assert!(used > 0, "{seen:?}");
    }
    for used in [seen.recomputed, seen.offloaded, seen.added_ns] {
        assert!(used > 0, "{seen:?}");
    }
}

#[test]
fn static_policies_fail_where_the_controller_does_not() {
    let model = model(20_000);
    let job = Job::new(&model).expect("a job");
    let load = workload(&job, Kind::HotRank);
    let failures =
        Static::ALL.map(|policy| excess_iterations(&replay_static(&job, &load, policy, 2, &|| {})));
    assert_eq!(failures, [2, 2, 0]);
    assert_eq!(excesses(&replay(&job, Kind::HotRank, &Setup::default(), 2)), 0);
}

#[test]
fn the_checker_finds_a_capacity_that_is_a_layer_too_large() {
    let model = model(17_000);
    let job = Job::new(&model).expect("a job");
    assert_eq!(excesses(&replay(&job, Kind::HotRank, &Setup::default(), 2)), 0);
    let moe = model.types.iter().find(|t| t.name == "moe").expect("a MoE layer");
    let rows = model.rows_at(DEFAULT_PEAK_PERMILLE);
    let saved = moe.ops.iter().fold(Set::EMPTY, |all, op| all | op.saves);
    let overstated_bytes = saved.iter().map(|t| moe.tensors[t].bytes.at(rows).expect("small")).sum();
    let setup = Setup { overstated_bytes, ..Setup::default() };
    assert_eq!(excesses(&replay(&job, Kind::HotRank, &setup, 2)), 2);
}

#[test]
fn the_checker_finds_early_recoveries_without_the_growth_rule() {
    let model = model(17_000);
    let job = Job::new(&model).expect("a job");
    let setup = Setup { early: Early::Unasked, ..Setup::default() };
    assert_eq!(excesses(&replay(&job, Kind::HotRank, &setup, 2)), 2);
}

#[test]
fn what_cannot_run_at_all_is_an_error_with_its_bytes() {
    let model = model(13_500);
    let job = Job::new(&model).expect("a job");
    let load = workload(&job, Kind::Balanced);
    let error = replay_controlled(&job, &load, &Setup::default(), 1, &|| {}).expect_err("too little");
    let ControlError::Provision { error: ProvisionError::Infeasible { needed, available, .. }, .. } = error
    else {
        panic!("{error}");
    };
    assert!(needed > available, "{error}");
}

#[test]
fn the_number_of_threads_changes_no_decision() {
    let model = model(17_000);
    let job = Job::new(&model).expect("a job");
    let on = |threads| {
        on_threads(threads, || replay(&job, Kind::RaggedSource, &Setup::default(), 2)).expect("threads")
    };
    let one = on(1);
    assert_eq!(one, on(2));
    assert_eq!(one, on(4));
    let other = replay(&job, Kind::Spread, &Setup::default(), 2);
    assert_ne!(fingerprint(&one), fingerprint(&other));
}

#[test]
fn a_curve_is_that_of_its_replay() {
    let model = model(17_000);
    let job = Job::new(&model).expect("a job");
    let devices = replay(&job, Kind::Burst, &Setup::default(), 1);
    let load = workload(&job, Kind::Burst);
    let curve = curve_controlled(&job, &load, &Setup::default(), devices[9].device, 0).expect("a curve");
    assert_eq!(curve.iter().map(|point| point.1).max(), Some(devices[9].verdict.peak.bytes));
}
