//! A small pipeline for replays: PP 4 × EP 8, two MoE layers a pipeline rank.

use bagualu_model::{Device, Model, Preset, Workspaces};

/// Mixtral's layers at 1,024 tokens, 6 micro-batches, on an H100 with `memory_mib` MiB and no workspaces.
pub fn small(memory_mib: u64) -> Model {
    let mut preset = Preset::named("mixtral-8x7b", None).expect("a preset");
    (preset.config.layers, preset.config.seq) = (8, 1_024);
    let parallelism = &mut preset.parallelism;
    (parallelism.pp, parallelism.ep, parallelism.chunks) = (4, 8, 1);
    parallelism.gpus = 4 * 8 * parallelism.tp;
    parallelism.repeat(6);
    // The memory is for activations: no placeholders of gradients in it.
    parallelism.fused_gradients = false;
    let mut device = Device::named("h100-80g").expect("a device");
    device.memory_bytes = memory_mib << 20;
    device.workspaces = Workspaces::NONE;
    Model::new(&preset.config, parallelism, &device).expect("a model")
}
