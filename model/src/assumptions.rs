//! Every number that the model assumes rather than derives, in one place.
//!
//! Measured profiles replace the times; the byte counts do not depend on anything here except
//! [`RECEIVE_BUFFERS`]; those of Quantize are in [`bagualu_core::narrow`].

/// Share of the peak FLOP/s that a dense GEMM reaches, in thousandths.
pub const GEMM_PERMILLE: u64 = 600;
/// Share of the peak FLOP/s that the grouped GEMM of the experts reaches, in thousandths: below
/// [`GEMM_PERMILLE`], since each expert has few rows.
pub const GROUPED_GEMM_PERMILLE: u64 = 500;
/// Share of the peak FLOP/s that flash attention reaches, in thousandths.
pub const ATTENTION_PERMILLE: u64 = 450;
/// Share of the device memory bandwidth that element-wise kernels reach, in thousandths.
pub const MEMORY_PERMILLE: u64 = 800;
/// Share of a link's bandwidth that collectives reach, in thousandths.
pub const LINK_PERMILLE: u64 = 750;
/// Launch of a kernel, ns.
pub const LAUNCH_NS: u64 = 6_000;
/// Start of a collective, ns.
pub const COLLECTIVE_NS: u64 = 20_000;
/// Start of a copy to or from the host, ns: below (this × bandwidth) bytes a copy is launch-bound.
pub const COPY_NS: u64 = 10_000;
/// FP8 training, assumed of Transformer Engine 2.6 and later and not measured: a linear layer saves its input in one
/// orientation only (what its weight gradient reads), a norm fused with it saves the norm's input in the run's
/// type, and no two layers share a copy (`layer/fp8.rs`). Elements that share one FP32 scale in the
/// `blockwise` recipe.
pub const FP8_BLOCK: u128 = 128;
/// Elements that share one 8-bit scale in the `mxfp8` recipe.
pub const MXFP8_BLOCK: u128 = 32;
/// FLOPs of a flash-attention backward for each FLOP of its forward, in tenths: five matrix products
/// to the forward's two.
pub const ATTENTION_BACKWARD_TENTHS: u64 = 25;
/// FLOPs of a GEMM's backward for each FLOP of its forward: the input's and the weight's gradient.
pub const GEMM_BACKWARD: u64 = 2;
/// Buffers of one pipeline message that a rank holds beside the tensors of its micro-batches: one
/// activation and one gradient on their way.
pub const RECEIVE_BUFFERS: u64 = 2;
/// Rows of the vocabulary are padded to a multiple of this × TP (Megatron's
/// `--make-vocab-size-divisible-by`).
pub const VOCAB_MULTIPLE: u64 = 128;
