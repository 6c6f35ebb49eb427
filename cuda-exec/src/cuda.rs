//! NVIDIA devices, by the driver API (cudarc) and the device's primary context, which PyTorch uses too.
//!
//! Nothing of CUDA is needed to build. [`probe`] says whether the driver is here, and nothing calls cudarc before it has:
//! cudarc's own calls panic where the library or one of its functions is missing.

use crate::device::DeviceError;
use crate::gpu::Gpu;

mod driver;
mod probe;

pub use driver::Cuda;
pub use probe::{Driver, probe};

/// A CUDA device.
pub type CudaDevice = Gpu<Cuda>;

impl Gpu<Cuda> {
    /// The device numbered `ordinal`, as `CUDA_VISIBLE_DEVICES` leaves them. Its primary context is retained until the
    /// device is dropped.
    pub fn open(ordinal: u32) -> Result<Self, DeviceError> {
        Ok(Self::new(Cuda::open(probe()?, ordinal)?))
    }
}
