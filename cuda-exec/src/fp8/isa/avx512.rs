//! The walk compiled for AVX-512 (F, BW, VL, DQ): 64 bytes a step.

use super::{Dequantize, Quantize};

pub(super) fn detected() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512dq")
}

/// # Safety
/// - [`detected`] is true.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
pub(super) unsafe fn quantize(job: Quantize<'_>) {
    job.run();
}

/// # Safety
/// - [`detected`] is true.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
pub(super) unsafe fn dequantize(job: Dequantize<'_>) {
    job.run();
}
