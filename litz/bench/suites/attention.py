"""Suite `attention`: `F.scaled_dot_product_attention` by sequence, head, mask and threads.

In: nothing. Out: a case for each. In memory, heads are inside rows, as a model's projections leave
them. The fact `GFLOP/s` counts both GEMMs, half of them if the mask is causal. Example:
`causal 64 512 rows, 1 thread`.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from litz.bench.calls import measure_calls
from litz.bench.case import Case, Program, Say, Settings, Suite
from litz.bench.results import OURS, Row

# Rows of queries and keys, and the number of heads that keeps a call between 0.1 and 100 ms.
ROWS = {32: 48, 64: 48, 128: 48, 256: 24, 512: 12, 1024: 12, 2048: 8}
WIDTHS = (32, 64, 80, 128)
THREADS = (1, 2)


def full(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v)


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def masked(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def grouped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k[:, ::4], v[:, ::4], is_causal=True, enable_gqa=True)


def by_hand(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """As BERT writes it."""
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5 + mask
    return (torch.softmax(scores, -1) @ v).transpose(1, 2).flatten(2)


def decode(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """One row of queries, as in generation."""
    return F.scaled_dot_product_attention(q[:, :, -1:], k, v)


FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    f.__name__.replace("_", " "): f for f in (full, causal, masked, grouped, by_hand, decode)
}
SWEPT = ("full", "causal")


def program(name: str, rows: int, heads: int, width: int) -> Program:
    torch.manual_seed(0)
    function = FUNCTIONS[name]
    operands = [torch.randn(1, rows, heads, width).transpose(1, 2) for _ in range(3)]
    if function in (masked, by_hand):
        operands.append(torch.randn(1, 1, rows, rows))
    return Program(function, tuple(operands))


def cases(quick: bool) -> list[Case]:
    """Two functions at every size, the others at two."""
    sizes = [
        (name, rows, width)
        for name in FUNCTIONS
        for width in (WIDTHS if name in SWEPT else (64,))
        for rows in (ROWS if name in SWEPT else (128, 1024))
    ]
    if quick:
        sizes = [("full", 32, 32), ("causal", 64, 32)]
    return [
        Case(
            "attention", f"{name} {width}", f"{rows} rows, {n} thread{'s' * (n > 1)}",
            partial(program, name, rows, ROWS[rows], width),
            partial(measure, flops=_flops(name, rows, ROWS[rows], width)),
            beside=("eager",), threads=n,
        )
        for name, rows, width in sizes
        for n in THREADS
    ]  # fmt: skip


def _flops(name: str, rows: int, heads: int, width: int) -> float:
    points = rows if name == "decode" else rows * rows
    return 4.0 * heads * points * width * (0.5 if name in ("causal", "grouped") else 1.0)


def measure(case: Case, settings: Settings, say: Say, flops: float = 0.0) -> list[Row]:
    """The time of a call, and Litz's rate."""
    rows = measure_calls(case, settings, say, metric="short call")
    return [
        row.with_facts({"GFLOP/s": 1e-9 * flops / statistics.median(row.samples[OURS])})
        if OURS in row.samples
        else row
        for row in rows
    ]


SUITE = Suite("Attention, by sequence, head, mask and threads: the time of a call.", cases)
