//! FP8 storage casts on the host.

use bagualu_exec::fp8::{Block, Cast, CastError, CastShape, DType, Format, Overflow, Scaling, TensorView};

use crate::arguments::{apart, config, elements, out_struct, own_size, room, versioned};
use crate::boundary::boundary;
use crate::status::{Failure, bagualu_status};

/// The element types that tensors come with; only the floating-point ones of 16 and 32 bits are cast.
#[repr(u32)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum bagualu_dtype {
    /// Masks.
    Bool = 0,
    /// Unsigned, 8 bits.
    U8 = 1,
    /// Signed, 8 bits.
    I8 = 2,
    /// Signed, 16 bits.
    I16 = 3,
    /// Signed, 32 bits.
    I32 = 4,
    /// Signed, 64 bits.
    I64 = 5,
    /// FP8 with four bits of exponent.
    E4m3 = 6,
    /// FP8 with five bits of exponent.
    E5m2 = 7,
    /// IEEE binary16.
    F16 = 8,
    /// bfloat16.
    Bf16 = 9,
    /// IEEE binary32.
    F32 = 10,
    /// IEEE binary64.
    F64 = 11,
}

/// Four bits of exponent, up to 448, no infinity.
pub const BAGUALU_FP8_E4M3: u32 = 0;
/// Five bits of exponent, up to 57344, with infinities.
pub const BAGUALU_FP8_E5M2: u32 = 1;

/// A finite number beyond the format's largest becomes that one.
pub const BAGUALU_OVERFLOW_SATURATE: u32 = 0;
/// It becomes what the format has instead: NaN in E4M3, infinity in E5M2.
pub const BAGUALU_OVERFLOW_NAN: u32 = 1;

/// A cast of one tensor to FP8 and back. `sizes` and `strides` count elements; the last dimension is the row. Expanded and
/// otherwise not contiguous views, integers and masks are refused.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct bagualu_cast {
    /// sizeof(bagualu_cast), set by the caller.
    pub struct_size: usize,
    /// A `bagualu_dtype`.
    pub dtype: u32,
    /// Dimensions.
    pub dimensions: u32,
    /// The size of each; read during the call.
    pub sizes: *const u64,
    /// The stride of each; NULL: contiguous.
    pub strides: *const i64,
    /// `BAGUALU_FP8_…`.
    pub format: u32,
    /// `BAGUALU_OVERFLOW_…`.
    pub overflow: u32,
    /// Rows that share a scale; 0 with `block_columns` 0: what the planner counts, one row.
    pub block_rows: u32,
    /// Elements of a row that share a scale; 0 with `block_rows` 0: what the planner counts; UINT32_MAX: whole rows.
    pub block_columns: u32,
    /// 1: no scales, elements are cast as they are; else 0.
    pub unscaled: u32,
    /// 0.
    pub reserved: u32,
}

versioned!(bagualu_cast, reserved);

/// What a cast reads and writes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct bagualu_cast_sizes {
    /// sizeof(bagualu_cast_sizes), set by the caller.
    pub struct_size: usize,
    /// Bytes of the tensor.
    pub source_bytes: u64,
    /// Bytes of the FP8 values.
    pub value_bytes: u64,
    /// Scales, 4 bytes each.
    pub scales: u64,
}

versioned!(bagualu_cast_sizes);

/// Most dimensions of a tensor.
const MOST_DIMENSIONS: u32 = 64;

/// Writes what a cast reads and writes.
///
/// Thread-safe.
///
/// # Safety
/// - Structs are NULL or have their `struct_size` set, and arrays as long as the dimensions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bagualu_cast_measure(
    cast: *const bagualu_cast,
    sizes: *mut bagualu_cast_sizes,
) -> bagualu_status {
    boundary(|| {
        // SAFETY: the contract of this function.
        let (cast, out) = unsafe { (parsed(cast)?, out_struct(sizes, "sizes")?) };
        out.set_struct(bagualu_cast_sizes {
            struct_size: own_size::<bagualu_cast_sizes>(),
            source_bytes: cast.shape.source_bytes() as u64,
            value_bytes: cast.shape.elements() as u64,
            scales: cast.shape.scales() as u64,
        });
        Ok(())
    })
}

/// Casts a tensor to FP8 in this thread: `from` to `values` and `scales`, which are as long as `bagualu_cast_measure` says.
/// Buffers that overlap are refused.
///
/// Thread-safe.
///
/// # Safety
/// - `cast` is NULL or a struct with its `struct_size` set; each buffer is NULL or has its bytes (scales: elements), and
///   what is written is nobody else's meanwhile. What is written need not hold values before.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bagualu_cast_quantize(
    cast: *const bagualu_cast,
    from: *const u8,
    from_bytes: usize,
    values: *mut u8,
    value_bytes: usize,
    scales: *mut f32,
    scale_count: usize,
) -> bagualu_status {
    boundary(|| {
        // SAFETY: the contract of this function.
        let cast = unsafe { parsed(cast) }?;
        let buffers = Buffers {
            wide: (from.addr(), from_bytes),
            values: (values.addr(), value_bytes),
            scales: (scales.addr(), scale_count),
        };
        buffers.check("from", &cast)?;
        // SAFETY: the contract of this function, and they do not overlap.
        let (from, values, scales) = unsafe {
            let values = room(values, value_bytes, "values")?;
            let scales = room(scales, scale_count, "scales")?;
            (elements(from, from_bytes, "from")?, values.zeroed(), scales.zeroed())
        };
        Ok(cast.quantize(from, values, scales)?)
    })
}

