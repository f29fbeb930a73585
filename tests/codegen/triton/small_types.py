"""Scans and reductions of truths and of small integers, with ops that read what they give.

In: nothing. Out: `CASES`, which are part of the cases beside this file. A GPU carries truth
as zeros and ones of 32 bits, and Triton adds small integers up in 32 bits: an op in the same kernel
may see neither. Example: `~x.cummin(1)[0]`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from tests import draws

Case = tuple[Callable[..., Any], tuple[Any, ...]]
SHAPE = (6, 20)
BYTES = torch.randint(-128, 128, SHAPE, generator=draws.generator(20), dtype=torch.int8)
GIVEN: dict[str, torch.Tensor] = {
    "bool": BYTES > -40,
    "u8": BYTES.view(torch.uint8),
    "i8": BYTES,
    "i32": BYTES.int() * 16_000_000,
}


def _read(v: torch.Tensor) -> list[torch.Tensor]:
    """A value, and what ops make of it that look at its type: its bits, its order, its truth."""
    found = [v, ~v, v == 1, v > 0, v.logical_not(), v ^ v.logical_not(), v + v, v.float()]
    found += [torch.where(v.bool(), 2.5, v.float()), v.long() * 3 - 1, v.byte(), v.to(torch.int8)]
    return found


def _scanned(dim: int, x: torch.Tensor) -> list[torch.Tensor]:
    found = [x.cummin(dim)[0], x.cummax(dim)[0], x.cumsum(dim), x.cumprod(dim), x.cummax(dim)[1]]
    if x.dtype is not torch.bool:  # eager adds no truths up to one
        found += [x.cumsum(dim, dtype=x.dtype), x.cumprod(dim, dtype=x.dtype)]
    return [result for v in found for result in _read(v)]


def _negated(dim: int, x: torch.Tensor) -> list[torch.Tensor]:
    """Scans that one op reads, inside of the loop along the row."""
    found = [~x.cummin(dim)[0], ~x.flip(dim).cummax(dim)[0]]
    if x.dtype is not torch.bool:
        found += [~(x + 1).cumsum(dim, dtype=x.dtype), ~(x + 1).cumprod(dim, dtype=x.dtype)]
    return found


def _folded(dim: int, x: torch.Tensor) -> list[torch.Tensor]:
    found = [x.amin(dim), x.amax(dim), x.any(dim), x.all(dim), x.sum(dim), x.max(dim)[1]]
    found += [x.sum(dim, dtype=x.dtype), x.prod(dim, dtype=x.dtype)]
    return [result for v in found for result in _read(v)]


def _cases(what: str, function: Callable[..., Any]) -> dict[str, Case]:
    return {
        f"{what}_of_{name}_along_{dim}": (partial(function, dim), (x,))
        for name, x in GIVEN.items()
        for dim in (0, 1)
    }


CASES: dict[str, Case] = {
    **_cases("scans", _scanned), **_cases("negated_scans", _negated), **_cases("folds", _folded)
}  # fmt: skip
# Those whose rows are long enough for programs to share them.
SHARED = [f"folds_of_{name}_along_1" for name in GIVEN]
