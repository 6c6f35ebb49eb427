//! The walk over blocks on the host, generic over source and format.

use super::lanes::{Narrow, Wide, decode_run, encode_run, peak};
use super::scalar::scale_exponent;
use super::{CastShape, Overflow, Scaling};

/// Elements between two looks ahead.
const PIECE: usize = 512;
/// Bytes between what is read and what is asked for.
#[cfg(target_arch = "x86_64")]
const AHEAD: usize = 4_096;

/// Casts a tensor. The lengths are right (checked by [`Cast`](super::Cast)).
#[inline(always)]
pub(super) fn quantize<W: Wide, F: Narrow>(
    shape: &CastShape,
    overflow: Overflow,
    from: &[u8],
    values: &mut [u8],
    scales: &mut [f32],
) {
    let piece = PIECE * W::SOURCE.bytes();
    if shape.scaling() == Scaling::Unit {
        for (from, values) in from.chunks(piece).zip(values.chunks_mut(PIECE)) {
            ask_ahead(from);
            encode_run::<W, F>(from, 0, overflow, values);
        }
        return;
    }
    for (index, block) in blocks(shape).enumerate() {
        let mut largest = W::Bits::default();
        for run in block.runs() {
            for from in from[run.bytes::<W>()].chunks(piece) {
                ask_ahead(from);
                largest = largest.max(peak::<W>(from));
            }
        }
        let exponent = scale_exponent(largest.into(), W::SOURCE, F::FORMAT);
        scales[index] = scale(exponent);
        for run in block.runs() {
            encode_run::<W, F>(&from[run.bytes::<W>()], exponent, overflow, &mut values[run.elements()]);
        }
    }
}

/// Casts a tensor back. The lengths and the scales are right (checked by [`Cast`](super::Cast)).
#[inline(always)]
pub(super) fn dequantize<W: Wide, F: Narrow>(
    shape: &CastShape,
    values: &[u8],
    scales: &[f32],
    to: &mut [u8],
) {
    if shape.scaling() == Scaling::Unit {
        return decode_run::<W, F>(values, 0, to);
    }
    for (index, block) in blocks(shape).enumerate() {
        let exponent = exponent(scales[index]);
        for run in block.runs() {
            decode_run::<W, F>(&values[run.elements()], exponent, &mut to[run.bytes::<W>()]);
        }
    }
}

/// Asks for what will be read some time after `now`. Processors look ahead too little by themselves where there is as much to
/// compute as here.
#[inline(always)]
pub(super) fn ask_ahead(now: &[u8]) {
    #[cfg(target_arch = "x86_64")]
    for line in (0..now.len()).step_by(64) {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        let address = now.as_ptr().wrapping_add(AHEAD + line);
        // SAFETY: every x86-64 processor has the instruction, and a hint reads nothing, whatever the address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = now;
}

/// 2^exponent.
pub(super) fn scale(exponent: i32) -> f32 {
    f32::from_bits(((exponent + 127) as u32) << 23)
}

/// The exponent of a power of two.
fn exponent(scale: f32) -> i32 {
    (scale.to_bits() >> 23) as i32 - 127
}

/// A tile of the matrix: rows of elements that lie one after the other.
struct Tile {
    first: usize,
    rows: usize,
    width: usize,
    stride: usize,
}

/// Elements of one row of a tile.
struct Run {
    first: usize,
    width: usize,
}

/// The tiles in the order of their scales.
#[inline(always)]
fn blocks(shape: &CastShape) -> impl Iterator<Item = Tile> {
    let (rows, stride) = (shape.rows(), shape.columns());
    let (high, wide) = (shape.block_rows(), shape.block_columns());
    (0..rows).step_by(high).flat_map(move |row| {
        (0..stride).step_by(wide).map(move |column| Tile {
            first: row * stride + column,
            rows: high.min(rows - row),
            width: wide.min(stride - column),
            stride,
        })
    })
}

impl Tile {
    #[inline(always)]
    fn runs(&self) -> impl Iterator<Item = Run> {
        let (first, width, stride) = (self.first, self.width, self.stride);
        (0..self.rows).map(move |row| Run { first: first + row * stride, width })
    }
}

impl Run {
    #[inline(always)]
    fn elements(&self) -> core::ops::Range<usize> {
        self.first..self.first + self.width
    }

    #[inline(always)]
    fn bytes<W: Wide>(&self) -> core::ops::Range<usize> {
        let bytes = W::SOURCE.bytes();
        self.first * bytes..(self.first + self.width) * bytes
    }
}
