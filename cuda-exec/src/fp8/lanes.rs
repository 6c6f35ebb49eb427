//! The same casts without branches, so that a compiler turns loops over them into vector instructions.
//!
//! Every function here is inlined into the walk of [`host`](super::host), which is compiled once per instruction set. The
//! exponent of the scale must lie in [`EXPONENTS`]; blocks beyond (numbers near the ends of the range of BF16 and FP32) go
//! element by element through [`scalar`](super::scalar), whose results these equal bit for bit.

use core::ops::RangeInclusive;

use super::scalar::{self, E4M3, E5M2, Layout};
use super::{Format, Overflow, Source};

/// Exponents with which no number that FP32 holds as a subnormal is stored as anything but zero, and every stored
/// number is a normal one of BF16 and FP32.
pub(super) const EXPONENTS: RangeInclusive<i32> = -100..=100;

/// A stored format.
pub(super) trait Narrow {
    const FORMAT: Format;
    const LAYOUT: &Layout;
}

pub(super) struct AsE4m3;
pub(super) struct AsE5m2;

impl Narrow for AsE4m3 {
    const FORMAT: Format = Format::E4m3;
    const LAYOUT: &Layout = &E4M3;
}

impl Narrow for AsE5m2 {
    const FORMAT: Format = Format::E5m2;
    const LAYOUT: &Layout = &E5M2;
}

/// A source type: how its elements are read, compared, cast and cast back.
pub(super) trait Wide {
    const SOURCE: Source;
    /// Its bits.
    type Bits: Copy + Ord + Default + Into<u32>;

    fn read(bytes: &[u8]) -> Self::Bits;
    fn write(bits: Self::Bits, bytes: &mut [u8]);
    fn from_u32(bits: u32) -> Self::Bits;

    /// The bits of the magnitude, 0 for what is not finite.
    fn finite_magnitude(bits: Self::Bits) -> Self::Bits;

    /// As [`scalar::encode`]; `beyond` is what overflow becomes.
    fn encode<F: Narrow>(bits: Self::Bits, exponent: i32, beyond: u8) -> u8;

    /// As [`scalar::decode`].
    fn decode<F: Narrow>(code: u8, exponent: i32) -> Self::Bits;
}

/// What a number too large for the format becomes.
pub(super) const fn beyond(layout: &Layout, overflow: Overflow) -> u8 {
    match overflow {
        Overflow::Saturate => layout.largest as u8,
        Overflow::Nan => layout.infinite as u8,
    }
}

pub(super) struct Bf16;
pub(super) struct F16;
pub(super) struct F32;

impl Wide for Bf16 {
    const SOURCE: Source = Source::Bf16;
    type Bits = u16;

    #[inline(always)]
    fn read(bytes: &[u8]) -> u16 {
        u16::from_ne_bytes([bytes[0], bytes[1]])
    }

    #[inline(always)]
    fn write(bits: u16, bytes: &mut [u8]) {
        bytes.copy_from_slice(&bits.to_ne_bytes());
    }

    #[inline(always)]
    fn from_u32(bits: u32) -> u16 {
        bits as u16
    }

    #[inline(always)]
    fn finite_magnitude(bits: u16) -> u16 {
        let magnitude = bits & 0x7fff;
        if magnitude < 0x7f80 { magnitude } else { 0 }
    }

    /// All in 16 bits: twice as many lanes as [`encode_fp32`].
    #[inline(always)]
    fn encode<F: Narrow>(bits: u16, exponent: i32, beyond: u8) -> u8 {
        let magnitude = bits & 0x7fff;
        // What the exponent fields of source and format differ by.
        let base = (127 - F::LAYOUT.bias + exponent) as i16;
        let field = ((magnitude >> 7) as i16).wrapping_sub(base);
        // From 6 on, half of the smallest number is more than any significand of 8 bits.
        let denormal = 1_i16.wrapping_sub(field).clamp(0, 6) as u16;
        let normal = magnitude.wrapping_sub((base as u16) << 7);
        let significand = if field >= 1 { normal } else { (magnitude & 0x7f) | 0x80 };
        let dropped = (7 - F::LAYOUT.mantissa as u16).wrapping_add(denormal);
        let odd = significand.wrapping_shr(dropped.into()) & 1;
        let below_half = 1_u16.wrapping_shl(u32::from(dropped.wrapping_sub(1))).wrapping_sub(1);
        let rounded = significand.wrapping_add(below_half).wrapping_add(odd).wrapping_shr(dropped.into());
        let code = if rounded > F::LAYOUT.largest as u16 { beyond.into() } else { rounded };
        let code = if magnitude >= 0x7f80 { F::LAYOUT.infinite as u16 } else { code };
        let code = if magnitude > 0x7f80 { F::LAYOUT.nan as u16 } else { code };
        (code | ((bits >> 8) & 0x80)) as u8
    }

