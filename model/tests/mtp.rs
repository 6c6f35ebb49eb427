//! Multi-token prediction: where its layers are, and what they hold.

mod common;

use bagualu_core::cost::LayerStorage;
use bagualu_model::script::from_flags;
use bagualu_model::{LayerType, Layout, Model, ModelConfig, MoeLayers, Parallelism, StageLayout};
use common::{alone, build, device, small};

fn config(mtp_layers: u32) -> ModelConfig {
    ModelConfig { layers: 4, mtp_layers, ..small() }
}

fn pipeline(pp: u32) -> Parallelism {
    Parallelism { gpus: pp.into(), pp, group_size: pp, global_batch: 8, ..alone() }
}

fn names(model: &Model, rank: usize) -> Vec<(&'static str, Option<u32>)> {
    let layers = model.stages[rank].chunks.iter().flatten();
    layers.map(|layer| (model.types[layer.layer_type].name, layer.number)).collect()
}

fn kind<'m>(model: &'m Model, name: &str) -> &'m LayerType {
    model.types.iter().find(|t| t.name == name).expect("a layer type")
}

/// Bytes of what the layer saves if everything is kept.
fn saved(model: &Model, name: &str) -> u64 {
    let mut storage = LayerStorage::new();
    let kind = kind(model, name);
    let layer = kind.model().at(0, &model.device.rooflines(), &mut storage).expect("a layer");
    (layer.saved() | layer.block_inputs()).iter().map(|t| kind.tensors[t].bytes.fixed).sum()
}

#[test]
fn a_depth_is_a_joint_a_transformer_layer_and_a_norm_with_a_head_of_its_own() {
    let model = build(&config(2), &pipeline(2));
    assert_eq!(names(&model, 0), [("embedding", None), ("moe", Some(0)), ("moe", Some(1))]);
    let depth = |number| [("mtp", None), ("moe", Some(number)), ("final_norm", None)];
    let head = ("head", None);
    let expected: Vec<_> = [("moe", Some(2)), ("moe", Some(3)), ("final_norm", None)]
        .into_iter()
        .chain(depth(4))
        .chain(depth(5))
        .chain([head, head, head])
        .collect();
    assert_eq!(names(&model, 1), expected);
    assert!(model.types.iter().all(|t| t.name != "output"));
}

#[test]
fn its_layers_are_of_the_last_layer_s_kind() {
    let mut config = config(1);
    config.moe.as_mut().expect("experts").layers = MoeLayers::Listed(vec![true, true, true, false]);
    let model = build(&config, &pipeline(1));
    assert!(names(&model, 0).contains(&("dense", Some(4))));
    config.moe.as_mut().expect("experts").layers = MoeLayers::Every(3);
    assert!(names(&build(&config, &pipeline(1)), 0).contains(&("moe", Some(4))));
}

#[test]
fn what_a_depth_saves_is_counted_by_hand() {
    let model = build(&config(1), &pipeline(1));
    // T = S = 64, h = 32, BF16, an RMSNorm: one FP32 statistic a row.
    let (t, h, vocab) = (64, 32, 1_024);
    let hidden = 2 * t * h;
    // The hidden state, int64 tokens, the embedding, two norms' statistics, and 2h columns for the projection.
    assert_eq!(saved(&model, "mtp"), hidden + 8 * t + hidden + 2 * 4 * t + 2 * hidden);
    assert_eq!(saved(&model, "final_norm"), hidden + 4 * t);
    // The concatenated copy, FP32 probabilities, and the target.
    assert_eq!(saved(&model, "head"), hidden + 4 * t * vocab + 13 * t);
    // Without it the output layer reads the norm's output.
    let plain = build(&config(0), &pipeline(1));
    assert_eq!(saved(&plain, "output"), saved(&model, "final_norm") + saved(&model, "head"));
}

#[test]
fn under_sequence_parallel_tokens_are_gathered_and_scattered() {
    let parallelism = Parallelism { gpus: 2, tp: 2, sequence_parallel: true, ..alone() };
    let model = build(&config(1), &parallelism);
    let mtp = kind(&model, "mtp");
    let proj = &mtp.ops[mtp.op("eh_proj").expect("a projection")];
    let one = kind(&build(&config(1), &alone()), "mtp").ops[mtp.op("eh_proj").expect("a projection")];
    // The gathered 2h columns, and the output gathered, of this rank's columns and of its tokens.
    let (t, h) = (32, 32);
    assert_eq!(proj.forward_work.fixed, 2 * t * h * (4 + 2 + 1 + 1));
    assert_eq!(one.forward_work.fixed, 2 * 64 * 32);
    assert!(proj.collective.is_some() && one.collective.is_none());
    // The tokens of all ranks are looked up; this rank's hidden states keep the other's, of which they are a view.
    assert_eq!(saved(&model, "mtp"), 8 * 64 + 2 * (2 * t * h) + 2 * 4 * t + 2 * (2 * t * h) + 2 * t * h);
}

fn parameters(config: &ModelConfig, parallelism: &Parallelism, rank: usize) -> bagualu_model::Parameters {
    build(config, parallelism).stages[rank].parameters
}

#[test]
fn the_stage_of_a_depth_has_a_copy_of_the_embedding() {
    let (vocab, h) = (1_024 * 32, 32);
    let alone = parameters(&config(1), &pipeline(1), 0);
    let plain = parameters(&config(0), &pipeline(1), 0);
    assert_eq!((alone.embedding, alone.output, alone.mtp), (vocab, vocab, 2 * h * h));
    // Two norms before the projection, one behind, and the transformer layer's two.
    assert_eq!(alone.norms - plain.norms, 5 * h);
    assert_eq!(alone.experts - plain.experts, plain.experts / 4);
    let last = parameters(&config(1), &pipeline(2), 1);
    assert_eq!((last.embedding, last.output), (vocab, vocab));
    assert_eq!(parameters(&config(0), &pipeline(2), 1).embedding, 0);
    let count = |config: &ModelConfig| config.parameters().expect("a count");
    let (with, without) = (count(&config(1)), count(&config(0)));
    assert_eq!(with.total - without.total, alone.total() - plain.total());
    assert!(with.active > without.active && with.active - without.active < with.total - without.total);
}

