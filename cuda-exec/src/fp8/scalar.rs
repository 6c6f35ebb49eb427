//! One element at a time, in exact integers: the definition that all other paths are held to.

use super::{Format, Overflow, Source};

/// A binary floating-point format: what follows the sign bit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    /// Bits of the significand that are stored.
    pub mantissa: u32,
    /// What is added to an exponent.
    pub bias: i32,
    /// The largest finite magnitude's bits.
    pub largest: u32,
    /// Infinity's bits; NaN's where there is none.
    pub infinite: u32,
    /// The NaN written.
    pub nan: u32,
    /// The sign bit.
    pub sign: u32,
}

/// OCP 8-bit floating point, revision 1.0; NaN as PyTorch writes it.
pub(super) const E4M3: Layout =
    Layout { mantissa: 3, bias: 7, largest: 0x7e, infinite: 0x7f, nan: 0x7f, sign: 0x80 };
pub(super) const E5M2: Layout =
    Layout { mantissa: 2, bias: 15, largest: 0x7b, infinite: 0x7c, nan: 0x7f, sign: 0x80 };
const F16: Layout =
    Layout { mantissa: 10, bias: 15, largest: 0x7bff, infinite: 0x7c00, nan: 0x7e00, sign: 0x8000 };
const BF16: Layout =
    Layout { mantissa: 7, bias: 127, largest: 0x7f7f, infinite: 0x7f80, nan: 0x7fc0, sign: 0x8000 };
const F32: Layout = Layout {
    mantissa: 23,
    bias: 127,
    largest: 0x7f7f_ffff,
    infinite: 0x7f80_0000,
    nan: 0x7fc0_0000,
    sign: 0x8000_0000,
};

/// The least exponent of a scale: 2^−126 is FP32's smallest normal number, which no device flushes to zero.
pub(super) const LEAST_EXPONENT: i32 = -126;

impl Format {
    pub(super) const fn layout(self) -> &'static Layout {
        match self {
            Self::E4m3 => &E4M3,
            Self::E5m2 => &E5M2,
        }
    }
}

impl Source {
    pub(super) const fn layout(self) -> &'static Layout {
        match self {
            Self::Bf16 => &BF16,
            Self::F16 => &F16,
            Self::F32 => &F32,
        }
    }
}

/// The bits in `format` of the source element `bits` · 2^−`exponent`, rounded to nearest, ties to even.
pub(super) fn encode(bits: u32, source: Source, format: Format, overflow: Overflow, exponent: i32) -> u8 {
    let (from, to) = (source.layout(), format.layout());
    let code = match Magnitude::of(bits, from) {
        Magnitude::Nan => to.nan,
        Magnitude::Infinite => to.infinite,
        Magnitude::Finite { significand, power } => match round(significand, power - exponent, to) {
            code if code <= to.largest => code,
            _ if overflow == Overflow::Saturate => to.largest,
            _ => to.infinite,
        },
    };
    (sign(bits, from, to) | code) as u8
}

/// The bits in `source` of the stored element `code` · 2^`exponent`, rounded to nearest, ties to even. What is finite
/// stays finite: beyond the source's largest number it is that one.
pub(super) fn decode(code: u8, format: Format, source: Source, exponent: i32) -> u32 {
    let (from, to) = (format.layout(), source.layout());
    let bits = match Magnitude::of(code.into(), from) {
        Magnitude::Nan => to.nan,
        Magnitude::Infinite => to.infinite,
        Magnitude::Finite { significand, power } => round(significand, power + exponent, to).min(to.largest),
    };
    sign(code.into(), from, to) | bits
}

/// The exponent of the scale of a block whose largest finite magnitude has the bits `peak`: the least one, and at least
/// [`LEAST_EXPONENT`], with which it is not beyond the format's largest number. 0 where all are zero.
pub(super) fn scale_exponent(peak: u32, source: Source, format: Format) -> i32 {
    match Magnitude::of(peak, source.layout()) {
        Magnitude::Finite { significand, power } if significand > 0 => {
            // The largest number of both formats is 7 · 2^n.
            let n = match format {
                Format::E4m3 => 6,
                Format::E5m2 => 13,
            };
            let top = power + top_bit(significand);
            let below = top - 2 - n;
            // At `below` the peak is 4 · 2^n to 8 · 2^n: too large beyond 7/4 of the power of two it starts with.
            let fits = u64::from(significand) << 2 <= 7_u64 << top_bit(significand);
            (if fits { below } else { below + 1 }).max(LEAST_EXPONENT)
        }
        _ => 0,
    }
}

fn magnitude_bits(bits: u32, layout: &Layout) -> u32 {
    bits & (layout.sign - 1)
}

fn sign(bits: u32, from: &Layout, to: &Layout) -> u32 {
    if bits & from.sign == 0 { 0 } else { to.sign }
}

/// A magnitude, taken apart.
enum Magnitude {
    /// significand · 2^power.
    Finite {
        significand: u32,
        power: i32,
    },
    Infinite,
    Nan,
}

impl Magnitude {
    fn of(bits: u32, layout: &Layout) -> Self {
        let bits = magnitude_bits(bits, layout);
        if bits > layout.largest {
            return if bits == layout.infinite && layout.infinite != layout.nan {
                Self::Infinite
            } else {
                Self::Nan
            };
        }
        let hidden = 1 << layout.mantissa;
        let (field, fraction) = ((bits >> layout.mantissa) as i32, bits & (hidden - 1));
        let power = |field: i32| field - layout.bias - layout.mantissa as i32;
        match field {
            0 => Self::Finite { significand: fraction, power: power(1) },
            _ => Self::Finite { significand: fraction | hidden, power: power(field) },
        }
    }
}

/// The bits of significand · 2^power in `layout`, to nearest, ties to even; beyond `layout.largest` if it is too large.
fn round(significand: u32, power: i32, layout: &Layout) -> u32 {
    if significand == 0 {
        return 0;
    }
    let field = (power + top_bit(significand) + layout.bias).max(1);
    // The distance of neighbours is 2^(field − bias − mantissa).
    let dropped = field - layout.bias - layout.mantissa as i32 - power;
    let rounded = match dropped {
        ..=0 => significand << -dropped,
        _ => shift_to_even(significand, dropped as u32),
    };
    // A significand with its hidden bit counts one in the exponent's field, and so does a carry out of it.
    (((field - 1) as u32) << layout.mantissa) + rounded
}

/// value / 2^by, to nearest, ties to even.
fn shift_to_even(value: u32, by: u32) -> u32 {
    let value = u64::from(value);
    if by > 33 {
        return 0;
    }
    let (quotient, rest, half) = (value >> by, value & ((1 << by) - 1), 1_u64 << (by - 1));
    let up = rest > half || (rest == half && quotient & 1 == 1);
    (quotient + u64::from(up)) as u32
}

/// The place of the highest bit that is set.
fn top_bit(value: u32) -> i32 {
    value.ilog2() as i32
}
