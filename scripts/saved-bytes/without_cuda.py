"""Lets Megatron-core build and run its modules on a machine without CUDA.

Import before `megatron`, then call `patch_megatron()` once it has been imported. What is replaced:
devices and streams by the CPU, fusions by torch.compile with the functions themselves, and the few
places of Megatron-core that refuse to run without a GPU or Transformer Engine. No module that saves
tensors is replaced, except where it says so.
"""

import contextlib
import functools
import importlib.util
import logging
import sys
import types

import torch

PAGED_STASH = "megatron.core.transformer.moe.ops.paged_stash"


class _Nothing:
    """A stream or an event where everything runs in program order."""

    cuda_stream = 0

    def __init__(self, *_, **__):
        pass

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_, **__: _Nothing()


def _on_cpu(factory):
    @functools.wraps(factory)
    def wrapped(*args, **kwargs):
        device = kwargs.get("device")
        if device is not None and torch.device(device).type == "cuda":
            kwargs["device"] = "cpu"
        kwargs.pop("pin_memory", None)
        return factory(*args, **kwargs)

    return wrapped


def _patch_torch():
    cuda, cpu = torch.cuda, torch.device("cpu")
    cuda.current_device = lambda: cpu
    cuda.synchronize = lambda *_, **__: None
    cuda.current_stream = cuda.default_stream = lambda *_, **__: _Nothing()
    cuda.stream = lambda *_: contextlib.nullcontext()
    cuda.Stream = cuda.Event = _Nothing
    cuda.manual_seed = torch.default_generator.manual_seed
    cuda.get_rng_state = cuda.random.get_rng_state = lambda *_, **__: torch.get_rng_state()
    cuda.set_rng_state = cuda.random.set_rng_state = lambda state, *_, **__: (
        torch.set_rng_state(state)
    )
    for name in ("zeros", "ones", "empty", "full", "tensor", "arange"):
        setattr(torch, name, _on_cpu(getattr(torch, name)))
    torch.Tensor.cuda = lambda self, *_, **__: self
    torch.nn.Module.cuda = lambda self, *_, **__: self
    torch.Tensor.record_stream = lambda *_: None
    torch.compile = lambda function=None, *_, **__: function or (lambda f: f)
    # On a GPU dropout is one kernel that saves a mask of one byte an element; on a CPU it is a product
    # with a mask in the activations' type. The kernel of the GPU exists on the CPU too.
    torch.nn.functional.dropout = lambda x, p=0.5, training=True, inplace=False: (
        torch.native_dropout(x, p, True)[0] if training and p > 0 else x
    )


class DuplicatedLinear(torch.nn.Linear):
    """A linear layer that is whole on every tensor-parallel rank, as Transformer Engine's projections to
    latents are. It saves what theirs does: its input."""

    def __init__(self, inputs, outputs, *, config, bias=False, **_):
        super().__init__(inputs, outputs, bias=bias, dtype=config.params_dtype)

    def forward(self, x):
        return super().forward(x), None


class FusedRmsNorm(torch.autograd.Function):
    """RMSNorm as one kernel: keeps its input and one FP32 statistic a row, as Transformer Engine, Apex and
    torch on a GPU do. Torch's CPU version is a chain of operators that keeps more."""

    @staticmethod
    def forward(ctx, x, weight, eps):
        rstd = torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + eps)
        ctx.save_for_backward(x, weight, rstd)
        return (x.float() * rstd).to(x.dtype) * weight

    @staticmethod
    def backward(ctx, _):
        raise NotImplementedError("bytes are counted after forward")


def _patch_norms():
    def rms_norm(self, x):
        return FusedRmsNorm.apply(x, self.weight, self.eps or 1e-6)

    torch.nn.RMSNorm.forward = rms_norm


def patch_megatron():
    """Changes what refuses to run without a GPU or Transformer Engine."""
    import megatron.core.tensor_parallel.random as random
    import megatron.core.transformer.moe.moe_layer as moe_layer
    import megatron.core.transformer.moe.moe_utils as moe_utils
    import megatron.core.transformer.moe.token_dispatcher as dispatcher
    from megatron.core.transformer.dot_product_attention import DotProductAttention
    from megatron.core.transformer import multi_latent_attention
    from megatron.core.transformer.torch_norm import WrappedTorchNorm

    random._set_cuda_rng_state = lambda state, *_, **__: torch.set_rng_state(state)
    if not hasattr(moe_utils, "te_general_gemm"):
        moe_utils.te_general_gemm = None

    # Its default for "no FP8" reads as FP8 without Transformer Engine.
    checkpoint = random.CheckpointWithoutOutput.__init__
    random.CheckpointWithoutOutput.__init__ = lambda self, fp8=None, *a, **k: checkpoint(
        self, fp8 or None, *a, **k
    )

    # Splits of an all-to-all become numbers only if they came from a GPU.
    move = dispatcher.maybe_move_tensor_to_cpu

    def to_numbers(tensor, as_numpy=False, record_stream=False):
        if as_numpy and torch.is_tensor(tensor):
            return tensor.numpy()
        return move(tensor, as_numpy=as_numpy, record_stream=record_stream)

    dispatcher.maybe_move_tensor_to_cpu = to_numbers

    # Torch's norms refuse sequence parallel, which would only mark their weights.
    new_norm = WrappedTorchNorm.__new__

    def norm(cls, config, *args, **kwargs):
        sequence_parallel, config.sequence_parallel = config.sequence_parallel, False
        try:
            return new_norm(cls, config, *args, **kwargs)
        finally:
            config.sequence_parallel = sequence_parallel

    WrappedTorchNorm.__new__ = norm

    # Multi-latent attention names head sizes that the local attention does not take: it reads them off
    # its inputs.
    attention = DotProductAttention.__init__

    def without_channels(self, *args, k_channels=None, v_channels=None, **kwargs):
        attention(self, *args, **kwargs)

    DotProductAttention.__init__ = without_channels

    # The local spec names a norm of the compressed queries even where queries are not compressed, which
    # 0.19 refuses. Without Transformer Engine there is no fused norm to choose instead.
    mla = multi_latent_attention.MLASelfAttention
    if hasattr(mla, "_resolve_qk_norm_config"):
        resolve = mla._resolve_qk_norm_config
        names = "linear_q_proj linear_q_up_proj linear_kv_up_proj q_layernorm kv_layernorm".split()
        mla._resolve_qk_norm_config = lambda self, parts: (
            resolve(self, parts) if self.config.q_lora_rank else {n: getattr(parts, n) for n in names}
        )

    # Only Transformer Engine has a linear layer that is whole on every rank.
    moe_layer.HAVE_TE, moe_layer.TELinear = True, DuplicatedLinear
    multi_latent_attention.TELinear = DuplicatedLinear


def _without_triton():
    if importlib.util.find_spec("triton") is not None:
        return
    stub = types.ModuleType(PAGED_STASH)
    stub.GLOBAL_BLOCK_SIZE = 1024
    stub.paged_stash_copy_kernel = stub.paged_stash_pop_kernel = None
    sys.modules[PAGED_STASH] = stub


_without_triton()
_patch_torch()
_patch_norms()
logging.getLogger("megatron.core.tensor_parallel.random").setLevel(logging.ERROR)
