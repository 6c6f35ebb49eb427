//! The device, chosen at run time.

use std::sync::Arc;

use crate::device::{Device, DeviceError};
use crate::host::{HostConfig, HostDevice};

/// Which device to open.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
#[non_exhaustive]
pub enum Choice {
    /// Threads of this process, with as much memory as the process may have.
    Host,
    /// The CUDA device of this number.
    Cuda(u32),
    /// The HIP device of this number.
    Hip(u32),
    /// CUDA device 0; without a CUDA driver or device HIP device 0; without either the host. A device that is there
    /// and does not work is an error: it would be a surprise to train on the host instead.
    #[default]
    Auto,
}

/// Opens a device. An absent library is [`DeviceError::Absent`], one without a device [`DeviceError::NoSuchDevice`].
/// For more than a number see [`HostDevice::open`], `CudaDevice` and `HipDevice`.
pub fn open(choice: Choice) -> Result<Arc<dyn Device>, DeviceError> {
    match choice {
        Choice::Host => host(),
        Choice::Cuda(ordinal) => cuda(ordinal),
        Choice::Hip(ordinal) => hip(ordinal),
        Choice::Auto => match cuda(0) {
            Err(error) if is_absent(&error) => match hip(0) {
                Err(error) if is_absent(&error) => host(),
                found => found,
            },
            found => found,
        },
    }
}

fn host() -> Result<Arc<dyn Device>, DeviceError> {
    Ok(Arc::new(HostDevice::open(HostConfig::default())?))
}

#[cfg(feature = "cuda")]
fn cuda(ordinal: u32) -> Result<Arc<dyn Device>, DeviceError> {
    Ok(Arc::new(crate::cuda::CudaDevice::open(ordinal)?))
}

#[cfg(not(feature = "cuda"))]
fn cuda(_ordinal: u32) -> Result<Arc<dyn Device>, DeviceError> {
    Err(not_built(crate::device::Backend::Cuda, "cargo feature `cuda`"))
}

#[cfg(feature = "hip")]
fn hip(ordinal: u32) -> Result<Arc<dyn Device>, DeviceError> {
    Ok(Arc::new(crate::hip::HipDevice::open(ordinal)?))
}

#[cfg(not(feature = "hip"))]
fn hip(_ordinal: u32) -> Result<Arc<dyn Device>, DeviceError> {
    Err(not_built(crate::device::Backend::Hip, "cargo feature `hip`"))
}

#[cfg(not(all(feature = "cuda", feature = "hip")))]
fn not_built(backend: crate::device::Backend, library: &'static str) -> DeviceError {
    DeviceError::Absent { backend, library, reason: "this library was built without it".to_owned() }
}

/// Whether there is no such device here, rather than one that does not work.
fn is_absent(error: &DeviceError) -> bool {
    matches!(error, DeviceError::Absent { .. } | DeviceError::NoSuchDevice { devices: 0, .. })
}
