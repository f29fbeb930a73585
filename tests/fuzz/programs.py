"""Programs as text: run in eager, in float64, and in float64 with noise.

In: lines of Python. Out: `Program`; a failing one prints as a script. Example:

    x0 = data(1, (4, 3), float32).transpose(0, 1)
    v0 = x0.exp()
    v1 = v0.sum(1, keepdim=True)
    v2 = v0 + v1

An op that jumps (a comparison, a rounding, an argmax) takes exact values alone: inputs and what
views and integer ops make of them. All other floats may differ in their last bits between two right
answers, and a jump would make that difference as large as it likes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F

FLOATS = {n: getattr(torch, n) for n in ("float32", "float64", "bfloat16", "float16")}
INTEGERS = {n: getattr(torch, n) for n in ("int64", "int32", "int16", "int8", "uint8")}
DTYPES: dict[str, torch.dtype] = {**FLOATS, **INTEGERS, "bool": torch.bool}
SPECIAL = [0.0, -0.0, math.inf, -math.inf, math.nan, 1.0, -1.0]


def data(seed: int, shape: tuple[int, ...], dtype: torch.dtype, special: bool = False) -> Any:
    """The same numbers every time: small, of both signs, with repeats among integers."""
    made = torch.Generator().manual_seed(seed)
    if dtype is torch.bool:
        return torch.randint(0, 2, shape, generator=made).bool()
    if not dtype.is_floating_point:
        low = 0 if dtype is torch.uint8 else -9
        return torch.randint(low, 10, shape, generator=made).to(dtype)
    values = torch.randn(shape, generator=made, dtype=torch.float64)
    if special:
        chosen = torch.randint(0, len(SPECIAL), shape, generator=made)
        picked = torch.tensor(SPECIAL, dtype=torch.float64)[chosen]
        values = torch.where(torch.rand(shape, generator=made) < 0.3, picked, values)
    return values.to(dtype)


def names(**changed: Any) -> dict[str, Any]:
    """What a program's text may refer to."""
    return {"torch": torch, "F": F, "data": data, "inf": math.inf, **DTYPES, **changed}


@dataclass(frozen=True)
class Line:
    """`text` assigns or mutates; `fresh` says that it makes a new rounded float of that type.
    `summed` is the operand of a sum: each of its elements takes part in roundings of its own."""

    text: str
    fresh: torch.dtype | None = None
    summed: str = ""

    @property
    def name(self) -> str:
        return self.text.split(" = ")[0]


@dataclass(frozen=True)
class Program:
    """Inputs, steps, the names that are returned, and the flags of the compile."""

    inputs: tuple[Line, ...]
    steps: tuple[Line, ...]
    outputs: tuple[str, ...]
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def arguments(self) -> list[str]:
        return [line.name for line in self.inputs]

    def text(self, step: Callable[[Line], str] = lambda line: line.text) -> str:
        body = [*(step(line) for line in self.steps), f"return [{', '.join(self.outputs)}]"]
        return f"def program({', '.join(self.arguments)}):\n    " + "\n    ".join(body) + "\n"

    def function(self, namespace: Mapping[str, Any] | None = None) -> Callable[..., list[Any]]:
        found = dict(names() if namespace is None else namespace)
        exec(self.text(), found)
        return found["program"]  # type: ignore[no-any-return]

    def fresh_inputs(self, namespace: Mapping[str, Any] | None = None) -> list[Any]:
        found = dict(names() if namespace is None else namespace)
        for line in self.inputs:
            exec(line.text, found)
        return [found[name] for name in self.arguments]

    def reference(self, noise: float, seed: int) -> list[Any]:
        """Outputs and mutated inputs in float64, each float result off by up to `noise` ulps."""
        draws = torch.Generator().manual_seed(seed)

        def noisy(value: Any, dtype: torch.dtype) -> Any:
            off = 2 * torch.rand(value.shape, generator=draws, dtype=torch.float64) - 1
            return value * (1 + noise * torch.finfo(dtype).eps * off)

        def wide(*args: Any) -> Any:
            made = data(*args)
            return made.double() if made.is_floating_point() else made

        space = names(noisy=noisy, data=wide, **dict.fromkeys(FLOATS, torch.float64))
        space |= {f"{name}_": dtype for name, dtype in FLOATS.items()}
        inputs = self.fresh_inputs(space)
        exec(self.text(_with_noise), space)
        with _default_dtype(torch.float64):
            return list(space["program"](*inputs)) + inputs

    def script(self) -> str:
        """The program as a script to paste, with the flags it was compiled with."""
        lines = [line.text.replace("data(", "programs.data(") for line in self.inputs]
        return "\n".join(
            ["import torch, torch.nn.functional as F", "from torch import *",
             "from tests.fuzz import programs", "from tests.stages import compiled", *lines,
             self.text(), f"inputs = [{', '.join(self.arguments)}]",
             "print(program(*(x.clone() for x in inputs)))",
             f"print(compiled(program, **{dict(self.options)!r})(*inputs))"]
        )  # fmt: skip


def _with_noise(line: Line) -> str:
    if line.fresh is None:
        return line.text
    name, _, value = line.text.partition(" = ")
    dtype = str(line.fresh).removeprefix("torch.") + "_"
    if line.summed:
        value = re.sub(rf"\b{line.summed}\b", f"noisy({line.summed}, {dtype})", value)
    return f"{name} = noisy({value}, {dtype})"


class _default_dtype:
    """Numbers of Python join integers as this type, for a block."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype

    def __enter__(self) -> None:
        self.before = torch.get_default_dtype()
        torch.set_default_dtype(self.dtype)

    def __exit__(self, *_: Any) -> None:
        torch.set_default_dtype(self.before)
