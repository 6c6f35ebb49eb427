//! Workspaces of the libraries behind matrix products: fixed sizes, allocated once and kept.
//!
//! They come from PyTorch's allocator, so that `memory_allocated` counts them. PyTorch and Transformer Engine publish
//! their sizes for NVIDIA's devices; for others nothing is known here, and they are part of the margin.
//!
//! | allocated by | bytes on compute capability 9 and later | before | how often |
//! | --- | --- | --- | --- |
//! | PyTorch, `aten/src/ATen/cuda/CublasHandlePool.cpp`: `parseChosenWorkspaceSize` | 32 MiB | 8.125 MiB (`:4096:2:16:8`) | each handle on each stream: forward's thread and autograd's |
//! | Transformer Engine, `pytorch/cpp_extensions/gemm.py`: `get_cublas_workspace` | 32 MiB + 1 KiB | 4 MiB | once |
//! | the same for grouped GEMMs, on `common/util/multi_stream.cpp`: `get_num_compute_streams` | 32 MiB + 1 KiB | 4 MiB | each of four streams |
//!
//! Not counted: cuBLASLt's own workspace in PyTorch (1 MiB a handle, or the same bytes again in versions that unify the
//! two), what attention and communication allocate for the length of a call, and the communication buffers of
//! `--tp-comm-overlap` with their workspaces.

use crate::{Attention, Libraries, ModelConfig};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
/// Threads that run PyTorch's matrix products: the one that calls forward, and autograd's for the device. Each has a
/// cuBLAS handle of its own (`aten/src/ATen/cuda/detail/DeviceThreadHandles.h`).
const THREADS: u64 = 2;
/// Streams that Transformer Engine runs grouped GEMMs on.
const STREAMS: u64 = 4;

/// Sizes of a device's workspaces, bytes; 0 where a library does not say.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Workspaces {
    /// PyTorch's for cuBLAS, for each handle on a stream.
    pub torch_bytes: u64,
    /// Transformer Engine's, for each stream.
    pub transformer_engine_bytes: u64,
}

impl Workspaces {
    /// Compute capability 9 and later: H100, H200, B200.
    pub(super) const HOPPER: Self = Self { torch_bytes: 32 * MIB, transformer_engine_bytes: 32 * MIB + KIB };
    /// Compute capability 8: A100.
    pub(super) const AMPERE: Self =
        Self { torch_bytes: 2 * 4_096 * KIB + 8 * 16 * KIB, transformer_engine_bytes: 4 * MIB };
    /// None that is counted: what libraries allocate is left to the margin, as on the DCU, whose are not public.
    pub const NONE: Self = Self { torch_bytes: 0, transformer_engine_bytes: 0 };

    /// What a rank allocates that runs `products`.
    pub(crate) fn bytes(&self, products: MatrixProducts) -> u64 {
        let torch = if products.torch { THREADS } else { 0 };
        let streams = u64::from(products.transformer_engine) + if products.grouped { STREAMS } else { 0 };
        let torch = self.torch_bytes.saturating_mul(torch);
        torch.saturating_add(self.transformer_engine_bytes.saturating_mul(streams))
    }
}

/// Who runs a rank's matrix products.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct MatrixProducts {
    torch: bool,
    transformer_engine: bool,
    grouped: bool,
}

impl MatrixProducts {
    /// Those of a rank with these kinds of layers. `output`: it has the output layer; `dense`, `experts`: it has
    /// transformer layers without and with experts.
    ///
    /// PyTorch runs the output layer (`core/tensor_parallel/layers.py`), all of Megatron's own layers, attention that is
    /// not fused, and the gate of a shared expert; Transformer Engine the router whatever the layers are
    /// (`core/transformer/moe/moe_utils.py`: `RouterGatingLinearFunction`).
    pub fn new(config: &ModelConfig, libraries: Libraries, output: bool, dense: bool, experts: bool) -> Self {
        let layers = dense || experts;
        let Libraries { transformer_engine, grouped_gemm } = libraries;
        let unfused = !transformer_engine || config.attention == Attention::Unfused;
        let gate = experts && config.moe.as_ref().is_some_and(|moe| moe.shared_gate);
        Self {
            torch: output || (layers && unfused) || gate,
            transformer_engine: (layers && transformer_engine) || experts,
            grouped: experts && transformer_engine && grouped_gemm,
        }
    }
}
