"""Suite `kernels`: single functions at sizes of the L1 cache, the L2 cache, and memory.

In: nothing. Out: a case for each function and size, and `copy`, a row of the same run that shows
the speed of memory. The facts: `MB` of arguments and results, the `GB/s` at which Litz moves them,
and, in memory, `% of copy`, relative to the fastest copy. Example: `softmax memory`.
"""

from __future__ import annotations

import ctypes
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from litz.bench.calls import measure_calls
from litz.bench.case import Case, Program, Say, Settings, Suite, tensors_in
from litz.bench.results import OURS, Row

COPY, MEMORY = "copy", "memory"
# Rows and columns of the main argument: 16 KiB, 512 KiB, 64 MiB of float32.
SIZES = {"L1": (32, 128), "L2": (256, 512), MEMORY: (16384, 1024)}
F32, BF16 = torch.float32, torch.bfloat16

Arguments = tuple[Tensor, ...]

# -- the functions -----------------------------------------------------------------------------


def copy(x: Tensor) -> Tensor:
    return x.clone()


def softmax(x: Tensor) -> Tensor:
    return torch.softmax(x, -1)


def log_sum(x: Tensor) -> Tensor:
    return torch.logsumexp(x, -1)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], weight, bias)


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight


def gelu(x: Tensor, bias: Tensor) -> Tensor:
    return F.gelu(x + bias) * 0.5 + x


def silu(x: Tensor, bias: Tensor) -> Tensor:
    return F.silu(x + bias) * x


def glu(x: Tensor) -> Tensor:
    gate, value = x.chunk(2, dim=-1)
    return F.silu(gate) * value


def rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Heads of 64: each pair (x[k], x[k + 32]) is rotated by the angle of its row."""
    a, b = x.unflatten(-1, (-1, 64)).chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1).flatten(-2)


def cross_entropy(x: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(x, target)


def transpose_add(x: Tensor, y: Tensor) -> Tensor:
    return x.t() + y


def column_sum(x: Tensor) -> Tensor:
    return x.sum(0)


def full_sum(x: Tensor) -> Tensor:
    return x.sum()


def sum_beside_transpose(x: Tensor) -> tuple[Tensor, Tensor]:
    """The transposed result has x's layout in memory: one pass is enough for both."""
    return x.sum(1), x.t() + 1


def cat(x: Tensor, y: Tensor) -> Tensor:
    """Each part is expensive to compute, and useless in the place of the other."""
    return torch.cat([F.gelu(x), torch.tanh(y)], -1)


def pad(x: Tensor) -> Tensor:
    return F.pad(x.exp(), (3, 5, 16, 16))


def cumsum(x: Tensor) -> Tensor:
    return x.cumsum(-1)


def gather(x: Tensor, rows: Tensor) -> Tensor:
    """An embedding: whole rows, in any order."""
    return x[rows]


def scatter_add(x: Tensor, rows: Tensor) -> Tensor:
    """The gradient of an embedding."""
    return torch.zeros_like(x).index_add(0, rows, x)


def max_pool(x: Tensor) -> Tensor:
    return F.max_pool2d(x, 3, stride=2, padding=1)


