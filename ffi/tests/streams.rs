//! Streams as a framework knows them, and casts as work of them, on the host device.

use std::mem::{size_of, zeroed};
use std::ptr::{null_mut, with_exposed_provenance_mut};
use std::slice;

use bagualu_ffi::*;

const OK: bagualu_status = bagualu_status::Ok;

fn device() -> *mut bagualu_device {
    // SAFETY: zeros are all defaults.
    let mut config: bagualu_device_config = unsafe { zeroed() };
    (config.struct_size, config.kind) = (size_of::<bagualu_device_config>(), BAGUALU_DEVICE_HOST);
    let mut device = null_mut();
    // SAFETY: both live.
    assert_eq!(unsafe { bagualu_device_open(&config, &mut device) }, OK);
    device
}

fn memory(device: *mut bagualu_device, bytes: u64) -> bagualu_memory {
    let mut memory = bagualu_memory::default();
    // SAFETY: it lives.
    assert_eq!(unsafe { bagualu_device_allocate(device, bytes, &mut memory) }, OK);
    memory
}

/// The bytes of memory that no work uses.
fn bytes<'a>(memory: bagualu_memory) -> &'a mut [u8] {
    let pointer = with_exposed_provenance_mut(memory.address as usize);
    // SAFETY: host memory of that length that the caller alone uses now.
    unsafe { slice::from_raw_parts_mut(pointer, memory.bytes as usize) }
}

#[test]
fn a_stream_is_told_raw_and_adopted_again() {
    let device = device();
    let (mut stream, mut raw, mut again) = (0, null_mut(), 0);
    // SAFETY: all live, and the stream outlives its adoption.
    unsafe {
        assert_eq!(bagualu_device_create_stream(device, BAGUALU_STREAM_COPY_IN, &mut stream), OK);
        assert_eq!(bagualu_device_raw_stream(device, stream, &mut raw), OK);
        assert_eq!(bagualu_device_adopt_stream(device, raw, &mut again), OK);
        assert_eq!(bagualu_device_synchronize(device, again), OK);
        let unknown = bagualu_device_raw_stream(device, u64::MAX, &mut raw);
        assert_eq!(unknown, bagualu_status::NoSuchStream);
    }
    assert_eq!(bagualu_device_destroy_stream(device, stream), OK);
    assert_eq!(bagualu_device_free(device), OK);
}

#[test]
fn casts_on_a_stream_have_the_bits_of_those_on_the_host() {
    let device = device();
    let sizes = [4u64, 256];
    // SAFETY: zeros are all defaults.
    let mut cast: bagualu_cast = unsafe { zeroed() };
    cast.struct_size = size_of::<bagualu_cast>();
    (cast.dtype, cast.dimensions, cast.sizes) = (bagualu_dtype::F32 as u32, 2, sizes.as_ptr());
    // SAFETY: zeros are a value.
    let mut measured: bagualu_cast_sizes = unsafe { zeroed() };
    measured.struct_size = size_of::<bagualu_cast_sizes>();
    // SAFETY: both live.
    assert_eq!(unsafe { bagualu_cast_measure(&cast, &mut measured) }, OK);
    let wide: Vec<u8> = (0..1_024).flat_map(|n| ((n * 37 % 101 - 50) as f32 * 0.37).to_ne_bytes()).collect();
    let (mut values, mut scales) =
        (vec![0u8; measured.value_bytes as usize], vec![0f32; measured.scales as usize]);
    let mut expected = vec![0u8; wide.len()];
    // SAFETY: buffers are as long as their counts.
    unsafe {
        let (values_at, scales_at) = (values.as_mut_ptr(), scales.as_mut_ptr());
        let (count, scale_count) = (values.len(), scales.len());
        let status =
            bagualu_cast_quantize(&cast, wide.as_ptr(), wide.len(), values_at, count, scales_at, scale_count);
        assert_eq!(status, OK);
        let to = expected.as_mut_ptr();
        let status = bagualu_cast_dequantize(&cast, values_at, count, scales_at, scale_count, to, wide.len());
        assert_eq!(status, OK);
    }
    let scale_bytes = 4 * measured.scales;
    let [from, stored, scaled, back] =
        [measured.source_bytes, measured.value_bytes, scale_bytes, measured.source_bytes]
            .map(|bytes| memory(device, bytes));
    bytes(from).copy_from_slice(&wide);
    let mut stream = 0;
    // SAFETY: the memory lives until the stream has ended its work.
    unsafe {
        assert_eq!(bagualu_device_create_stream(device, BAGUALU_STREAM_COMPUTE, &mut stream), OK);
        assert_eq!(bagualu_device_quantize(device, &cast, from, stored, scaled, stream), OK);
        assert_eq!(bagualu_device_dequantize(device, &cast, stored, scaled, back, stream), OK);
        let short = bagualu_memory { bytes: stored.bytes - 1, ..stored };
        let refused = bagualu_device_quantize(device, &cast, from, short, scaled, stream);
        assert_eq!(refused, bagualu_status::Mismatch);
    }
    assert_eq!(bagualu_device_synchronize(device, stream), OK);
    let told: Vec<u8> = scales.iter().flat_map(|scale| scale.to_ne_bytes()).collect();
    assert_eq!((bytes(stored), bytes(scaled)), (values.as_mut_slice(), told.clone().as_mut_slice()));
    assert_eq!(bytes(back), expected);
    assert_eq!(bagualu_device_free(device), OK);
}
