#!/usr/bin/env python3
"""PTX of kernels in Triton, compiled for Hopper without a GPU: <folder>/NAME.ptx, and NAME.json with the block and the dynamic
shared memory that a launch needs.

    triton_kernels.py FOLDER

Each kernel has Triton's two own parameters behind those of its signature: scratch memory, and that of a profiler. They are
not used here, but for `matmul_descriptors`, whose JSON says how much scratch each block takes.
"""
import json
import pathlib
import sys

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource


@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    tl.store(out + at, tl.load(x + at, mask=mask) + tl.load(y + at, mask=mask), mask=mask)


@triton.jit
def gelu(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    value = tl.load(x + at, mask=mask)
    tl.store(out + at, 0.5 * value * (1 + tl.erf(value * 0.70710678)), mask=mask)


@triton.jit
def softmax(x, out, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * columns
    at = tl.arange(0, BLOCK)
    value = tl.load(x + row + at, mask=at < columns, other=-float("inf"))
    power = tl.exp(value - tl.max(value, axis=0))
    tl.store(out + row + at, power / tl.sum(power, axis=0), mask=at < columns)


@triton.jit
def layer_norm(x, scale, shift, out, columns, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * columns
    sums = tl.zeros([BLOCK], dtype=tl.float32)
    for first in range(0, columns, BLOCK):
        at = first + tl.arange(0, BLOCK)
        sums += tl.load(x + row + at, mask=at < columns, other=0.0)
    mean = tl.sum(sums, axis=0) / columns
    squares = tl.zeros([BLOCK], dtype=tl.float32)
    for first in range(0, columns, BLOCK):
        at = first + tl.arange(0, BLOCK)
        value = tl.where(at < columns, tl.load(x + row + at, mask=at < columns, other=0.0) - mean, 0.0)
        squares += value * value
    by = 1 / tl.sqrt(tl.sum(squares, axis=0) / columns + eps)
    for first in range(0, columns, BLOCK):
        at = first + tl.arange(0, BLOCK)
        mask = at < columns
        value = (tl.load(x + row + at, mask=mask) - mean) * by
        value = value * tl.load(scale + at, mask=mask) + tl.load(shift + at, mask=mask)
        tl.store(out + row + at, value, mask=mask)


@triton.jit
def cross_entropy(x, target, out, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    value = tl.load(x + row * columns + at, mask=at < columns, other=-float("inf")).to(tl.float32)
    most = tl.max(value, axis=0)
    total = tl.log(tl.sum(tl.exp(value - most), axis=0)) + most
    tl.store(out + row, total - tl.load(x + row * columns + tl.load(target + row)))


@triton.jit
def dropout(x, out, n, p, seed, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    value = tl.load(x + at, mask=mask)
    tl.store(out + at, tl.where(tl.rand(seed, at) > p, value / (1 - p), 0.0), mask=mask)


@triton.jit
def sum_all(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(out, tl.sum(tl.load(x + at, mask=at < n, other=0), axis=0))


@triton.jit
def scan_rows(x, out, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * columns
    at = tl.arange(0, BLOCK)
    tl.store(out + row + at, tl.cumsum(tl.load(x + row + at), axis=0))


@triton.jit
def sort_rows(x, out, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.sort(tl.load(x + at)))


@triton.jit
def rotary(x, cosines, sines, out, heads, HALF: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, HALF)
    place = (row // heads) * HALF + at
    cosine, sine = tl.load(cosines + place), tl.load(sines + place)
    one, other = tl.load(x + row * 2 * HALF + at), tl.load(x + row * 2 * HALF + HALF + at)
    tl.store(out + row * 2 * HALF + at, one * cosine - other * sine)
    tl.store(out + row * 2 * HALF + HALF + at, other * cosine + one * sine)


@triton.jit
def matmul(a, b, out, m, n, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr):
    task = tl.program_id(0)
    rows, columns = tl.cdiv(m, BM), tl.cdiv(n, BN)
    first = task // (GROUP * columns) * GROUP
    group = min(rows - first, GROUP)
    row = first + task % (GROUP * columns) % group
    column = task % (GROUP * columns) // group
    at_row = (row * BM + tl.arange(0, BM)) % m
    at_column = (column * BN + tl.arange(0, BN)) % n
    step = tl.arange(0, BK)
    of_a = a + at_row[:, None] * k + step[None, :]
    of_b = b + step[:, None] * n + at_column[None, :]
    sums = tl.zeros((BM, BN), dtype=tl.float32)
    for _ in range(0, tl.cdiv(k, BK)):
        sums = tl.dot(tl.load(of_a), tl.load(of_b), sums)
        of_a += BK
        of_b += BK * n
    at_row = row * BM + tl.arange(0, BM)
    at_column = column * BN + tl.arange(0, BN)
    mask = (at_row[:, None] < m) & (at_column[None, :] < n)
    tl.store(out + at_row[:, None] * n + at_column[None, :], sums.to(tl.float16), mask=mask)


@triton.jit
def matmul_descriptors(a, b, out, m, n, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    of_a = tl.make_tensor_descriptor(a, shape=[m, k], strides=[k, 1], block_shape=[BM, BK])
    of_b = tl.make_tensor_descriptor(b, shape=[n, k], strides=[k, 1], block_shape=[BN, BK])
    rows = tl.cdiv(m, BM)
    row, column = tl.program_id(0) % rows * BM, tl.program_id(0) // rows * BN
    sums = tl.zeros((BM, BN), dtype=tl.float32)
    for step in range(0, tl.cdiv(k, BK)):
        sums = tl.dot(of_a.load([row, step * BK]), of_b.load([column, step * BK]).T, sums)
    at_row, at_column = row + tl.arange(0, BM), column + tl.arange(0, BN)
    tl.store(out + at_row[:, None] * n + at_column[None, :], sums.to(tl.float16))


@triton.jit
def attention(q, k, v, out, length, scale, HEAD: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, CAUSAL: tl.constexpr):
    block, of = tl.program_id(0), tl.program_id(1).to(tl.int64) * length * HEAD
    at_row, at_head = block * BM + tl.arange(0, BM), tl.arange(0, HEAD)
    rows = tl.load(q + of + at_row[:, None] * HEAD + at_head[None, :])
    most = tl.full([BM], -float("inf"), dtype=tl.float32)
    weight = tl.zeros([BM], dtype=tl.float32)
    sums = tl.zeros([BM, HEAD], dtype=tl.float32)
    end = (block + 1) * BM if CAUSAL else length
    for first in range(0, end, BN):
        at = first + tl.arange(0, BN)
        keys = tl.load(k + of + at[None, :] * HEAD + at_head[:, None])
        score = tl.dot(rows, keys) * scale
        if CAUSAL:
            score = tl.where(at_row[:, None] >= at[None, :], score, -float("inf"))
        next_most = tl.maximum(most, tl.max(score, axis=1))
        power = tl.exp2(score - next_most[:, None])
        by = tl.exp2(most - next_most)
        weight = weight * by + tl.sum(power, axis=1)
        values = tl.load(v + of + at[:, None] * HEAD + at_head[None, :])
        sums = tl.dot(power.to(tl.float16), values, sums * by[:, None])
        most = next_most
    tl.store(out + of + at_row[:, None] * HEAD + at_head[None, :], (sums / weight[:, None]).to(tl.float16))


FLOATS, HALVES, INTEGERS = "*fp32", "*fp16", "*i32"
SQUARE = {"a": HALVES, "b": HALVES, "out": HALVES, "m": "i32", "n": "i32", "k": "i32"}
HEADS = {"q": HALVES, "k": HALVES, "v": HALVES, "out": HALVES, "length": "i32", "scale": "fp32"}
ROWS = {"x": FLOATS, "out": FLOATS, "columns": "i32"}

# A name, the kernel, its parameters, its constants, and how many warps and stages it gets.
KERNELS = [
    ("add", add, {"x": FLOATS, "y": FLOATS, "out": FLOATS, "n": "i32"}, {"BLOCK": 1024}, 4, 1),
    ("gelu", gelu, {"x": FLOATS, "out": FLOATS, "n": "i32"}, {"BLOCK": 1024}, 4, 1),
    ("softmax", softmax, ROWS, {"BLOCK": 4096}, 4, 1),
    ("layer_norm", layer_norm, {"x": FLOATS, "scale": FLOATS, "shift": FLOATS, "out": FLOATS, "columns": "i32", "eps": "fp32"},
     {"BLOCK": 1024}, 4, 1),
    ("cross_entropy", cross_entropy, {"x": FLOATS, "target": INTEGERS, "out": FLOATS, "columns": "i32"}, {"BLOCK": 4096}, 8, 1),
    ("dropout", dropout, {"x": FLOATS, "out": FLOATS, "n": "i32", "p": "fp32", "seed": "i32"}, {"BLOCK": 1024}, 4, 1),
    ("sum_all", sum_all, {"x": INTEGERS, "out": INTEGERS, "n": "i32"}, {"BLOCK": 4096}, 4, 1),
    ("scan_rows", scan_rows, {"x": INTEGERS, "out": INTEGERS, "columns": "i32"}, {"BLOCK": 2048}, 4, 1),
    ("sort_rows", sort_rows, {"x": INTEGERS, "out": INTEGERS}, {"BLOCK": 1024}, 4, 1),
    ("rotary", rotary, {"x": FLOATS, "cosines": FLOATS, "sines": FLOATS, "out": FLOATS, "heads": "i32"}, {"HALF": 64}, 1, 1),
    ("matmul", matmul, SQUARE, {"BM": 128, "BN": 128, "BK": 64, "GROUP": 8}, 8, 3),
    ("matmul_small", matmul, SQUARE, {"BM": 64, "BN": 64, "BK": 32, "GROUP": 8}, 4, 4),
    ("matmul_descriptors", matmul_descriptors, SQUARE, {"BM": 128, "BN": 128, "BK": 64}, 8, 3),
    ("attention", attention, HEADS, {"HEAD": 128, "BM": 128, "BN": 64, "CAUSAL": False}, 8, 3),
    ("attention_causal", attention, HEADS, {"HEAD": 64, "BM": 128, "BN": 64, "CAUSAL": True}, 8, 3),
]


def main():
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, kernel, signature, constants, warps, stages in KERNELS:
        types = dict(signature, **{constant: "constexpr" for constant in constants})
        # As Triton's launcher says of what an allocator returns, and of sizes that are multiples of 16.
        divisible = {
            (place,): [["tt.divisibility", 16]]
            for place, (parameter, kind) in enumerate(signature.items())
            if kind.startswith("*") or parameter in ("n", "m", "k", "columns", "length")
        }
        source = ASTSource(fn=kernel, signature=types, constexprs=constants, attrs=divisible)
        # A version that the drivers of CUDA 12.8 know.
        options = {"num_warps": warps, "num_stages": stages, "ptx_version": 86}
        compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
        text = compiled.asm["ptx"].replace(f"{kernel.__name__}(", f"{name}(") if name != kernel.__name__ else compiled.asm["ptx"]
        # Debug information names files of the machine that compiled it.
        text = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith((".loc", ".file")))
        text = text.split("\t.section\t.debug_", 1)[0] + "\n"
        (folder / f"{name}.ptx").write_text(text)
        data = compiled.metadata
        facts = {"block": 32 * warps, "shared": data.shared, "scratch": data.global_scratch_size}
        (folder / f"{name}.json").write_text(json.dumps(facts) + "\n")
        print(f"{name}.ptx: {len(text)} bytes, {facts}", flush=True)


if __name__ == "__main__":
    main()