    #[inline(always)]
    fn decode<F: Narrow>(code: u8, exponent: i32) -> u16 {
        let magnitude = u16::from(code & 0x7f);
        let (mantissa, bias) = (F::LAYOUT.mantissa, F::LAYOUT.bias);
        let place = |power: i32, fraction: u16| ((127 + power) << 7) as u16 | fraction;
        let normal = (magnitude << (7 - mantissa)).wrapping_add(((127 - bias) << 7) as u16);
        // The one to three bits of a subnormal number, by its highest.
        let least = 1 - bias - mantissa as i32;
        let (one, two, four) =
            (place(least, 0), place(least + 1, (magnitude & 1) << 6), place(least + 2, (magnitude & 3) << 5));
        let small = if magnitude >= 2 { two } else { one };
        let small = if magnitude >= 4 { four } else { small };
        let unscaled = if magnitude >> mantissa == 0 { small } else { normal };
        let bits = unscaled.wrapping_add((exponent << 7) as u16);
        let bits = if magnitude == 0 { 0 } else { bits };
        let bits = if magnitude > F::LAYOUT.largest as u16 { 0x7f80 } else { bits };
        let nan = magnitude > F::LAYOUT.infinite as u16 || magnitude == F::LAYOUT.nan as u16;
        let bits = if nan { 0x7fc0 } else { bits };
        bits | u16::from(code & 0x80) << 8
    }
}

impl Wide for F16 {
    const SOURCE: Source = Source::F16;
    type Bits = u16;

    #[inline(always)]
    fn read(bytes: &[u8]) -> u16 {
        u16::from_ne_bytes([bytes[0], bytes[1]])
    }

    #[inline(always)]
    fn write(bits: u16, bytes: &mut [u8]) {
        bytes.copy_from_slice(&bits.to_ne_bytes());
    }

    #[inline(always)]
    fn from_u32(bits: u32) -> u16 {
        bits as u16
    }

    #[inline(always)]
    fn finite_magnitude(bits: u16) -> u16 {
        let magnitude = bits & 0x7fff;
        if magnitude < 0x7c00 { magnitude } else { 0 }
    }

    #[inline(always)]
    fn encode<F: Narrow>(bits: u16, exponent: i32, beyond: u8) -> u8 {
        let bits = u32::from(bits);
        encode_fp32::<F>(fp16_as_fp32(bits & 0x7fff) | (bits & 0x8000) << 16, exponent, beyond)
    }

    #[inline(always)]
    fn decode<F: Narrow>(code: u8, exponent: i32) -> u16 {
        let unscaled = narrow_as_fp32::<F>(code);
        let rounded = round_fp32::<10, 15>(unscaled, -exponent).min(0x7bff);
        let bits = if unscaled >= 0x7f80_0000 { 0x7c00 } else { rounded };
        let bits = if unscaled > 0x7f80_0000 { 0x7e00 } else { bits };
        bits as u16 | u16::from(code & 0x80) << 8
    }
}

impl Wide for F32 {
    const SOURCE: Source = Source::F32;
    type Bits = u32;

    #[inline(always)]
    fn read(bytes: &[u8]) -> u32 {
        u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
    }

    #[inline(always)]
    fn write(bits: u32, bytes: &mut [u8]) {
        bytes.copy_from_slice(&bits.to_ne_bytes());
    }

    #[inline(always)]
    fn from_u32(bits: u32) -> u32 {
        bits
    }

    #[inline(always)]
    fn finite_magnitude(bits: u32) -> u32 {
        let magnitude = bits & 0x7fff_ffff;
        if magnitude < 0x7f80_0000 { magnitude } else { 0 }
    }

    #[inline(always)]
    fn encode<F: Narrow>(bits: u32, exponent: i32, beyond: u8) -> u8 {
        encode_fp32::<F>(bits, exponent, beyond)
    }

    #[inline(always)]
    fn decode<F: Narrow>(code: u8, exponent: i32) -> u32 {
        let unscaled = narrow_as_fp32::<F>(code);
        let scaled = unscaled.wrapping_add((exponent as u32) << 23);
        let bits = if unscaled == 0 || unscaled >= 0x7f80_0000 { unscaled } else { scaled };
        bits | u32::from(code & 0x80) << 24
    }
}

/// An FP32 element's bits in `F`.
#[inline(always)]
fn encode_fp32<F: Narrow>(bits: u32, exponent: i32, beyond: u8) -> u8 {
    let magnitude = bits & 0x7fff_ffff;
    let rounded = match F::FORMAT {
        Format::E4m3 => round_fp32::<3, 7>(magnitude, exponent),
        Format::E5m2 => round_fp32::<2, 15>(magnitude, exponent),
    };
    let code = if rounded > F::LAYOUT.largest { beyond.into() } else { rounded };
    let code = if magnitude >= 0x7f80_0000 { F::LAYOUT.infinite } else { code };
    let code = if magnitude > 0x7f80_0000 { F::LAYOUT.nan } else { code };
    (code | (bits >> 24 & 0x80)) as u8
}

