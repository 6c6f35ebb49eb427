//! Which instructions the host's casts use, chosen at run time.

use super::lanes::{AsE4m3, AsE5m2, Bf16, F16, F32};
use super::{CastShape, Format, Overflow, Source, host};

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;

/// Instructions that this processor has. All give the same bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Isa(Kind);

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Kind {
    #[cfg(target_arch = "x86_64")]
    Avx512,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    Baseline,
}

impl Isa {
    /// The widest.
    pub fn best() -> Self {
        Self::available().next().unwrap_or(Self(Kind::Baseline))
    }

    /// All of them, the widest first, the target's own (SSE2, NEON) last.
    pub fn available() -> impl Iterator<Item = Self> {
        [
            #[cfg(target_arch = "x86_64")]
            avx512::detected().then_some(Self(Kind::Avx512)),
            #[cfg(target_arch = "x86_64")]
            avx2::detected().then_some(Self(Kind::Avx2)),
            Some(Self(Kind::Baseline)),
        ]
        .into_iter()
        .flatten()
    }

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 => "avx512",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => "avx2",
            Kind::Baseline => "baseline",
        }
    }

    pub(super) fn quantize(self, job: Quantize<'_>) {
        match self.0 {
            // SAFETY: an `Isa` of this kind is made only where its instructions were detected.
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 => unsafe { avx512::quantize(job) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => unsafe { avx2::quantize(job) },
            Kind::Baseline => job.run(),
        }
    }

    pub(super) fn dequantize(self, job: Dequantize<'_>) {
        match self.0 {
            // SAFETY: an `Isa` of this kind is made only where its instructions were detected.
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 => unsafe { avx512::dequantize(job) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => unsafe { avx2::dequantize(job) },
            Kind::Baseline => job.run(),
        }
    }
}

/// A cast of checked buffers.
pub(super) struct Quantize<'a> {
    pub shape: &'a CastShape,
    pub format: Format,
    pub overflow: Overflow,
    pub from: &'a [u8],
    pub values: &'a mut [u8],
    pub scales: &'a mut [f32],
}

/// A cast back of checked buffers.
pub(super) struct Dequantize<'a> {
    pub shape: &'a CastShape,
    pub format: Format,
    pub values: &'a [u8],
    pub scales: &'a [f32],
    pub to: &'a mut [u8],
}

impl Quantize<'_> {
    #[inline(always)]
    fn run(self) {
        let Self { shape, format, overflow, from, values, scales } = self;
        match (shape.source(), format) {
            (Source::Bf16, Format::E4m3) => {
                host::quantize::<Bf16, AsE4m3>(shape, overflow, from, values, scales)
            }
            (Source::Bf16, Format::E5m2) => {
                host::quantize::<Bf16, AsE5m2>(shape, overflow, from, values, scales)
            }
            (Source::F16, Format::E4m3) => {
                host::quantize::<F16, AsE4m3>(shape, overflow, from, values, scales)
            }
            (Source::F16, Format::E5m2) => {
                host::quantize::<F16, AsE5m2>(shape, overflow, from, values, scales)
            }
            (Source::F32, Format::E4m3) => {
                host::quantize::<F32, AsE4m3>(shape, overflow, from, values, scales)
            }
            (Source::F32, Format::E5m2) => {
                host::quantize::<F32, AsE5m2>(shape, overflow, from, values, scales)
            }
        }
    }
}

impl Dequantize<'_> {
    #[inline(always)]
    fn run(self) {
        let Self { shape, format, values, scales, to } = self;
        match (shape.source(), format) {
            (Source::Bf16, Format::E4m3) => host::dequantize::<Bf16, AsE4m3>(shape, values, scales, to),
            (Source::Bf16, Format::E5m2) => host::dequantize::<Bf16, AsE5m2>(shape, values, scales, to),
            (Source::F16, Format::E4m3) => host::dequantize::<F16, AsE4m3>(shape, values, scales, to),
            (Source::F16, Format::E5m2) => host::dequantize::<F16, AsE5m2>(shape, values, scales, to),
            (Source::F32, Format::E4m3) => host::dequantize::<F32, AsE4m3>(shape, values, scales, to),
            (Source::F32, Format::E5m2) => host::dequantize::<F32, AsE5m2>(shape, values, scales, to),
        }
    }
}
