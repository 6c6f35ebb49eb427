//! A set of small indices in one word.

use core::fmt;
use core::ops::{BitAnd, BitOr, BitOrAssign, Not, Sub};

/// A set of indices below 64: tensors or operators of one layer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Set(u64);

impl Set {
    /// The empty set.
    pub const EMPTY: Self = Self(0);

    /// The set of one index. Indices of 64 and more are not representable and give the empty set.
    pub const fn one(index: usize) -> Self {
        if index < 64 { Self(1 << index) } else { Self::EMPTY }
    }

    /// All indices below `len` (at most 64).
    pub const fn first(len: usize) -> Self {
        if len >= 64 { Self(u64::MAX) } else { Self((1 << len) - 1) }
    }

    /// The set as bits.
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// The set of these bits.
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// Whether `index` is in the set.
    pub const fn contains(self, index: usize) -> bool {
        index < 64 && self.0 >> index & 1 == 1
    }

    /// Adds `index`.
    pub fn insert(&mut self, index: usize) {
        *self |= Self::one(index);
    }

    /// Removes `index`.
    pub fn remove(&mut self, index: usize) {
        *self = *self - Self::one(index);
    }

    /// Whether nothing is in the set.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// How many indices are in the set.
    pub const fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// Whether all of `self` is in `other`.
    pub const fn is_subset(self, other: Self) -> bool {
        self.0 & !other.0 == 0
    }

    /// The largest index.
    pub const fn last(self) -> Option<usize> {
        if self.0 == 0 { None } else { Some(63 - self.0.leading_zeros() as usize) }
    }

    /// The indices in increasing order.
    pub fn iter(self) -> impl Iterator<Item = usize> {
        let mut bits = self.0;
        core::iter::from_fn(move || {
            let index = bits.trailing_zeros() as usize;
            (bits != 0).then(|| {
                bits &= bits - 1;
                index
            })
        })
    }
}

impl BitOr for Set {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitOrAssign for Set {
    fn bitor_assign(&mut self, other: Self) {
        self.0 |= other.0;
    }
}

impl BitAnd for Set {
    type Output = Self;
    fn bitand(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
}

impl Sub for Set {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }
}

impl Not for Set {
    type Output = Self;
    fn not(self) -> Self {
        Self(!self.0)
    }
}

impl FromIterator<usize> for Set {
    fn from_iter<I: IntoIterator<Item = usize>>(indices: I) -> Self {
        indices.into_iter().fold(Self::EMPTY, |set, index| set | Self::one(index))
    }
}

impl fmt::Debug for Set {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn behaves_as_a_set() {
        let set: Set = [3usize, 63, 0].into_iter().collect();
        assert_eq!(set.len(), 3);
        assert_eq!(set.last(), Some(63));
        assert!(set.contains(63) && !set.contains(64) && !set.contains(1));
        assert_eq!(set.iter().collect::<heapless::Vec<_, 4>>(), [0, 3, 63]);
        assert_eq!(set - Set::one(3), Set::one(0) | Set::one(63));
        assert_eq!(Set::first(64).len(), 64);
        assert_eq!(Set::one(64), Set::EMPTY);
    }
}