#[test]
fn a_layout_may_give_it_a_stage_of_its_own() {
    let stage = |layers, mtp| StageLayout { layers, mtp, ..StageLayout::default() };
    let layout = Layout::Stages(vec![
        StageLayout { embedding: true, ..stage(2, 0) },
        stage(2, 0),
        stage(0, 1),
        StageLayout { loss: true, ..stage(0, 0) },
    ]);
    let parallelism = Parallelism { layout, ..pipeline(4) };
    let model = build(&config(1), &parallelism);
    // The norm stays with the last layer.
    assert_eq!(names(&model, 1), [("moe", Some(2)), ("moe", Some(3)), ("final_norm", None)]);
    assert_eq!(names(&model, 2), [("mtp", None), ("moe", Some(4)), ("final_norm", None)]);
    assert_eq!(names(&model, 3), [("head", None), ("head", None)]);
    let parts = |part: fn(&bagualu_model::Parameters) -> u64| {
        model.stages.iter().map(|stage| part(&stage.parameters) > 0).collect::<Vec<_>>()
    };
    assert_eq!(parts(|p| p.embedding), [true, false, true, false]);
    assert_eq!(parts(|p| p.output), [false, false, false, true]);
    // Both hidden states are sent on together.
    let buffers: Vec<_> = model.stages.iter().map(|stage| stage.static_bytes.buffers).collect();
    assert_eq!(buffers, [8_192, 8_192, 16_384, 16_384]);
    // Layers behind it, and a depth that is missing, are refused.
    for (m, words) in [(0, "0 layers of multi-token prediction"), (2, "2 layers of multi-token prediction")] {
        let mut layouts = match &parallelism.layout {
            Layout::Stages(layouts) => layouts.clone(),
            _ => panic!("a list"),
        };
        layouts[2].mtp = m;
        let wrong = Parallelism { layout: Layout::Stages(layouts), ..parallelism.clone() };
        let error = Model::new(&config(1), &wrong, &device()).expect_err(words).to_string();
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn tied_weights_are_held_beside_the_copy() {
    // Megatron passes the embedding's weight to an output layer that has allocated its own.
    let tied = ModelConfig { tied_embeddings: true, ..config(1) };
    let last = parameters(&tied, &pipeline(2), 1);
    assert_eq!((last.embedding, last.output), (1_024 * 32, 1_024 * 32));
    assert_eq!(parameters(&tied, &pipeline(1), 0).output, 0);
}

#[test]
fn what_megatron_refuses_is_refused() {
    let refused = |config: &ModelConfig, parallelism: &Parallelism| {
        Model::new(config, parallelism, &device()).expect_err("refused").to_string()
    };
    let learned = ModelConfig { position_rows: 32, ..config(1) };
    assert!(refused(&learned, &pipeline(1)).contains("position_rows is 32: multi-token prediction"));
    let overlap = Parallelism { overlap_ep: true, ..pipeline(1) };
    assert!(refused(&config(2), &overlap).contains("mtp_layers is 2: the overlap"));
    assert!(refused(&config(9), &pipeline(1)).contains("mtp_layers is 9; give a value from 0 to 8"));
}

#[test]
fn deepseek_v3_has_the_parameters_it_is_published_with() {
    let flags = "--num-layers 61 --hidden-size 7168 --ffn-hidden-size 18432 --num-attention-heads 128 \
                 --multi-latent-attention --q-lora-rank 1536 --kv-lora-rank 512 --num-experts 256 \
                 --moe-router-topk 8 --moe-ffn-hidden-size 2048 --moe-shared-expert-intermediate-size 2048 \
                 --moe-layer-freq ([0]*3+[1]*58) --vocab-size 129280 --seq-length 4096 --micro-batch-size 1 --bf16 \
                 --swiglu --normalization RMSNorm --disable-bias-linear --untie-embeddings-and-output-weights \
                 --position-embedding-type rope --expert-model-parallel-size 64 --pipeline-model-parallel-size 16 \
                 --global-batch-size 2048 --mtp-num-layers 1 --pipeline-model-parallel-layout Et*3|(tt|)*29,m|L";
    let flags: Vec<_> = flags.split_whitespace().map(str::to_owned).collect();
    let launch = from_flags(&flags, 1_024).expect("flags");
    let billions = |mtp_layers| {
        let config = ModelConfig { mtp_layers, ..launch.config.clone() };
        config.parameters().expect("a count").total as f64 / 1e9
    };
    // 671 billion, and 11.5 of the module's own (its `README_WEIGHTS.md`).
    assert!((billions(0) - 671.0).abs() < 0.5, "{}", billions(0));
    assert!((billions(1) - billions(0) - 11.5).abs() < 0.2, "{}", billions(1) - billions(0));
    let model = build(&launch.config, &launch.parallelism);
    // The module alone on rank 14's second stage, the losses on rank 15's.
    assert_eq!(model.parallelism.chunks, 2);
    let named = |rank: usize| -> Vec<_> {
        model.stages[rank].chunks[1].iter().map(|layer| model.types[layer.layer_type].name).collect()
    };
    assert_eq!(named(14), ["mtp", "moe", "final_norm"]);
    assert_eq!(named(15), ["head", "head"]);
}
