"""Speed of PyTorch's cast of 64 MB of BF16 to FP8 on the host, measured as cuda-exec/examples/casts.rs measures its own.

    python benches/peers/torch_cast.py

One thread. Each of 32 slices counts with its fastest of 15 runs, then the whole tensor with its. `.to(...)` makes a tensor, `copy_`
writes into one that is there.
"""

import time

import torch

ROWS, COLUMNS, SLICES, RUNS = 8192, 4096, 32, 15


def rate(cast, moved, slices=SLICES):
    best = [float("inf")] * slices
    for _ in range(RUNS):
        for index in range(slices):
            start = time.perf_counter()
            cast(index)
            best[index] = min(best[index], time.perf_counter() - start)
    return moved / sum(best) / 1e9


def main():
    torch.set_num_threads(1)
    whole = torch.randn(ROWS * COLUMNS).to(torch.bfloat16)
    from_ = whole.chunk(SLICES)
    print(f"torch {torch.__version__.split('+')[0]}, {torch.get_num_threads()} thread")
    for name in ("float8_e4m3fn", "float8_e5m2"):
        narrow = getattr(torch, name)
        values = torch.zeros(ROWS * COLUMNS, dtype=narrow)
        to = values.chunk(SLICES)
        moved = 3 * ROWS * COLUMNS
        print(f".to({name}): {rate(lambda i: from_[i].to(narrow), moved):.1f} GB/s")
        print(f"copy_ to {name}: {rate(lambda i: to[i].copy_(from_[i]), moved):.1f} GB/s")
        print(f".to({name}), whole: {rate(lambda _: whole.to(narrow), moved, 1):.1f} GB/s")
        print(f"copy_ to {name}, whole: {rate(lambda _: values.copy_(whole), moved, 1):.1f} GB/s")


if __name__ == "__main__":
    main()
