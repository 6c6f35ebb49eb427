//! The casts against their definition, and the definition against arithmetic.

use super::lanes::{AsE4m3, AsE5m2, Bf16, F16, F32, Narrow, Wide, decode_run, encode_run, peak};
use super::scalar::{self, LEAST_EXPONENT, scale_exponent};
use super::*;

/// Exponents of scales: both ends, both ends of [`lanes::EXPONENTS`], and those about 0.
fn exponents() -> impl Iterator<Item = i32> {
    [LEAST_EXPONENT, -101, -100, -99, -60, -25, 60, 99, 100, 101, 120].into_iter().chain(-16..=16)
}

/// Every number of 16 bits.
fn all_of_16_bits() -> Vec<u8> {
    (0..=u16::MAX).flat_map(u16::to_ne_bytes).collect()
}

/// FP32 numbers whose upper bits are all there are, with the lower bits that decide rounding.
fn many_of_32_bits() -> Vec<u8> {
    let lower = [0, 1, 0x7fff, 0x8000, 0xffff];
    (0..=u16::MAX)
        .map(|upper| u32::from(upper) << 16 | lower[usize::from(upper) % lower.len()])
        .flat_map(u32::to_ne_bytes)
        .collect()
}

#[test]
fn lanes_encode_as_the_definition() {
    fn compare<W: Wide, F: Narrow>(from: &[u8]) {
        let mut values = vec![0; from.len() / W::SOURCE.bytes()];
        for overflow in Overflow::ALL {
            for exponent in exponents() {
                encode_run::<W, F>(from, exponent, overflow, &mut values);
                for (element, &value) in from.chunks_exact(W::SOURCE.bytes()).zip(&values) {
                    let bits = W::read(element).into();
                    let expected = scalar::encode(bits, W::SOURCE, F::FORMAT, overflow, exponent);
                    let what = (W::SOURCE, F::FORMAT, overflow, exponent);
                    assert_eq!(value, expected, "{bits:x} {what:?}");
                }
            }
        }
    }
    let (short, long) = (all_of_16_bits(), many_of_32_bits());
    compare::<Bf16, AsE4m3>(&short);
    compare::<Bf16, AsE5m2>(&short);
    compare::<F16, AsE4m3>(&short);
    compare::<F16, AsE5m2>(&short);
    compare::<F32, AsE4m3>(&long);
    compare::<F32, AsE5m2>(&long);
}

#[test]
fn lanes_decode_as_the_definition() {
    fn compare<W: Wide, F: Narrow>() {
        let codes: Vec<u8> = (0..=255).collect();
        let mut to = vec![0; codes.len() * W::SOURCE.bytes()];
        for exponent in LEAST_EXPONENT..=127 {
            decode_run::<W, F>(&codes, exponent, &mut to);
            for (element, &code) in to.chunks_exact(W::SOURCE.bytes()).zip(&codes) {
                let bits: u32 = W::read(element).into();
                let expected = scalar::decode(code, F::FORMAT, W::SOURCE, exponent);
                assert_eq!(bits, expected, "{code:02x} {:?}", (F::FORMAT, W::SOURCE, exponent));
            }
        }
    }
    compare::<Bf16, AsE4m3>();
    compare::<Bf16, AsE5m2>();
    compare::<F16, AsE4m3>();
    compare::<F16, AsE5m2>();
    compare::<F32, AsE4m3>();
    compare::<F32, AsE5m2>();
}

/// Blocks whose numbers lie in a dozen binades under each exponent in turn; some hold what is not finite, some zeros alone.
#[test]
fn every_instruction_set_casts_blocks_as_the_definition() {
    const BLOCK: usize = 128;
    for source in Source::ALL {
        let layout = source.layout();
        let fields = layout.infinite >> layout.mantissa;
        let mut state = 1_u32;
        let mut random = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            state >> 8
        };
        let numbers: Vec<u32> = (0..4 * 257 * BLOCK as u32)
            .map(|index| {
                let (block, place) = (index / BLOCK as u32, index % BLOCK as u32);
                let sign = if random() % 2 == 0 { 0 } else { layout.sign };
                let field = (block % fields).saturating_sub(random() % 12);
                sign | match block % 31 {
                    7 => 0,
                    9 if place == 5 => layout.infinite,
                    11 if place == 77 => layout.nan,
                    _ => (field << layout.mantissa) | (random() % (1 << layout.mantissa)),
                }
            })
            .collect();
        let word = |bits: &u32| bits.to_ne_bytes().into_iter().take(source.bytes()).collect::<Vec<u8>>();
        let from: Vec<u8> = numbers.iter().flat_map(word).collect();
        let scaling = Scaling::Blocks(Block::default());
        let shape = CastShape::new(257, 4 * BLOCK as u64, scaling, source).unwrap();
        for (format, overflow) in [(Format::E4m3, Overflow::Saturate), (Format::E5m2, Overflow::Nan)] {
            let mut expected = (Vec::new(), Vec::new());
            for block in numbers.chunks(BLOCK) {
                let magnitudes = block.iter().map(|bits| bits & (layout.sign - 1));
                let peak = magnitudes.filter(|&bits| bits < layout.infinite).max().unwrap();
                let exponent = scale_exponent(peak, source, format);
                let codes =
                    block.iter().map(|&bits| scalar::encode(bits, source, format, overflow, exponent));
                expected.0.extend(codes);
                expected.1.push(2_f32.powi(exponent));
            }
            for isa in Isa::available() {
                let (mut values, mut scales) = (vec![0; shape.elements()], vec![0.0; shape.scales()]);
                let cast = Cast { shape, format, overflow };
                cast.quantize_with(isa, &from, &mut values, &mut scales).unwrap();
                let what = (isa, source, format);
                assert_eq!(scales, expected.1, "{what:?}");
                assert_eq!(values.iter().zip(&expected.0).position(|(a, b)| a != b), None, "{what:?}");
            }
        }
    }
}

