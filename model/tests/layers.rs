//! The layer tables against numbers counted on Megatron and against each other.

mod common;

use bagualu_core::cost::LayerStorage;
use bagualu_core::layer::{Collectives, Group};
use bagualu_core::set::Set;
use bagualu_model::{
    Activation, Attention, Device, LayerType, MODELS, Model, Norm, Parallelism, PermuteIndices, Precision,
    Preset, Rotary, RouterInput,
};
use common::{alone, build, small};

fn layer<'a>(model: &'a Model, name: &str) -> &'a LayerType {
    model.types.iter().find(|t| t.name == name).expect("a layer type")
}

/// Bytes of `tensor` at `rows`.
fn bytes(layer: &LayerType, tensor: &str, rows: u32) -> u64 {
    let index = layer.tensor(tensor).unwrap_or_else(|| panic!("no tensor {tensor}"));
    layer.tensors[index].bytes.at(rows).expect("fits")
}

/// Bytes of the tensors that exist because of routed rows.
fn expert_rows(layer: &LayerType, rows: u32) -> u64 {
    layer.moe.iter().map(|t| layer.tensors[t].bytes.at(rows).expect("fits")).sum()
}

#[test]
fn expert_rows_are_what_hooks_counted_on_megatron() {
    let model = build(&small(), &alone());
    assert_eq!((model.tokens, model.balanced_rows), (64, 128));
    assert_eq!(expert_rows(layer(&model, "moe"), 128), 45_312);
    // Two ranks, all rows on one: the hot rank holds 256·(2h + 6f + 4) more than the one without rows.
    let split = Parallelism { gpus: 2, ep: 2, global_batch: 4, ..alone() };
    let model = build(&small(), &split);
    let moe = layer(&model, "moe");
    assert_eq!(expert_rows(moe, 256) - expert_rows(moe, 0), 91_136);
}

#[test]
fn a_layer_of_the_deepseek_v3_shape_holds_872_mb_of_rows() {
    let mut config = small();
    (config.hidden, config.heads, config.kv_groups, config.head_dim) = (7_168, 128, 128, 128);
    (config.seq, config.vocab) = (4_096, 129_280);
    let moe = config.moe.as_mut().expect("experts");
    (moe.experts, moe.top_k, moe.ffn) = (256, 8, 2_048);
    let parallelism = Parallelism { gpus: 64, ep: 64, global_batch: 64, ..Parallelism::default() };
    let model = build(&config, &parallelism);
    assert_eq!(model.balanced_rows, 32_768);
    let moe = layer(&model, "moe");
    let mb = |tensor| bytes(moe, tensor, 32_768) as f64 / 1e6;
    let (input, wide, inner) = (mb("expert_input"), mb("fc1_out"), mb("act_out"));
    assert_eq!((input.round(), wide.round(), inner.round()), (470.0, 268.0, 134.0));
    assert_eq!((input + wide + inner).round(), 872.0);
}

#[test]
fn rows_double_with_load_and_nothing_else_does() {
    let model = build(&small(), &alone());
    let moe = layer(&model, "moe");
    for (index, tensor) in moe.tensors.iter().enumerate() {
        if moe.moe.contains(index) {
            assert!(tensor.bytes.fixed == 0 && tensor.bytes.per_row > 0, "{}", moe.tensor_names[index]);
        } else if saved(moe).contains(index) {
            assert_eq!(tensor.bytes.per_row, 0, "{}", moe.tensor_names[index]);
        }
    }
}

#[test]
fn what_does_not_depend_on_rows_has_its_formula() {
    let model = build(&small(), &alone());
    let moe = layer(&model, "moe");
    // T = S = 64, h = 32, four heads of 8, E = 4, k = 2.
    let hidden = 2 * 64 * 32;
    for name in ["input", "ln1_out", "attn_out", "attn_residual", "ln2_out"] {
        assert_eq!(bytes(moe, name, 0), hidden, "{name}");
    }
    assert_eq!(bytes(moe, "qkv", 0), 3 * hidden);
    assert_eq!(bytes(moe, "attn_lse", 0), 4 * 64 * 4);
    assert_eq!(bytes(moe, "ln1_stats", 0), 4 * 64);
    assert_eq!(bytes(moe, "router_scores", 0), 4 * 64 * 4);
    assert_eq!(bytes(moe, "top_k", 0), 20 * 64 * 2);
    assert_eq!(bytes(moe, "permute_indices", 0), 8 * 64 * 2 + 8 * 64 * 4);
    let mut config = small();
    config.moe.as_mut().expect("experts").permute_indices = PermuteIndices::Sliced;
    assert_eq!(bytes(layer(&build(&config, &alone()), "moe"), "permute_indices", 0), 8 * 64 * 2);
}

