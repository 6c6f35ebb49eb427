//! Casts as work of a stream.

use bagualu_exec::device::{DeviceSlice, Stream};

use super::{bagualu_device, bagualu_memory, on};
use crate::boundary::boundary;
use crate::cast::{bagualu_cast, parsed};
use crate::status::bagualu_status;

/// Casts device memory to FP8 as work of `stream`: `from` to `values` and `scales`, which have the bytes that
/// `bagualu_cast_measure` says (4 for each scale, aligned to 4). Bits are those of `bagualu_cast_quantize`.
///
/// `BAGUALU_STATUS_UNSUPPORTED` on a CUDA or HIP device whose compiler library is not on this machine.
///
/// # Safety
/// - `cast` is NULL or a struct with its `struct_size` set. The memory is of this device, does not overlap, and lives until this
///   work has ended; until then `from` stays as it is and nobody else uses the others.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bagualu_device_quantize(
    device: *const bagualu_device,
    cast: *const bagualu_cast,
    from: bagualu_memory,
    values: bagualu_memory,
    scales: bagualu_memory,
    stream: u64,
) -> bagualu_status {
    boundary(|| {
        // SAFETY: the contract of this function.
        let cast = unsafe { parsed(cast) }?;
        let [from, values, scales] = [from, values, scales].map(bagualu_memory::on_device);
        let stream = Stream::numbered(stream);
        // SAFETY: the contract of this function.
        on(device, |device| unsafe { device.quantize(&cast, from, values, scales, stream) })
    })
}

/// Casts back as work of `stream`: what `bagualu_device_quantize` has written to `to`.
///
/// # Safety
/// - As for `bagualu_device_quantize`, with `values` and `scales` that stay as they are; a cast of this kind wrote them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bagualu_device_dequantize(
    device: *const bagualu_device,
    cast: *const bagualu_cast,
    values: bagualu_memory,
    scales: bagualu_memory,
    to: bagualu_memory,
    stream: u64,
) -> bagualu_status {
    boundary(|| {
        // SAFETY: the contract of this function.
        let cast = unsafe { parsed(cast) }?;
        let [values, scales, to]: [DeviceSlice; 3] = [values, scales, to].map(bagualu_memory::on_device);
        let stream = Stream::numbered(stream);
        // SAFETY: the contract of this function.
        on(device, |device| unsafe { device.dequantize(&cast, values, scales, to, stream) })
    })
}