/// Nearest of all numbers that the format has, found by trying them, the even code of two as near.
#[test]
fn the_definition_rounds_to_the_nearest_number() {
    for format in Format::ALL {
        let largest = format.layout().largest as u8;
        let numbers: Vec<f64> = (0..=largest).map(|code| number(code, format)).collect();
        for source in [Source::Bf16, Source::F16] {
            for exponent in [-20, 0, 3] {
                for bits in (0..source.layout().infinite).step_by(7) {
                    let scaled = wide(bits, source) * 2_f64.powi(-exponent);
                    let code = scalar::encode(bits, source, format, Overflow::Saturate, exponent);
                    let above = numbers.partition_point(|&number| number < scaled);
                    let nearest = match above {
                        0 => 0,
                        _ if above == numbers.len() => above - 1,
                        _ => {
                            let (under, over) = (scaled - numbers[above - 1], numbers[above] - scaled);
                            if under < over || (under == over && above % 2 == 1) { above - 1 } else { above }
                        }
                    };
                    assert_eq!(usize::from(code), nearest, "{bits:x} {:?}", (source, format, exponent));
                }
            }
        }
    }
}

#[test]
fn a_number_comes_back_within_half_a_step_of_its_block() {
    for format in Format::ALL {
        let half_step = 0.5 / f64::from(1 << format.layout().mantissa);
        for bits in (0x0400..Source::F16.layout().infinite).step_by(3) {
            let exponent = scale_exponent(bits, Source::F16, format);
            let code = scalar::encode(bits, Source::F16, format, Overflow::Saturate, exponent);
            let back = wide(scalar::decode(code, format, Source::F16, exponent), Source::F16);
            let number = wide(bits, Source::F16);
            assert!((back - number).abs() <= half_step * number, "{number} came back as {back}");
        }
    }
}

/// The least power of two with which the peak is not beyond the largest number.
#[test]
fn scales_are_the_least_that_fit() {
    for source in Source::ALL {
        for format in Format::ALL {
            let largest = number(format.layout().largest as u8, format);
            let shift = if source == Source::F32 { 16 } else { 0 };
            for peak in 1..source.layout().infinite >> shift {
                let peak = peak << shift | 1;
                let exponent = scale_exponent(peak, source, format);
                let fits = |exponent: i32| wide(peak, source) <= largest * 2_f64.powi(exponent);
                let what = (source, format, exponent);
                assert!(fits(exponent), "{peak:x} {what:?}");
                assert!(!fits(exponent - 1) || exponent == LEAST_EXPONENT, "{peak:x} {what:?}");
                assert!(exponent <= 120, "{peak:x} {what:?}");
            }
            assert_eq!(scale_exponent(0, source, format), 0);
        }
    }
}

#[test]
fn what_is_not_finite_does_not_count_for_the_peak() {
    let from: Vec<u8> =
        [0x3f80_u16, 0xff80, 0x7fc0, 0xc000, 0x7f80].into_iter().flat_map(u16::to_ne_bytes).collect();
    assert_eq!(peak::<Bf16>(&from), 0x4000);
    assert_eq!(peak::<F16>(&from), 0x4000);
    assert_eq!(peak::<F32>(&[0; 0]), 0);
}

