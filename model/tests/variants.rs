//! Multi-latent attention, context parallel and latent experts: tables and parameters.

mod common;

use bagualu_core::layer::{Group, Resource};
use bagualu_model::{
    Attention, LayerType, Mla, Model, ModelConfig, MoeConfig, MoeLayers, Parallelism, Rotary,
};
use common::{alone, build, small};

fn layer<'a>(model: &'a Model, name: &str) -> &'a LayerType {
    model.types.iter().find(|t| t.name == name).expect("a layer type")
}

fn bytes(layer: &LayerType, tensor: &str, rows: u32) -> u64 {
    let index = layer.tensor(tensor).unwrap_or_else(|| panic!("no tensor {tensor}"));
    layer.tensors[index].bytes.at(rows).expect("fits")
}

fn collective(layer: &LayerType, op: &str) -> Option<Group> {
    layer.ops[layer.op(op).unwrap_or_else(|| panic!("no operator {op}"))].collective
}

fn moe(config: &mut ModelConfig) -> &mut MoeConfig {
    config.moe.as_mut().expect("experts")
}

/// The latents of DeepSeek-V2 and V3, and of Kimi K2.
const DEEPSEEK: Mla =
    Mla { q_lora_rank: 1_536, kv_lora_rank: 512, qk_head_dim: 128, qk_rope_dim: 64, v_head_dim: 128 };

fn latent() -> ModelConfig {
    let mla = Mla { q_lora_rank: 24, kv_lora_rank: 16, qk_head_dim: 8, qk_rope_dim: 4, v_head_dim: 10 };
    ModelConfig { mla: Some(mla), qk_norm: true, ..small() }
}

#[test]
fn latents_are_whole_on_every_rank_and_heads_are_split() {
    let tp = Parallelism { gpus: 2, tp: 2, sequence_parallel: true, etp: 2, ..alone() };
    let (one, two) = (build(&latent(), &alone()), build(&latent(), &tp));
    let (one, two) = (layer(&one, "moe"), layer(&two, "moe"));
    // T = S = 64, four heads: the rank of two owns 32 tokens and two heads.
    for (tensor, bytes_of_one) in [
        ("q_latent", 2 * 64 * 24),
        ("q_norm_out", 2 * 64 * 24),
        ("kv_latent", 2 * 64 * (16 + 4)),
        ("kv_norm_out", 2 * 64 * 16),
        ("query", 2 * 64 * 4 * 12),
        ("key_value", 2 * 64 * 4 * (12 + 10)),
        ("attn_out", 2 * 64 * 4 * 10),
    ] {
        assert_eq!(bytes(one, tensor, 0), bytes_of_one, "{tensor}");
        assert_eq!(bytes(two, tensor, 0), bytes_of_one / 2, "{tensor}");
    }
    for (op, group) in [("q_down", None), ("kv_down", None), ("q_up", Some(Group::Tp))] {
        assert_eq!((collective(one, op), collective(two, op)), (None, group), "{op}");
    }
    assert_eq!(collective(two, "key_rope_gather"), Some(Group::Tp));
    assert_eq!(one.op("key_rope_gather"), None);
}

#[test]
fn queries_without_a_latent_are_projected_at_once() {
    let mut config = latent();
    config.mla.as_mut().expect("latents").q_lora_rank = 0;
    let model = build(&config, &alone());
    let moe = layer(&model, "moe");
    assert_eq!((moe.op("q_down"), moe.op("q_up"), moe.tensor("q_latent")), (None, None, None));
    let input = moe.tensor("ln1_out").expect("a tensor");
    for op in ["q_proj", "kv_down"] {
        assert!(moe.ops[moe.op(op).expect(op)].saves.contains(input), "{op}");
    }
}

#[test]
fn context_parallel_divides_tokens_and_exchanges_keys_and_values() {
    let ring = Parallelism { gpus: 2, cp: 2, ..alone() };
    for config in [small(), latent()] {
        let (one, two) = (build(&config, &alone()), build(&config, &ring));
        assert_eq!((two.tokens, two.balanced_rows), (one.tokens / 2, one.balanced_rows / 2));
        let (one, two) = (layer(&one, "moe"), layer(&two, "moe"));
        assert_eq!(one.tensor_names, two.tensor_names);
        for (index, name) in one.tensor_names.iter().enumerate() {
            let [a, b] = [one, two].map(|layer| layer.tensors[index].bytes);
            assert_eq!((a.fixed, a.per_row), (2 * b.fixed, b.per_row), "{name}");
        }
        assert_eq!(
            (collective(one, "core_attention"), collective(two, "core_attention")),
            (None, Some(Group::Cp))
        );
        let attention = |layer: &LayerType| layer.ops[layer.op("core_attention").expect("an operator")];
        assert_eq!(attention(two).resource, Resource::Compute);
        assert!(attention(two).forward_work.fixed > attention(one).forward_work.fixed);
    }
}

