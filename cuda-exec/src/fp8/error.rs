//! Why a cast is refused.

use std::fmt;

use super::DType;

/// Why a tensor cannot be cast, or not into these buffers.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum CastError {
    /// Elements that are no activations in floating point.
    Unsupported {
        /// Their type.
        dtype: DType,
    },
    /// A dimension of stride 0: its elements are one element seen many times.
    Expanded {
        /// The dimension, from 0.
        dimension: usize,
        /// Its size.
        size: u64,
    },
    /// A view with gaps, or in another order than that of its storage.
    NotContiguous {
        /// The dimension, from 0.
        dimension: usize,
        /// Its stride, elements.
        stride: i64,
        /// The stride of a contiguous tensor.
        expected: u64,
    },
    /// As many strides as sizes are needed.
    Dimensions {
        /// Sizes given.
        sizes: usize,
        /// Strides given.
        strides: usize,
    },
    /// A block without rows or without columns.
    EmptyBlock {
        /// `"rows"` or `"columns"`.
        field: &'static str,
    },
    /// More bytes than this machine can address.
    TooLarge {
        /// Rows.
        rows: u64,
        /// Elements of a row.
        columns: u64,
    },
    /// A buffer of another length than the shape needs.
    Length {
        /// Which buffer.
        buffer: &'static str,
        /// Its length, bytes (of `scales`: scales).
        given: usize,
        /// What the shape needs.
        expected: usize,
    },
    /// A stored scale that no cast wrote: each is a power of two from 2^−126 to 2^127.
    Scale {
        /// The first such scale's index.
        index: usize,
        /// Its bits.
        bits: u32,
    },
}

impl fmt::Display for CastError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unsupported { dtype } => {
                write!(
                    f,
                    "dtype {dtype:?} is not stored in FP8; keep or offload it, or give BF16, F16 or F32"
                )
            }
            Self::Expanded { dimension, size } => write!(
                f,
                "strides[{dimension}] is 0 for a size of {size}: an expanded view; cast the storage behind it"
            ),
            Self::NotContiguous { dimension, stride, expected } => write!(
                f,
                "strides[{dimension}] is {stride}, a contiguous tensor has {expected}; cast a contiguous copy"
            ),
            Self::Dimensions { sizes, strides } => {
                write!(f, "{sizes} sizes and {strides} strides; give one stride for each size")
            }
            Self::EmptyBlock { field } => write!(f, "block {field} is 0; give at least 1"),
            Self::TooLarge { rows, columns } => {
                write!(
                    f,
                    "{rows} rows of {columns} elements exceed the address space; cast fewer rows at a time"
                )
            }
            Self::Length { buffer, given, expected } => {
                write!(f, "{buffer} has length {given}, its shape needs {expected}; give exactly that")
            }
            Self::Scale { index, bits } => write!(
                f,
                "scales[{index}] is {bits:#010x}, not a power of two; give the scales that the cast wrote"
            ),
        }
    }
}

impl std::error::Error for CastError {}
