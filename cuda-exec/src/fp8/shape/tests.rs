//! What shapes are accepted, and that their bytes are those that the planner counts.

use bagualu_core::narrow::row_bytes;

use super::*;

const BLOCKS: Scaling = Scaling::Blocks(Block { rows: 1, columns: 128 });

fn view<'a>(dtype: DType, sizes: &'a [u64], strides: &'a [i64]) -> TensorView<'a> {
    TensorView { dtype, sizes, strides }
}

#[test]
fn stored_bytes_are_what_the_planner_counts() {
    for columns in [1, 64, 127, 128, 129, 1_408, 7_168] {
        let row = row_bytes(columns).unwrap();
        for rows in [0, 1, 3, 4_096] {
            let shape = CastShape::new(rows, columns, BLOCKS, Source::Bf16).unwrap();
            assert_eq!(shape.stored_bytes() as u64, rows * row, "{rows} rows of {columns}");
        }
        let flat = CastShape::flat(3 * columns, BLOCKS, Source::Bf16).unwrap();
        assert_eq!(Some(flat.stored_bytes() as u64), row_bytes(3 * columns));
    }
}

#[test]
fn larger_blocks_store_fewer_scales() {
    let bytes = |block| CastShape::new(100, 300, Scaling::Blocks(block), Source::F32).unwrap().stored_bytes();
    assert_eq!(bytes(Block::default()), 30_000 + 4 * 300);
    assert_eq!(bytes(Block { rows: 3, columns: 128 }), 30_000 + 4 * 34 * 3);
    assert_eq!(bytes(Block::whole_rows(1)), 30_000 + 4 * 100);
    assert_eq!(bytes(Block::whole_rows(u32::MAX)), 30_000 + 4);
    let unit = CastShape::new(100, 300, Scaling::Unit, Source::F32).unwrap();
    assert_eq!((unit.stored_bytes(), unit.scales()), (30_000, 0));
}

#[test]
fn contiguous_views_are_rows_of_their_last_dimension() {
    let sides = |sizes: &[u64], strides: &[i64]| {
        let shape = CastShape::of(&view(DType::Bf16, sizes, strides), BLOCKS).unwrap();
        (shape.rows(), shape.columns())
    };
    assert_eq!(sides(&[2, 3, 4], &[12, 4, 1]), (6, 4));
    assert_eq!(sides(&[5], &[1]), (1, 5));
    assert_eq!(sides(&[], &[]), (1, 1));
    assert_eq!(sides(&[0, 4], &[7, 0]), (0, 4));
    // The stride of a dimension of one element says nothing, not even when it is 0.
    assert_eq!(sides(&[1, 3, 1, 4], &[0, 4, -9, 1]), (3, 4));
}

#[test]
fn other_views_are_refused() {
    let refused = |sizes: &[u64], strides: &[i64]| {
        CastShape::of(&view(DType::Bf16, sizes, strides), BLOCKS).unwrap_err()
    };
    assert_eq!(refused(&[2, 3, 4], &[4, 0, 1]), CastError::Expanded { dimension: 1, size: 3 });
    assert_eq!(refused(&[3, 4], &[1, 3]), CastError::NotContiguous { dimension: 1, stride: 3, expected: 1 });
    assert_eq!(refused(&[3, 4], &[8, 1]), CastError::NotContiguous { dimension: 0, stride: 8, expected: 4 });
    assert_eq!(refused(&[4], &[-1]), CastError::NotContiguous { dimension: 0, stride: -1, expected: 1 });
    assert_eq!(refused(&[3, 4], &[1]), CastError::Dimensions { sizes: 2, strides: 1 });
}

#[test]
fn indices_masks_and_narrow_types_are_refused() {
    use DType::*;
    for dtype in [Bool, U8, I8, I16, I32, I64, E4m3, E5m2, F64] {
        let refused = CastShape::of(&view(dtype, &[4], &[1]), BLOCKS);
        assert_eq!(refused, Err(CastError::Unsupported { dtype }));
    }
    for (dtype, source) in [(Bf16, Source::Bf16), (F16, Source::F16), (F32, Source::F32)] {
        assert_eq!(CastShape::of(&view(dtype, &[4], &[1]), BLOCKS).unwrap().source(), source);
    }
}

#[test]
fn impossible_sizes_are_refused() {
    let refused = |rows, columns, block| {
        CastShape::new(rows, columns, Scaling::Blocks(block), Source::Bf16).unwrap_err()
    };
    let (rows, columns) = (1 << 32, 1 << 32);
    assert_eq!(refused(rows, columns, Block::default()), CastError::TooLarge { rows, columns });
    let (rows, columns) = (1, 1 << 61);
    assert_eq!(refused(rows, columns, Block::default()), CastError::TooLarge { rows, columns });
    assert_eq!(refused(1, 1, Block { rows: 0, columns: 1 }), CastError::EmptyBlock { field: "rows" });
    assert_eq!(refused(1, 1, Block { rows: 1, columns: 0 }), CastError::EmptyBlock { field: "columns" });
    let sizes = [1 << 40, 1 << 40, 2];
    let large = view(DType::F32, &sizes, &[1 << 41, 2, 1]);
    assert!(matches!(CastShape::of(&large, BLOCKS), Err(CastError::TooLarge { .. })));
}