#[test]
fn experts_on_a_latent_receive_narrower_rows() {
    let mut config = small();
    moe(&mut config).latent = 8;
    let model = build(&config, &alone());
    let layer = layer(&model, "moe");
    assert_eq!(bytes(layer, "expert_input", 128), 128 * 2 * 8);
    assert_eq!(bytes(layer, "fc1_out", 128), 128 * 2 * 2 * 48);
    // The projection back saves the sum of the copies.
    assert_eq!(bytes(layer, "moe_out", 128), 64 * 2 * 8);
    let parameters = model.stages[0].parameters;
    assert_eq!(parameters.experts, 4 * 3 * 8 * 48);
    assert_eq!((parameters.router, parameters.latent), (32 * 4, 2 * 32 * 8));
}

#[test]
fn a_gate_keeps_the_shared_expert_s_output() {
    let mut config = small();
    moe(&mut config).shared_ffn = 48;
    let saved = |config: &ModelConfig| {
        let model = build(config, &alone());
        let layer = layer(&model, "moe");
        let saved = layer.ops.iter().fold(bagualu_core::set::Set::EMPTY, |set, op| set | op.saves);
        let bytes: u64 = saved.iter().map(|tensor| layer.tensors[tensor].bytes.fixed).sum();
        (bytes, model.stages[0].parameters.shared_expert)
    };
    let (bytes, parameters) = saved(&config);
    moe(&mut config).shared_gate = true;
    assert_eq!(saved(&config), (bytes + 2 * 64 * 32 + 2 * 64, parameters + 32));
}

#[test]
fn views_keep_the_fused_output_of_unfused_attention() {
    let hidden = 2 * 64 * 32;
    let config = |rotary, kv_groups, qk_norm| ModelConfig {
        attention: Attention::Unfused,
        rotary,
        kv_groups,
        qk_norm,
        ..small()
    };
    let kept = |config| {
        let model = build(&config, &alone());
        let layer = layer(&model, "moe");
        let core = layer.ops[layer.op("core_attention").expect("an operator")];
        let names = ["qkv", "qkv_linear", "query_key", "query", "key_value_expanded"];
        let inputs = names.into_iter().filter_map(|name| layer.tensor(name));
        inputs.filter(|&t| core.saves.contains(t)).map(|t| layer.tensors[t].bytes.fixed).sum::<u64>()
    };
    // Views of one output; rotated queries and keys beside it; copies for every head of a group.
    assert_eq!(kept(config(Rotary::None, 4, false)), 3 * hidden);
    assert_eq!(kept(config(Rotary::Fused, 4, false)), 5 * hidden);
    assert_eq!(kept(config(Rotary::Unfused, 4, true)), 5 * hidden);
    assert_eq!(kept(config(Rotary::None, 2, false)), 3 * hidden);
    assert_eq!(kept(config(Rotary::Fused, 2, true)), 3 * hidden);
}

#[test]
fn separate_kernels_keep_tables_of_cosines_and_sines() {
    let config = ModelConfig { rotary: Rotary::Unfused, ..small() };
    let model = build(&config, &alone());
    // Two tables for queries and two for keys, of 32 positions and heads of 8.
    assert_eq!(bytes(layer(&model, "moe"), "rotary_tables", 0), 4 * 2 * 32 * 8);
    let config = ModelConfig { rotary: Rotary::Unfused, ..latent() };
    let model = build(&config, &alone());
    let moe = layer(&model, "moe");
    assert_eq!([bytes(moe, "query_tables", 0), bytes(moe, "key_tables", 0)], [2 * 2 * 32 * 4; 2]);
}

/// Total and active parameters as published, in millions.
#[test]
fn parameters_are_those_published() {
    let base = ModelConfig { vocab: 129_280, seq: 4_096, qk_norm: true, mla: Some(DEEPSEEK), ..small() };
    let with = |layers, hidden, heads, ffn, dense, experts: [u64; 4]| {
        let mut config = ModelConfig { layers, hidden, heads, kv_groups: heads, ffn, ..base.clone() };
        let moe = moe(&mut config);
        [moe.experts, moe.top_k, moe.ffn, moe.shared_ffn] = experts;
        moe.layers = MoeLayers::AfterDense(dense);
        config
    };
    let v2 = with(60, 5_120, 128, 12_288, 1, [160, 6, 1_536, 3_072]);
    let v3 = with(61, 7_168, 128, 18_432, 3, [256, 8, 2_048, 2_048]);
    let kimi_k2 = with(61, 7_168, 64, 18_432, 1, [384, 8, 2_048, 2_048]);
    let moonlight = with(27, 2_048, 16, 11_264, 1, [64, 6, 1_408, 2_816]);
    let direct = Mla { q_lora_rank: 0, ..DEEPSEEK };
    for (name, config, total, active) in [
        ("DeepSeek-V2", ModelConfig { vocab: 102_400, ..v2 }, 236_000, 21_000),
        ("DeepSeek-V3", v3, 671_000, 37_000),
        ("Kimi K2", ModelConfig { vocab: 163_840, ..kimi_k2 }, 1_040_000, 32_000),
        ("Moonlight", ModelConfig { vocab: 163_840, mla: Some(direct), ..moonlight }, 16_000, 3_000),
    ] {
        let count = config.parameters().expect("parameters");
        let close = |n: u64, published: u64| (n / 1_000_000).abs_diff(published) * 100 <= 4 * published;
        assert!(close(count.total, total), "{name}: {} in all", count.total);
        assert!(close(count.active, active), "{name}: {} active", count.active);
    }
}
