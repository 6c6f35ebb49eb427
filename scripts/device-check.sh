#!/usr/bin/env bash
# What a device does and how fast, in one command of less than 8 minutes, without a network: the conformance suite, copies
# through the engine against plain pinned ones, casts against a copy on the device, copies beside a matrix product; with
# PyTorch the same copies and casts by PyTorch, for comparison.
#
#   scripts/device-check.sh [--device cuda:0|hip:0|host] [--out FOLDER] [--megabytes N] [--kernels FILE]
#
# FILE: compiled kernels of the casts (PTX, a code object), where NVRTC or hiprtc is not.
# Writes FOLDER/device-check.json (target/device-check by default) and, with PyTorch, FOLDER/torch.json.
# Exit status: 0 all passed, 1 something failed, 2 usage or no program, 3 no such device here.
#
# The machine with the device may have neither Rust nor the crates: build the program elsewhere,
#   cargo build --release --package bagualu-exec --example device_check
# and bring target/release/examples/device_check along at the same place. It needs nothing but glibc.
set -euo pipefail
cd "$(dirname "$0")/.."

device=cuda:0
out=target/device-check
megabytes=256
kernels=()
while [ $# -gt 0 ]; do
    case "$1" in
    --device) device="${2:?--device needs a value}" ;;
    --out) out="${2:?--out needs a value}" ;;
    --megabytes) megabytes="${2:?--megabytes needs a value}" ;;
    --kernels) kernels=(--kernels "${2:?--kernels needs a value}") ;;
    *)
        sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2
        exit 2
        ;;
    esac
    shift 2
done
mkdir -p "$out"

program=target/release/examples/device_check
if [ ! -x "$program" ]; then
    if ! command -v cargo >/dev/null; then
        echo "device-check: neither $program nor cargo is here; build it elsewhere and bring it along (see the top of $0)" >&2
        exit 2
    fi
    echo "device-check: building $program from the crates that are here"
    cargo build --release --offline --package bagualu-exec --example device_check || {
        echo "device-check: the crates are not all here; build elsewhere and bring $program along" >&2
        exit 2
    }
    program="${CARGO_TARGET_DIR:-target}/release/examples/device_check"
fi

# PyTorch's wheels bring cuBLAS, NVRTC and NCCL in folders that no loader looks in.
folders=$(
    python3 - <<'PYTHON' 2>/dev/null || true
import glob, os, torch
site = os.path.dirname(os.path.dirname(torch.__file__))
found = glob.glob(os.path.join(site, "nvidia", "*", "lib")) + [os.path.join(os.path.dirname(torch.__file__), "lib")]
print(":".join(found))
PYTHON
)
export LD_LIBRARY_PATH="${folders}${folders:+:}${LD_LIBRARY_PATH:-}"

status=0
timeout 300 "$program" --device "$device" --megabytes "$megabytes" --json "$out/device-check.json" \
    ${kernels[@]+"${kernels[@]}"} || status=$?
[ "$status" = 124 ] && echo "device-check: stopped after 300 seconds" >&2
if [ "$status" -le 1 ] && [ "${device%%:*}" != host ] && [ -n "$folders" ]; then
    timeout 120 python3 scripts/device-check/torch_compare.py --megabytes "$megabytes" --out "$out/torch.json" ||
        echo "device-check: the comparison with PyTorch failed" >&2
fi
echo "device-check: results in $out"
exit "$status"
