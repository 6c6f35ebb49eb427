//! Speed of the host's FP8 casts against a copy, as ratios measured in one run, in one thread.
//!
//! `cargo run --release -p bagualu-exec --example casts [bf16|f16|f32]...`
//!
//! A tensor of 64 MB of BF16 is copied, cast and cast back in [`SLICES`] slices, one operation over all slices before the next, so
//! that none finds its input in a near cache. Each slice counts with its fastest of [`RUNS`] runs, which leaves out the turns of
//! other programs; "one run" is the fastest run as a whole. benches/peers/torch_cast.py measures PyTorch's in the same two ways.

use std::hint::black_box;
use std::time::Instant;

use bagualu_exec::fp8::{Block, Cast, CastShape, Format, Isa, Overflow, Scaling, Source};

const COLUMNS: usize = 4_096;
const ROWS: usize = 8_192;
const SLICES: usize = 32;
const RUNS: usize = 15;

fn main() {
    let asked: Vec<String> = std::env::args().skip(1).collect();
    let wanted = |source: &Source| {
        asked.is_empty() || asked.iter().any(|name| name.eq_ignore_ascii_case(&format!("{source:?}")))
    };
    println!(
        "| instructions | source | to | a scale for | cast, GB/s | of a copy | back, GB/s | of a copy | cast, one run |"
    );
    println!("| --- | --- | --- | --- | ---: | ---: | ---: | ---: | ---: |");
    for source in Source::ALL.into_iter().filter(wanted) {
        for isa in Isa::available() {
            for format in Format::ALL {
                row(isa, source, format, Scaling::Blocks(Block::default()), "128");
                row(isa, source, format, Scaling::Blocks(Block::whole_rows(1)), "a row");
                row(isa, source, format, Scaling::Unit, "none");
            }
        }
    }
}

fn row(isa: Isa, source: Source, format: Format, scaling: Scaling, name: &str) {
    let shape =
        CastShape::new((ROWS / SLICES) as u64, COLUMNS as u64, scaling, source).expect("a fixed shape");
    let cast = Cast { shape, format, overflow: Overflow::Saturate };
    let from = activations(source);
    let mut to = vec![0; from.len()];
    let mut values = vec![0; ROWS * COLUMNS];
    let mut scales = vec![0.0; shape.scales().max(1) * SLICES];
    let [mut copy, mut out, mut back] = [[f64::INFINITY; SLICES]; 3];
    let (wide, scale) = (shape.source_bytes(), shape.scales());
    let mut one_run = f64::INFINITY;
    for _ in 0..RUNS {
        for (slice, best) in copy.iter_mut().enumerate() {
            let part = slice * wide..(slice + 1) * wide;
            fastest(best, || to[part.clone()].copy_from_slice(black_box(&from[part])));
        }
        let start = Instant::now();
        for (slice, best) in out.iter_mut().enumerate() {
            let values = &mut values[slice * shape.elements()..][..shape.elements()];
            let scales = &mut scales[slice * scale..][..scale];
            let from = black_box(&from[slice * wide..][..wide]);
            fastest(best, || cast.quantize_with(isa, from, values, scales).expect("its lengths"));
        }
        one_run = one_run.min(start.elapsed().as_secs_f64());
        for (slice, best) in back.iter_mut().enumerate() {
            let values = black_box(&values[slice * shape.elements()..][..shape.elements()]);
            let (scales, to) = (&scales[slice * scale..][..scale], &mut to[slice * wide..][..wide]);
            fastest(best, || cast.dequantize_with(isa, values, scales, to).expect("its lengths"));
        }
    }
    let rate = |bytes: usize, best: [f64; SLICES]| (bytes * SLICES) as f64 / best.iter().sum::<f64>() / 1e9;
    let copy = rate(2 * wide, copy);
    let [out, back] = [out, back].map(|best| rate(wide + shape.stored_bytes(), best));
    println!(
        "| {} | {source:?} | {format:?} | {name} | {out:.1} | {:.2} | {back:.1} | {:.2} | {:.1} |",
        isa.name(),
        out / copy,
        back / copy,
        ((wide + shape.stored_bytes()) * SLICES) as f64 / one_run / 1e9,
    );
}

fn fastest(best: &mut f64, work: impl FnOnce()) {
    let start = Instant::now();
    work();
    *best = best.min(start.elapsed().as_secs_f64());
}

/// Numbers of both signs over ten binades.
fn activations(source: Source) -> Vec<u8> {
    let mut state = 1_u32;
    let mut bytes = Vec::with_capacity(ROWS * COLUMNS * source.bytes());
    for _ in 0..ROWS * COLUMNS {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let (sign, fraction) = (state >> 31, state >> 8 & 0x7f_ffff);
        let below = fraction.trailing_zeros().min(10);
        match source {
            Source::Bf16 => {
                bytes.extend(((sign << 15 | (127 - below) << 7 | fraction >> 16) as u16).to_ne_bytes())
            }
            Source::F16 => {
                bytes.extend(((sign << 15 | (15 - below) << 10 | fraction >> 13) as u16).to_ne_bytes())
            }
            Source::F32 => bytes.extend((sign << 31 | (127 - below) << 23 | fraction).to_ne_bytes()),
        }
    }
    bytes
}
