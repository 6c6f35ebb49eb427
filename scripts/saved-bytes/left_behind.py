#!/usr/bin/env python3
"""Counts what stays alive after backward in real Megatron-core models, by storage, on a CPU.

    python scripts/saved-bytes/left_behind.py            # every case, a minute on one core
    python scripts/saved-bytes/left_behind.py --only mla --list      # and every storage of the cases named like this

Several micro-batches run through a `GPTModel` as in a pipeline: two forwards, then a backward and a forward in turn,
then the remaining backwards. Python's collector is off, so that reference cycles would show; it is run once at the end,
and what it frees was in cycles. Needs megatron-core and torch; no GPU, no Transformer Engine.
"""

import argparse
import collections
import gc
import os
import sys
import tempfile
import traceback
import warnings

os.environ.setdefault("OMP_NUM_THREADS", "1")
warnings.filterwarnings("ignore")

import without_cuda  # noqa: E402  (before megatron)
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from megatron.core import parallel_state, tensor_parallel  # noqa: E402
from megatron.core.models.gpt import GPTModel  # noqa: E402
from megatron.core.models.gpt.gpt_layer_specs import (  # noqa: E402
    get_gpt_layer_local_spec,
    get_gpt_mtp_block_spec,
)
from torch.multiprocessing.reductions import StorageWeakRef  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils._pytree import tree_leaves  # noqa: E402

without_cuda.patch_megatron()
import cases  # noqa: E402

LAYERS = 2
MICRO_BATCHES = 4
SHAPE = f"{cases.DENSE} {cases.PLAIN} {cases.BF16} {cases.ENDS}"
MOE = f"{cases.MOE} {cases.SHARED}"
MLA = f"{cases.MLA} {cases.Q_LORA} --qk-layernorm {cases.ROPE}"
SELECTIVE = "--recompute-granularity selective --recompute-modules"

CASES = {
    "dense": cases.NO_ROPE,
    "dense-full": f"{cases.NO_ROPE} {cases.FULL}",
    "moe": f"{cases.NO_ROPE} {MOE}",
    "moe-full": f"{cases.NO_ROPE} {MOE} {cases.FULL}",
    "moe-full-two": f"{cases.NO_ROPE} {MOE} {cases.FULL.replace('layers 1', 'layers 2')}",
    "moe-selective": f"{cases.NO_ROPE} {MOE} {SELECTIVE} moe",
    "moe-selective-shared": f"{cases.NO_ROPE} {MOE} {SELECTIVE} shared_experts",
    "mla-moe-full": f"{MLA} {MOE} {cases.FULL}",
    "mla-moe-mtp-full": f"{MLA} {MOE} {cases.MTP} {cases.FULL}",
}


class Alive(TorchDispatchMode):
    """The storages that operators make, with where they are made, for as long as they live."""

    def __init__(self):
        super().__init__()
        self.made = {}
        self.steady = set()

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        output = operator(*args, **(kwargs or {}))
        for tensor in tree_leaves(output):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                if storage._cdata not in self.made:
                    self.made[storage._cdata] = (StorageWeakRef(storage), self._where(operator, tensor))
        return output

    @staticmethod
    def _where(operator, tensor):
        frames = (
            f"{frame.filename.rpartition('megatron/core/')[2]}:{frame.lineno}"
            for frame in reversed(traceback.extract_stack(limit=40))
            if "/megatron/" in frame.filename
        )
        dtype = str(tensor.dtype).removeprefix("torch.")
        return f"{operator} {tuple(tensor.shape)} {dtype} {next(frames, '')}"

    def storages(self):
        """Bytes and place of each that lives, without what is there from the start."""
        alive = {}
        for key, (reference, where) in list(self.made.items()):
            storage = torch.UntypedStorage._new_with_weak_ptr(reference.cdata)
            if storage is None:
                del self.made[key]
            elif key not in self.steady:
                alive[key] = (storage.nbytes(), where)
        return alive

    def keep(self, tensors):
        self.steady |= {tensor.untyped_storage()._cdata for tensor in tensors}


