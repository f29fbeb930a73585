"""Whether Litz's answer is right: held against eager and against float64.

In: a `Program`. Out: nothing, or an AssertionError with the program as a script.

Integers, bools, shapes and types must equal eager's. A float may be wrong by what rounding explains
and no more. The program runs in float64 a few times with every float result moved at random by up
to an ulp of its type; the largest change seen in an output is how far rounding alone carries it,
conditioning, cancellation and all. Litz must lie within

    EAGER * (eager's own error) + SPREAD * (that change) + an ulp of the largest number

of the float64 result, each measured over the whole output, since one element's error is luck.
EAGER is 2: Litz sums in another order than eager does. SPREAD is 32: math functions may be wrong by
four ulps where the noise moves them by one, and a sum rounds at the size of its partial sums, where
the noise moves its terms. A wrong answer is wrong by far more than that.
"""

from __future__ import annotations

from typing import Any

import torch

from tests.fuzz.programs import Program
from tests.stages import compiled

EAGER, SPREAD, RUNS = 2.0, 32.0, 3


def check(program: Program) -> None:
    """Compile, run, compare; on failure show the program."""
    try:
        _check(program)
    except Exception as error:
        raise AssertionError(f"{type(error).__name__}: {error}\n\n{program.script()}") from error


def _check(program: Program) -> None:
    torch.manual_seed(0)
    inputs = program.fresh_inputs()
    with torch.no_grad():
        eager = list(program.function()(*inputs)) + inputs
    given = program.fresh_inputs()
    ours = list(compiled(program.function(), **program.options)(*given)) + given
    labels = [*program.outputs, *program.arguments]
    for label, got, want in zip(labels, ours, eager, strict=True):
        same_kind(label, got, want)
    if any(t.is_floating_point() for t in eager):
        exact = program.reference(0, 0)
        noisy = [program.reference(1, seed) for seed in range(1, RUNS + 1)]
        for k, label in enumerate(labels):
            if eager[k].is_floating_point():
                close(label, ours[k], eager[k], exact[k], [run[k] for run in noisy])


def same_kind(label: str, got: torch.Tensor, want: torch.Tensor) -> None:
    assert got.dtype is want.dtype, f"{label} has type {got.dtype}, eager {want.dtype}"
    assert got.shape == want.shape, f"{label} has shape {got.shape}, eager {want.shape}"
    if not want.is_floating_point():
        differs = got != want
        assert not differs.any(), f"{label}{_first(differs, got=got, eager=want)}"


def close(label: str, got: torch.Tensor, eager: torch.Tensor, exact: Any, noisy: list[Any]) -> None:
    wide, seen = got.double(), eager.double()
    both = seen.isfinite() & exact.isfinite()
    for run in noisy:
        both &= run.isfinite()
    agree = torch.where(both, wide.isfinite(), _class(wide) == _class(seen))
    assert agree.all(), f"{label}{_first(~agree, got=got, eager=eager)}"
    if not both.any():
        return
    spread = max(_largest(run - exact, both) for run in noisy)
    ulp = torch.finfo(got.dtype).eps * _largest(exact, both) + torch.finfo(got.dtype).tiny
    allowed = EAGER * _largest(seen - exact, both) + SPREAD * spread + ulp
    error = _largest(wide - exact, both)
    worst = both & ((wide - exact).abs() == error)
    assert error <= allowed, (
        f"{label}{_first(worst, got=got, eager=eager, float64=exact)}: "
        f"wrong by {error:.3g}, more than {allowed:.3g} (spread {spread:.3g})"
    )


def _first(where: torch.Tensor, **values: torch.Tensor) -> str:
    """The first place where something is wrong, and what each says there."""
    place = tuple(where.nonzero()[0].tolist())
    shown = ", ".join(f"{name} {value[place].item()}" for name, value in values.items())
    return f"{list(place)} of {list(where.shape)}: {shown}"


def _class(values: torch.Tensor) -> torch.Tensor:
    """0 finite, 1 NaN, 2 inf, 3 -inf."""
    kinds = torch.where(values.isnan(), 1, 0)
    kinds = torch.where(values == torch.inf, 2, kinds)
    return torch.where(values == -torch.inf, 3, kinds)


def _largest(values: torch.Tensor, where: torch.Tensor) -> float:
    return float(values[where].abs().max())
