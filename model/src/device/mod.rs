//! Devices: memory, rates, links, and the rooflines of the mitigations.

use std::borrow::Cow;

use bagualu_core::cost::Rooflines;
use bagualu_core::roofline::Knee;

use crate::ModelError;
use crate::assumptions::{COPY_NS, LAUNCH_NS, MEMORY_PERMILLE};

mod file;
mod presets;
mod workspace;

pub use file::{DeviceFileError, MAX_DEVICE_FILE};
pub use presets::DEVICES;
pub(crate) use workspace::MatrixProducts;
pub use workspace::Workspaces;

/// A device and the node around it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Device {
    /// Name of the preset, or of the file's device.
    pub name: Cow<'static, str>,
    /// Device memory, bytes.
    pub memory_bytes: u64,
    /// Memory set aside for what is not counted, bytes: the driver's context, buffers of NCCL, fragmentation, and
    /// workspaces whose size is not known.
    pub margin_bytes: u64,
    /// Whether NVIDIA's Transformer Engine runs on it. What a port of it keeps for itself is not known, and has room in
    /// the margin.
    pub transformer_engine: bool,
    /// Workspaces of libraries: counted as static bytes, no part of the margin.
    pub workspaces: Workspaces,
    /// Pinned host memory for offloading, bytes for each device.
    pub host_bytes: u64,
    /// Peak BF16 rate, FLOP/s.
    pub bf16_flops: u64,
    /// Peak FP8 rate, FLOP/s; 0 where it is not known: linear layers then run at the BF16 rate.
    pub fp8_flops: u64,
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

impl Device {
    /// The preset called `name`.
    pub fn named(name: &str) -> Result<Self, ModelError> {
        DEVICES.into_iter().find(|device| device.name == name).ok_or_else(|| ModelError::NoSuchName {
            field: "device",
            value: name.to_owned(),
            known: Self::names().collect::<Vec<_>>().join(", "),
        })
    }

    /// Names of the presets.
    pub fn names() -> impl Iterator<Item = &'static str> {
        // All names of presets are borrowed; an owned one would have no place to live.
        DEVICES.into_iter().filter_map(|device| match device.name {
            Cow::Borrowed(name) => Some(name),
            Cow::Owned(_) => None,
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
        assert!(error.contains("h300") && error.contains("dcu-64g, a100-80g, h100-80g"), "{error}");
    }

    #[test]
    fn presets_are_sound() {
        assert_eq!(Device::names().count(), DEVICES.len());
        for device in DEVICES {
            assert!(device.margin_bytes < device.memory_bytes, "{}", device.name);
            assert!(device.inter_bytes_per_s <= device.intra_bytes_per_s, "{}", device.name);
            assert!(device.copy_out_bytes_per_s < device.memory_bytes_per_s, "{}", device.name);
            assert!(device.fp32_flops < device.bf16_flops, "{}", device.name);
        }
    }

    #[test]
    fn a_copy_at_the_knee_takes_its_launch_time() {
        let copy = Device::named("dcu-64g").expect("a preset").rooflines().copy_out;
        assert_eq!(copy.size_bytes, 240_000);
        assert_eq!((copy.ns(1), copy.ns(240_000), copy.ns(480_000)), (10_000, 10_000, 20_000));
    }
}
