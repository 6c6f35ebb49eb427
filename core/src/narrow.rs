//! The narrow format of Quantize (§IV-B): what the planner counts is what the executor stores.

/// Elements of a row that share one scale, unless told otherwise.
pub const SCALE_BLOCK: u64 = 128;
/// Bytes of a scale, FP32.
pub const SCALE_BYTES: u64 = 4;

/// Bytes of a row of `elements` in a format of one byte: the elements, and a scale for each block of
/// [`SCALE_BLOCK`] of them, the last one shorter. `None` past `u64`.
pub const fn row_bytes(elements: u64) -> Option<u64> {
    match elements.div_ceil(SCALE_BLOCK).checked_mul(SCALE_BYTES) {
        Some(scales) => elements.checked_add(scales),
        None => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_holds_its_elements_and_its_scales() {
        assert_eq!(row_bytes(0), Some(0));
        assert_eq!(row_bytes(1), Some(5));
        assert_eq!(row_bytes(128), Some(132));
        assert_eq!(row_bytes(129), Some(137));
        assert_eq!(row_bytes(7_168), Some(7_168 + 4 * 56));
        assert_eq!(row_bytes(u64::MAX), None);
    }
}
