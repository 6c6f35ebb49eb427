//! Workspaces of libraries: whose, by rank, device and flags.

mod common;

use bagualu_model::{
    Attention, Device, Libraries, Model, ModelConfig, MoeLayers, Parallelism, Preset, Workspaces,
};
use common::{alone, small};

const MIB: u64 = 1 << 20;
const HOPPER_TE: u64 = 32 * MIB + 1_024;
const ENGINE: Libraries = Libraries { transformer_engine: true, grouped_gemm: false };
const GROUPED: Libraries = Libraries { grouped_gemm: true, ..ENGINE };
const LOCAL: Libraries = Libraries { transformer_engine: false, grouped_gemm: true };

/// Workspaces of each pipeline rank.
fn bytes(config: &ModelConfig, libraries: Libraries, pp: u32, device: &str) -> Vec<u64> {
    let gpus = pp.into();
    let parallelism = Parallelism { gpus, pp, group_size: pp, global_batch: 8, libraries, ..alone() };
    let device = Device::named(device).expect("a device");
    let model = Model::new(config, &parallelism, &device).unwrap_or_else(|error| panic!("{error}"));
    model.stages.iter().map(|stage| stage.static_bytes.workspaces).collect()
}

fn dense(layers: u32) -> ModelConfig {
    ModelConfig { moe: None, layers, ..small() }
}

#[test]
fn pytorch_s_are_where_pytorch_multiplies() {
    let (torch, engine) = (2 * 32 * MIB, HOPPER_TE);
    // Only the last rank of four has the output layer.
    assert_eq!(bytes(&dense(4), ENGINE, 4, "h100-80g"), [engine, engine, engine, engine + torch]);
    let unfused = ModelConfig { attention: Attention::Unfused, ..dense(4) };
    assert_eq!(bytes(&unfused, ENGINE, 4, "h100-80g"), [engine + torch; 4]);
    assert_eq!(bytes(&dense(4), LOCAL, 4, "h100-80g"), [torch; 4]);
}

#[test]
fn grouped_gemms_have_one_for_each_stream() {
    let mut config = ModelConfig { layers: 2, ..small() };
    config.moe.as_mut().expect("experts").layers = MoeLayers::AfterDense(1);
    let torch = 2 * 32 * MIB;
    assert_eq!(bytes(&config, ENGINE, 2, "h100-80g"), [HOPPER_TE, HOPPER_TE + torch]);
    assert_eq!(bytes(&config, GROUPED, 2, "h100-80g"), [HOPPER_TE, 5 * HOPPER_TE + torch]);
    // The router is Transformer Engine's in Megatron's own layers too.
    assert_eq!(bytes(&config, LOCAL, 2, "h100-80g"), [torch, torch + HOPPER_TE]);
    config.moe.as_mut().expect("experts").shared_ffn = 48;
    assert_eq!(bytes(&config, GROUPED, 2, "h100-80g")[0], HOPPER_TE, "no expert there");
    config.moe.as_mut().expect("experts").layers = MoeLayers::AfterDense(0);
    config.moe.as_mut().expect("experts").shared_gate = true;
    assert_eq!(bytes(&config, ENGINE, 2, "h100-80g"), [HOPPER_TE + torch; 2], "the gate is PyTorch's");
}

#[test]
fn sizes_are_those_of_the_device() {
    let last = |device: &str| bytes(&small(), GROUPED, 1, device)[0];
    assert_eq!(last("a100-80g"), 2 * (8 * MIB + 128 * 1_024) + 5 * 4 * MIB);
    for device in ["h100-80g", "h800-80g", "h200-141g", "b200-180g", "gb200-186g"] {
        assert_eq!(last(device), 2 * 32 * MIB + 5 * HOPPER_TE, "{device}");
    }
    assert_eq!(last("dcu-64g"), 0, "not known: in the margin");
}

#[test]
fn they_are_static_bytes() {
    let preset = Preset::named("qwen3-30b-a3b", None).expect("a preset");
    let mut device = Device::named("h100-80g").expect("a device");
    let with = Model::new(&preset.config, &preset.parallelism, &device).expect("a model");
    device.workspaces = Workspaces::NONE;
    let without = Model::new(&preset.config, &preset.parallelism, &device).expect("a model");
    for (with, without) in with.stages.iter().zip(&without.stages) {
        let bytes = with.static_bytes.workspaces;
        assert!(bytes >= 5 * HOPPER_TE, "{bytes}");
        assert_eq!(with.static_bytes.total(), without.static_bytes.total() + bytes);
    }
}

/// `core/transformer/dot_product_attention.py` multiplies into a buffer that stays: b · heads × s × s.
#[test]
fn megatron_s_own_attention_keeps_room_for_its_scores() {
    let buffers = |libraries, attention| {
        let config = ModelConfig { attention, ..dense(1) };
        let parallelism = Parallelism { libraries, ..alone() };
        common::build(&config, &parallelism).stages[0].static_bytes.buffers
    };
    assert_eq!(buffers(ENGINE, Attention::Unfused), 0);
    assert_eq!(buffers(LOCAL, Attention::Flash), 0);
    assert_eq!(buffers(LOCAL, Attention::Unfused), 2 * (2 * 4) * 32 * 32);
}
