"""A random program as a value: inputs, steps, outputs. Its text is Python.

In: what `generate` drew or `shrink` kept. Out: a function to run, and a script of a few lines that
shows a failure again. Example:

    x0 = data(1, (4, 3), float32).transpose(-1, -2)

    def program(x0):
        v0 = x0.exp()
        v0.add_(x0)
        return [v0.sum(1)]
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F

FLOATS = ("float32", "float64", "bfloat16", "float16")
INTEGERS = ("int64", "int32", "int16", "int8", "uint8")
DTYPES: dict[str, torch.dtype] = {n: getattr(torch, n) for n in (*FLOATS, *INTEGERS, "bool")}
SPECIAL = [0.0, -0.0, math.inf, -math.inf, math.nan, 1.0, -1.0]

# How an input lies in memory: a name, and what `data` of a larger shape becomes.
LAYOUTS = ("contiguous", "transposed", "strided", "offset", "expanded")


def data(seed: int, shape: tuple[int, ...], dtype: torch.dtype, special: bool = False) -> Any:
    """The same numbers every time: small, of both signs, integers with repeats."""
    source = torch.Generator().manual_seed(seed)
    if dtype is torch.bool:
        return torch.randint(0, 2, shape, generator=source).bool()
    if not dtype.is_floating_point:
        low = 0 if dtype is torch.uint8 else -9
        return torch.randint(low, 10, shape, generator=source).to(dtype)
    values = torch.randn(shape, generator=source, dtype=torch.float64)
    if special:
        chosen = torch.randint(0, len(SPECIAL), shape, generator=source)
        picked = torch.tensor(SPECIAL, dtype=torch.float64)[chosen]
        values = torch.where(torch.rand(shape, generator=source) < 0.3, picked, values)
    return values.to(dtype)


@dataclass(frozen=True)
class Input:
    """A tensor the program takes. `base` names the earlier input whose memory it shows."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    seed: int = 1
    layout: str = "contiguous"
    special: bool = False
    base: str = ""

    @property
    def text(self) -> str:
        """An expression that makes it."""
        if self.base:
            return f"{self.base}[..., 1:]"
        return self._made(self.shape)

    def _made(self, s: tuple[int, ...]) -> str:
        if self.layout == "transposed":
            return f"{self._data((*s[:-2], s[-1], s[-2]))}.transpose(-1, -2)"
        if self.layout == "strided":
            return f"{self._data((*s[:-1], 2 * s[-1] + 1))}[..., 1::2]"
        if self.layout == "offset":
            return f"{self._data((s[0] + 2, *s[1:]))}[1:-1]"
        if self.layout == "expanded":
            return f"{self._data((1, *s[1:]))}.expand({s})"
        return self._data(s)

    def _data(self, shape: tuple[int, ...]) -> str:
        return f"data({self.seed}, {shape}, {self.dtype}{', True' if self.special else ''})"


@dataclass(frozen=True)
class Step:
    """`name = template` with the operands in its holes, or a mutation, which has no name."""

    name: str
    template: str
    operands: tuple[str, ...]

    @property
    def text(self) -> str:
        filled = self.template.format(*self.operands)
        return f"{self.name} = {filled}" if self.name else filled


@dataclass(frozen=True)
class Program:
    """Inputs, steps, the names that are returned, the flags it is compiled with, and what for."""

    inputs: tuple[Input, ...]
    steps: tuple[Step, ...]
    outputs: tuple[str, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    device: str = "cpu"

    @property
    def arguments(self) -> list[str]:
        return [i.name for i in self.inputs]

    @property
    def labels(self) -> list[str]:
        """What a run gives: the outputs, and the inputs as the program leaves them."""
        return [*self.outputs, *self.arguments]

    def text(self) -> str:
        lines = [s.text for s in self.steps] + [f"return [{', '.join(self.outputs)}]"]
        return f"def program({', '.join(self.arguments)}):\n    " + "\n    ".join(lines) + "\n"

    def function(self) -> Callable[..., list[Any]]:
        space = namespace()
        exec(self.text(), space)
        return space["program"]  # type: ignore[no-any-return]

    def fresh_inputs(self) -> list[torch.Tensor]:
        space = namespace()
        for i in self.inputs:
            space[i.name] = eval(i.text, space)
        return [space[name] for name in self.arguments]

    def script(self) -> str:
        """The program as a file that fails as long as Litz does."""
        used = [name for name in DTYPES if name in self.text() or name in str(self.inputs)]
        dtypes = ", ".join(name for name in used if name != "bool")
        functional = "import torch.nn.functional as F\n" if "F." in self.text() else ""
        infinity = "from math import inf\n\n" if "(inf" in self.text() else ""
        given = [f"[{', '.join(self.arguments)}]", repr(dict(self.options))]
        given += [repr(self.device)] if self.device != "cpu" else []
        return (
            f"{infinity}import torch\n{functional}from torch import {dtypes or 'float32'}\n\n"
            "from litz.fuzz import assert_same, data\n\n\n"
            f"{self.text()}\n\n"
            + "".join(f"{i.name} = {i.text}\n" for i in self.inputs)
            + f"assert_same(program, {', '.join(given)})\n"
        ).replace(", bool", ", torch.bool")

    def without_dead_steps(self) -> Program:
        """Keep the steps that something needs; a mutation is needed if its operand is."""
        needed = set(self.outputs)
        kept: list[Step] = []
        for step in reversed(self.steps):
            if not step.name or step.name in needed:
                kept.insert(0, step)
                needed |= set(step.operands)
        needed |= {i.base for i in self.inputs}
        inputs = tuple(i for i in self.inputs if i.name in needed)
        return replace(self, inputs=inputs, steps=tuple(kept))


def namespace() -> dict[str, Any]:
    """What a program's text may name."""
    return {"torch": torch, "F": F, "data": data, "inf": math.inf, **DTYPES}