#[test]
fn variants_save_what_they_are_known_for() {
    let mut config = small();
    (config.kv_groups, config.norm, config.activation) = (2, Norm::LayerNorm, Activation::Gelu);
    (config.hidden_dropout, config.qk_norm) = (true, true);
    let model = build(&config, &alone());
    let moe = layer(&model, "moe");
    assert_eq!(bytes(moe, "qkv", 0), 2 * 64 * (32 + 2 * 16));
    assert_eq!(bytes(moe, "ln1_stats", 0), 2 * 4 * 64);
    assert_eq!(bytes(moe, "qk_stats", 0), 2 * 4 * 64 * (4 + 2));
    assert_eq!(bytes(moe, "fc1_out", 128), bytes(moe, "act_out", 128));
    assert_eq!(bytes(moe, "attn_mask", 0), 64 * 32);
    assert_eq!(bytes(moe, "mlp_mask", 0), 64 * 32);
    assert!(moe.tensor("rng_state").is_some());
}

#[test]
fn unfused_attention_saves_the_probabilities_in_the_run_s_precision() {
    let mut config = small();
    (config.attention, config.rotary) = (Attention::Unfused, Rotary::None);
    (config.hidden, config.head_dim, config.seq) = (128, 32, 128);
    let fp32 = Parallelism { precision: Precision::Fp32, ..alone() };
    let model = build(&config, &fp32);
    let moe = layer(&model, "moe");
    // Seen on Megatron for two sequences of 128, four heads: 524 kB, saved twice as one storage.
    assert_eq!(bytes(moe, "attn_probs", 0), 4 * 2 * 4 * 128 * 128);
    assert_eq!(bytes(moe, "qkv", 0), 3 * 131_072);
    assert_eq!(moe.tensor("attn_probs_mask"), None);
    config.attention_dropout = true;
    let model = build(&config, &fp32);
    let moe = layer(&model, "moe");
    assert_eq!(bytes(moe, "attn_probs_mask", 0), 2 * 4 * 128 * 128);
    assert_eq!(bytes(moe, "attn_probs_dropped", 0), 4 * 2 * 4 * 128 * 128);
}

#[test]
fn an_activation_in_parts_saves_its_factors() {
    // Seen on Megatron's own CPU run with two expert-parallel ranks: 6,660 bytes a row in FP32.
    let mut config = small();
    (config.hidden, config.head_dim, config.seq) = (128, 32, 128);
    (config.attention, config.fused_activation) = (Attention::Unfused, false);
    config.moe.as_mut().expect("experts").ffn = 256;
    let fp32 = Parallelism { gpus: 2, ep: 2, global_batch: 4, precision: Precision::Fp32, ..alone() };
    let model = build(&config, &fp32);
    assert_eq!(expert_rows(layer(&model, "moe"), 1), 6_660);
    config.activation = Activation::Gelu;
    let model = build(&config, &fp32);
    assert_eq!(expert_rows(layer(&model, "moe"), 1), 4 * (128 + 3 * 256) + 4);
}

#[test]
fn sequence_parallel_divides_what_tensor_parallel_leaves_whole() {
    let mut config = small();
    config.moe = None;
    let whole = Parallelism { gpus: 2, tp: 2, ..alone() };
    let split = Parallelism { sequence_parallel: true, ..whole.clone() };
    let (whole, split) = (build(&config, &whole), build(&config, &split));
    let (whole, split) = (layer(&whole, "dense"), layer(&split, "dense"));
    for (name, divided) in [("input", 2), ("ln2_out", 2), ("qkv", 1), ("attn_out", 1), ("fc1_out", 1)] {
        assert_eq!(bytes(whole, name, 0), divided * bytes(split, name, 0), "{name}");
    }
    assert_eq!(bytes(split, "qkv", 0), 3 * 2 * 64 * 16);
}

#[test]
fn expert_tensor_parallel_multiplies_rows_and_divides_their_width() {
    let mut config = small();
    config.moe.as_mut().expect("experts").shared_ffn = 96;
    let tp = Parallelism { gpus: 2, tp: 2, sequence_parallel: true, etp: 2, ..alone() };
    let model = build(&config, &tp);
    let moe = layer(&model, "moe");
    assert_eq!((model.tokens, model.balanced_rows), (32, 128));
    assert_eq!(bytes(moe, "fc1_out", 128), 128 * 2 * 2 * 24);
    assert_eq!(bytes(moe, "expert_input", 128), 128 * 2 * 32);
    assert_eq!(bytes(moe, "shared_fc1_out", 0), 2 * 64 * 2 * 48);
    for op in ["qkv", "proj", "shared_fc1", "shared_fc2", "etp_gather", "etp_scatter"] {
        assert_eq!(moe.ops[moe.op(op).expect(op)].collective, Some(Group::Tp), "{op}");
    }
}

