//! Fingerprints: ranks compare them before they trust each other's decisions (design §8).

/// A 64-bit running fingerprint (FNV-1a over words, mixed at the end). It tells accidents apart, not
/// adversaries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fingerprint(u64);

impl Fingerprint {
    /// The fingerprint of nothing, under this version of the library.
    pub const fn new() -> Self {
        let mut fingerprint = Self(0xcbf2_9ce4_8422_2325);
        let version = env!("CARGO_PKG_VERSION").as_bytes();
        let mut i = 0;
        while i < version.len() {
            fingerprint = fingerprint.with(version[i] as u64);
            i += 1;
        }
        fingerprint
    }

    /// This and one more value.
    pub const fn with(self, value: u64) -> Self {
        let mixed = (self.0 ^ value).wrapping_mul(0x0000_0100_0000_01b3);
        Self(mixed ^ mixed >> 29)
    }

    /// This and more values, their number included.
    pub fn with_all(self, values: impl IntoIterator<Item = u64>) -> Self {
        let (mut fingerprint, mut count) = (self, 0);
        for value in values {
            fingerprint = fingerprint.with(value);
            count += 1;
        }
        fingerprint.with(count)
    }

    /// The value to compare.
    pub const fn value(self) -> u64 {
        let mut x = self.0;
        x = (x ^ x >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
        x = (x ^ x >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
        x ^ x >> 33
    }
}

impl Default for Fingerprint {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_count_and_every_bit_matter() {
        let base = Fingerprint::new();
        assert_ne!(base.with(1).with(2).value(), base.with(2).with(1).value());
        assert_ne!(base.with_all([0]).value(), base.with_all([0, 0]).value());
        for bit in 0..64 {
            assert_ne!(base.with(7).value(), base.with(7 ^ 1 << bit).value());
        }
    }
}
