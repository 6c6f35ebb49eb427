"""Pinned copies and FP8 casts by PyTorch on the first device, for comparison with device_check: JSON to --out."""

import argparse
import json
import statistics
import time

import torch

ROUNDS = 9
TENSORS = 8


def median_seconds(work):
    """The median wall-clock time of `work`, from an idle device to an idle device."""
    work()
    torch.cuda.synchronize()
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        work()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=256)
    parser.add_argument("--out", required=True)
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("PyTorch sees no device")

    size = arguments.megabytes << 20
    each = size // TENSORS // 2
    tensors = [torch.randn(each, device="cuda").to(torch.bfloat16) for _ in range(TENSORS)]
    pinned = [torch.empty(each, dtype=torch.bfloat16, pin_memory=True) for _ in range(TENSORS)]
    whole = torch.randn(size // 2, device="cuda").to(torch.bfloat16)
    other = torch.empty_like(whole)

    def out():
        for tensor, host in zip(tensors, pinned):
            host.copy_(tensor, non_blocking=True)

    def back():
        for tensor, host in zip(tensors, pinned):
            tensor.copy_(host, non_blocking=True)

    narrow = whole.to(torch.float8_e4m3fn)
    results = {
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name(),
        "bytes": size,
        "out_bytes_per_s": int(size / median_seconds(out)),
        "in_bytes_per_s": int(size / median_seconds(back)),
        # Read and written.
        "copy_bytes_per_s": int(2 * size / median_seconds(lambda: other.copy_(whole))),
        "cast_bytes_per_s": int(1.5 * size / median_seconds(lambda: whole.to(torch.float8_e4m3fn))),
        "cast_back_bytes_per_s": int(1.5 * size / median_seconds(lambda: narrow.to(torch.bfloat16))),
    }
    with open(arguments.out, "w", encoding="utf-8") as file:
        json.dump(results, file, indent=1)
    print("torch:", json.dumps(results))


if __name__ == "__main__":
    main()