#[test]
fn consumers_share_the_storages_that_megatron_shares() {
    let mut config = small();
    config.moe.as_mut().expect("experts").shared_ffn = 96;
    let model = build(&config, &alone());
    let moe = layer(&model, "moe");
    let savers = |tensor: &str| -> Vec<_> {
        let tensor = moe.tensor(tensor).expect("a tensor");
        (0..moe.ops.len())
            .filter(|&op| moe.ops[op].saves.contains(tensor))
            .map(|op| moe.op_names[op])
            .collect()
    };
    assert_eq!(savers("attn_out"), ["core_attention", "proj"]);
    assert_eq!(savers("ln2_out"), ["shared_fc1", "router"]);
    assert_eq!(savers("permute_indices"), ["permute", "unpermute"]);
    assert_eq!(savers("fc1_out"), ["act"]);
    assert!(savers("fc2_out").is_empty() && savers("received").is_empty());
    config.moe.as_mut().expect("experts").router_input = RouterInput::Fp32Copy;
    let model = build(&config, &alone());
    let moe = layer(&model, "moe");
    let (copy, source) = (moe.tensor("router_input").expect("a copy"), moe.tensor("ln2_out"));
    assert_eq!(moe.tensors[copy].source.map(usize::from), source);
    assert_eq!(moe.tensors[copy].bytes.fixed, 4 * 64 * 32);
}

fn saved(layer: &LayerType) -> Set {
    layer.ops.iter().fold(Set::EMPTY, |set, op| set | op.saves)
}

/// Every table of every preset is a layer of the core, and all that is saved can be made again from the
/// block inputs.
#[test]
fn every_preset_s_tables_are_layers_closed_under_recomputation() {
    let device = Device::named("h100-80g").expect("a preset");
    for name in MODELS {
        let preset = Preset::named(name, None).expect("a preset");
        let model = Model::new(&preset.config, &preset.parallelism, &device).expect("a model");
        for layer in &model.types {
            let mut storage = LayerStorage::new();
            let rows = model.rows_at(2_600);
            let core = layer.model().at(rows, &device.rooflines(), &mut storage).expect("a layer");
            assert!(core.saved().len() <= 24, "{name} {}: {} saved", layer.name, core.saved().len());
            let mut made = core.block_inputs();
            for op in core.order() {
                assert!(core.ops()[op].reads.is_subset(made), "{name} {}", layer.op_names[op]);
                made |= core.ops()[op].makes;
            }
            assert!(core.saved().is_subset(made));
            let (forward, backward) = layer.model().times(rows).expect("times");
            assert!(forward > 0 && backward > forward, "{name} {}", layer.name);
        }
    }
}

/// Recomputing what is inside the experts runs no collective; re-making their input runs the dispatch.
#[test]
fn only_the_dispatched_rows_need_the_group() {
    let preset = Preset::named("glm-423b-a30b", None).expect("a preset");
    let model = Model::new(&preset.config, &preset.parallelism, &common::device()).expect("a model");
    let moe = layer(&model, "moe");
    let producer = |tensor: usize| moe.ops.iter().find(|op| op.makes.contains(tensor)).expect("a producer");
    for inner in ["fc1_out", "act_out"] {
        assert_eq!(producer(moe.tensor(inner).expect("a tensor")).collective, None);
    }
    let mut open = vec![moe.tensor("expert_input").expect("a tensor")];
    let mut groups = Vec::new();
    while let Some(tensor) = open.pop() {
        let op = producer(tensor);
        groups.extend(op.collective);
        open.extend((op.reads - saved(moe)).iter());
    }
    assert_eq!(groups, [Group::Ep]);
    assert!(!Collectives::NONE.allow(Some(Group::Ep)));
}

#[test]
fn a_balanced_gpu_pays_the_rows_twice_in_dispatch_work() {
    let model = build(&small(), &Parallelism { gpus: 2, ep: 2, global_batch: 4, ..alone() });
    let moe = layer(&model, "moe");
    let work =
        |op: &str, rows| moe.ops[moe.op(op).expect("an operator")].forward_work.at(rows).expect("fits");
    let row = 2 * 32;
    assert_eq!(work("dispatch", 100), 128 * row + 100 * row);
    assert_eq!(work("sort", 100), 100 * row);
    assert_eq!(work("fc2", 100), 100 * row);
    assert_eq!(work("unsort", 100), 2 * 100 * row);
}
