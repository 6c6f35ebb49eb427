//! Status codes. HIP took over CUDA's numbers for all that matters here.

use crate::device::DeviceError;

pub(crate) const SUCCESS: i64 = 0;
/// An argument is out of range; of an allocation only its length can be.
pub(crate) const INVALID_VALUE: i64 = 1;
pub(crate) const OUT_OF_MEMORY: i64 = 2;
/// CUDA's is of cudarc's enum.
#[cfg(feature = "hip")]
pub(crate) const NO_DEVICE: i64 = 100;
/// What an event marks has not ended. CUDA's is of cudarc's enum.
#[cfg(feature = "hip")]
pub(crate) const NOT_READY: i64 = 600;

/// `Ok` for success, else the error of `call`.
pub(crate) fn check(
    call: &'static str,
    code: i64,
    describe: impl FnOnce() -> String,
) -> Result<(), DeviceError> {
    match code {
        SUCCESS => Ok(()),
        code if is_lost(code) => Err(DeviceError::Lost {
            what: format!("the device's work ({call} returned {code}: {})", describe()),
        }),
        code => Err(DeviceError::Library { call, code, message: describe() }),
    }
}

/// `Some(address)` of an allocation, `None` where memory is used up.
pub(crate) fn allocated(
    call: &'static str,
    code: i64,
    address: u64,
    describe: impl FnOnce() -> String,
) -> Result<Option<u64>, DeviceError> {
    match code {
        OUT_OF_MEMORY | INVALID_VALUE => Ok(None),
        code => check(call, code, describe).map(|()| Some(address)),
    }
}

/// Whether a device numbered `ordinal` is among `devices`.
pub(crate) fn among(ordinal: u32, devices: i32) -> Result<i32, DeviceError> {
    let devices = u32::try_from(devices).unwrap_or(0);
    match i32::try_from(ordinal) {
        Ok(number) if ordinal < devices => Ok(number),
        _ => Err(DeviceError::NoSuchDevice { ordinal, devices }),
    }
}

/// Whether the error is one after which the context is of no use: ECC, a lost link, an illegal address, a failed launch,
/// a destroyed context.
fn is_lost(code: i64) -> bool {
    matches!(code, 214 | 220 | 226 | 700 | 702 | 709 | 710 | 714..=719)
}
