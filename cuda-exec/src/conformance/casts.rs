//! Casts to eight bits and back.

use super::Outcome;
use super::bench::{Bench, check, contents, fail, same};
use crate::device::DeviceError;
use crate::fp8::{Block, Cast, CastError, CastShape, Format, Overflow, Scaling, Source};

/// Rows and columns: none, few, not a multiple of anything, many.
const SIZES: [[u64; 2]; 6] = [[0, 64], [1, 1], [3, 127], [7, 129], [64, 1000], [5, 4096]];

pub(super) fn casts_are_those_of_the_host(bench: &Bench) -> Result<(), Outcome> {
    for source in Source::ALL {
        for format in Format::ALL {
            for overflow in Overflow::ALL {
                for scaling in
                    [Scaling::Unit, Scaling::Blocks(Block::default()), Scaling::Blocks(Block::whole_rows(2))]
                {
                    for [rows, columns] in SIZES {
                        let shape = CastShape::new(rows, columns, scaling, source).map_err(refused)?;
                        there_and_back(bench, &Cast { shape, format, overflow })?;
                    }
                }
            }
        }
    }
    Ok(())
}

fn there_and_back(bench: &Bench, cast: &Cast) -> Result<(), Outcome> {
    let shape = &cast.shape;
    let (wide, narrow, blocks) =
        (shape.source_bytes() as u64, shape.elements() as u64, shape.scales() as u64 * 4);
    let (source, values, scales, back) =
        (bench.pinned(wide)?, bench.pinned(narrow)?, bench.pinned(blocks)?, bench.pinned(wide)?);
    // Any bits: numbers of all sizes, subnormals, infinities and NaN among them.
    source.write(|to| contents(bench.options.seed ^ wide ^ narrow << 20, to));
    let (here, there) = (bench.memory(wide)?, bench.memory(wide)?);
    let (there_values, there_scales) = (bench.memory(narrow)?, bench.memory(blocks)?);
    let stream = bench.stream()?;
    bench.copy_in(*source, *here, *stream)?;
    // SAFETY: memory is declared before the stream, which runs empty before it goes.
    unsafe {
        bench.device().quantize(cast, *here, *there_values, *there_scales, *stream)?;
        bench.device().dequantize(cast, *there_values, *there_scales, *there, *stream)?;
    }
    bench.copy_out(*there_values, *values, *stream)?;
    bench.copy_out(*there_scales, *scales, *stream)?;
    bench.copy_out(*there, *back, *stream)?;
    bench.device().synchronize(*stream)?;

    let mut expected = vec![0; narrow as usize];
    let mut expected_scales = vec![0.0; shape.scales()];
    cast.quantize(&source.read(), &mut expected, &mut expected_scales).map_err(refused)?;
    let what = |part: &str| format!("{part} of {cast:?}");
    same(&values.read(), &expected, &what("values"))?;
    let scale_bytes: Vec<u8> = expected_scales.iter().flat_map(|scale| scale.to_ne_bytes()).collect();
    same(&scales.read(), &scale_bytes, &what("scales"))?;
    let mut expected_back = vec![0; wide as usize];
    cast.dequantize(&expected, &expected_scales, &mut expected_back).map_err(refused)?;
    same(&back.read(), &expected_back, &what("values cast back"))
}

pub(super) fn casts_of_other_lengths_are_refused(bench: &Bench) -> Result<(), Outcome> {
    let shape = CastShape::new(4, 128, Scaling::Blocks(Block::default()), Source::Bf16).map_err(refused)?;
    let cast = Cast { shape, format: Format::E4m3, overflow: Overflow::Saturate };
    let (wide, values, scales) = (bench.memory(1024)?, bench.memory(512)?, bench.memory(16)?);
    let stream = bench.stream()?;
    let lengths = [[1023, 512, 16], [1024, 511, 16], [1024, 512, 15]];
    for [wide_bytes, value_bytes, scale_bytes] in lengths {
        let parts = (wide.part(0, wide_bytes), values.part(0, value_bytes), scales.part(0, scale_bytes));
        let (Some(wide), Some(values), Some(scales)) = parts else {
            return Err(fail("a part inside a slice"));
        };
        // SAFETY: memory is declared before the stream, which runs empty before it goes.
        let (out, back) = unsafe {
            let out = bench.device().quantize(&cast, wide, values, scales, *stream);
            (out, bench.device().dequantize(&cast, values, scales, wide, *stream))
        };
        for outcome in [out, back] {
            match outcome {
                Err(error @ DeviceError::Unsupported { .. }) => return Err(error.into()),
                outcome => {
                    check(matches!(outcome, Err(DeviceError::Mismatch { .. })), "other lengths are refused")?
                }
            }
        }
    }
    Ok(())
}

fn refused(error: CastError) -> Outcome {
    fail(error.to_string())
}
