"""A random program as a value: inputs, steps, outputs. Its text is Python.

In: a program from `generate` or `shrink`. Out: a function to run, and a script of a few lines that
reproduces a failure. Example:

    x0 = data(1, (4, 3), float32).transpose(-1, -2)

    def program(x0):
        v0 = x0.exp()
        v0.add_(x0)
        return [v0.sum(1)]
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

FLOATS = ("float32", "float64", "bfloat16", "float16")
INTEGERS = ("int64", "int32", "int16", "int8", "uint8")
DTYPES: dict[str, torch.dtype] = {n: getattr(torch, n) for n in (*FLOATS, *INTEGERS, "bool")}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
SPECIAL = [0.0, -0.0, math.inf, -math.inf, math.nan, 1.0, -1.0]

# The layouts of an input: names; `text_at` has the view of `data` that each one is.
LAYOUTS = ("contiguous", "transposed", "strided", "offset", "expanded")
POSITIVE = "positive"  # contiguous, positive numbers, as a variance has
SCATTERS = re.compile(r"\.scatter(_?)\((\d+), (\(.*\)), (\w*[a-z]\w*)\)")
MAKES = re.compile(r"\btorch\.(arange|tensor|linspace|eye)\(")  # calls without a tensor operand


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
    """A tensor the program takes. `base` names the earlier input whose memory it shares."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    seed: int = 1
    layout: str = "contiguous"
    special: bool = False
    base: str = ""
    later: tuple[tuple[int, ...], ...] = ()  # its shapes in the calls after the first
    parameter: bool = False  # held by a module; written to between calls

    @property
    def text(self) -> str:
        """An expression that creates it."""
        return self.text_at(0)

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Its shape in each call."""
        return (self.shape, *self.later)

    def reshaped(self, shapes: Sequence[tuple[int, ...]]) -> Input:
        return replace(self, shape=shapes[0], later=tuple(shapes[1:]))

    def text_at(self, call: int) -> str:
        if self.base:
            return f"{self.base}[..., 1:]"
        data = partial(self._data, self.seed + 100 * call)
        s = self.shapes[call]
        if self.layout == "transposed":
            return f"{data((*s[:-2], s[-1], s[-2]))}.transpose(-1, -2)"
        if self.layout == "strided":
            return f"{data((*s[:-1], 2 * s[-1] + 1))}[..., 1::2]"
        if self.layout == "offset":
            return f"{data((s[0] + 2, *s[1:]))}[1:-1]"
        if self.layout == POSITIVE:
            return f"{data(s)}.abs() + 0.5"
        if self.layout == "expanded":
            return f"{data((1, *s[1:]))}.expand({s})"
        return data(s)

    def _data(self, seed: int, shape: tuple[int, ...]) -> str:
        return f"data({seed}, {shape}, {self.dtype}{', True' if self.special else ''})"


@dataclass(frozen=True)
class Step:
    """`name = template` with the operands in its holes, or a mutation, which has no name."""

    name: str
    template: str
    operands: tuple[str, ...]
    drawn: str = field(default="", compare=False)  # its text in the vocabulary

    @property
    def text(self) -> str:
        filled = self.template.format(*self.operands)
        return f"{self.name} = {filled}" if self.name else filled


@dataclass(frozen=True)
class CallMode:
    """How a program is compiled and called, if not once, without Dynamo, for its results only."""

    gradients: bool = False  # of a scalar made of its results
    threads: int = 1  # that call it in parallel once it is compiled
    automatic: bool = False  # torch finds out at the second call which sizes change
    dynamo: bool = False  # through torch.compile, even if nothing else needs it

    @property
    def text(self) -> str:
        pairs = ((f.name, getattr(self, f.name)) for f in fields(self))
        return "".join(f", {n}={v!r}" for n, v in pairs if v != getattr(PLAIN, n))


PLAIN = CallMode()


@dataclass(frozen=True)
class Program:
    """Inputs, steps, the names that are returned, the flags and the device to compile for."""

    inputs: tuple[Input, ...]
    steps: tuple[Step, ...]
    outputs: tuple[str, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    device: str = "cpu"
    call_mode: CallMode = PLAIN

    @property
    def calls(self) -> int:
        return len(self.inputs[0].shapes) if self.inputs else 1

    @property
    def parameters(self) -> tuple[int, ...]:
        """The positions of inputs that a module holds."""
        return tuple(k for k, i in enumerate(self.inputs) if i.parameter)

    @property
    def is_plain(self) -> bool:
        """Whether it is called once, for its results only: then it is compiled without Dynamo."""
        return self.calls == 1 and not self.parameters and self.call_mode == PLAIN

    @property
    def arguments(self) -> list[str]:
        return [i.name for i in self.inputs]

    @property
    def labels(self) -> list[str]:
        """Names of all results: outputs, gradients, and the inputs after the call."""
        floats = (
            [i.name for i in self.inputs if i.dtype in FLOATS] if self.call_mode.gradients else []
        )
        return [*self.outputs, *(f"the gradient of {n}" for n in floats), *self.arguments]

    def text(self) -> str:
        """For a GPU, calls that create a tensor name the device: torch 2.11 does not see a default
        one when it captures. And no two elements are scattered to one place, where any of them may
        be the last, in eager too."""
        steps = [s.text for s in self.steps]
        if self.device != "cpu" and self.inputs:
            device = f"{self.inputs[0].name}.device"
            steps = [made_on(device, at_places_of_their_own(text)) for text in steps]
        lines = steps + [f"return [{', '.join(self.outputs)}]"]
        return f"def program({', '.join(self.arguments)}):\n    " + "\n    ".join(lines) + "\n"

    def function(self) -> Callable[..., list[Any]]:
        space = namespace()
        exec(self.text(), space)
        return space["program"]  # type: ignore[no-any-return]

    def fresh_inputs(self, call: int = 0) -> list[torch.Tensor]:
        space = namespace()
        for i in self.inputs:
            space[i.name] = eval(i.text_at(call), space)
        return [space[name] for name in self.arguments]

    def script(self) -> str:
        """The program as a file that fails as long as Litz does."""
        used = [name for name in DTYPES if name in self.text() or name in str(self.inputs)]
        dtypes = ", ".join(name for name in used if name != "bool")
        functional = "import torch.nn.functional as F\n" if "F." in self.text() else ""
        infinity = "from math import inf\n\n" if "(inf" in self.text() else ""
        judged = "assert_same" if self.is_plain else "assert_calls_same"
        called = self._called_once() if self.is_plain else self._called_often()
        return (
            f"{infinity}import torch\n{functional}from torch import {dtypes or 'float32'}\n\n"
            f"from litz.fuzz import {judged}, data\n\n\n{self.text()}\n\n{called}"
        ).replace(", bool", ", torch.bool")

    def _called_once(self) -> str:
        given = [f"[{', '.join(self.arguments)}]", repr(dict(self.options))]
        given += [repr(self.device)] if self.device != "cpu" else []
        made = "".join(f"{i.name} = {i.text}\n" for i in self.inputs)
        return f"{made}assert_same(program, {', '.join(given)})\n"

    def _called_often(self) -> str:
        lines = ["calls = []"]
        for call in range(self.calls):
            lines += [f"{i.name} = {i.text_at(call)}" for i in self.inputs]
            lines.append(f"calls.append([{', '.join(self.arguments)}])")
        call_mode = self.call_mode.text + (
            f", parameters={self.parameters}" if self.parameters else ""
        )
        call_mode += f", device={self.device!r}" if self.device != "cpu" else ""
        lines.append(f"assert_calls_same(program, calls, {dict(self.options)!r}{call_mode})")
        return "\n".join(lines) + "\n"

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


def at_places_of_their_own(text: str) -> str:
    """A line of a program whose scatter stores each element at a place of its own."""
    return SCATTERS.sub(r".scatter\1(\2, \3.argsort(dim=\2, stable=True), \4)", text)


def made_on(device: str, text: str) -> str:
    """A line of a program in which calls that create a tensor name the device."""
    for call in reversed(list(MAKES.finditer(text))):
        depth, end = 1, call.end()
        while depth:
            depth += {"(": 1, ")": -1}.get(text[end], 0)
            end += 1
        text = f"{text[: end - 1]}, device={device}{text[end - 1 :]}"
    return text


def namespace() -> dict[str, Any]:
    """The names that a program's text may use."""
    return {"torch": torch, "F": F, "data": data, "inf": math.inf, **DTYPES}
