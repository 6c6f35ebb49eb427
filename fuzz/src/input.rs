//! Choices made by a string of bytes.

/// A string of bytes read as choices; when it ends, every choice is the first.
#[derive(Clone, Debug)]
pub struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    /// Choices made by `data`.
    pub const fn new(data: &'a [u8]) -> Self {
        Self(data)
    }

    /// Whether the bytes have ended.
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The next byte.
    pub fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first
    }

    /// A number below `n` (0 where `n` is 0). `n` is at most 256.
    pub fn below(&mut self, n: usize) -> usize {
        self.byte() as usize % n.clamp(1, 256)
    }

    /// One time in `n`.
    pub fn one_in(&mut self, n: usize) -> bool {
        // The last value, so that an ended input says no.
        self.below(n) + 1 == n
    }

    /// A quantity: small ones often, sometimes beyond 32 bits, rarely near the end of `u64`.
    pub fn quantity(&mut self) -> u64 {
        let kind = self.byte();
        let low = u64::from(self.byte());
        match kind {
            0..=127 => low,
            128..=223 => low << 8 | u64::from(self.byte()),
            224..=253 => low << (kind % 32),
            _ => u64::MAX - low,
        }
    }

    /// A quantity that can be added up a few thousand times.
    pub fn modest(&mut self) -> u64 {
        self.quantity() >> 16
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ended_input_still_chooses() {
        let mut input = Input::new(&[5, 255, 1]);
        assert_eq!(input.below(3), 2);
        assert_eq!(input.quantity(), u64::MAX - 1);
        assert!(input.is_empty() && !input.one_in(2));
        assert_eq!((input.byte(), input.below(7), input.quantity()), (0, 0, 0));
    }
}
