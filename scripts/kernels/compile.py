"""Compiles cuda-exec/kernels/fp8.inc with every device compiler that is here, and needs no device.

    python3 scripts/kernels/compile.py

- NVRTC, from the loader's path or from the package nvidia-cuda-nvrtc: PTX for sm_80 and sm_90.
- nvcc: a cubin for sm_90.
- hiprtc, in libamdhip64 or libhiprtc: code objects for gfx906 and gfx90a.
- hipcc: code objects for gfx906 and gfx90a.

Prints a line for each: what it made, or that it is not here. Fails if one that is here does not compile the source, or if an
entry is missing in what it made.
"""

import ctypes
import glob
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

SOURCE = pathlib.Path(__file__).resolve().parents[2] / "cuda-exec/kernels/fp8.inc"
ENTRIES = [
    f"bagualu_{way}_{source}_{format}"
    for way in ("quantize", "dequantize")
    for source in ("bf16", "f16", "f32")
    for format in ("e4m3", "e5m2")
]


class Failed(Exception):
    pass


def main():
    failed = False
    for compiler in (nvrtc, nvcc, hiprtc, hipcc):
        try:
            for line in compiler():
                print(f"{compiler.__name__}: {line}")
        except Failed as error:
            print(f"{compiler.__name__}: failed: {error}")
            failed = True
    sys.exit(failed)


def nvrtc():
    library = load("libnvrtc.so*", packaged("nvidia*/**/libnvrtc.so*"))
    if library is None:
        yield "skipped, no libnvrtc (pip install nvidia-cuda-nvrtc)"
        return
    version = (ctypes.c_int(), ctypes.c_int())
    library.nvrtcVersion(*map(ctypes.byref, version))
    for target in ("80", "90"):
        ptx = runtime_compiled(library, "nvrtc", "PTX", [f"--gpu-architecture=compute_{target}"])
        complete(ptx)
        yield f"{version[0].value}.{version[1].value}, sm_{target}: {len(ptx)} bytes of PTX"


def hiprtc():
    library = load("libhiprtc.so*") or load("libamdhip64.so*")
    if library is None or not hasattr(library, "hiprtcCompileProgram"):
        yield "skipped, no hiprtc (apt-get install libamdhip64-5)"
        return
    version = (ctypes.c_int(), ctypes.c_int())
    library.hiprtcVersion(*map(ctypes.byref, version))
    for target in ("gfx906", "gfx90a"):
        code = runtime_compiled(library, "hiprtc", "Code", [f"--offload-arch={target}"])
        complete(code)
        yield f"{version[0].value}.{version[1].value}, {target}: {len(code)} bytes"


def nvcc():
    yield from command("nvcc", [("sm_90", ["-x", "cu", "-cubin", "-arch=sm_90"])])


def hipcc():
    # nvcc and hiprtc know their language's words, hipcc includes them.
    words = ["-x", "hip", "-include", "hip/hip_runtime.h", "--genco"]
    yield from command("hipcc", [(name, [*words, f"--offload-arch={name}"]) for name in ("gfx906", "gfx90a")])


def command(name, targets):
    if shutil.which(name) is None:
        yield f"skipped, no {name}"
        return
    for target, options in targets:
        with tempfile.TemporaryDirectory() as folder:
            made = pathlib.Path(folder) / "kernels"
            ran = subprocess.run([name, *options, str(SOURCE), "-o", str(made)], capture_output=True, text=True)
            if ran.returncode != 0:
                raise Failed(f"{target}: {ran.stderr or ran.stdout}")
            code = made.read_bytes()
        complete(code)
        yield f"{target}: {len(code)} bytes"


def runtime_compiled(library, prefix, product, options):
    """The same calls under two prefixes."""
    program = ctypes.c_void_p()

    def call(name, *arguments):
        status = getattr(library, prefix + name)(*arguments)
        if status != 0:
            size = ctypes.c_size_t()
            getattr(library, prefix + "GetProgramLogSize")(program, ctypes.byref(size))
            log = ctypes.create_string_buffer(size.value + 1)
            getattr(library, prefix + "GetProgramLog")(program, log)
            raise Failed(f"{name} returned {status}: {log.value.decode(errors='replace')}")

    call("CreateProgram", ctypes.byref(program), SOURCE.read_bytes(), b"fp8.inc", 0, None, None)
    words = [option.encode() for option in options]
    call("CompileProgram", program, len(words), (ctypes.c_char_p * len(words))(*words))
    size = ctypes.c_size_t()
    call(f"Get{product}Size", program, ctypes.byref(size))
    made = ctypes.create_string_buffer(size.value)
    call(f"Get{product}", program, made)
    call("DestroyProgram", ctypes.byref(program))
    return made.raw


def complete(code):
    missing = [entry for entry in ENTRIES if re.search(rb"\b" + entry.encode(), code) is None]
    if missing:
        raise Failed(f"without {', '.join(missing)}")


def load(pattern, places=()):
    """The first library of this name in `places`, or where the loader looks."""
    listed = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=False).stdout
    name = re.escape(pattern.rstrip("*"))
    known = re.findall(rf"=> (\S*/{name}\S*)", listed)
    for path in [*places, *known]:
        try:
            return ctypes.CDLL(path)
        except OSError:
            continue
    return None


def packaged(pattern):
    return [path for folder in sys.path for path in sorted(glob.glob(f"{folder}/{pattern}", recursive=True))]


if __name__ == "__main__":
    main()
