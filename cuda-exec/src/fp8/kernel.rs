//! The casts on a device: the source for its compiler, and what to launch.

use super::{Cast, Format, Scaling, Source};

/// The kernels' source, for NVRTC, nvcc, hiprtc and hipcc. It includes nothing. Compiled once, it has every
/// [`Launch::name`] as a C name.
pub const SOURCE: &str = include_str!("../../kernels/fp8.inc");

/// Lanes of a group of every launch (the source's `BAGUALU_THREADS`).
pub const THREADS: u32 = 256;

/// Elements that a lane moves at once (the source's `BAGUALU_WIDTH`).
const WIDTH: u64 = 8;
/// Groups beyond these take further turns.
const MOST_GROUPS: u64 = 1 << 16;
/// Elements of one piece of work where no scale divides the rows.
const PIECE: usize = 2_048;

/// A launch of a cast. The kernel's parameters are, in this order: the address of the wide elements, that of the stored
/// values, that of the scales (FP32; not used without scaling), and [`shape`](Self::shape) by value.
///
/// Any addresses do that are aligned to their elements; with 16 bytes for the wide elements and 8 for the values, and rows and
/// blocks of a multiple of 8 elements, a lane moves 8 elements at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Launch {
    /// The kernel's name.
    pub name: &'static str,
    /// Groups, in one dimension.
    pub grid: u32,
    /// Lanes of a group, in one dimension.
    pub threads: u32,
    /// The last parameter.
    pub shape: KernelShape,
}

/// What a kernel is told of the tensor: the source's `BagualuShape`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct KernelShape {
    /// Rows.
    pub rows: u64,
    /// Elements of a row.
    pub columns: u64,
    /// Rows of a block.
    pub block_rows: u64,
    /// Elements of a row of a block.
    pub block_columns: u64,
    /// Lanes for a block, a power of two up to [`THREADS`].
    pub team: u32,
    /// 0: without scales.
    pub scaled: u32,
    /// 0: overflow becomes what the format has for it.
    pub saturate: u32,
    /// 0.
    pub reserved: u32,
}

impl Cast {
    /// The launch that casts; `None` where there is nothing to cast.
    pub fn quantize_launch(&self) -> Option<Launch> {
        self.launch(quantize_name(self.shape.source(), self.format))
    }

    /// The launch that casts back; `None` where there is nothing to cast. Scales are taken as they are: whoever launches
    /// it answers for it that a cast wrote them.
    pub fn dequantize_launch(&self) -> Option<Launch> {
        self.launch(dequantize_name(self.shape.source(), self.format))
    }

    fn launch(&self, name: &'static str) -> Option<Launch> {
        let shape = &self.shape;
        if shape.elements() == 0 {
            return None;
        }
        let scaled = shape.scaling() != Scaling::Unit;
        let (rows, columns) = (shape.rows(), shape.columns());
        let block_rows = shape.block_rows().min(rows);
        let block_columns = if scaled { shape.block_columns() } else { PIECE.min(columns) };
        let lanes = (block_columns as u64).div_ceil(WIDTH).min(THREADS.into());
        let team = lanes.next_power_of_two() as u32;
        let blocks = rows.div_ceil(block_rows) as u64 * columns.div_ceil(block_columns) as u64;
        let grid = blocks.div_ceil((THREADS / team).into()).min(MOST_GROUPS) as u32;
        let shape = KernelShape {
            rows: rows as u64,
            columns: columns as u64,
            block_rows: block_rows as u64,
            block_columns: block_columns as u64,
            team,
            scaled: scaled.into(),
            saturate: (self.overflow == super::Overflow::Saturate).into(),
            reserved: 0,
        };
        Some(Launch { name, grid, threads: THREADS, shape })
    }
}

/// The names of all kernels of the source.
pub fn names() -> impl Iterator<Item = &'static str> {
    Source::ALL.into_iter().flat_map(|source| {
        Format::ALL
            .into_iter()
            .flat_map(move |format| [quantize_name(source, format), dequantize_name(source, format)])
    })
}

const fn quantize_name(source: Source, format: Format) -> &'static str {
    match (source, format) {
        (Source::Bf16, Format::E4m3) => "bagualu_quantize_bf16_e4m3",
        (Source::Bf16, Format::E5m2) => "bagualu_quantize_bf16_e5m2",
        (Source::F16, Format::E4m3) => "bagualu_quantize_f16_e4m3",
        (Source::F16, Format::E5m2) => "bagualu_quantize_f16_e5m2",
        (Source::F32, Format::E4m3) => "bagualu_quantize_f32_e4m3",
        (Source::F32, Format::E5m2) => "bagualu_quantize_f32_e5m2",
    }
}

const fn dequantize_name(source: Source, format: Format) -> &'static str {
    match (source, format) {
        (Source::Bf16, Format::E4m3) => "bagualu_dequantize_bf16_e4m3",
        (Source::Bf16, Format::E5m2) => "bagualu_dequantize_bf16_e5m2",
        (Source::F16, Format::E4m3) => "bagualu_dequantize_f16_e4m3",
        (Source::F16, Format::E5m2) => "bagualu_dequantize_f16_e5m2",
        (Source::F32, Format::E4m3) => "bagualu_dequantize_f32_e4m3",
        (Source::F32, Format::E5m2) => "bagualu_dequantize_f32_e5m2",
    }
}
