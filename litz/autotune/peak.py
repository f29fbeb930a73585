"""The machine's peak: how many multiply-adds a second it does if nothing else limits it.

In: a number of threads. Out: `Peak`. Calling it runs one loop a thread over sums in registers,
enough of them to hide the latency of the instruction. It is written as LLVM IR and built like
kernels. Example: `Peak(2)()` takes `Peak(2).flops / rate` seconds.
"""

from __future__ import annotations

import ctypes
from concurrent.futures import ThreadPoolExecutor

from litz.build.llvm import compile_object, load_object
from litz.target import CpuTarget, host
from litz.trace import Trace

NAME = "litz_peak"
SUMS = 12  # more than latency 4 times two FMA units, and fewer than any machine has registers
TURNS = 1_000_000  # some milliseconds, so that the start of a thread does not count


def peak_text(target: CpuTarget) -> str:
    """`float @litz_peak(i64 turns)`: sums of x * y, all returned so that LLVM keeps them."""
    lanes = target.vector_bytes // 4
    vector = f"<{lanes} x float>"
    first = "\n".join(
        f"  %s{k} = phi {vector} [ splat (float {k}.0), %entry ], [ %t{k}, %loop ]"
        for k in range(SUMS)  # different initial values, or LLVM makes them one
    )
    added = "\n".join(
        f"  %t{k} = call {vector} @llvm.fma.v{lanes}f32({vector} %x, {vector} %x, {vector} %s{k})"
        for k in range(SUMS)
    )
    total = "\n".join(
        f"  %u{k + 1} = fadd {vector} {f'%u{k}' if k else '%t0'}, %t{k + 1}"
        for k in range(SUMS - 1)
    )
    return f"""
declare {vector} @llvm.fma.v{lanes}f32({vector}, {vector}, {vector})
define float @{NAME}(i64 %turns) #0 {{
entry:
  %small = sitofp i64 %turns to float
  %one = insertelement {vector} poison, float %small, i64 0
  %x = shufflevector {vector} %one, {vector} poison, <{lanes} x i32> zeroinitializer
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
{first}
{added}
  %next = add i64 %i, 1
  %go = icmp slt i64 %next, %turns
  br i1 %go, label %loop, label %done
done:
{total}
  %result = extractelement {vector} %u{SUMS - 1}, i64 0
  ret float %result
}}
attributes #0 = {{ nounwind "prefer-vector-width"="{8 * target.vector_bytes}" }}
"""


class Peak:
    """Callable: every thread runs its loop once."""

    def __init__(self, threads: int) -> None:
        target = host()
        self.binary = load_object(compile_object(peak_text(target), target, 2, Trace()), [NAME])
        self.threads = threads
        self.flops = 2 * SUMS * (target.vector_bytes // 4) * TURNS * threads
        self.run = ctypes.CFUNCTYPE(ctypes.c_float, ctypes.c_int64)(self.binary.address[NAME])
        self.pool = ThreadPoolExecutor(threads)

    def __call__(self) -> list[float]:
        if self.threads == 1:
            return [self.run(TURNS)]
        return list(self.pool.map(self.run, [TURNS] * self.threads))