def build(flags):
    config = cases.transformer_config(flags)
    spec = get_gpt_layer_local_spec(
        num_experts=flags.num_experts,
        qk_layernorm=flags.qk_layernorm,
        multi_latent_attention=flags.multi_latent_attention,
        normalization=flags.normalization,
    )
    if flags.multi_latent_attention:
        parts = spec.submodules.self_attention.submodules
        parts.linear_q_down_proj = parts.linear_kv_down_proj = without_cuda.DuplicatedLinear
    mtp = get_gpt_mtp_block_spec(config, spec, False) if flags.mtp_num_layers else None
    model = GPTModel(
        config,
        spec,
        vocab_size=flags.vocab_size,
        max_sequence_length=flags.seq_length,
        position_embedding_type=flags.position_embedding_type,
        share_embeddings_and_output_weights=False,
        mtp_block_spec=mtp,
    ).to(torch.bfloat16)
    model.train()

    def accumulate(parameter):
        # As data parallel does: into a buffer, and the gradient is gone.
        parameter.main_grad.add_(parameter.grad)
        parameter.grad = None

    for parameter in model.parameters():
        parameter.main_grad = torch.zeros_like(parameter, dtype=torch.float32)
        parameter.register_post_accumulate_grad_hook(accumulate)
    return model


def run(name, flags, listed):
    """Prints what is alive after the last backward, without parameters and gradients."""
    model = build(flags)
    size = flags.seq_length
    mask = ~torch.tril(torch.ones(size, size, dtype=torch.bool))[None, None]
    tokens = torch.randint(0, flags.vocab_size, (flags.micro_batch_size, size))
    positions = torch.arange(size).expand_as(tokens)
    alive = Alive()
    alive.keep(tensor for p in model.parameters() for tensor in (p, p.main_grad))
    in_flight = collections.deque()

    def forward():
        in_flight.append(model(tokens, positions, mask, labels=tokens).sum())

    with alive:
        forward()
        in_flight.popleft().backward()
        gc.collect()
        gc.disable()
        for _ in range(2):
            forward()
        for _ in range(MICRO_BATCHES - 2):
            in_flight.popleft().backward()
            forward()
        while in_flight:
            in_flight.popleft().backward()
        left = alive.storages()
        gc.collect()
        after = alive.storages()
    hidden = 2 * flags.micro_batch_size * size * flags.hidden_size
    states = sum(1 for nbytes, where in after.values() if nbytes == hidden and "bfloat16" in where)
    cycles = sum(left[key][0] for key in left.keys() - after.keys())
    print(f"{name:24}{states:4} hidden states left behind, {cycles} bytes in cycles", flush=True)
    for nbytes, where in sorted(after.values(), reverse=True) if listed else ():
        print(f"{nbytes:>12} {where}")


def measure(name, flags, listed):
    """Runs the case in a process of its own: Megatron's trackers of losses remember the first model's layers."""
    child = os.fork()
    if child:
        if os.waitpid(child, 0)[1]:
            raise SystemExit(f"{name}: it failed")
        return
    status = 1
    try:
        with tempfile.TemporaryDirectory() as folder:
            dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=0, world_size=1)
            parallel_state.initialize_model_parallel(1)
            tensor_parallel.model_parallel_cuda_manual_seed(1234)
            torch.manual_seed(1234)
            run(name, cases.parse(f"{cases.COMMON} {SHAPE} {flags} --num-layers {LAYERS}"), listed)
            dist.destroy_process_group()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(status)


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--only", default="", help="cases whose name contains this")
    arguments.add_argument("--list", action="store_true", help="print every storage that stays")
    options = arguments.parse_args()
    for name, flags in CASES.items():
        if options.only in name:
            measure(name, flags, options.list)


if __name__ == "__main__":
    main()
