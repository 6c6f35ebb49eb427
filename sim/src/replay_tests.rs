use bagualu_core::set::Set;
use bagualu_model::{Device, Model, Preset};

use super::*;
use crate::workload::{Kind, Workload};

pub(crate) fn model(name: &str) -> Model {
    let preset = Preset::named(name, None).expect("a preset");
    let device = Device::named("h100-80g").expect("a device");
    Model::new(&preset.config, &preset.parallelism, &device).expect("a model")
}

#[test]
fn every_name_of_the_selective_policy_exists() {
    use bagualu_model::Attention;
    let mut preset = Preset::named("mixtral-8x7b", None).expect("a preset");
    let mut known = Vec::new();
    for attention in [Attention::Flash, Attention::Unfused] {
        preset.config.attention = attention;
        preset.config.attention_dropout = true;
        let device = Device::named("h100-80g").expect("a device");
        let model = Model::new(&preset.config, &preset.parallelism, &device).expect("a model");
        known.extend(model.types.iter().flat_map(|t| t.tensor_names.clone()));
        for layer in &model.types {
            let plan = Static::Selective.plan(layer, true);
            assert_eq!(
                plan.recompute.is_empty(),
                layer.name == "embedding" || layer.name == "output",
                "{}",
                layer.name
            );
        }
    }
    let missing: Vec<_> = crate::policy::SELECTIVE.iter().filter(|name| !known.contains(name)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn static_policies_are_ordered_and_clean() {
    let model = model("mixtral-8x7b");
    let job = Job::new(&model).expect("a job");
    for kind in [Kind::Balanced, Kind::HotRank, Kind::ZeroRank] {
        let load = Workload::new(kind, *job.shape(), 1, 2_600).expect("a load");
        let peaks = Static::ALL.map(|policy| {
            let outcomes = replay_static(&job, &load, policy, 1, &|| {});
            for outcome in &outcomes {
                assert_eq!(outcome.verdict.first_fault, None, "{policy:?} {outcome:?}");
                assert_eq!(outcome.verdict.host_peak, 0);
            }
            outcomes.iter().map(|o| o.verdict.peak.bytes).max().expect("devices")
        });
        assert!(peaks[0] > peaks[1] && peaks[1] > peaks[2], "{kind:?}: {peaks:?}");
    }
}

#[test]
fn keeping_everything_holds_what_the_cost_model_says() {
    let model = model("mixtral-8x7b");
    let job = Job::new(&model).expect("a job");
    let load = Workload::new(Kind::Balanced, *job.shape(), 1, 1_000).expect("a load");
    let outcome = replay_static(&job, &load, Static::None, 1, &|| {})[0].clone();
    let full = |layer: &LayerRef| {
        let layer = &model.types[layer.layer_type];
        let saves = layer.ops.iter().fold(Set::EMPTY, |all, op| all | op.saves);
        let kept = (0..layer.tensors.len()).filter(|&t| saves.contains(t) || layer.tensors[t].block_input);
        kept.map(|t| layer.tensors[t].bytes.at(model.balanced_rows).expect("small")).sum::<u64>()
    };
    // Full bytes of the units in flight, at their most.
    let (mut now, mut held) = (0, 0);
    for event in &job.rank(0).events {
        match *event {
            Event::Forward(unit) => now += job.unit(0, unit).1.iter().map(full).sum::<u64>(),
            Event::Backward(unit) => now -= job.unit(0, unit).1.iter().map(full).sum::<u64>(),
        }
        held = held.max(now);
    }
    let peak = outcome.verdict.peak.bytes;
    // Beside them one operator works.
    assert!(peak >= held && peak < held + held / 20, "{held} ≤ {peak}");
}

#[test]
fn the_number_of_threads_changes_nothing() {
    let model = model("mixtral-8x7b");
    let job = Job::new(&model).expect("a job");
    let load = Workload::new(Kind::RaggedSource, *job.shape(), 1, 2_600).expect("a load");
    let on = |threads| {
        on_threads(threads, || replay_static(&job, &load, Static::Selective, 1, &|| {})).expect("threads")
    };
    assert_eq!(on(1), on(4));
}

#[test]
fn a_curve_has_the_peak_of_its_iteration() {
    let model = model("mixtral-8x7b");
    let job = Job::new(&model).expect("a job");
    let load = Workload::new(Kind::Spike, *job.shape(), 1, 2_600).expect("a load");
    let outcomes = replay_static(&job, &load, Static::Full, 2, &|| {});
    let worst = tightest(&job, &outcomes).expect("devices");
    let curve = curve_static(&job, &load, Static::Full, worst.device, worst.verdict.peak.iteration);
    assert_eq!(curve.iter().map(|&(_, bytes)| bytes).max(), Some(worst.verdict.peak.bytes));
    assert!(curve.windows(2).all(|pair| pair[0].0 <= pair[1].0));
    assert_eq!(curve.last().map(|&(_, bytes)| bytes), Some(0));
}
