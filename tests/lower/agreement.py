"""Whether a table of functions means the same in Litz as in eager.

In: functions by name and their inputs. Out: nothing, or an assertion that names the function. They
are compiled as one graph, which is quicker than one by one. Results must have eager's type, shape
and strides, inputs must be left as eager leaves them, and what shares memory in eager must share it
here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from tests import draws
from tests.stages import Compiled, compiled, copied

Function = Callable[..., Any]
HALF_DTYPES = (torch.float16, torch.bfloat16)
FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
INTEGERS = [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8]
DTYPES = [*FLOATS, *INTEGERS, torch.bool]
# Relative and absolute. Sums and functions of one number: a few units in the last place.
TOLERANCE = {
    torch.float64: (1e-12, 1e-13),
    torch.float32: (2e-6, 2e-6),
    torch.float16: (2e-3, 1e-4),
    torch.bfloat16: (1.6e-2, 1e-3),
}


def tensors_of(value: Any) -> list[torch.Tensor]:
    """The tensors in a result, in order."""
    if isinstance(value, torch.Tensor):
        return [value]
    return [t for item in value for t in tensors_of(item)]


def agree(
    table: Mapping[str, Function] | Function,
    *inputs: torch.Tensor,
    aten: Sequence[str] = (),
    strides: bool = True,
    wide: bool = False,
    as_far_as_eager: bool = False,
    **options: Any,
) -> Compiled:
    """Every function of the table, over copies of the inputs, in eager and compiled.

    `wide` holds halves against eager in float32, rounded once: eager in halves rounds after each
    op, Litz where a value is stored, so that of the two eager is often the one further off.
    `as_far_as_eager` is for results near zero that sums of stored halves leave: an element may then
    be as far off as eager's furthest is.
    """
    functions = table if isinstance(table, Mapping) else {"result": table}

    def together(*args: torch.Tensor) -> list[torch.Tensor]:
        return [t for function in functions.values() for t in tensors_of(function(*args))]

    labels = _labels(functions, inputs)
    want_inputs, got_inputs = [copied(i) for i in inputs], [copied(i) for i in inputs]
    with torch.no_grad():
        want = together(*want_inputs)
        shared = sharing(want + want_inputs)
        slack = [0.0] * (len(want) + len(inputs))
        if wide:
            exact = together(*(i.float() if i.dtype in HALF_DTYPES else copied(i) for i in inputs))
            pairs = zip(exact, want, strict=True)
            exact = [e.to(w.dtype) if w.dtype in HALF_DTYPES else w for e, w in pairs]
            if as_far_as_eager:
                slack[: len(want)] = map(_furthest, want, exact)
            want = exact
    run = compiled(together, **options)
    got = run(*got_inputs)
    assert len(got) == len(want) == len(labels)
    labels = [*labels, *(f"input {k}" for k in range(len(inputs)))]
    results = zip(labels, got + got_inputs, want + want_inputs, slack, strict=True)
    for label, ours, eager, further in results:
        same(label, ours, eager, strides, further)
    assert sharing(got + got_inputs) == shared
    assert set(run.aten_ops) == set(aten), f"left to ATen: {run.aten_ops}"
    return run


def _labels(functions: Mapping[str, Function], inputs: Sequence[torch.Tensor]) -> list[str]:
    """The name of each result."""
    labels = []
    with torch.no_grad():
        for name, function in functions.items():
            count = len(tensors_of(function(*(copied(i) for i in inputs))))
            labels += [f"{name}[{k}]" if count > 1 else name for k in range(count)]
    return labels


def _furthest(got: torch.Tensor, want: torch.Tensor) -> float:
    """The greatest difference of finite numbers."""
    apart = (got.double() - want.double()).abs() if want.is_floating_point() else want.new_zeros(1)
    return float(apart[apart.isfinite()].max()) if apart.isfinite().any() else 0.0


def same(
    label: str, got: torch.Tensor, want: torch.Tensor, strides: bool = True, slack: float = 0.0
) -> None:
    assert got.dtype is want.dtype, f"{label}: type {got.dtype}, eager {want.dtype}"
    assert got.shape == want.shape, f"{label}: shape {tuple(got.shape)}, eager {tuple(want.shape)}"
    if strides and got.numel() > 1:
        assert _steps(got) == _steps(want), f"{label}: strides {got.stride()}, not {want.stride()}"
    rtol, atol = TOLERANCE.get(want.dtype, (0, 0))
    atol = max(atol, slack)
    torch.testing.assert_close(
        got, want, rtol=rtol, atol=atol, equal_nan=True, msg=lambda m: f"{label}: {m}"
    )


def _steps(tensor: torch.Tensor) -> list[int]:
    """Strides, without those of dimensions that have one place."""
    return [s for s, n in zip(tensor.stride(), tensor.shape, strict=True) if n > 1]


def sharing(tensors: list[torch.Tensor]) -> list[list[bool]]:
    """Which pairs share memory; empty tensors have none."""
    memory = [t.untyped_storage().data_ptr() if t.numel() else id(t) for t in tensors]
    return [[a == b for b in memory] for a in memory]


def takes(function: Function, *inputs: torch.Tensor) -> bool:
    """Whether eager knows a function for these types."""
    try:
        with torch.no_grad():
            function(*(copied(i) for i in inputs))
    except (RuntimeError, NotImplementedError, TypeError):
        return False
    return True


def numbers(dtype: torch.dtype, *shape: int, seed: int = 0) -> torch.Tensor:
    """Small random numbers of a type."""
    made = draws.generator(seed)
    if dtype is torch.bool:
        return torch.randint(0, 2, shape, generator=made).bool()
    if dtype.is_floating_point:
        return (3 * torch.randn(shape, generator=made)).to(dtype)
    low = 0 if dtype is torch.uint8 else -50
    return torch.randint(low, 50, shape, generator=made).to(dtype)


def special(dtype: torch.dtype, *, largest: bool = True) -> torch.Tensor:
    """The numbers on which definitions differ, then random ones: one vector and a tail."""
    rest = numbers(dtype, 19, seed=1)
    if dtype is torch.bool:
        return rest
    if dtype.is_floating_point:
        limits = torch.finfo(dtype)
        first = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, -1.5, 2.5, -2.5, torch.inf, -torch.inf]
        first += [torch.nan, limits.eps]
        first += [limits.max, limits.min, limits.tiny, -limits.tiny] if largest else []
    else:
        bounds = torch.iinfo(dtype)
        first = [0, 1, 2, 3, 7, 8, 9, bounds.max, bounds.max - 1]
        first += [bounds.min] if largest else []
        first += [] if dtype is torch.uint8 else [-1, -2, -3, -7, -8]
    return torch.cat([torch.tensor(first, dtype=dtype), rest])
