//! What the library asks of its callers' memory: fields without a meaning are 0, results need not hold values before, and
//! overlap nothing.

use std::ffi::CStr;
use std::mem::{MaybeUninit, size_of, zeroed};
use std::ptr::{null, null_mut};

use bagualu_ffi::*;

fn message() -> String {
    // SAFETY: the text ends with NUL and stays until this thread's next failure.
    unsafe { CStr::from_ptr(bagualu_last_message(null_mut())) }.to_str().expect("UTF-8").to_owned()
}

#[test]
fn reserved_fields_must_be_zero() {
    // SAFETY: zeros are all defaults.
    let mut config: bagualu_selector_config = unsafe { zeroed() };
    config.struct_size = size_of::<bagualu_selector_config>();
    config.reserved = 7;
    let mut selector = null_mut();
    // SAFETY: both live.
    let status = unsafe { bagualu_selector_new(&config, &mut selector) };
    assert_eq!((status, selector), (bagualu_status::InvalidValue, null_mut()));
    assert_eq!(message(), "config.reserved is 7; set it to 0");
    config.reserved = 0;
    // SAFETY: both live.
    assert_eq!(unsafe { bagualu_selector_new(&config, &mut selector) }, bagualu_status::Ok);
    assert_eq!(bagualu_selector_free(selector), bagualu_status::Ok);
}

#[test]
fn reserved_fields_of_array_elements_must_be_zero() {
    let op = bagualu_op { reserved: 3, ..Default::default() };
    let layer = bagualu_layer { tensors: null(), tensor_count: 0, ops: &op, op_count: 1 };
    let plan = bagualu_layer_plan::default();
    // SAFETY: zeros are a value.
    let mut selection: bagualu_selection = unsafe { zeroed() };
    selection.struct_size = size_of::<bagualu_selection>();
    // SAFETY: all live.
    let status = unsafe { bagualu_layer_evaluate(&layer, &plan, 0, &mut selection) };
    assert_eq!(status, bagualu_status::InvalidValue);
    assert_eq!(message(), "ops.reserved is 3; set it to 0");
}

#[test]
fn results_go_where_nothing_was_written() {
    let counts = [1u32, 2, 3, 4];
    let mut rows = [MaybeUninit::<u32>::uninit(); 2];
    // SAFETY: both are as long as their counts.
    let status = unsafe { bagualu_group_rows(counts.as_ptr(), 4, 4, rows.as_mut_ptr().cast(), 2) };
    assert_eq!(status, bagualu_status::Ok);
    // SAFETY: written by the call.
    assert_eq!(rows.map(|rows| unsafe { rows.assume_init() }), [3, 7]);
}

/// A cast of 8 FP32 numbers.
fn cast(sizes: &[u64; 1]) -> bagualu_cast {
    // SAFETY: zeros are all defaults.
    let mut cast: bagualu_cast = unsafe { zeroed() };
    (cast.struct_size, cast.dtype, cast.dimensions) =
        (size_of::<bagualu_cast>(), bagualu_dtype::F32 as u32, 1);
    cast.sizes = sizes.as_ptr();
    cast
}

#[test]
fn casts_write_to_memory_without_values_and_refuse_overlap() {
    let sizes = [8u64];
    let cast = cast(&sizes);
    let mut wide: Vec<u8> = (1..=8).flat_map(|number| (number as f32).to_ne_bytes()).collect();
    let mut values = [MaybeUninit::<u8>::uninit(); 8];
    let mut scale = MaybeUninit::<f32>::uninit();
    // SAFETY: buffers are as long as their counts.
    let status = unsafe {
        bagualu_cast_quantize(&cast, wide.as_ptr(), 32, values.as_mut_ptr().cast(), 8, scale.as_mut_ptr(), 1)
    };
    assert_eq!(status, bagualu_status::Ok, "{}", message());
    let before = wide.clone();
    let inside = wide.as_mut_ptr();
    // SAFETY: refused before anything is read or written through two of them.
    let status =
        unsafe { bagualu_cast_quantize(&cast, inside, 32, inside.add(24), 8, scale.as_mut_ptr(), 1) };
    assert_eq!(status, bagualu_status::InvalidValue);
    assert_eq!(message(), "from and values overlap; give buffers of their own");
    assert_eq!(wide, before);
    let mut back = [MaybeUninit::<u8>::uninit(); 32];
    // SAFETY: buffers are as long as their counts.
    let status = unsafe {
        let back = back.as_mut_ptr().cast();
        bagualu_cast_dequantize(&cast, values.as_ptr().cast(), 8, scale.as_ptr(), 1, back, 32)
    };
    assert_eq!(status, bagualu_status::Ok, "{}", message());
    // SAFETY: written by the call.
    let back = back.map(|byte| unsafe { byte.assume_init() });
    assert_eq!(back.as_slice(), before, "1 to 8 are exact in E4M3");
}

#[test]
fn a_length_that_is_refused_is_refused_before_the_text_is_read() {
    // One byte long: reading any more of it is a fault under a sanitizer, and here for the largest length.
    let text = [b'x'];
    // SAFETY: zeros are all defaults.
    let mut config: bagualu_model_config = unsafe { zeroed() };
    config.struct_size = size_of::<bagualu_model_config>();
    config.text = text.as_ptr().cast();
    for length in [usize::MAX, isize::MAX as usize, 1 << 30] {
        config.text_length = length;
        let mut model = null_mut();
        // SAFETY: both live; the length is what is tried.
        let status = unsafe { bagualu_model_read(&config, &mut model) };
        assert_eq!((status, model), (bagualu_status::Count, null_mut()));
        assert!(message().starts_with(&format!("text_length is {length} bytes; at most ")), "{}", message());
    }
}
