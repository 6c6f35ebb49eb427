//! Presets, stages, static bytes, and what is refused.

mod common;

use bagualu_model::{
    Attention, Device, MODELS, Model, ModelConfig, MoeLayers, Parallelism, Precision, Preset, StaticBytes,
};
use common::{alone, build, device, small};

/// Billions of total and active parameters that each preset is named after or published with (model cards and
/// technical reports), and how many of embedding and output layer the active ones include: some publish without
/// the embedding (gpt-oss, DeepSeek-V2-Lite), some without both (GLM-4.5, Moonlight). Multi-token prediction is
/// not in any of them.
const BILLIONS: [(&str, f64, f64, u64); 22] = [
    ("glm-188b-a20b", 188.0, 20.0, 2),
    ("glm-319b-a30b", 319.0, 30.0, 2),
    ("glm-423b-a30b", 423.0, 30.0, 2),
    ("glm-629b-a30b", 629.0, 30.0, 2),
    ("glm-783b-a35b", 783.0, 35.0, 2),
    ("glm-835b-a30b", 835.0, 30.0, 2),
    ("glm-1041b-a35b", 1_041.0, 35.0, 2),
    ("mixtral-8x7b", 46.7, 12.9, 2),
    ("qwen3-30b-a3b", 30.5, 3.3, 2),
    ("deepseek-v2", 236.0, 21.0, 2),
    ("deepseek-v2-lite", 15.7, 2.4, 1),
    ("deepseek-v3", 671.0, 37.0, 2),
    ("mixtral-8x22b", 141.0, 39.0, 2),
    ("qwen2-57b-a14b", 57.4, 14.0, 2),
    ("qwen3-235b-a22b", 235.0, 22.0, 2),
    ("glm-4.5", 355.0, 32.0, 0),
    ("glm-4.5-air", 106.0, 12.0, 0),
    ("kimi-k2", 1_040.0, 32.6, 2),
    ("olmoe-1b-7b", 6.92, 1.28, 2),
    ("moonlight-16b-a3b", 16.0, 2.24, 0),
    ("gpt-oss-20b", 20.91, 3.61, 1),
    ("gpt-oss-120b", 116.83, 5.13, 1),
];

#[test]
fn presets_have_the_parameters_they_are_named_after() {
    for (name, total, active, ends) in BILLIONS {
        let config = Preset::named(name, None).expect("a preset").config;
        let config = ModelConfig { mtp_layers: 0, ..config };
        let count = config.parameters().expect("a count");
        let error = |count: u64, billions: f64| (count as f64 / 1e9 / billions - 1.0).abs();
        let left_out = (2 - ends) * config.vocab * config.hidden;
        assert!(error(count.total, total) < 0.015, "{name}: {count:?}");
        assert!(error(count.active - left_out, active) < 0.025, "{name}: {count:?}");
    }
    assert_eq!(MODELS.to_vec(), BILLIONS.map(|(name, ..)| name).to_vec());
}

#[test]
fn the_vp_column_of_table_ii_counts_layers() {
    let chunks = |name| Preset::named(name, None).expect("a preset").parallelism.chunks;
    assert_eq!(["glm-188b-a20b", "glm-319b-a30b", "glm-783b-a35b"].map(chunks), [4; 3]);
    assert_eq!(["glm-423b-a30b", "glm-629b-a30b", "glm-835b-a30b", "glm-1041b-a35b"].map(chunks), [2; 4]);
}

#[test]
fn data_parallel_is_that_of_table_ii() {
    for (name, gpus, dp) in [
        ("glm-188b-a20b", None, 16),
        ("glm-319b-a30b", None, 16),
        ("glm-423b-a30b", None, 32),
        ("glm-629b-a30b", None, 64),
        ("glm-783b-a35b", None, 128),
        ("glm-835b-a30b", None, 256),
        ("glm-1041b-a35b", None, 512),
        ("glm-1041b-a35b", Some(12_288), 768),
    ] {
        let preset = Preset::named(name, gpus).expect("a preset");
        assert_eq!(preset.parallelism.dp(), dp, "{name}");
        assert_eq!(preset.parallelism.micro_batches(), 64, "{name}");
    }
}

#[test]
fn stages_hold_megatron_s_virtual_stages() {
    let preset = Preset::named("glm-423b-a30b", None).expect("a preset");
    let model = Model::new(&preset.config, &preset.parallelism, &device()).expect("a model");
    let numbers = |rank: usize, chunk: usize| -> Vec<_> {
        model.stages[rank].chunks[chunk].iter().map(|layer| layer.number).collect()
    };
    assert_eq!(numbers(0, 0), [None, Some(0), Some(1)]);
    assert_eq!(numbers(0, 1), [Some(16), Some(17)]);
    assert_eq!(numbers(7, 0), [Some(14), Some(15)]);
    assert_eq!(numbers(7, 1), [Some(30), Some(31), None]);
    assert_eq!(model.types[model.stages[7].chunks[1][2].layer_type].name, "output");
    assert_eq!((model.tokens, model.balanced_rows, model.micro_batches), (2_048, 12_288, 64));
    assert_eq!(model.rows_at(2_600), 31_949);
}

