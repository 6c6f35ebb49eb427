//! Devices: memory, rates, links, and the rooflines of the mitigations.

use bagualu_core::cost::Rooflines;
use bagualu_core::roofline::Knee;

use crate::ModelError;
use crate::assumptions::{COPY_NS, LAUNCH_NS, MEMORY_PERMILLE};

const GIB: u64 = 1 << 30;

/// A device and the node around it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Device {
    /// Name of the preset.
    pub name: &'static str,
    /// Device memory, bytes.
    pub memory_bytes: u64,
    /// Memory set aside for fragmentation, context and workspace, bytes.
    pub margin_bytes: u64,
    /// Pinned host memory for offloading, bytes for each device.
    pub host_bytes: u64,
    /// Peak BF16 rate, FLOP/s.
    pub bf16_flops: u64,
    /// Peak FP32 (or TF32) rate of matrix products, FLOP/s.
    pub fp32_flops: u64,
    /// Device memory bandwidth, bytes/s.
    pub memory_bytes_per_s: u64,
    /// Devices of a node.
    pub devices_per_node: u64,
    /// Link to devices of the same node, bytes/s in one direction.
    pub intra_bytes_per_s: u64,
    /// This device's share of the links to other nodes, bytes/s in one direction.
    pub inter_bytes_per_s: u64,
    /// Device→host copies, bytes/s.
    pub copy_out_bytes_per_s: u64,
    /// Host→device copies, bytes/s.
    pub copy_in_bytes_per_s: u64,
}

/// The device presets.
pub const DEVICES: [Device; 3] = [
    // §VI-A: 480 TFLOP/s BF16, 64 GB of HBM, 8 devices a node, 400 GB/s inside, 4 × 400 Gbit/s = 200 GB/s
    // for 8 devices outside. Assumed: a memory of 64 GiB with 4 GiB set aside, 96 GiB of pinned host
    // memory, 1.6 TB/s, a PCIe 4.0 ×16 link (24 GB/s), FP32 at a quarter of BF16.
    Device {
        name: "dcu-64g",
        memory_bytes: 64 * GIB,
        margin_bytes: 4 * GIB,
        host_bytes: 96 * GIB,
        bf16_flops: 480_000_000_000_000,
        fp32_flops: 120_000_000_000_000,
        memory_bytes_per_s: 1_600_000_000_000,
        devices_per_node: 8,
        intra_bytes_per_s: 400_000_000_000,
        inter_bytes_per_s: 25_000_000_000,
        copy_out_bytes_per_s: 24_000_000_000,
        copy_in_bytes_per_s: 24_000_000_000,
    },
    // NVIDIA's data sheet of the H100 SXM: 989 TFLOP/s BF16 and 494 TF32 without sparsity, 3.35 TB/s,
    // NVLink 900 GB/s in both directions, PCIe 5.0 ×16. Memory as its driver reports it: 81,559 MiB.
    // Assumed: one 400 Gbit/s adapter a device, 52 GB/s of PCIe's 64 reached, host and margin as above.
    Device {
        name: "h100-80g",
        memory_bytes: 81_559 << 20,
        margin_bytes: 5 * GIB,
        host_bytes: 192 * GIB,
        bf16_flops: 989_000_000_000_000,
        fp32_flops: 494_000_000_000_000,
        memory_bytes_per_s: 3_350_000_000_000,
        devices_per_node: 8,
        intra_bytes_per_s: 450_000_000_000,
        inter_bytes_per_s: 50_000_000_000,
        copy_out_bytes_per_s: 52_000_000_000,
        copy_in_bytes_per_s: 52_000_000_000,
    },
    // The same with the memory of the H200: 143,771 MiB at 4.8 TB/s.
    Device {
        name: "h200-141g",
        memory_bytes: 143_771 << 20,
        margin_bytes: 8 * GIB,
        host_bytes: 192 * GIB,
        bf16_flops: 989_000_000_000_000,
        fp32_flops: 494_000_000_000_000,
        memory_bytes_per_s: 4_800_000_000_000,
        devices_per_node: 8,
        intra_bytes_per_s: 450_000_000_000,
        inter_bytes_per_s: 50_000_000_000,
        copy_out_bytes_per_s: 52_000_000_000,
        copy_in_bytes_per_s: 52_000_000_000,
    },
];

impl Device {
    /// The preset called `name`.
    pub fn named(name: &str) -> Result<Self, ModelError> {
        DEVICES.into_iter().find(|device| device.name == name).ok_or_else(|| ModelError::NoSuchName {
            field: "device",
            value: name.to_owned(),
            known: DEVICES.map(|device| device.name).join(", "),
        })
    }

    /// The rooflines of offloading and of casting to the narrow format and back (§IV-B).
    ///
    /// A cast reads two bytes and writes one for each element, or the reverse: 1.5 bytes of memory traffic
    /// for each byte of a BF16 tensor. (An FP32 tensor costs 1.25; the difference is neglected.)
    pub fn rooflines(&self) -> Rooflines {
        let knee = |bytes_per_s: u64, launch_ns: u64| Knee {
            size_bytes: saturate(u128::from(bytes_per_s) * u128::from(launch_ns) / 1_000_000_000),
            bytes_per_s,
        };
        let traffic = u128::from(self.memory_bytes_per_s) * u128::from(MEMORY_PERMILLE) / 1_000;
        let cast = knee(saturate(traffic * 2 / 3), LAUNCH_NS);
        Rooflines {
            copy_out: knee(self.copy_out_bytes_per_s, COPY_NS),
            copy_in: knee(self.copy_in_bytes_per_s, COPY_NS),
            cast,
            uncast: cast,
        }
    }
}

fn saturate(value: u128) -> u64 {
    u64::try_from(value).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn presets_are_found_by_name() {
        assert_eq!(Device::named("h200-141g").expect("a preset").memory_bytes_per_s, 4_800_000_000_000);
        let error = Device::named("h300").expect_err("no preset").to_string();
        assert!(error.contains("h300") && error.contains("dcu-64g, h100-80g, h200-141g"), "{error}");
    }

    #[test]
    fn a_copy_at_the_knee_takes_its_launch_time() {
        let copy = Device::named("dcu-64g").expect("a preset").rooflines().copy_out;
        assert_eq!(copy.size_bytes, 240_000);
        assert_eq!((copy.ns(1), copy.ns(240_000), copy.ns(480_000)), (10_000, 10_000, 20_000));
    }
}