/// Casts back in this thread: `values` and `scales` to `to`. Buffers that overlap are refused; where a scale is,
/// `to` may be zeros.
///
/// Thread-safe.
///
/// # Safety
/// - As for `bagualu_cast_quantize`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bagualu_cast_dequantize(
    cast: *const bagualu_cast,
    values: *const u8,
    value_bytes: usize,
    scales: *const f32,
    scale_count: usize,
    to: *mut u8,
    to_bytes: usize,
) -> bagualu_status {
    boundary(|| {
        // SAFETY: the contract of this function.
        let cast = unsafe { parsed(cast) }?;
        let buffers = Buffers {
            wide: (to.addr(), to_bytes),
            values: (values.addr(), value_bytes),
            scales: (scales.addr(), scale_count),
        };
        buffers.check("to", &cast)?;
        // SAFETY: the contract of this function, and they do not overlap.
        let (values, scales, to) = unsafe {
            let values = elements(values, value_bytes, "values")?;
            let scales = elements(scales, scale_count, "scales")?;
            (values, scales, room(to, to_bytes, "to")?.zeroed())
        };
        Ok(cast.dequantize(values, scales, to)?)
    })
}

/// Address and elements of the buffers of a cast.
struct Buffers {
    wide: (usize, usize),
    values: (usize, usize),
    scales: (usize, usize),
}

impl Buffers {
    /// That they are as long as the cast needs, and lie apart; before anything is written.
    fn check(&self, wide: &str, cast: &Cast) -> Result<(), Failure> {
        let Self { wide: (wide_at, bytes), values: (values_at, values), scales: (scales_at, scales) } = *self;
        for (buffer, given, expected) in [
            ("source", bytes, cast.shape.source_bytes()),
            ("values", values, cast.shape.elements()),
            ("scales", scales, cast.shape.scales()),
        ] {
            if given != expected {
                return Err(CastError::Length { buffer, given, expected }.into());
            }
        }
        let scale_bytes = scales.saturating_mul(size_of::<f32>());
        apart(&[(wide, wide_at, bytes), ("values", values_at, values), ("scales", scales_at, scale_bytes)])
    }
}

/// # Safety
/// - `from` is NULL or a struct with its `struct_size` set and arrays as long as the dimensions.
pub(crate) unsafe fn parsed(from: *const bagualu_cast) -> Result<Cast, Failure> {
    // SAFETY: the contract of this function.
    let given = unsafe { config(from, "cast") }?;
    if given.dimensions > MOST_DIMENSIONS {
        let message = format!("dimensions is {}; at most {MOST_DIMENSIONS}", given.dimensions);
        return Err(Failure::new(bagualu_status::Count, message));
    }
    let count = given.dimensions as usize;
    // SAFETY: the contract of this function.
    let sizes: &[u64] = unsafe { elements(given.sizes, count, "sizes") }?;
    let mut contiguous = [0i64; MOST_DIMENSIONS as usize];
    let strides = match given.strides.is_null() {
        // SAFETY: the contract of this function.
        false => unsafe { elements(given.strides, count, "strides") }?,
        true => {
            let mut next = 1u64;
            for (stride, &size) in contiguous[..count].iter_mut().zip(sizes).rev() {
                *stride = i64::try_from(next).unwrap_or(i64::MAX);
                next = next.saturating_mul(size);
            }
            &contiguous[..count]
        }
    };
    let view = TensorView { dtype: dtype(given.dtype)?, sizes, strides };
    Ok(Cast {
        shape: CastShape::of(&view, given.scaling()?)?,
        format: match given.format {
            BAGUALU_FP8_E4M3 => Format::E4m3,
            BAGUALU_FP8_E5M2 => Format::E5m2,
            other => return Err(Failure::value("format", other, "give a BAGUALU_FP8_…")),
        },
        overflow: match given.overflow {
            BAGUALU_OVERFLOW_SATURATE => Overflow::Saturate,
            BAGUALU_OVERFLOW_NAN => Overflow::Nan,
            other => return Err(Failure::value("overflow", other, "give a BAGUALU_OVERFLOW_…")),
        },
    })
}

impl bagualu_cast {
    fn scaling(&self) -> Result<Scaling, Failure> {
        match (self.unscaled, self.block_rows, self.block_columns) {
            (0, 0, 0) => Ok(Scaling::Blocks(Block::default())),
            (0, rows, columns) => Ok(Scaling::Blocks(Block { rows, columns })),
            (1, 0, 0) => Ok(Scaling::Unit),
            (1, rows, _) => {
                Err(Failure::value("block_rows", rows, "without scales there is no block; give 0"))
            }
            (other, ..) => Err(Failure::value("unscaled", other, "give 0 or 1")),
        }
    }
}

fn dtype(number: u32) -> Result<DType, Failure> {
    const ALL: [DType; 12] = [
        DType::Bool,
        DType::U8,
        DType::I8,
        DType::I16,
        DType::I32,
        DType::I64,
        DType::E4m3,
        DType::E5m2,
        DType::F16,
        DType::Bf16,
        DType::F32,
        DType::F64,
    ];
    let found = ALL.get(number as usize).copied();
    found.ok_or_else(|| Failure::value("dtype", number, "give a bagualu_dtype, 0 to 11"))
}