#[test]
fn experts_are_divided_over_their_own_replicas() {
    let preset = Preset::named("glm-423b-a30b", None).expect("a preset");
    let model = Model::new(&preset.config, &preset.parallelism, &device()).expect("a model");
    let middle = &model.stages[3];
    // Four layers with two local experts of 3·h·f each; 512 GPUs leave one replica of an expert.
    let experts = 4 * 2 * 3 * 8_192 * 4_096;
    assert_eq!(middle.parameters.experts, experts);
    assert_eq!(preset.parallelism.expert_dp(), 1);
    let rest = middle.parameters.total() - experts;
    let StaticBytes { weights, gradients, optimizer, .. } = middle.static_bytes;
    assert_eq!(weights, 2 * (experts + rest));
    assert_eq!(gradients, 4 * (experts + rest));
    assert_eq!(optimizer, 12 * experts + (12 * rest).div_ceil(32));
    // Without the distributed optimizer every replica holds all of it; in FP32 no main parameters.
    let whole = Parallelism { distributed_optimizer: false, ..preset.parallelism.clone() };
    let model = Model::new(&preset.config, &whole, &device()).expect("a model");
    assert_eq!(model.stages[3].static_bytes.optimizer, 12 * (experts + rest));
    let fp32 = build(
        &ModelConfig { attention: Attention::Unfused, ..small() },
        &Parallelism { precision: Precision::Fp32, ..alone() },
    );
    let all = fp32.stages[0].parameters.total();
    let bytes = fp32.stages[0].static_bytes;
    assert_eq!((bytes.weights, bytes.gradients, bytes.optimizer), (4 * all, 4 * all, 8 * all));
}

#[test]
fn parts_of_all_ranks_add_up_to_the_model() {
    let preset = Preset::named("glm-188b-a20b", None).expect("a preset");
    let model = Model::new(&preset.config, &preset.parallelism, &device()).expect("a model");
    let count = preset.config.parameters().expect("a count").total;
    let sum = |part: fn(&bagualu_model::Parameters) -> u64| -> u64 {
        model.stages.iter().map(|stage| part(&stage.parameters)).sum()
    };
    // 151,552 is a multiple of 128·TP, so nothing is padded.
    let (tp, ep) = (2, 32);
    let total = tp * (sum(|p| p.attention) + sum(|p| p.embedding) + sum(|p| p.output))
        + tp * sum(|p| p.shared_expert)
        + ep * sum(|p| p.experts)
        + sum(|p| p.norms)
        + sum(|p| p.router)
        + sum(|p| p.latent);
    assert_eq!(total, count);
}

#[test]
fn tied_embeddings_are_held_at_both_ends_of_a_pipeline() {
    let config = ModelConfig { tied_embeddings: true, layers: 2, ..small() };
    let one = build(&config, &alone());
    assert_eq!(one.stages[0].parameters.output, 0);
    let two = build(&config, &Parallelism { gpus: 2, pp: 2, ..alone() });
    assert_eq!(two.stages[1].parameters.output, two.stages[0].parameters.embedding);
    assert_eq!(two.stages[0].parameters.embedding, 1_024 * 32);
}

#[test]
fn leading_dense_layers_have_no_rows() {
    let mut config = ModelConfig { layers: 4, ..small() };
    config.moe.as_mut().expect("experts").layers = MoeLayers::AfterDense(1);
    let model = build(&config, &alone());
    let names: Vec<_> =
        model.stages[0].chunks[0].iter().map(|layer| model.types[layer.layer_type].name).collect();
    assert_eq!(names, ["embedding", "dense", "moe", "moe", "moe", "output"]);
    let routed: Vec<_> = model.types.iter().map(|t| (t.name, t.routed)).collect();
    assert_eq!(routed, [("embedding", false), ("dense", false), ("moe", true), ("output", false)]);
    config.moe.as_mut().expect("experts").layers = MoeLayers::Every(2);
    assert_eq!([0, 1, 2, 3].map(|layer| config.is_moe(layer)), [true, false, true, false]);
}

type Change = fn(&mut ModelConfig, &mut Parallelism);