#[test]
fn blocks_keep_what_is_not_finite_and_scale_the_rest() {
    // 1.0, infinity, NaN, −2.0 in BF16, then a block of zeros.
    let from: Vec<u8> = [0x3f80_u16, 0x7f80, 0x7fc1, 0xc000, 0, 0x8000, 0, 0]
        .into_iter()
        .flat_map(u16::to_ne_bytes)
        .collect();
    let scaling = Scaling::Blocks(Block { rows: 1, columns: 4 });
    let shape = CastShape::new(1, 8, scaling, Source::Bf16).unwrap();
    for (format, infinite, exponent) in [(Format::E4m3, 0x7f, -7), (Format::E5m2, 0x7c, -14)] {
        for overflow in Overflow::ALL {
            let cast = Cast { shape, format, overflow };
            let (mut values, mut scales, mut back) = ([0; 8], [0.0; 2], [0; 16]);
            cast.quantize(&from, &mut values, &mut scales).unwrap();
            assert_eq!(scales, [2_f32.powi(exponent), 1.0]);
            assert_eq!([values[1], values[2], values[4], values[5]], [infinite, 0x7f, 0, 0x80]);
            cast.dequantize(&values, &scales, &mut back).unwrap();
            let infinite = if format == Format::E4m3 { 0x7fc0_u16 } else { 0x7f80 };
            let expected = [0x3f80, infinite, 0x7fc0, 0xc000, 0, 0x8000, 0, 0].map(u16::to_ne_bytes);
            assert_eq!(back, *expected.as_flattened());
        }
    }
}

#[test]
fn the_largest_number_stays_finite() {
    for source in Source::ALL {
        let largest = source.layout().largest;
        for format in Format::ALL {
            let exponent = scale_exponent(largest, source, format);
            let code = scalar::encode(largest, source, format, Overflow::Nan, exponent);
            assert_eq!(scalar::decode(code, format, source, exponent), largest);
        }
    }
}

#[test]
fn wrong_buffers_and_scales_are_refused() {
    let shape = CastShape::new(2, 128, Scaling::Blocks(Block::default()), Source::F16).unwrap();
    let cast = Cast { shape, format: Format::E4m3, overflow: Overflow::Saturate };
    let (from, mut values, mut scales) = ([0; 512], [0; 256], [1.0; 2]);
    let length = |buffer, given, expected| Err(CastError::Length { buffer, given, expected });
    assert_eq!(cast.quantize(&from[1..], &mut values, &mut scales), length("source", 511, 512));
    assert_eq!(cast.quantize(&from, &mut values[1..], &mut scales), length("values", 255, 256));
    assert_eq!(cast.quantize(&from, &mut values, &mut scales[1..]), length("scales", 1, 2));
    for wrong in [0.0, -1.0, 3.0, f32::INFINITY, f32::NAN, 1e-40] {
        let result = cast.dequantize(&values, &[1.0, wrong], &mut [0; 512]);
        assert_eq!(result, Err(CastError::Scale { index: 1, bits: wrong.to_bits() }));
    }
}

/// The number of a finite code without its sign, from the format's definition.
fn number(code: u8, format: Format) -> f64 {
    let (mantissa, bias) = match format {
        Format::E4m3 => (3, 7),
        Format::E5m2 => (2, 15),
    };
    let fraction = f64::from(code & ((1 << mantissa) - 1)) / f64::from(1 << mantissa);
    match i32::from(code >> mantissa) {
        0 => fraction * 2_f64.powi(1 - bias),
        field => (1.0 + fraction) * 2_f64.powi(field - bias),
    }
}

/// The number of a source's bits.
fn wide(bits: u32, source: Source) -> f64 {
    match source {
        Source::F32 => f32::from_bits(bits).into(),
        Source::Bf16 => f32::from_bits(bits << 16).into(),
        Source::F16 => {
            let (field, fraction) = (bits as i32 >> 10 & 31, f64::from(bits & 0x3ff) / 1024.0);
            match field {
                0 => fraction * 2_f64.powi(-14),
                _ => (1.0 + fraction) * 2_f64.powi(field - 15),
            }
        }
    }
}

#[test]
fn sizes_without_elements_are_not_walked() {
    let scalings =
        [Scaling::Unit, Scaling::Blocks(Block::default()), Scaling::Blocks(Block { rows: 1, columns: 1 })];
    for (rows, columns) in [(1 << 60, 0), (u64::MAX, 0), (0, 1 << 60), (0, u64::MAX), (0, 0)] {
        for (scaling, source) in
            scalings.into_iter().flat_map(|scaling| Source::ALL.map(|source| (scaling, source)))
        {
            let Ok(shape) = CastShape::new(rows, columns, scaling, source) else {
                assert_eq!(usize::try_from(rows.max(columns)).ok(), None, "{rows} by {columns}");
                continue;
            };
            let cast = Cast { shape, format: Format::E4m3, overflow: Overflow::Nan };
            assert_eq!((shape.source_bytes(), shape.stored_bytes()), (0, 0));
            for isa in Isa::available() {
                cast.quantize_with(isa, &[], &mut [], &mut []).expect("nothing to cast");
                cast.dequantize_with(isa, &[], &[], &mut []).expect("nothing to cast");
            }
            assert_eq!(cast.quantize_launch(), None);
            assert!(cast.quantize(&[0], &mut [], &mut []).is_err(), "lengths are still compared");
        }
    }
}
