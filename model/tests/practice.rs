//! Answers that practitioners found to be right.

mod common;

use bagualu_core::cost::{LayerModel, LayerStorage};
use bagualu_core::schedule::{Event, Pipeline, most_in_flight};
use bagualu_core::stage::StageModel;
use bagualu_model::{Layout, Model, ModelConfig, Parallelism, StageLayout};
use common::{alone, build, device, small};

fn events(pipeline: Pipeline) -> Vec<Event> {
    let mut events = vec![Event::Forward(0); 2 * pipeline.units().expect("units") as usize];
    pipeline.events(&mut events).expect("a schedule");
    events
}

/// The most bytes that micro-batches in flight keep on a pipeline rank at balanced load, nothing mitigated.
fn kept(model: &Model, rank: usize) -> u64 {
    let (pipeline, stage) = (model.pipeline(rank as u32), &model.stages[rank]);
    let types: Vec<LayerModel<'_>> = model.types.iter().map(|t| t.model()).collect();
    let kinds: Vec<Vec<u16>> =
        stage.chunks.iter().map(|layers| layers.iter().map(|l| l.layer_type as u16).collect()).collect();
    let chunks: Vec<&[u16]> = kinds.iter().map(Vec::as_slice).collect();
    let core = StageModel {
        types: &types,
        chunks: &chunks,
        rooflines: model.device.rooflines(),
        balanced_rows: model.balanced_rows,
        device_bytes: model.room(stage),
        host_bytes: model.host_room(stage),
        fused: false,
    };
    let mut storage = LayerStorage::new();
    let full: Vec<u64> = (0..chunks.len())
        .map(|chunk| core.full(chunk, model.balanced_rows, &mut storage).expect("bytes"))
        .collect();
    let (mut now, mut most) = (0, 0);
    for event in events(pipeline) {
        match event {
            Event::Forward(unit) => now += full[pipeline.parts(unit).1 as usize],
            Event::Backward(unit) => now -= full[pipeline.parts(unit).1 as usize],
        }
        most = most.max(now);
    }
    most
}

/// A pipeline of equal layers.
fn pipeline(pp: u32, chunks: u32, micro_batches: u64) -> Parallelism {
    let gpus = pp.into();
    Parallelism { gpus, pp, chunks, group_size: pp, global_batch: 2 * micro_batches, ..alone() }
}

#[test]
fn more_micro_batches_of_the_same_size_do_not_raise_the_peak_of_1f1b() {
    let config = ModelConfig { layers: 8, ..small() };
    for pp in [1, 2, 4, 8] {
        let peaks = |micro_batches: u32| -> Vec<u64> {
            let model = build(&config, &pipeline(pp, 1, micro_batches.into()));
            (0..pp as usize).map(|rank| kept(&model, rank)).collect()
        };
        let least = peaks(pp);
        for more in [pp + 1, 2 * pp, 64] {
            assert_eq!(peaks(more), least, "PP {pp}, {more} micro-batches");
        }
        // Each rank keeps one micro-batch less than the one before it; the last has the logits too.
        let (_, before) = least.split_last().expect("ranks");
        assert!(before.windows(2).all(|pair| pair[0] > pair[1]), "{least:?}");
    }
}

#[test]
fn a_larger_micro_batch_does_raise_it() {
    let config = ModelConfig { layers: 4, ..small() };
    let peak = |micro_batch| {
        let parallelism = Parallelism { micro_batch, global_batch: 8 * micro_batch, ..pipeline(4, 1, 8) };
        kept(&build(&config, &parallelism), 1)
    };
    assert_eq!(peak(4), 2 * peak(2));
}

#[test]
fn interleaving_raises_in_flight_memory_by_its_closed_form() {
    for pp in [2, 3, 4, 8] {
        for chunks in [2, 3, 4] {
            // One layer for each virtual stage: a rank has as many without interleaving.
            let layers = pp * chunks;
            let config = ModelConfig { layers, ..small() };
            let micro_batches = u64::from(2 * pp);
            let plain = build(&config, &pipeline(pp, 1, micro_batches));
            let interleaved = build(&config, &pipeline(pp, chunks, micro_batches));
            // The tokens that the embedding keeps are far less than a layer.
            let layer = layer_bytes(&plain);
            let units = |model: &Model| kept(model, 0) / layer;
            // 1 + (P − 1)/(P·V), in whole layers: P·V becomes P·V + P − 1.
            assert_eq!(units(&plain), u64::from(pp * chunks), "P {pp}, V {chunks}");
            assert_eq!(units(&interleaved), u64::from(pp * chunks + pp - 1), "P {pp}, V {chunks}");
        }
    }
}

