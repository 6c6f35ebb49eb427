//! AMD devices and Hygon DCUs, by the HIP runtime.
//!
//! Nothing of HIP is needed to build. The runtime is looked for under the names of ROCm 5 to 7 and of Hygon's DTK when a
//! device is opened, and is never closed. No struct of HIP is used: the layouts of `hipDeviceProp_t` and of the attributes
//! differ between ROCm and DTK, those of the functions in `hip/table.rs` do not.

use std::path::PathBuf;

use crate::device::DeviceError;
use crate::gpu::{Gpu, Kernels};

mod runtime;
mod table;

pub use runtime::Hip;

/// A HIP device.
pub type HipDevice = Gpu<Hip>;

/// Which device, and where its library is.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct HipConfig {
    /// The device, as `HIP_VISIBLE_DEVICES` leaves them.
    pub ordinal: u32,
    /// The runtime library, where its name or its folder is not one that is looked for.
    pub library: Option<PathBuf>,
    /// The kernels of the casts.
    pub kernels: Kernels,
    /// hiprtc, where it is neither under one of its names nor in the runtime.
    pub compiler: Option<PathBuf>,
    /// What kernels are compiled for (`gfx936`), where hiprtc does not find out by itself.
    pub architecture: Option<String>,
}

impl Gpu<Hip> {
    /// The device numbered `ordinal`, by a library under one of the usual names.
    pub fn open(ordinal: u32) -> Result<Self, DeviceError> {
        Self::with(&HipConfig { ordinal, ..HipConfig::default() })
    }

    /// The device that `config` names.
    pub fn with(config: &HipConfig) -> Result<Self, DeviceError> {
        Ok(Self::new(Hip::open(config)?, config.kernels.clone()))
    }
}