/// What is refused, and the words that must be in the message.
const REFUSED: [(Change, [&str; 2]); 18] = [
    (|_, p| p.gpus = 6, ["gpus is 6", "tp·cp·pp = 4"]),
    (|_, p| p.ep = 3, ["gpus is 8", "etp·ep·pp"]),
    (|_, p| p.global_batch = 7, ["global_batch is 7", "micro_batch·dp"]),
    (|c, _| c.layers = 6, ["layers is 6", "pp·chunks = 4"]),
    (|c, _| c.heads = 3, ["heads is 3", "tp = 2"]),
    (|c, _| (c.heads, c.kv_groups) = (6, 3), ["kv_groups is 3", "a multiple or a divisor of TP"]),
    (|_, p| (p.ep, p.overlap_ep) = (1, true), ["ep is 1", "overlap"]),
    (|_, p| (p.chunks, p.overlap_ep) = (1, true), ["chunks is 1", "virtual stages"]),
    (|c, p| (c.moe.as_mut().unwrap().experts, p.ep) = (6, 4), ["experts is 6", "ep = 4"]),
    (|c, _| c.moe.as_mut().unwrap().top_k = 9, ["top_k is 9", "from 1 to 4"]),
    (|c, _| c.hidden = 0, ["hidden is 0", "from 1"]),
    (|_, p| (p.cp, p.gpus) = (3, 24), ["seq is 32", "2·cp = 6"]),
    (|c, p| (p.cp, p.gpus, c.attention) = (2, 16, Attention::Unfused), ["cp is 2", "no context parallel"]),
    (|_, p| p.sequence_parallel = false, ["sequence_parallel is false", "--sequence-parallel"]),
    (|_, p| p.precision = Precision::Fp32, ["attention is flash", "unfused"]),
    (|_, p| p.global_batch = 4, ["micro-batches is 1", "at least as many micro-batches as pipeline ranks"]),
    (|_, p| p.global_batch = 12, ["micro-batches is 3", "multiple of the group size"]),
    (|c, _| c.seq = 31, ["seq is 31", "sequence parallel"]),
];

#[test]
fn what_megatron_refuses_is_refused_with_field_value_and_fix() {
    let config = ModelConfig { layers: 4, ..small() };
    let parallelism = Parallelism {
        gpus: 8,
        tp: 2,
        sequence_parallel: true,
        ep: 2,
        pp: 2,
        chunks: 2,
        group_size: 2,
        global_batch: 16,
        micro_batch: 2,
        ..Parallelism::default()
    };
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

#[test]
fn sizes_past_the_integers_are_an_error_not_a_wrap() {
    let big = 1 << 28;
    let config = ModelConfig {
        hidden: big,
        heads: 1,
        kv_groups: 1,
        head_dim: big,
        ffn: big,
        vocab: big,
        seq: big,
        layers: 4_096,
        ..small()
    };
    let error = Model::new(&config, &alone(), &Device::named("h100-80g").expect("a preset"));
    assert!(error.expect_err("too big").to_string().contains("2^64"));
}

#[test]
fn a_router_has_a_bias_where_linear_layers_have_one() {
    let total = |bias: bool| {
        let config = ModelConfig { bias, ..small() };
        let experts = config.moe.as_ref().expect("experts").experts;
        let parameters = build(&config, &alone()).stages[0].parameters;
        (parameters.router, experts * u64::from(config.layers))
    };
    let ((without, biases), (with, _)) = (total(false), total(true));
    assert_eq!(with - without, biases);
}

/// Megatron's `attention.py`: with fewer groups than ranks each rank makes its part of the fused projection and
/// gathers the rest.
#[test]
fn ranks_share_a_group_of_heads() {
    let config = ModelConfig { heads: 8, kv_groups: 2, ..small() };
    let run = |tp| Parallelism { gpus: tp, tp, sequence_parallel: tp > 1, ..alone() };
    let attention = |tp| build(&config, &run(tp)).stages[0].parameters.attention;
    for tp in [2, 4, 8] {
        assert_eq!(attention(1), tp * attention(tp), "tp {tp}");
    }
    let saved = |qk_norm, tp, name: &str| {
        let model = build(&ModelConfig { qk_norm, ..config.clone() }, &run(tp));
        let layer = model.types.iter().find(|layer| layer.name == "moe").expect("a layer");
        layer.tensors[layer.tensor(name).expect("a tensor")].bytes.at(0).expect("fits")
    };
    let bytes = |columns: u64| 2 * 64 * 8 * columns;
    // Two heads of a rank with the keys and values of their group, and views of all heads.
    assert_eq!(saved(false, 4, "qkv"), bytes(2 + 1 + 1));
    assert_eq!(saved(true, 4, "qkv_linear"), bytes(8 + 2 * 2));
    assert_eq!(saved(true, 2, "qkv_linear"), bytes(4 + 1 + 1), "a group for each rank");
}
