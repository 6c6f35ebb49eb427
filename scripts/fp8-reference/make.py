"""What PyTorch and ml_dtypes make of every BF16 and FP16 number, and of chosen FP32 ones, in FP8.

    pip install torch ml_dtypes numpy && python scripts/fp8-reference/make.py cuda-exec/tests/fp8

Writes the files that cuda-exec's tests compare its casts with. Numbers are bits in hexadecimal.

bf16-e4m3.txt and so on: all 65,536 inputs in ascending order, as runs of equal results: the first input of a run, then
the codes of torch and of ml_dtypes for the plain cast, then of both for the cast after clamping to the format's range.
f32.txt: input, torch and ml_dtypes in E4M3, both in E5M2; the inputs are the halfway points of neighbours, what lies
directly beside them, and random bits.
decoded.txt: a code, then for E4M3 and for E5M2 what torch makes of it in F32, BF16 and F16.
"""

import pathlib
import sys

import ml_dtypes
import numpy
import torch

torch.manual_seed(0)
FORMATS = {
    "e4m3": (torch.float8_e4m3fn, ml_dtypes.float8_e4m3fn, 448.0),
    "e5m2": (torch.float8_e5m2, ml_dtypes.float8_e5m2, 57344.0),
}
SOURCES = {
    "bf16": (torch.bfloat16, ml_dtypes.bfloat16),
    "f16": (torch.float16, numpy.float16),
    "f32": (torch.float32, numpy.float32),
}


def by_torch(bits, source, format, clamp=False):
    kind = torch.int32 if source == "f32" else torch.int16
    values = torch.from_numpy(bits.view(f"i{bits.itemsize}").copy()).to(kind).view(SOURCES[source][0])
    narrow, _, largest = FORMATS[format]
    if clamp:
        values = values.clamp(-largest, largest)
    return values.to(narrow).view(torch.uint8).numpy()


def by_ml_dtypes(bits, source, format, clamp=False):
    values = bits.view(SOURCES[source][1])
    _, narrow, largest = FORMATS[format]
    if clamp:
        values = numpy.clip(values, -largest, largest).astype(values.dtype)
    return values.astype(narrow).view(numpy.uint8)


def all_of_16_bits(source, format):
    bits = numpy.arange(1 << 16, dtype=numpy.uint16)
    columns = [
        cast(bits, source, format, clamp) for clamp in (False, True) for cast in (by_torch, by_ml_dtypes)
    ]
    last = None
    for row in zip(bits, *columns):
        if row[1:] != last:
            yield f"{row[0]:04x} " + " ".join(f"{code:02x}" for code in row[1:])
        last = row[1:]


def chosen_fp32():
    chosen = [numpy.array([0, 1, 0x7FFFFF, 0x800000, 0x7F7FFFFF, 0x7F800000, 0x7F800001, 0x7FC00000], numpy.uint32)]
    for _, narrow, _ in FORMATS.values():
        codes = numpy.arange(0x7F, dtype=numpy.uint8).view(narrow).astype(numpy.float32)
        codes = codes[numpy.isfinite(codes)]
        # The last step again: where the number above the largest would be.
        above = numpy.append(codes[1:], 2 * codes[-1] - codes[-2])
        halfway = ((codes + above) / 2).view(numpy.uint32)
        chosen += [halfway - 1, halfway, halfway + 1, codes.view(numpy.uint32)]
    chosen.append(torch.randint(0, 1 << 31, (512,)).numpy().astype(numpy.uint32))
    # Most random bits lie outside the formats' range.
    chosen.append(torch.randint(0x36000000, 0x48000000, (512,)).numpy().astype(numpy.uint32))
    magnitudes = numpy.unique(numpy.concatenate(chosen))
    bits = numpy.concatenate([magnitudes, magnitudes | numpy.uint32(0x80000000)])
    columns = [cast(bits, "f32", format) for format in FORMATS for cast in (by_torch, by_ml_dtypes)]
    for row in zip(bits, *columns):
        yield f"{row[0]:08x} " + " ".join(f"{code:02x}" for code in row[1:])


def decoded():
    codes = torch.arange(256, dtype=torch.uint8)
    columns = [codes.numpy()]
    for narrow, _, _ in FORMATS.values():
        values = codes.view(narrow)
        columns.append(values.to(torch.float32).view(torch.int32).numpy().view(numpy.uint32))
        for wide in (torch.bfloat16, torch.float16):
            columns.append(values.to(wide).view(torch.int16).numpy().view(numpy.uint16))
    for code, *wide in zip(*columns):
        yield f"{code:02x} " + " ".join(f"{bits:0{2 * bits.itemsize}x}" for bits in wide)


def write(folder, name, lines):
    header = f"# torch {torch.__version__.split('+')[0]}, ml_dtypes {ml_dtypes.__version__}; scripts/fp8-reference/make.py\n"
    (folder / name).write_text(header + "".join(line + "\n" for line in lines))


def main():
    folder = pathlib.Path(sys.argv[1])
    with numpy.errstate(invalid="ignore", over="ignore"):
        for source in ("bf16", "f16"):
            for format in FORMATS:
                write(folder, f"{source}-{format}.txt", all_of_16_bits(source, format))
        write(folder, "f32.txt", chosen_fp32())
        write(folder, "decoded.txt", decoded())


if __name__ == "__main__":
    main()
