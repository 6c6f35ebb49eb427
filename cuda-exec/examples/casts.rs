//! Speed of the host's FP8 casts against a copy, as ratios measured in one run.
//!
//! `cargo run --release -p bagualu-exec --example casts [bf16|f16|f32]...`

use std::hint::black_box;
use std::time::Instant;

use bagualu_exec::fp8::{Block, Cast, CastShape, Format, Isa, Overflow, Scaling, Source};

/// Elements of BF16 in 64 MB.
const COLUMNS: u64 = 4_096;
const ROWS: u64 = 8_192;
const RUNS: usize = 15;

fn main() {
    let asked: Vec<String> = std::env::args().skip(1).collect();
    let wanted = |source: &Source| {
        asked.is_empty() || asked.iter().any(|name| name.eq_ignore_ascii_case(&format!("{source:?}")))
    };
    let mut table = Table::new();
    for source in Source::ALL.into_iter().filter(wanted) {
        for isa in Isa::available() {
            for format in Format::ALL {
                table.row(isa, source, format, Scaling::Unit, "unit");
                table.row(isa, source, format, Scaling::Blocks(Block::default()), "1 × 128");
                table.row(isa, source, format, Scaling::Blocks(Block::whole_rows(1)), "1 row");
            }
        }
    }
}

struct Table;

impl Table {
    fn new() -> Self {
        println!(
            "| instructions | source | to | scale for | cast, GB/s | of a copy | back, GB/s | of a copy |"
        );
        println!("| --- | --- | --- | --- | ---: | ---: | ---: | ---: |");
        Self
    }

    fn row(&mut self, isa: Isa, source: Source, format: Format, scaling: Scaling, name: &str) {
        let shape = CastShape::new(ROWS, COLUMNS, scaling, source).expect("a fixed shape");
        let cast = Cast { shape, format, overflow: Overflow::Saturate };
        let from = activations(source, shape.elements());
        let mut to = vec![0; from.len()];
        let mut values = vec![0; shape.elements()];
        let mut scales = vec![0.0; shape.scales()];
        let [mut copy, mut out, mut back] = [f64::INFINITY; 3];
        for _ in 0..RUNS {
            copy = copy.min(seconds(|| to.copy_from_slice(black_box(&from))));
            out = out.min(seconds(|| {
                cast.quantize_with(isa, black_box(&from), &mut values, &mut scales).expect("its lengths");
            }));
            back = back.min(seconds(|| {
                cast.dequantize_with(isa, black_box(&values), &scales, &mut to).expect("its lengths");
            }));
        }
        let copied = 2 * from.len();
        let moved = from.len() + shape.stored_bytes();
        let gbs = |bytes: usize, seconds: f64| bytes as f64 / seconds / 1e9;
        let copy = gbs(copied, copy);
        println!(
            "| {} | {source:?} | {format:?} | {name} | {:.1} | {:.2} | {:.1} | {:.2} |",
            isa.name(),
            gbs(moved, out),
            gbs(moved, out) / copy,
            gbs(moved, back),
            gbs(moved, back) / copy,
        );
    }
}

fn seconds(work: impl FnOnce()) -> f64 {
    let start = Instant::now();
    work();
    start.elapsed().as_secs_f64()
}

/// Numbers of both signs over ten binades.
fn activations(source: Source, elements: usize) -> Vec<u8> {
    let mut state = 1_u32;
    let mut bytes = Vec::with_capacity(elements * source.bytes());
    for _ in 0..elements {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let (sign, random) = (state >> 31, state >> 8 & 0x7f_ffff);
        let exponent = 10 - (state >> 8).trailing_zeros().min(10);
        match source {
            Source::Bf16 => {
                bytes.extend(((sign << 15 | (117 + exponent) << 7 | random >> 16) as u16).to_ne_bytes())
            }
            Source::F16 => {
                bytes.extend(((sign << 15 | (5 + exponent) << 10 | random >> 13) as u16).to_ne_bytes())
            }
            Source::F32 => bytes.extend((sign << 31 | (117 + exponent) << 23 | random).to_ne_bytes()),
        }
    }
    bytes
}
