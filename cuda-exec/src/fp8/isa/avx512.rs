//! The walk compiled for AVX-512 (F, BW, VL, DQ): 64 bytes a step. What the planner counts, BF16 with a scale for each 128
//! elements of a row, is written out: a block stays in registers between its peak and its cast.

use core::arch::x86_64::*;

use bagualu_core::narrow::SCALE_BLOCK;

use super::{Dequantize, Quantize};
use crate::fp8::lanes::{AsE4m3, AsE5m2, Bf16, EXPONENTS, Narrow, encode_run, peak};
use crate::fp8::scalar::scale_exponent;
use crate::fp8::{Block, Format, Overflow, Scaling, Source, host};

/// Elements of a block that is written out.
const BLOCK: usize = SCALE_BLOCK as usize;

pub(super) fn detected() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512dq")
}

/// # Safety
/// - [`detected`] is true.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
pub(super) unsafe fn quantize(job: Quantize<'_>) {
    let blocks = Scaling::Blocks(Block { rows: 1, columns: BLOCK as u32 });
    let written_out = job.shape.scaling() == blocks && job.shape.columns().is_multiple_of(BLOCK);
    match (job.shape.source(), job.format) {
        (Source::Bf16, Format::E4m3) if written_out => blocks_of_bf16::<AsE4m3>(job),
        (Source::Bf16, Format::E5m2) if written_out => blocks_of_bf16::<AsE5m2>(job),
        _ => job.run(),
    }
}

/// # Safety
/// - [`detected`] is true.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
pub(super) unsafe fn dequantize(job: Dequantize<'_>) {
    job.run();
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
fn blocks_of_bf16<F: Narrow>(job: Quantize<'_>) {
    let Quantize { overflow, from, values, scales, .. } = job;
    let blocks = from.chunks_exact(2 * BLOCK).zip(values.chunks_exact_mut(BLOCK)).zip(scales);
    for ((from, values), scale) in blocks {
        host::ask_ahead(from);
        let words = [load(&from[..64]), load(&from[64..128]), load(&from[128..192]), load(&from[192..])];
        let largest = largest_magnitude(words);
        // The largest number starts with 1.75 · 2^top: what has a larger significand takes one power of two more.
        let top = F::LAYOUT.bias + if F::LAYOUT.mantissa == 3 { 1 } else { 0 };
        let exponent = i32::from(largest.wrapping_add(0x1f) >> 7) - 127 - top;
        if largest >= 0x7f80 || !EXPONENTS.contains(&exponent) {
            *scale = any_block::<F>(from, overflow, values);
            continue;
        }
        *scale = host::scale(exponent);
        let [a, b, c, d] = words;
        let (low, high) = values.split_at_mut(64);
        store(bytes(encode::<F>(a, exponent), encode::<F>(b, exponent)), low);
        store(bytes(encode::<F>(c, exponent), encode::<F>(d, exponent)), high);
    }
}

/// A block with numbers that are not finite, or near the ends of the range, or zeros alone.
#[cold]
#[inline(never)]
fn any_block<F: Narrow>(from: &[u8], overflow: Overflow, values: &mut [u8]) -> f32 {
    let exponent = scale_exponent(peak::<Bf16>(from).into(), Source::Bf16, F::FORMAT);
    encode_run::<Bf16, F>(from, exponent, overflow, values);
    host::scale(exponent)
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
fn load(bytes: &[u8]) -> __m512i {
    assert!(bytes.len() == 64);
    // SAFETY: 64 bytes are read, of any alignment.
    unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
fn store(what: __m512i, bytes: &mut [u8]) {
    assert!(bytes.len() == 64);
    // SAFETY: 64 bytes are written, of any alignment.
    unsafe { _mm512_storeu_si512(bytes.as_mut_ptr().cast(), what) }
}

/// The largest magnitude's bits, NaN's and infinity's included.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
fn largest_magnitude(words: [__m512i; 4]) -> u16 {
    let [a, b, c, d] = words;
    // Without the sign bit, which leads, doubled words compare as magnitudes do.
    let (a, b) = (_mm512_add_epi16(a, a), _mm512_add_epi16(b, b));
    let (c, d) = (_mm512_add_epi16(c, c), _mm512_add_epi16(d, d));
    let all = _mm512_max_epu16(_mm512_max_epu16(a, b), _mm512_max_epu16(c, d));
    let half = _mm256_max_epu16(_mm512_castsi512_si256(all), _mm512_extracti64x4_epi64::<1>(all));
    let quarter = _mm_max_epu16(_mm256_castsi256_si128(half), _mm256_extracti128_si256::<1>(half));
    // There is an instruction for the least word alone.
    let least = _mm_minpos_epu16(_mm_xor_si128(quarter, _mm_set1_epi16(-1)));
    !(_mm_cvtsi128_si32(least) as u16) >> 1
}

/// As [`lanes`](crate::fp8::lanes)' for BF16, of finite numbers that do not overflow, in 16 bits.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
fn encode<F: Narrow>(words: __m512i, exponent: i32) -> __m512i {
    let (mantissa, bias) = (F::LAYOUT.mantissa, F::LAYOUT.bias);
    // The exponent field of the format's least normal number; positive for all of `EXPONENTS`.
    let least = _mm512_set1_epi16((128 - bias + exponent) as i16);
    let field = _mm512_srli_epi16::<8>(_mm512_add_epi16(words, words));
    let (below, above) = (_mm512_subs_epu16(least, field), _mm512_subs_epu16(field, least));
    // (words & 0x7f) | 0x80
    let significand =
        _mm512_ternarylogic_epi64::<0xf8>(_mm512_set1_epi16(0x80), words, _mm512_set1_epi16(0x7f));
    let dropped = _mm512_add_epi16(below, _mm512_set1_epi16(7 - mantissa as i16));
    let even = _mm512_andnot_si512(_mm512_srlv_epi16(significand, dropped), _mm512_set1_epi16(1));
    let half = _mm512_sllv_epi16(_mm512_set1_epi16(1 << (6 - mantissa)), below);
    let rounded = _mm512_sub_epi16(_mm512_add_epi16(significand, half), even);
    let rounded = _mm512_srlv_epi16(rounded, dropped);
    let above = _mm512_sll_epi16(above, _mm_cvtsi32_si128(mantissa as i32));
    let code = _mm512_add_epi16(above, rounded);
    // code | (words >> 8 & 0x80)
    let sign = _mm512_srli_epi16::<8>(words);
    _mm512_ternarylogic_epi64::<0xf8>(code, sign, _mm512_set1_epi16(0x80))
}

/// The low bytes of 64 words that are less than 256.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
fn bytes(low: __m512i, high: __m512i) -> __m512i {
    let order = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
    _mm512_permutexvar_epi64(order, _mm512_packus_epi16(low, high))
}
