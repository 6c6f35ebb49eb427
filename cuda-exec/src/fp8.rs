//! Storage in eight bits (§IV-B, Quantize): a saved tensor is cast to FP8 with a scale for each block of a row, and back
//! before it is used.
//!
//! ```text
//! shape (a view, parsed) ──► Cast ──► host: lanes, compiled per instruction set (isa)
//!                                └──► kernel: the source for a device's compiler, and its launch
//! ```
//!
//! All paths give the same bits: `scalar` defines them, and tests compare the others with it. The scale of a block is the
//! least power of two, at least 2^−126, by which the block's largest finite magnitude fits the format, so scaling never
//! rounds; a block of zeros has 1. Rounding is to nearest, ties to even. NaN and infinities stay what they are and do not
//! count for the scale; E4M3 has no infinity and stores NaN.

mod error;
mod host;
mod isa;
pub mod kernel;
mod lanes;
mod scalar;
mod shape;

pub use error::CastError;
pub use isa::Isa;
pub use shape::{Block, CastShape, DType, Scaling, Source, TensorView};

/// A format of eight bits (OCP 8-bit floating point, revision 1.0).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Format {
    /// Four bits of exponent, three of significand, up to 448; no infinity (PyTorch's `float8_e4m3fn`).
    E4m3,
    /// Five bits of exponent, two of significand, up to 57,344; with infinities.
    E5m2,
}

impl Format {
    /// Both.
    pub const ALL: [Self; 2] = [Self::E4m3, Self::E5m2];
}

/// What becomes of a finite number that rounds beyond the format's largest.
///
/// With a scale per block none does. Infinities are not finite: both keep them (E4M3: NaN).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Overflow {
    /// The largest number.
    Saturate,
    /// What the format has instead: NaN in E4M3, infinity in E5M2.
    Nan,
}

impl Overflow {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Saturate, Self::Nan];
}

/// A cast of tensors of one shape, out and back.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Cast {
    /// What is cast.
    pub shape: CastShape,
    /// What to.
    pub format: Format,
    /// What overflow becomes.
    pub overflow: Overflow,
}

impl Cast {
    /// Casts on the host, in this thread: `from` ([`CastShape::source_bytes`]) to `values` ([`CastShape::elements`]) and
    /// `scales` ([`CastShape::scales`]). Allocates nothing; `from` may have any alignment.
    pub fn quantize(&self, from: &[u8], values: &mut [u8], scales: &mut [f32]) -> Result<(), CastError> {
        self.quantize_with(Isa::best(), from, values, scales)
    }

    /// [`quantize`](Self::quantize) with given instructions.
    pub fn quantize_with(
        &self,
        isa: Isa,
        from: &[u8],
        values: &mut [u8],
        scales: &mut [f32],
    ) -> Result<(), CastError> {
        let Self { ref shape, format, overflow } = *self;
        self.check(from.len(), values.len(), scales.len())?;
        // Sizes may be 2^60 and 0, whose rows nobody can walk.
        if shape.elements() == 0 {
            return Ok(());
        }
        isa.quantize(isa::Quantize { shape, format, overflow, from, values, scales });
        Ok(())
    }

    /// Casts back on the host, in this thread. What is finite stays finite: beyond the source type's largest number it
    /// becomes that one.
    pub fn dequantize(&self, values: &[u8], scales: &[f32], to: &mut [u8]) -> Result<(), CastError> {
        self.dequantize_with(Isa::best(), values, scales, to)
    }

    /// [`dequantize`](Self::dequantize) with given instructions.
    pub fn dequantize_with(
        &self,
        isa: Isa,
        values: &[u8],
        scales: &[f32],
        to: &mut [u8],
    ) -> Result<(), CastError> {
        let Self { ref shape, format, .. } = *self;
        self.check(to.len(), values.len(), scales.len())?;
        if shape.elements() == 0 {
            return Ok(());
        }
        if let Some(index) = scales.iter().position(|scale| !is_scale(*scale)) {
            return Err(CastError::Scale { index, bits: scales[index].to_bits() });
        }
        isa.dequantize(isa::Dequantize { shape, format, values, scales, to });
        Ok(())
    }

    fn check(&self, source: usize, values: usize, scales: usize) -> Result<(), CastError> {
        let shape = &self.shape;
        for (buffer, given, expected) in [
            ("source", source, shape.source_bytes()),
            ("values", values, shape.elements()),
            ("scales", scales, shape.scales()),
        ] {
            if given != expected {
                return Err(CastError::Length { buffer, given, expected });
            }
        }
        Ok(())
    }
}

/// A power of two that is a normal number.
fn is_scale(scale: f32) -> bool {
    scale.is_normal() && scale.to_bits() & 0x807f_ffff == 0
}

#[cfg(test)]
mod tests;
