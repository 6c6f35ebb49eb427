//! The casts without scaling against what PyTorch and ml_dtypes make of the same numbers (tests/fp8, written by
//! scripts/fp8-reference/make.py): every BF16 and FP16 number, chosen FP32 ones, every code back.
//!
//! PyTorch's CPU cast to E4M3 saturates since its pull request 178817, infinities too, where it used to write NaN as
//! ml_dtypes does; to E5M2 it never saturates. `Overflow::Nan` is ml_dtypes' cast with PyTorch's NaN,
//! `Overflow::Saturate` is either's cast after clamping finite numbers.

use bagualu_exec::fp8::{Cast, CastShape, Format, Isa, Overflow, Scaling, Source};

const TABLES: [(Source, Format, &str); 4] = [
    (Source::Bf16, Format::E4m3, include_str!("fp8/bf16-e4m3.txt")),
    (Source::Bf16, Format::E5m2, include_str!("fp8/bf16-e5m2.txt")),
    (Source::F16, Format::E4m3, include_str!("fp8/f16-e4m3.txt")),
    (Source::F16, Format::E5m2, include_str!("fp8/f16-e5m2.txt")),
];
const FP32: &str = include_str!("fp8/f32.txt");
const DECODED: &str = include_str!("fp8/decoded.txt");

#[test]
fn all_numbers_of_16_bits_become_what_others_make_of_them() {
    let all: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_ne_bytes).collect();
    for (source, format, table) in TABLES {
        let rows = runs(table);
        assert_eq!(rows.len(), 1 << 16);
        for isa in Isa::available() {
            let [saturated, nan] = Overflow::ALL.map(|overflow| cast(isa, source, format, overflow, &all));
            for (bits, row) in rows.iter().enumerate() {
                let [torch, ml_dtypes, torch_clamped, ml_dtypes_clamped] = *row;
                let (nan, saturated) = (nan[bits], saturated[bits]);
                let what = format!("{} {source:?} {bits:04x} {format:?}", isa.name());
                match class(bits as u32, source) {
                    Class::Finite => {
                        assert_eq!(nan, ml_dtypes, "{what}");
                        assert_eq!([saturated; 2], [torch_clamped, ml_dtypes_clamped], "{what}");
                        assert!(torch == nan || (format == Format::E4m3 && torch == saturated), "{what}");
                    }
                    Class::Infinite => assert_eq!([nan, saturated], [ml_dtypes; 2], "{what}"),
                    Class::Nan => assert_eq!([nan, saturated], [torch; 2], "{what}"),
                }
            }
        }
    }
}

#[test]
fn fp32_numbers_become_what_others_make_of_them() {
    let rows: Vec<Vec<u32>> = lines(FP32).collect();
    assert!(rows.len() > 3_000);
    for isa in Isa::available() {
        for (format, at) in [(Format::E4m3, 1), (Format::E5m2, 3)] {
            let from: Vec<u8> = rows.iter().flat_map(|row| row[0].to_ne_bytes()).collect();
            let [saturated, nan] =
                Overflow::ALL.map(|overflow| cast(isa, Source::F32, format, overflow, &from));
            for (index, row) in rows.iter().enumerate() {
                let (torch, ml_dtypes) = (row[at] as u8, row[at + 1] as u8);
                let (nan, saturated) = (nan[index], saturated[index]);
                let what = format!("{} {:08x} {format:?}", isa.name(), row[0]);
                match class(row[0], Source::F32) {
                    Class::Finite => {
                        assert_eq!(nan, ml_dtypes, "{what}");
                        assert!(torch == nan || (format == Format::E4m3 && torch == saturated), "{what}");
                    }
                    Class::Infinite => assert_eq!([nan, saturated], [ml_dtypes; 2], "{what}"),
                    Class::Nan => assert_eq!([nan, saturated], [torch; 2], "{what}"),
                }
            }
        }
    }
}

#[test]
fn all_codes_come_back_as_others_read_them() {
    let rows: Vec<Vec<u32>> = lines(DECODED).collect();
    assert_eq!(rows.len(), 256);
    let codes: Vec<u8> = (0..=255).collect();
    for isa in Isa::available() {
        for (format, first) in [(Format::E4m3, 1), (Format::E5m2, 4)] {
            for (source, at) in [(Source::F32, first), (Source::Bf16, first + 1), (Source::F16, first + 2)] {
                let decoded = cast_back(isa, source, format, &codes);
                for (row, bits) in rows.iter().zip(decoded) {
                    let what = format!("{} {format:?} {:02x} {source:?}: {bits:x}", isa.name(), row[0]);
                    match class(row[at], source) {
                        Class::Nan => assert!(class(bits, source) == Class::Nan, "{what}"),
                        _ => assert_eq!(bits, row[at], "{what}"),
                    }
                }
            }
        }
    }
}

fn cast(isa: Isa, source: Source, format: Format, overflow: Overflow, from: &[u8]) -> Vec<u8> {
    let elements = from.len() / source.bytes();
    let shape = CastShape::flat(elements as u64, Scaling::Unit, source).unwrap();
    let mut values = vec![0; elements];
    Cast { shape, format, overflow }.quantize_with(isa, from, &mut values, &mut []).unwrap();
    values
}

fn cast_back(isa: Isa, source: Source, format: Format, codes: &[u8]) -> Vec<u32> {
    let shape = CastShape::flat(codes.len() as u64, Scaling::Unit, source).unwrap();
    let mut to = vec![0; shape.source_bytes()];
    let cast = Cast { shape, format, overflow: Overflow::Nan };
    cast.dequantize_with(isa, codes, &[], &mut to).unwrap();
    to.chunks_exact(source.bytes())
        .map(|bytes| match *bytes {
            [a, b] => u16::from_ne_bytes([a, b]).into(),
            [a, b, c, d] => u32::from_ne_bytes([a, b, c, d]),
            _ => unreachable!(),
        })
        .collect()
}

#[derive(PartialEq)]
enum Class {
    Finite,
    Infinite,
    Nan,
}

fn class(bits: u32, source: Source) -> Class {
    let (magnitude, infinite) = match source {
        Source::Bf16 => (bits & 0x7fff, 0x7f80),
        Source::F16 => (bits & 0x7fff, 0x7c00),
        Source::F32 => (bits & 0x7fff_ffff, 0x7f80_0000),
    };
    match magnitude {
        _ if magnitude < infinite => Class::Finite,
        _ if magnitude == infinite => Class::Infinite,
        _ => Class::Nan,
    }
}

/// The codes of each input from 0 on.
fn runs(table: &str) -> Vec<[u8; 4]> {
    let mut rows: Vec<[u8; 4]> = Vec::new();
    for line in lines(table) {
        if let Some(&last) = rows.last() {
            rows.resize(line[0] as usize, last);
        }
        rows.push([1, 2, 3, 4].map(|column| line[column] as u8));
    }
    let last = *rows.last().unwrap();
    rows.resize(1 << 16, last);
    rows
}

fn lines(table: &str) -> impl Iterator<Item = Vec<u32>> {
    let hexadecimal = |word| u32::from_str_radix(word, 16).unwrap();
    table
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(move |line| line.split(' ').map(hexadecimal).collect())
}