/// Bytes that one transformer layer keeps at balanced load.
fn layer_bytes(model: &Model) -> u64 {
    let moe = model.types.iter().find(|t| t.name == "moe").expect("a MoE layer");
    let mut storage = LayerStorage::new();
    let rows = model.balanced_rows;
    let layer = moe.model().at(rows, &model.device.rooflines(), &mut storage).expect("a layer");
    (layer.saved() | layer.block_inputs()).iter().map(|t| moe.tensors[t].bytes.at(rows).expect("fits")).sum()
}

#[test]
fn in_flight_chunks_of_every_rank_follow_the_schedule() {
    for (pp, chunks) in [(2, 2), (4, 2), (4, 4), (8, 3)] {
        for rank in 0..pp {
            let pipeline = Pipeline { chunks, group_size: pp, ..Pipeline::new(pp, rank, 4 * pp) };
            let expected = 2 * (pp - rank - 1) + (chunks - 1) * pp + 1;
            assert_eq!(most_in_flight(&events(pipeline)) as u32, expected, "P {pp}, V {chunks}, rank {rank}");
        }
    }
}

#[test]
fn fewer_layers_at_the_ends_even_out_the_pipeline() {
    // The last rank's logits, and the first rank's additional micro-batches, are what uneven stages are for.
    let config = ModelConfig { layers: 8, vocab: 50_000, ..small() };
    let even = build(&config, &pipeline(4, 1, 8));
    let stage = |layers| StageLayout { layers, ..StageLayout::default() };
    let layout = Layout::Stages(vec![
        StageLayout { embedding: true, ..stage(1) },
        stage(3),
        stage(3),
        StageLayout { loss: true, ..stage(1) },
    ]);
    let uneven = build(&config, &Parallelism { layout, ..pipeline(4, 1, 8) });
    assert!(kept(&uneven, 0) < kept(&even, 0) && kept(&uneven, 3) < kept(&even, 3));
    assert!(kept(&uneven, 1) > kept(&even, 1));
}

type Change = fn(&mut ModelConfig, &mut Parallelism);

/// What is asked for again and again, and what the message says: field, value, rule, fix.
const REFUSED: [(Change, [&str; 3]); 6] = [
    (
        |_, p| p.global_batch = 6,
        ["micro-batches is 3", "at least as many micro-batches as pipeline ranks", "raise the global batch"],
    ),
    (|c, _| c.layers = 18, ["layers is 18", "pp·chunks = 8 does not divide", "change PP or V"]),
    (
        |c, p| (c.moe.as_mut().expect("experts").experts, p.ep, p.gpus) = (6, 4, 16),
        ["experts is 6", "ep = 4 does not divide", "change EP or the number of experts"],
    ),
    (
        |_, p| p.global_batch = 18,
        ["micro-batches is 9", "a last group smaller than PP", "a multiple of the group size"],
    ),
    (|_, p| p.group_size = 3, ["group_size is 3", "give a value", "from 4 to 8"]),
    (|_, p| (p.pp, p.gpus, p.global_batch) = (1, 1, 16), ["chunks is 2", "PP above 1", "raise PP"]),
];

#[test]
fn what_cannot_run_is_refused_with_the_rule() {
    let (config, parallelism) = (ModelConfig { layers: 16, ..small() }, pipeline(4, 2, 8));
    build(&config, &parallelism);
    for (change, words) in REFUSED {
        let (mut config, mut parallelism) = (config.clone(), parallelism.clone());
        change(&mut config, &mut parallelism);
        let text = match Model::new(&config, &parallelism, &device()) {
            Ok(_) => panic!("accepted: {words:?}"),
            Err(error) => error.to_string(),
        };
        assert!(words.iter().all(|word| text.contains(word)), "{text:?} lacks {words:?}");
    }
}
