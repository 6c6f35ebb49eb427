//! The device presets, each number with its source.

use std::borrow::Cow;

use super::{Device, Workspaces};

const GIB: u64 = 1 << 30;
const GB_PER_S: u64 = 1_000_000_000;
const TFLOPS: u64 = 1_000_000_000_000;

/// NVIDIA's data sheet of the H100 SXM: 1,979 TFLOP/s FP8, 989 BF16 and 494 TF32 without sparsity, 3.35 TB/s,
/// NVLink 900 GB/s in both directions, PCIe 5.0 ×16. Memory as its driver reports it: 81,559 MiB.
/// Assumed: one 400 Gbit/s adapter a device, 52 GB/s of PCIe's 64 reached, 192 GiB of pinned host memory,
/// 5 GiB set aside.
const H100: Device = Device {
    name: Cow::Borrowed("h100-80g"),
    memory_bytes: 81_559 << 20,
    margin_bytes: 5 * GIB,
    transformer_engine: true,
    workspaces: Workspaces::HOPPER,
    host_bytes: 192 * GIB,
    bf16_flops: 989 * TFLOPS,
    fp8_flops: 1_979 * TFLOPS,
    fp32_flops: 494 * TFLOPS,
    memory_bytes_per_s: 3_350 * GB_PER_S,
    devices_per_node: 8,
    intra_bytes_per_s: 450 * GB_PER_S,
    inter_bytes_per_s: 50 * GB_PER_S,
    copy_out_bytes_per_s: 52 * GB_PER_S,
    copy_in_bytes_per_s: 52 * GB_PER_S,
};

/// The device presets.
pub const DEVICES: [Device; 7] = [
    // §VI-A: 480 TFLOP/s BF16, 64 GB of HBM, 8 devices a node, 400 GB/s inside, 4 × 400 Gbit/s = 200 GB/s
    // for 8 devices outside. Assumed: a memory of 64 GiB with 4 GiB set aside, 96 GiB of pinned host
    // memory, 1.6 TB/s, a PCIe 4.0 ×16 link (24 GB/s), FP32 at a quarter of BF16.
    Device {
        name: Cow::Borrowed("dcu-64g"),
        memory_bytes: 64 * GIB,
        margin_bytes: 4 * GIB,
        transformer_engine: false,
        workspaces: Workspaces::NONE,
        host_bytes: 96 * GIB,
        bf16_flops: 480 * TFLOPS,
        fp8_flops: 0,
        fp32_flops: 120 * TFLOPS,
        memory_bytes_per_s: 1_600 * GB_PER_S,
        devices_per_node: 8,
        intra_bytes_per_s: 400 * GB_PER_S,
        inter_bytes_per_s: 25 * GB_PER_S,
        copy_out_bytes_per_s: 24 * GB_PER_S,
        copy_in_bytes_per_s: 24 * GB_PER_S,
    },
    // NVIDIA's data sheet of the A100 SXM 80GB: 312 TFLOP/s BF16 and 156 TF32 without sparsity, 2,039 GB/s,
    // NVLink 600 GB/s in both directions, PCIe 4.0 ×16. Memory as its driver reports it: 81,920 MiB.
    // Assumed: one 200 Gbit/s adapter a device (DGX A100), 25 GB/s of PCIe's 32 reached, host and margin as
    // for the H100.
    Device {
        name: Cow::Borrowed("a100-80g"),
        memory_bytes: 81_920 << 20,
        workspaces: Workspaces::AMPERE,
        bf16_flops: 312 * TFLOPS,
        fp8_flops: 0,
        fp32_flops: 156 * TFLOPS,
        memory_bytes_per_s: 2_039 * GB_PER_S,
        intra_bytes_per_s: 300 * GB_PER_S,
        inter_bytes_per_s: 25 * GB_PER_S,
        copy_out_bytes_per_s: 25 * GB_PER_S,
        copy_in_bytes_per_s: 25 * GB_PER_S,
        ..H100
    },
    H100,
    // The H100 with NVLink cut to 400 GB/s in both directions; all else assumed to be the same.
    Device { name: Cow::Borrowed("h800-80g"), intra_bytes_per_s: 200 * GB_PER_S, ..H100 },
    // The H100 with the memory of the H200: 143,771 MiB at 4.8 TB/s.
    Device {
        name: Cow::Borrowed("h200-141g"),
        memory_bytes: 143_771 << 20,
        margin_bytes: 8 * GIB,
        memory_bytes_per_s: 4_800 * GB_PER_S,
        ..H100
    },
    // NVIDIA's data sheet of the HGX B200: 4,500 TFLOP/s FP8, 2,250 BF16 and 1,100 TF32 without sparsity, 180 GB at 8 TB/s,
    // NVLink 1.8 TB/s in both directions, PCIe 5.0 ×16. CUDA reports 178.3 GiB of memory, taken as 178.
    // Assumed: adapter, PCIe and host as for the H100, 8 GiB set aside.
    Device {
        name: Cow::Borrowed("b200-180g"),
        memory_bytes: 178 * GIB,
        margin_bytes: 8 * GIB,
        bf16_flops: 2_250 * TFLOPS,
        fp8_flops: 4_500 * TFLOPS,
        fp32_flops: 1_100 * TFLOPS,
        memory_bytes_per_s: 8_000 * GB_PER_S,
        intra_bytes_per_s: 900 * GB_PER_S,
        ..H100
    },
    // NVIDIA's data sheet of the GB200 NVL72: 5,000 TFLOP/s FP8, 2,500 BF16 and 1,250 TF32 without sparsity, 186 GB at
    // 8 TB/s, 72 devices on NVLink at 1.8 TB/s in both directions, NVLink-C2C of 900 GB/s in both directions
    // between a Grace processor (480 GB) and its two devices: 225 GB/s for each device and direction.
    // Assumed: 184 GiB of memory (the B200's share of its data sheet), 180 GB/s of C2C's 225 reached, 160 GiB of
    // pinned host memory, one 400 Gbit/s adapter a device, 8 GiB set aside.
    Device {
        name: Cow::Borrowed("gb200-186g"),
        memory_bytes: 184 * GIB,
        margin_bytes: 8 * GIB,
        host_bytes: 160 * GIB,
        bf16_flops: 2_500 * TFLOPS,
        fp8_flops: 5_000 * TFLOPS,
        fp32_flops: 1_250 * TFLOPS,
        memory_bytes_per_s: 8_000 * GB_PER_S,
        devices_per_node: 72,
        intra_bytes_per_s: 900 * GB_PER_S,
        copy_out_bytes_per_s: 180 * GB_PER_S,
        copy_in_bytes_per_s: 180 * GB_PER_S,
        ..H100
    },
];