def batch_norm(x: Tensor, mean: Tensor, variance: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.relu(F.batch_norm(x, mean, variance, weight, bias))


# -- their arguments ---------------------------------------------------------------------------


def _alone(x: Tensor) -> Arguments:
    return (x,)


def _four_rows(x: Tensor) -> Arguments:
    """Too few rows for the threads; in memory, each is too long for a cache."""
    return (x.reshape(4, -1),)


def _with_another(x: Tensor) -> Arguments:
    return x, torch.randn(x.shape)


def _with_row(count: int, x: Tensor) -> Arguments:
    """x, and vectors as long as its rows."""
    return x, *(torch.randn(x.shape[-1]) for _ in range(count))


def _with_angles(x: Tensor) -> Arguments:
    angles = torch.rand(len(x), 1, 32) * 6
    return x, angles.cos(), angles.sin()


def _with_classes(x: Tensor) -> Arguments:
    return x, torch.randint(0, x.shape[1], (len(x),))


def _with_transpose(x: Tensor) -> Arguments:
    return x, torch.randn(x.shape[::-1])


def _with_rows(x: Tensor) -> Arguments:
    return x, torch.randint(0, len(x), (len(x),))


def _as_images(x: Tensor) -> Arguments:
    """The same elements as images of at least eight pixels a side, as many as that gives."""
    side = 8 if x.numel() < 1 << 16 else 32
    return (x.reshape(-1, 16, side, side),)


def _with_channels(x: Tensor) -> Arguments:
    (images,) = _as_images(x)
    return images, torch.randn(16), torch.rand(16) + 0.5, torch.randn(16), torch.randn(16)


@dataclass(frozen=True)
class Kernel:
    """A function of tensors, the arguments it makes from x, the types it is measured in."""

    function: Callable[..., Tensor | tuple[Tensor, ...]]
    arguments: Callable[[Tensor], Arguments] = _alone
    dtypes: tuple[torch.dtype, ...] = (F32,)


KERNELS = {
    COPY: Kernel(copy),
    "softmax": Kernel(softmax, _alone, (F32, BF16)),
    "long softmax": Kernel(softmax, _four_rows),
    "long logsumexp": Kernel(log_sum, _four_rows),
    "layer norm": Kernel(layer_norm, partial(_with_row, 2), (F32, BF16)),
    "rms norm": Kernel(rms_norm, partial(_with_row, 1), (F32, BF16)),
    "gelu": Kernel(gelu, partial(_with_row, 1), (F32, BF16)),
    "silu": Kernel(silu, partial(_with_row, 1), (F32, BF16)),
    "glu": Kernel(glu, _alone, (F32, BF16)),
    "rotary": Kernel(rotary, _with_angles, (F32, BF16)),
    "cross entropy": Kernel(cross_entropy, _with_classes),
    "transpose add": Kernel(transpose_add, _with_transpose),
    "column sum": Kernel(column_sum, _alone, (F32, BF16)),
    "full sum": Kernel(full_sum, _alone, (F32, BF16)),
    "sum beside transpose": Kernel(sum_beside_transpose),
    "cat": Kernel(cat, _with_another),
    "pad": Kernel(pad),
    "cumsum": Kernel(cumsum),
    "gather": Kernel(gather, _with_rows),
    "scatter add": Kernel(scatter_add, _with_rows),
    "max pool": Kernel(max_pool, _as_images),
    "batch norm": Kernel(batch_norm, _with_channels),
}


def program(name: str, size: str, dtype: torch.dtype = F32) -> Program:
    """A kernel on random arguments of that size."""
    torch.manual_seed(0)
    kernel = KERNELS[name]
    arguments = kernel.arguments(torch.randn(SIZES[size]))
    return Program(
        kernel.function, tuple(a.to(dtype) if a.is_floating_point() else a for a in arguments)
    )


def cases(quick: bool) -> list[Case]:
    return [
        Case("kernels", _name(name, dtype), size, partial(program, name, size, dtype), measure,
             beside=("eager",) if name == COPY else ())
        for name, kernel in KERNELS.items()
        for dtype in kernel.dtypes
        for size in (["L1"] if quick else SIZES)
    ]  # fmt: skip


def _name(kernel: str, dtype: torch.dtype) -> str:
    return kernel if dtype is F32 else f"{kernel} bf16"


# -- how they are measured ---------------------------------------------------------------------


def moved(program: Program) -> dict[str, float]:
    """The bytes that must be read or written at least once: arguments and results."""
    return {"MB": 1e-6 * sum(t.nbytes for t in [*program.tensors, *tensors_in(program())])}


def measure(case: Case, settings: Settings, say: Say) -> list[Row]:
    with kept_memory() if case.variant == MEMORY else nullcontext():
        return measure_calls(case, settings, say, metric="short call", facts=moved)


# mallopt's numbers for these, and their defaults.
TRIM_THRESHOLD, MMAP_MAX = (-1, 128 * 1024), (-4, 65536)
KEPT = 1 << 30  # bytes: the arguments and results of the largest case, with room between them


@contextmanager
def kept_memory() -> Iterator[None]:
    """Freed memory stays with the process, which begins with more than it needs.

    Otherwise glibc maps each large result anew, and its page faults take longer than the kernel,
    for every candidate alike. Systems without mallopt are left as they are.
    """
    library = ctypes.CDLL(None)
    if not hasattr(library, "mallopt"):
        yield
        return
    library.mallopt(TRIM_THRESHOLD[0], 2**31 - 1)
    library.mallopt(MMAP_MAX[0], 0)
    torch.ones(KEPT, dtype=torch.uint8)  # written, so that its pages exist; then freed
    try:
        yield
    finally:
        library.mallopt(*TRIM_THRESHOLD)
        library.mallopt(*MMAP_MAX)
        library.malloc_trim(0)


def finish(rows: list[Row]) -> list[Row]:
    """Add Litz's rate and, in memory, its fraction of the fastest copy's.

    Not in a cache, where the cost of a call outweighs the copy.
    """
    copies = [row for row in rows if (row.case, row.variant) == (COPY, MEMORY)]
    fastest = max((rate(row, name) for row in copies for name in row.samples), default=None)
    return [_with_rates(row, fastest if row.variant == MEMORY else None) for row in rows]


def rate(row: Row, candidate: str) -> float:
    """GB/s."""
    return row.facts["MB"] / 1e3 / statistics.median(row.samples[candidate])


def _with_rates(row: Row, copied: float | None) -> Row:
    if OURS not in row.samples:
        return row
    ours = rate(row, OURS)
    share = {"% of copy": 100 * ours / copied} if copied else {}
    return row.with_facts({"GB/s": ours, **share})


SUITE = Suite(
    "Single functions, from the first cache to memory: the time of a call.", cases, finish
)
