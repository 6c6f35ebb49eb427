//! The walk over blocks on the host, generic over source and format.

use super::lanes::{Narrow, Wide, decode_run, encode_run, peak};
use super::scalar::scale_exponent;
use super::{CastShape, Overflow, Scaling};

/// Casts a tensor. The lengths are right (checked by [`Cast`](super::Cast)).
#[inline(always)]
pub(super) fn quantize<W: Wide, F: Narrow>(
    shape: &CastShape,
    overflow: Overflow,
    from: &[u8],
    values: &mut [u8],
    scales: &mut [f32],
) {
    if shape.scaling() == Scaling::Unit {
        return encode_run::<W, F>(from, 0, overflow, values);
    }
    for (index, block) in blocks(shape).enumerate() {
        let mut largest = W::Bits::default();
        for run in block.runs() {
            largest = largest.max(peak::<W>(&from[run.bytes::<W>()]));
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
