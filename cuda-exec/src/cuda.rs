//! NVIDIA devices, by the driver API (cudarc) and the device's primary context, which PyTorch uses too.
//!
//! Nothing of CUDA is needed to build. [`probe`] says whether the driver is here, and nothing calls cudarc before it has:
//! cudarc's own calls panic where the library or one of its functions is missing.

use std::path::PathBuf;

use crate::device::DeviceError;
use crate::gpu::{Gpu, Kernels};

mod driver;
mod probe;

pub use driver::Cuda;
pub use probe::{Driver, probe};

/// A CUDA device.
pub type CudaDevice = Gpu<Cuda>;

/// Which device, and where its kernels come from.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct CudaConfig {
    /// The device, as `CUDA_VISIBLE_DEVICES` leaves them.
    pub ordinal: u32,
    /// The kernels of the casts.
    pub kernels: Kernels,
    /// NVRTC, where it is not under one of its names. Inside a program that uses PyTorch it is loaded already.
    pub compiler: Option<PathBuf>,
}

impl Gpu<Cuda> {
    /// The device numbered `ordinal`. Its primary context is retained until the device is dropped.
    pub fn open(ordinal: u32) -> Result<Self, DeviceError> {
        Self::with(&CudaConfig { ordinal, ..CudaConfig::default() })
    }

    /// The device that `config` names.
    pub fn with(config: &CudaConfig) -> Result<Self, DeviceError> {
        Ok(Self::new(Cuda::open(probe()?, config)?, config.kernels.clone()))
    }
}
