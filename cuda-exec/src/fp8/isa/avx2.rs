//! The walk compiled for AVX2: 32 bytes a step.

use super::{Dequantize, Quantize};

pub(super) fn detected() -> bool {
    is_x86_feature_detected!("avx2")
}

/// # Safety
/// - [`detected`] is true.
#[target_feature(enable = "avx2")]
pub(super) unsafe fn quantize(job: Quantize<'_>) {
    job.run();
}

/// # Safety
/// - [`detected`] is true.
#[target_feature(enable = "avx2")]
pub(super) unsafe fn dequantize(job: Dequantize<'_>) {
    job.run();
}
