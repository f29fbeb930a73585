"""How far results are off: float64 is the measure, eager's own error stands beside.

In: a function and its inputs. Out: for each result, the greatest errors of eager and of Litz, in
units in the last place of the largest number of the exact result. The exact result is the same
function of the same inputs in float64. The bound that every case is held to:

    error of Litz  <=  max(2 * error of eager, 1 unit)

A result has to be rounded to its type, so that where eager is exact, or off by less than that, one
unit is allowed. A difference in what is NaN or infinite is an infinite error. Example:
`hold(torch.var, torch.randn(64, 3000) * 1e-3 + 1e3)`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tests.draws import generator
from tests.stages import compiled, copied

Function = Callable[..., Any]


@dataclass(frozen=True)
class Errors:
    """Of one result."""

    eager: float
    litz: float

    @property
    def fits(self) -> bool:
        return self.litz <= max(2 * self.eager, 1)


def numbers(
    *shape: int, mean: float = 0, std: float = 1, dtype: torch.dtype = torch.float32, seed: int = 0
) -> torch.Tensor:
    """Normally distributed; equal seeds give equal numbers."""
    made = torch.randn(shape, generator=generator(seed), dtype=torch.float64)
    return (made * std + mean).to(dtype)


def listed(value: Any) -> list[torch.Tensor]:
    return [value] if isinstance(value, torch.Tensor) else list(value)


def off(found: torch.Tensor, exact: torch.Tensor) -> float:
    """The greatest error of each draw, over draws the root of their mean square (the error of one
    number, as of a sum of all, is luck), in units of the largest number."""
    same = (found.isnan() == exact.isnan()) & ((found == exact) | exact.isfinite() | exact.isnan())
    finite = exact.isfinite() & found.isfinite()
    if not bool(same.all()) or not torch.equal(found.isfinite(), exact.isfinite()):
        return float("inf")
    if not bool(finite.any()):
        return 0.0
    apart = torch.where(finite, found.double() - exact.double(), 0).abs()
    error = float(apart.reshape(len(apart), -1).amax(1).square().mean().sqrt())
    largest = float(exact[finite].abs().max())
    if largest == 0:
        return 0.0 if error == 0 else float("inf")
    return error / (largest * torch.finfo(found.dtype).eps)


def measured(
    exact: Sequence[torch.Tensor], eager: Sequence[torch.Tensor], ours: Sequence[torch.Tensor]
) -> list[Errors]:
    """Of the results of one draw."""
    return [
        Errors(off(e[None], x[None]), off(o[None], x[None]))
        for x, e, o in zip(exact, eager, ours, strict=True)
    ]


def held(errors: Sequence[Errors]) -> None:
    assert all(e.fits for e in errors), errors


def hold(
    function: Function, *draws: torch.Tensor, exact: Function | None = None, **options: Any
) -> None:
    """On some tensors of one shape, taken together. `exact` may be another way to write the
    function, where float64 has too few digits for it."""
    run = compiled(function, **options)
    with torch.no_grad():
        meant = _stacked((exact or function)(x.double()) for x in draws)
        eager = _stacked(function(copied(x)) for x in draws)
    ours = _stacked(run(copied(x)) for x in draws)
    held([Errors(off(e, x), off(o, x)) for x, e, o in zip(meant, eager, ours, strict=True)])


def _stacked(results: Iterable[Any]) -> list[torch.Tensor]:
    """Each result, of all draws."""
    return [torch.stack(each) for each in zip(*map(listed, results), strict=True)]
