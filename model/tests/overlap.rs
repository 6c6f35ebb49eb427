//! A forward beside a backward (`--overlap-moe-expert-parallel-comm`): what an iteration holds when.

mod common;

use bagualu_core::curve::{OpCost, layer_costs, peak};
use bagualu_core::layer::LayerPlan;
use bagualu_core::limits::MAX_OPS;
use bagualu_core::schedule::Event;
use bagualu_model::settings::{ActivationSettings, Configured};
use bagualu_model::{Model, ModelConfig, Parallelism, Stage};
use common::{alone, build, small};

const ROWS: u32 = 128;

/// Two chunks of `layers` layers on each of two pipeline ranks.
fn interleaved(layers: u32) -> Model {
    let parallelism = Parallelism {
        pp: 2,
        chunks: 2,
        group_size: 2,
        gpus: 4,
        ep: 2,
        global_batch: 16,
        overlap_ep: true,
        ..alone()
    };
    build(&ModelConfig { layers: 4 * layers, ..small() }, &parallelism)
}

/// Forward and backward operators of each chunk of `stage`, everything kept.
fn chunks(model: &Model, stage: &Stage) -> Vec<[Vec<OpCost>; 2]> {
    let chunk = |layers: &Vec<bagualu_model::LayerRef>| {
        let mut costs = [Vec::new(), Vec::new()];
        for layer in layers {
            let layer = &model.types[layer.layer_type];
            let mut of_layer = [[OpCost::default(); MAX_OPS]; 2];
            let [forward, backward] = &mut of_layer;
            let rows = if layer.routed { ROWS } else { 0 };
            let count =
                layer_costs(&layer.model(), rows, &LayerPlan::KEEP, forward, backward).expect("costs");
            costs[0].extend_from_slice(&forward[..count]);
            costs[1].splice(0..0, backward[..count].iter().copied());
        }
        costs
    };
    stage.chunks.iter().map(chunk).collect()
}

/// Bytes that a chunk holds between forward and backward.
fn held(costs: &[Vec<OpCost>; 2]) -> u64 {
    costs[0].iter().map(|op| op.holds).sum::<u64>() - costs[0].iter().map(|op| op.frees).sum::<u64>()
}

/// The peak if each forward is complete before the backward beside it begins.
fn one_after_the_other(model: &Model, stage: &Stage) -> u64 {
    let chunks = chunks(model, stage);
    let pipeline = model.pipeline(stage.rank);
    let mut events = vec![Event::Forward(0); 2 * pipeline.units().expect("units") as usize];
    pipeline.events(&mut events).expect("a schedule");
    let costs = |event| match event {
        Event::Forward(unit) => &chunks[pipeline.parts(unit).1 as usize][0][..],
        Event::Backward(unit) => &chunks[pipeline.parts(unit).1 as usize][1][..],
    };
    peak(&events, costs).expect("a curve").bytes
}

#[test]
fn layer_by_layer_a_forward_costs_a_layer_and_not_a_chunk() {
    let settings = ActivationSettings::default();
    for layers in [2, 4, 8] {
        let model = interleaved(layers);
        let stage = &model.stages[0];
        let peak = Configured::new(&settings, &model, stage, ROWS).expect("settings").peak_bytes;
        let chunks = chunks(&model, stage);
        // The last chunk has no embedding: all its bytes are those of layers.
        let layer = held(&chunks[1]) / u64::from(layers);
        let work = chunks.iter().flatten().flatten().map(|op| op.work).max().expect("operators");
        let saved = one_after_the_other(&model, stage) - peak;
        assert!(saved <= u64::from(layers) * layer, "{layers}: {saved}");
        assert!(saved + layer + 2 * work >= u64::from(layers) * layer, "{layers}: {saved}");
    }
}

/// Without a pipeline there are two micro-batches at once, each with a part of its layers.
#[test]
fn without_a_pipeline_the_next_forward_fills_what_the_backward_frees() {
    let parallelism = |overlap_ep| Parallelism { gpus: 2, ep: 2, global_batch: 16, overlap_ep, ..alone() };
    let config = ModelConfig { layers: 8, ..small() };
    let peak = |overlap| {
        let model = build(&config, &parallelism(overlap));
        let stage = &model.stages[0];
        Configured::new(&ActivationSettings::default(), &model, stage, ROWS).expect("settings").peak_bytes
    };
    let model = build(&config, &parallelism(false));
    let layer = held(&chunks(&model, &model.stages[0])[0]) / 8;
    let (alone, together) = (peak(false), peak(true));
    assert!((alone..alone + 2 * layer).contains(&together), "{alone} {together} {layer}");
}