/// The magnitude · 2^−exponent to nearest even with this many bits and this bias.
#[inline(always)]
fn round_fp32<const MANTISSA: u32, const BIAS: i32>(magnitude: u32, exponent: i32) -> u32 {
    let base = 127 - BIAS + exponent;
    let field = ((magnitude >> 23) as i32).wrapping_sub(base);
    // From MANTISSA + 2 on, half of the smallest number is more than any significand of 24 bits.
    let denormal = 1_i32.wrapping_sub(field).clamp(0, MANTISSA as i32 + 2) as u32;
    let normal = magnitude.wrapping_sub((base as u32) << 23);
    let significand = if field >= 1 { normal } else { magnitude & 0x7f_ffff | 0x80_0000 };
    let dropped = (23 - MANTISSA).wrapping_add(denormal);
    let odd = significand.wrapping_shr(dropped) & 1;
    let below_half = 1_u32.wrapping_shl(dropped.wrapping_sub(1)).wrapping_sub(1);
    significand.wrapping_add(below_half).wrapping_add(odd).wrapping_shr(dropped)
}

/// The FP32 bits of an FP16 magnitude, exactly.
#[inline(always)]
fn fp16_as_fp32(magnitude: u32) -> u32 {
    let normal = (magnitude << 13).wrapping_add(112 << 23);
    // An integer of ten bits · 2^−24. The conversion is exact.
    let subnormal = (magnitude as i32 as f32).to_bits().wrapping_sub(24 << 23);
    let finite = if magnitude < 0x400 { subnormal } else { normal };
    let finite = if magnitude == 0 { 0 } else { finite };
    if magnitude >= 0x7c00 { (magnitude << 13) | 0x7f80_0000 } else { finite }
}

/// The FP32 bits of a stored magnitude, exactly; NaN as FP32's.
#[inline(always)]
fn narrow_as_fp32<F: Narrow>(code: u8) -> u32 {
    let (mantissa, bias) = (F::LAYOUT.mantissa, F::LAYOUT.bias);
    let magnitude = u32::from(code & 0x7f);
    let normal = (magnitude << (23 - mantissa)).wrapping_add(((127 - bias) as u32) << 23);
    let least = bias + mantissa as i32 - 1;
    let subnormal = (magnitude as i32 as f32).to_bits().wrapping_sub((least as u32) << 23);
    let finite = if magnitude >> mantissa == 0 { subnormal } else { normal };
    let finite = if magnitude == 0 { 0 } else { finite };
    let bits = if magnitude > F::LAYOUT.largest { 0x7f80_0000 } else { finite };
    let nan = magnitude > F::LAYOUT.infinite || magnitude == F::LAYOUT.nan;
    if nan { 0x7fc0_0000 } else { bits }
}

/// A run of elements of one scale.
#[inline(always)]
pub(super) fn encode_run<W: Wide, F: Narrow>(
    from: &[u8],
    exponent: i32,
    overflow: Overflow,
    values: &mut [u8],
) {
    if !EXPONENTS.contains(&exponent) {
        return encode_each::<W, F>(from, exponent, overflow, values);
    }
    let beyond = beyond(F::LAYOUT, overflow);
    for (element, value) in from.chunks_exact(W::SOURCE.bytes()).zip(values) {
        *value = W::encode::<F>(W::read(element), exponent, beyond);
    }
}

/// A run of stored elements of one scale.
#[inline(always)]
pub(super) fn decode_run<W: Wide, F: Narrow>(values: &[u8], exponent: i32, to: &mut [u8]) {
    if !EXPONENTS.contains(&exponent) {
        return decode_each::<W, F>(values, exponent, to);
    }
    for (element, &value) in to.chunks_exact_mut(W::SOURCE.bytes()).zip(values) {
        W::write(W::decode::<F>(value, exponent), element);
    }
}

/// The bits of the largest finite magnitude of a run.
#[inline(always)]
pub(super) fn peak<W: Wide>(from: &[u8]) -> W::Bits {
    let mut peak = W::Bits::default();
    for element in from.chunks_exact(W::SOURCE.bytes()) {
        peak = peak.max(W::finite_magnitude(W::read(element)));
    }
    peak
}

#[cold]
#[inline(never)]
fn encode_each<W: Wide, F: Narrow>(from: &[u8], exponent: i32, overflow: Overflow, values: &mut [u8]) {
    for (element, value) in from.chunks_exact(W::SOURCE.bytes()).zip(values) {
        *value = scalar::encode(W::read(element).into(), W::SOURCE, F::FORMAT, overflow, exponent);
    }
}

#[cold]
#[inline(never)]
fn decode_each<W: Wide, F: Narrow>(values: &[u8], exponent: i32, to: &mut [u8]) {
    for (element, &value) in to.chunks_exact_mut(W::SOURCE.bytes()).zip(values) {
        W::write(W::from_u32(scalar::decode(value, F::FORMAT, W::SOURCE, exponent)), element);
    }
}
