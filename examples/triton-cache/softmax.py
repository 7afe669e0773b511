"""A kernel in Triton. Its compiled form is in `cache`, where Triton put it:

TRITON_CACHE_DIR=cache TRITON_DISABLE_LINE_INFO=1 python3 softmax.py

needs Triton 3.9 and no GPU. In an application the files are there once its kernels have run, in `~/.triton/cache`.
"""

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource


@triton.jit
def softmax(x, out, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * columns
    at = tl.arange(0, BLOCK)
    value = tl.load(x + row + at, mask=at < columns, other=-float("inf"))
    power = tl.exp(value - tl.max(value, axis=0))
    tl.store(out + row + at, power / tl.sum(power, axis=0), mask=at < columns)


if __name__ == "__main__":
    types = {"x": "*fp32", "out": "*fp32", "columns": "i32", "BLOCK": "constexpr"}
    source = ASTSource(fn=softmax, signature=types, constexprs={"BLOCK": 1024})
    # For the oldest GPUs that preempt runs on, and by PTX that their drivers know.
    triton.compile(source, target=GPUTarget("cuda", 80, 32), options={"num_warps": 4, "ptx_version": 80})
