#!/usr/bin/env python3
"""Counts what real Megatron-core modules save for backward, by storage, on a CPU.

    python scripts/saved-bytes/measure.py > model/tests/data/saved-bytes.json
    python scripts/saved-bytes/measure.py --only moe --list      # every storage of the cases named like this

Needs megatron-core and torch; no GPU, no Transformer Engine. Ranks are forked and talk over gloo.
"""

import argparse
import json
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
import megatron.core  # noqa: E402
from megatron.core import parallel_state, tensor_parallel  # noqa: E402
from megatron.core.models.common.embeddings.rotary_pos_embedding import RotaryEmbedding  # noqa: E402
from megatron.core.models.gpt import GPTModel  # noqa: E402
from megatron.core.models.gpt.gpt_layer_specs import (  # noqa: E402
    get_gpt_layer_local_spec,
    get_gpt_mtp_block_spec,
)
from megatron.core.transformer.transformer_block import TransformerBlock  # noqa: E402

without_cuda.patch_megatron()
from cases import CASES, parse, transformer_config, world_size  # noqa: E402


class Storages:
    """The storages that a forward saves, each once; those of parameters left out."""

    def __init__(self, module):
        self.parameters = {p.untyped_storage()._cdata for p in module.parameters()}
        self.saved = {}

    def _pack(self, tensor):
        storage = tensor.untyped_storage()
        if storage._cdata not in self.parameters:
            where = next(
                (
                    f"{frame.filename.rpartition('megatron/core/')[2]}:{frame.lineno}"
                    for frame in reversed(traceback.extract_stack(limit=20))
                    if "/megatron/" in frame.filename
                ),
                "",
            )
            entry = self.saved.setdefault(storage._cdata, (tensor.detach(), storage, []))
            entry[2].append((tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."), where))
        return tensor

    def __enter__(self):
        self.hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, lambda tensor: tensor)
        self.hooks.__enter__()
        return self

    def __exit__(self, *exception):
        self.hooks.__exit__(*exception)

    def bytes(self):
        """Bytes now, after forward: what Megatron has freed by then counts nothing."""
        return sum(storage.nbytes() for _, storage, _ in self.saved.values())

    def table(self):
        entries = sorted(self.saved.values(), key=lambda entry: -entry[1].nbytes())
        return [(storage.nbytes(), uses) for _, storage, uses in entries]


class Rows:
    """Counts the rows that the rank's experts receive, and pushes tokens towards the first experts."""

    def __init__(self, module, push, top_k):
        self.count = 0
        for part in module.modules():
            if type(part).__name__ == "SequentialMLP":
                part.register_forward_pre_hook(self._count)
            elif type(part).__name__ == "TopKRouter" and push:
                self._push(part, push, top_k)

    def _count(self, _, inputs):
        self.count = inputs[0].shape[0]

    @staticmethod
    def _push(router, push, top_k):
        gating = router.gating

        def pushed(x):
            logits = gating(x)
            offset = torch.zeros(logits.shape[-1], dtype=logits.dtype)
            offset[:top_k] = push
            return logits + offset

        router.gating = pushed


def run(case, flags):
    """Builds the case's module on this rank, runs one forward, returns what it saved."""
    config = transformer_config(flags)
    spec = get_gpt_layer_local_spec(
        num_experts=flags.num_experts,
        qk_layernorm=flags.qk_layernorm,
        multi_latent_attention=flags.multi_latent_attention,
        normalization=flags.normalization,
    )
    if flags.multi_latent_attention:
        # The local spec splits the columns of the latents and gathers them again; real runs, with
        # Transformer Engine, have them whole.
        parts = spec.submodules.self_attention.submodules
        parts.linear_q_down_proj = parts.linear_kv_down_proj = without_cuda.DuplicatedLinear
    dtype = torch.bfloat16 if flags.bf16 else torch.float32
    sequence = flags.seq_length
    mask = ~torch.tril(torch.ones(sequence, sequence, dtype=torch.bool))[None, None]
    rope = flags.position_embedding_type == "rope"
    angles = None
    if case.get("part") == "model":
        module = GPTModel(
            config,
            spec,
            vocab_size=flags.vocab_size,
            max_sequence_length=sequence,
            position_embedding_type=flags.position_embedding_type,
            share_embeddings_and_output_weights=False,
            mtp_block_spec=get_gpt_mtp_block_spec(config, spec, False) if flags.mtp_num_layers else None,
        ).to(dtype)
        tokens = torch.randint(0, flags.vocab_size, (flags.micro_batch_size, sequence))
        positions = torch.arange(sequence).expand_as(tokens)
        call = lambda: module(tokens, positions, mask, labels=tokens)  # noqa: E731
    else:
        module = TransformerBlock(config, spec, post_layer_norm=False, pre_process=False).to(dtype)
        split = flags.tensor_model_parallel_size if flags.sequence_parallel else 1
        shape = (sequence // split, flags.micro_batch_size, flags.hidden_size)
        module.set_input_tensor(torch.randn(shape, dtype=dtype).requires_grad_())
        if rope and not flags.multi_latent_attention:
            angles = RotaryEmbedding(flags.kv_channels, 1.0)(sequence)
        call = lambda: module(None, mask, rotary_pos_emb=angles)  # noqa: E731
    module.train()
    rows = Rows(module, case.get("push", 0.0), flags.moe_router_topk)
    # Tables of angles are made once and kept for all micro-batches, as is the mask.
    tables = [mask] if angles is None else [mask, angles]
    for part in module.modules():
        if isinstance(part, RotaryEmbedding):
            part.register_forward_hook(lambda _, inputs, output: tables.append(output))
    with Storages(module) as storages:
        output = call()
    for table in tables:
        storages.saved.pop(table.untyped_storage()._cdata, None)
    # What a checkpoint keeps is the graph's: the output has to live until here.
    return {"rows": rows.count, "bytes": storages.bytes()}, storages.table(), output


def rank_main(case, flags, rank, rendezvous, results, listed):
    torch.manual_seed(1234 + rank)
    dist.init_process_group(
        "gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=world_size(flags)
    )
    parallel_state.initialize_model_parallel(
        flags.tensor_model_parallel_size,
        expert_model_parallel_size=flags.expert_model_parallel_size,
        expert_tensor_parallel_size=flags.expert_tensor_parallel_size,
    )
    tensor_parallel.model_parallel_cuda_manual_seed(1234)
    result, table, _ = run(case, flags)
    if listed:
        lines = [f"== {case['name']} rank {rank}: {result}"]
        for size, uses in table:
            first, *more = uses
            lines.append(f"{size:>12} {first[0]} {first[1]} {first[2]}" + "".join(f" | {u[2]}" for u in more))
        print("\n".join(lines), file=sys.stderr, flush=True)
    with open(f"{results}.{rank}", "w") as file:
        json.dump(result, file)
    dist.barrier()
    dist.destroy_process_group()


def measure(case, listed):
    """Runs the case's ranks, each in a process of its own."""
    flags = parse(case["flags"])
    with tempfile.TemporaryDirectory() as folder:
        children = []
        for rank in range(world_size(flags)):
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    rank_main(case, flags, rank, f"{folder}/rendezvous", f"{folder}/result", listed)
                    status = 0
                except BaseException:
                    traceback.print_exc()
                finally:
                    sys.stderr.flush()
                    os._exit(status)
            children.append(child)
        if any(os.waitpid(child, 0)[1] for child in children):
            raise SystemExit(f"{case['name']}: a rank failed")
        ranks = []
        for rank in range(world_size(flags)):
            with open(f"{folder}/result.{rank}") as file:
                ranks.append(json.load(file))
    return {**case, "ranks": ranks}


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--only", default="", help="cases whose name contains this")
    arguments.add_argument("--list", action="store_true", help="print every storage to standard error")
    options = arguments.parse_args()
    chosen = [case for case in CASES if options.only in case["name"]]
    print("{")
    versions = {"megatron-core": megatron.core.__version__, "torch": torch.__version__.partition("+")[0]}
    print(f'  "versions": {json.dumps(versions)},\n  "cases": [')
    for index, case in enumerate(chosen):
        print(case["name"], file=sys.stderr, flush=True)
        line = json.dumps(measure(case, options.list))
        print(f"    {line}{',' if index + 1 < len(chosen) else ''}", flush=True)
    print("  ]\n}")


if __name__ == "__main__":
    main()
