"""A trial: rows whose length is odd, read at aligned places. `python -m tests_gpu.odd`."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tests_gpu.singles import microseconds


@triton.jit
def sum_plain(o, b, N, B: tl.constexpr):
    x = tl.program_id(0)
    acc = tl.zeros([B], tl.float32)
    for start in range(0, N, B):
        r = start + tl.arange(0, B)
        v = tl.load(b + x * N + r, r < N, other=0).to(tl.float32)
        acc += v
    tl.store(o + x, tl.sum(acc, 0))


@triton.jit
def sum_aligned(o, b, N, B: tl.constexpr):
    x = tl.program_id(0)
    first = x * N
    low = first // 8 * 8
    high = (first + N + 7) // 8 * 8
    acc = tl.zeros([B], tl.float32)
    for start in range(0, N + 7, B):
        r = low + start + tl.arange(0, B)
        v = tl.load(b + r, r < high, other=0).to(tl.float32)
        acc += tl.where((r >= first) & (r < first + N), v, 0.0)
    tl.store(o + x, tl.sum(acc, 0))


@triton.jit
def softmax_plain(o, b, N, B: tl.constexpr):
    x = tl.program_id(0)
    top = tl.full([B], float("-inf"), tl.float32)
    total = tl.zeros([B], tl.float32)
    for start in range(0, N, B):
        r = start + tl.arange(0, B)
        v = tl.load(b + x * N + r, r < N, other=float("-inf")).to(tl.float32)
        d = tl.exp(tl.where(v == top, 0.0, -tl.abs(v - top)))
        total = tl.where(r < N, tl.where(v > top, total * d + 1.0, total + d), total)
        top = tl.maximum(top, v)
    m = tl.max(top, 0)
    s = tl.sum(total * tl.exp(top - m), 0)
    for start in range(0, N, B):
        r = start + tl.arange(0, B)
        v = tl.load(b + x * N + r, r < N, other=0).to(tl.float32)
        tl.store(o + x * N + r, (tl.exp(v - m) / s).to(tl.bfloat16), r < N)


@triton.jit
def softmax_aligned(o, b, N, B: tl.constexpr):
    x = tl.program_id(0)
    first = x * N
    low = first // 8 * 8
    high = (first + N + 7) // 8 * 8
    top = tl.full([B], float("-inf"), tl.float32)
    total = tl.zeros([B], tl.float32)
    for start in range(0, N + 7, B):
        r = low + start + tl.arange(0, B)
        inside = (r >= first) & (r < first + N)
        v = tl.load(b + r, r < high, other=0).to(tl.float32)
        v = tl.where(inside, v, float("-inf"))
        d = tl.exp(tl.where(v == top, 0.0, -tl.abs(v - top)))
        total = tl.where(inside, tl.where(v > top, total * d + 1.0, total + d), total)
        top = tl.maximum(top, v)
    m = tl.max(top, 0)
    s = tl.sum(total * tl.exp(top - m), 0)
    begin = (first + 7) // 8 * 8
    end = (first + N) // 8 * 8
    for start in range(0, N + 7, B):
        r = low + start + tl.arange(0, B)
        v = tl.load(b + r, r < high, other=0).to(tl.float32)
        y = (tl.exp(v - m) / s).to(tl.bfloat16)
        tl.store(o + r, y, (r >= begin) & (r < end))
        if (start == 0) | (start + B >= N):
            edge = ((r >= first) & (r < begin)) | ((r >= end) & (r < first + N))
            tl.store(o + r, y, edge)


def main() -> None:
    for shape, kernels, full in (
        ((20014, 3001), (sum_plain, sum_aligned), False),
        ((4096, 50257), (sum_plain, sum_aligned), False),
        ((4096, 50257), (softmax_plain, softmax_aligned), True),
    ):
        x = torch.randn(*shape, device="cuda", dtype=torch.bfloat16)
        wanted = x.softmax(1) if full else x.float().sum(1)
        for kernel in kernels:
            for block, warps in ((1024, 2), (2048, 4), (4096, 4), (4096, 8), (8192, 8), (4096, 16)):
                o = torch.empty_like(wanted)
                run = lambda: kernel[(shape[0],)](o, x, shape[1], B=block, num_warps=warps)  # noqa
                took = microseconds(run)
                off = float((o.float() - wanted.float()).abs().max())
                print(
                    f"odd {kernel.__name__} {shape} {block} {warps}: {took:.1f} us, off {off:.2g}"
                )


if __name__ == "__main__":
    main()
