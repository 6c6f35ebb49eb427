//! What is cast: element types, views and their blocks, parsed once into a [`CastShape`].

use bagualu_core::narrow::{SCALE_BLOCK, SCALE_BYTES};

use super::CastError;

/// The element types that tensors come with.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum DType {
    Bool,
    U8,
    I8,
    I16,
    I32,
    I64,
    E4m3,
    E5m2,
    F16,
    Bf16,
    F32,
    F64,
}

/// The element types that are stored in FP8. Bytes are in the machine's order.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Source {
    /// bfloat16.
    Bf16,
    /// IEEE binary16.
    F16,
    /// IEEE binary32.
    F32,
}

impl Source {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Bf16, Self::F16, Self::F32];

    /// Bytes of an element.
    pub const fn bytes(self) -> usize {
        match self {
            Self::Bf16 | Self::F16 => 2,
            Self::F32 => 4,
        }
    }
}

impl TryFrom<DType> for Source {
    type Error = CastError;

    /// Indices, masks and what is narrow already stay what they are; FP64 is no activation.
    fn try_from(dtype: DType) -> Result<Self, CastError> {
        match dtype {
            DType::Bf16 => Ok(Self::Bf16),
            DType::F16 => Ok(Self::F16),
            DType::F32 => Ok(Self::F32),
            _ => Err(CastError::Unsupported { dtype }),
        }
    }
}

/// A tensor as a framework describes it. Sizes and strides in elements, the last dimension is the row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TensorView<'a> {
    /// The element type.
    pub dtype: DType,
    /// The size of each dimension.
    pub sizes: &'a [u64],
    /// The stride of each dimension.
    pub strides: &'a [i64],
}

/// The elements that share one scale: a tile of a matrix. Tiles at the end of a row or of the rows are smaller.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Block {
    /// Rows of the tile.
    pub rows: u32,
    /// Elements of each of them.
    pub columns: u32,
}

impl Block {
    /// One scale for each `rows` whole rows.
    pub const fn whole_rows(rows: u32) -> Self {
        Self { rows, columns: u32::MAX }
    }
}

impl Default for Block {
    /// What the planner counts: [`SCALE_BLOCK`] elements of one row.
    fn default() -> Self {
        Self { rows: 1, columns: SCALE_BLOCK as u32 }
    }
}

/// How a tensor is scaled.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Scaling {
    /// A power of two for each block, from the block's largest magnitude.
    Blocks(Block),
    /// None: the elements as they are, as a framework's plain cast to FP8.
    Unit,
}

/// Rows and columns whose sizes fit the address space, of a type that is stored in FP8.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct CastShape {
    source: Source,
    rows: usize,
    columns: usize,
    scaling: Scaling,
    block_columns: usize,
}

impl CastShape {
    /// `rows` rows of `columns` elements. Rows may be 0: an expert may receive none.
    pub fn new(rows: u64, columns: u64, scaling: Scaling, source: Source) -> Result<Self, CastError> {
        if let Scaling::Blocks(Block { rows, columns }) = scaling
            && (rows == 0 || columns == 0)
        {
            return Err(CastError::EmptyBlock { field: if rows == 0 { "rows" } else { "columns" } });
        }
        let too_large = CastError::TooLarge { rows, columns };
        let addressable = |bytes: u64| isize::try_from(bytes).ok();
        // The widest of the buffers; scales of blocks of one element are as large.
        let bytes = rows.checked_mul(columns).and_then(|elements| elements.checked_mul(SCALE_BYTES));
        let (Some(_), Ok(rows), Ok(columns)) =
            (bytes.and_then(addressable), usize::try_from(rows), usize::try_from(columns))
        else {
            return Err(too_large);
        };
        let block_columns = match scaling {
            Scaling::Blocks(block) => columns.min(block.columns as usize).max(1),
            Scaling::Unit => columns.max(1),
        };
        Ok(Self { source, rows, columns, scaling, block_columns })
    }

    /// All elements as one row: what the planner counts for tensors whose bytes do not grow with the rows.
    pub fn flat(elements: u64, scaling: Scaling, source: Source) -> Result<Self, CastError> {
        Self::new(1, elements, scaling, source)
    }

    /// The last dimension is the columns, the others together are the rows.
    pub fn of(view: &TensorView<'_>, scaling: Scaling) -> Result<Self, CastError> {
        let source = Source::try_from(view.dtype)?;
        contiguous(view)?;
        let (&columns, outer) = view.sizes.split_last().unwrap_or((&1, &[]));
        let rows = outer.iter().try_fold(1_u64, |rows, &size| rows.checked_mul(size));
        let rows = rows.ok_or(CastError::TooLarge { rows: u64::MAX, columns })?;
        Self::new(rows, columns, scaling, source)
    }

    /// The element type before the cast, and again after the cast back.
    pub const fn source(&self) -> Source {
        self.source
    }

    /// Rows.
    pub const fn rows(&self) -> usize {
        self.rows
    }

    /// Elements of a row.
    pub const fn columns(&self) -> usize {
        self.columns
    }

    /// How it is scaled.
    pub const fn scaling(&self) -> Scaling {
        self.scaling
    }

    /// Elements, and so the bytes of the stored values.
    pub const fn elements(&self) -> usize {
        self.rows * self.columns
    }

    /// Bytes of the tensor before the cast.
    pub const fn source_bytes(&self) -> usize {
        self.elements() * self.source.bytes()
    }

    /// Scales stored, row of blocks by row of blocks; 0 without scaling.
    pub const fn scales(&self) -> usize {
        match self.scaling {
            Scaling::Unit => 0,
            Scaling::Blocks(_) => self.rows.div_ceil(self.block_rows()) * self.blocks_across(),
        }
    }

    /// Bytes stored: values and scales. With [`Block::default`] this is what the planner counts
    /// ([`bagualu_core::narrow::row_bytes`] of each row).
    pub const fn stored_bytes(&self) -> usize {
        self.elements() + self.scales() * SCALE_BYTES as usize
    }

    /// Rows of a block.
    pub(super) const fn block_rows(&self) -> usize {
        match self.scaling {
            Scaling::Blocks(block) => block.rows as usize,
            Scaling::Unit => 1,
        }
    }

    /// Elements of a row that are in one block.
    pub(super) const fn block_columns(&self) -> usize {
        self.block_columns
    }

    /// Blocks beside each other.
    pub(super) const fn blocks_across(&self) -> usize {
        self.columns.div_ceil(self.block_columns)
    }
}

/// Refuses views whose elements do not lie one after the other. The stride of a dimension of one element says nothing.
fn contiguous(view: &TensorView<'_>) -> Result<(), CastError> {
    let (sizes, strides) = (view.sizes, view.strides);
    if sizes.len() != strides.len() {
        return Err(CastError::Dimensions { sizes: sizes.len(), strides: strides.len() });
    }
    if sizes.contains(&0) {
        return Ok(());
    }
    let mut expected = 1_u64;
    for (dimension, (&size, &stride)) in sizes.iter().zip(strides).enumerate().rev() {
        if size > 1 && stride == 0 {
            return Err(CastError::Expanded { dimension, size });
        }
        if size > 1 && u64::try_from(stride) != Ok(expected) {
            return Err(CastError::NotContiguous { dimension, stride, expected });
        }
        expected = expected.saturating_mul(size);
    }
    Ok(())
}

#[cfg(test)]
mod tests;
