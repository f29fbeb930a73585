"""A trial: two small programs are compiled by the usual stages and called alternately.

In: a program with choices, twice: by rule, and another way. Out: `Ratio`, or an error. Both get the
same random inputs and must give the same results, up to rounding. Calls alternate, so a busy moment
hits both, and the ratio of neighbouring calls is evaluated. On a GPU, CUDA graphs are replayed
instead, and `prepare` compiles all kernels in parallel. Example: `InProcessRunner(target, tools,
config).compared(Variant(program, NO_CHOICES), Variant(program, other), 0.2)`.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from litz.autotune.results import Ratio
from litz.call import plan_call
from litz.config import Config
from litz.fuse import fuse
from litz.ir.aten import torch_dtype
from litz.ir.choices import Choices
from litz.ir.program import Buffer, KernelGraph, LoopProgram, Plan
from litz.plan import plan
from litz.runtime.layouts import static_sizes
from litz.target import Target
from litz.toolchain import Toolchain
from litz.trace import Trace

# A sample lasts at least this long: shorter calls are repeated to fill it.
SHORTEST_SAMPLE = 50e-6
FEWEST, MOST = 9, 101  # pairs of samples
# If the first `FIRST` pairs are all slower by `HOPELESS`, the rest are skipped.
HOPELESS, FIRST = 1.15, 3
# A choice must be this much faster to be worth code that the rules would not write.
MARGIN = 0.97
# How far two results may differ, relative to the largest number.
ROUNDING = {
    torch.float64: 1e-10, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 4e-2,
    torch.float8_e4m3fn: 2.0**-3, torch.float8_e5m2: 2.0**-2,
}  # fmt: skip

Call = Callable[[], list[Any]]
# Times another call against the one it was made for, for about that many seconds.
Timer = Callable[[Call, float], Ratio]


@dataclass(frozen=True)
class Variant:
    """A program and the choices it is compiled with."""

    program: LoopProgram | KernelGraph
    choices: Choices


class WrongResult(Exception):
    """A choice gave other numbers: it is not taken, whatever its speed."""


def kernels_of(variant: Variant, target: Target, config: Config) -> KernelGraph:
    """The kernels of a variant; a program that is kernels already stays as it is."""
    program = variant.program
    if isinstance(program, KernelGraph):
        return program
    return fuse(program, target, config, variant.choices)


def _quiet(config: Config) -> Config:
    """Nothing is printed or checked, and no CUDA graph is captured: trials do that themselves."""
    plain = replace(config.triton, cudagraphs=False, require_cudagraphs=False, launch_graphs=False)
    return replace(config, debug=0, verify=False, size_asserts=False, triton=plain)


def _emitted(
    variant: Variant, target: Target, tools: Toolchain, config: Config
) -> tuple[Plan, Any]:
    planned = plan(kernels_of(variant, target, config), config)
    kernels = planned.graph.kernels
    chosen = (planned.fresh, variant.choices)
    scheduled = [tools.schedule(k, target, config, *chosen) for k in kernels]
    return planned, tools.emit(planned, scheduled, target)


def callable_of(
    variant: Variant, target: Target, tools: Toolchain, config: Config, inputs: list[Any]
) -> Call:
    """Compile a variant, silently, and bind its inputs."""
    quiet = _quiet(config)
    planned, kernels = _emitted(variant, target, tools, quiet)
    data = plan_call(planned, kernels, {}, quiet, target)
    source = tools.drive(kernels, data, target)
    binary = tools.load(source, tools.build(source, target, quiet, Trace()))
    call = tools.link(data, binary, {}, quiet).call
    return lambda: call(list(inputs))


def inputs_of(program: LoopProgram | KernelGraph) -> list[torch.Tensor]:
    """Tensors to call a program with, the same in every process; the user's generator is not
    touched. Integers wider than a byte may be indices, so they are zero, a valid one everywhere."""
    buffers = [b for b in program.inputs if isinstance(b, Buffer)]
    devices = dict.fromkeys(b.device for b in buffers)
    generators = {d: torch.Generator(d).manual_seed(0) for d in devices}
    return [_tensor(b, generators[b.device]) for b in buffers]


def _tensor(buffer: Buffer, generator: torch.Generator) -> torch.Tensor:
    dtype, there = torch_dtype(buffer.dtype), {"device": buffer.device}
    shape, strides = static_sizes(buffer.shape), static_sizes(buffer.strides)
    room = 1 + sum((n - 1) * step for n, step in zip(shape, strides, strict=True) if n > 1)
    if dtype.is_floating_point:
        flat = torch.randn(room, generator=generator, **there).to(dtype)  # type: ignore[arg-type]
    elif dtype.itemsize == 1:
        low, high = (0, 2) if dtype is torch.bool else (-100, 100)
        drawn = torch.randint(low, high, (room,), generator=generator, **there)  # type: ignore
        flat = drawn.to(dtype)
    else:
        flat = torch.zeros(room, dtype=dtype, **there)  # type: ignore[arg-type]
    return flat.as_strided(shape, strides)


class InProcessRunner:
    """Runs trials in this process. The compiled rule is kept for the next trial, which is usually
    about the same one."""

    def __init__(self, target: Target, tools: Toolchain, config: Config) -> None:
        self.target, self.tools, self.config = target, tools, config
        self._last: tuple[Variant, list[torch.Tensor], Call] | None = None
        self._timer: tuple[Call, Timer] | None = None

    def prepare(self, variants: list[Variant], end: float) -> None:
        """Compile the kernels of all variants ahead, until the time `end`; a trial compiles those
        that are missing. One that cannot be compiled fails in its trial."""
        assert self.tools.precompile is not None
        quiet = _quiet(self.config)
        sources = [_emitted(v, self.target, self.tools, quiet)[1] for v in variants]
        self.tools.precompile(sources, self.target, self.config, end)

    def compared(self, rule: Variant, other: Variant, seconds: float) -> Ratio:
        """Time both, for about `seconds` at most; stop once it is clear which one is faster."""
        with torch.no_grad():
            if self._last is None or self._last[0] is not rule:
                inputs = inputs_of(rule.program)
                call = callable_of(rule, self.target, self.tools, self.config, inputs)
                self._last = (rule, inputs, call)
            _, inputs, call = self._last
            another = callable_of(other, self.target, self.tools, self.config, inputs)
            _check(another(), call())
            if self._timer is None or self._timer[0] is not call:
                self._timer = (call, self.tools.tuning.timer(call))
            return self._timer[1](another, seconds)

    def tried(self, rule: Variant, other: Variant, seconds: float) -> Ratio | str:
        """The ratio, or a text that says what went wrong: no trial may end a compile."""
        try:
            return self.compared(rule, other, seconds)
        except WrongResult as error:
            return str(error)
        except Exception as error:
            text = str(error).partition("\n")[0][:80]  # may be empty
            return f"failed: {type(error).__name__}: {text}"


def _check(found: list[Any], expected: list[Any]) -> None:
    for mine, theirs in zip(found, expected, strict=True):
        if not isinstance(mine, torch.Tensor):
            continue
        rounding = ROUNDING.get(mine.dtype)
        if rounding is None:
            same = torch.equal(mine, theirs)
        else:
            wide = theirs.double()
            finite = wide[torch.isfinite(wide)].abs()
            scale = finite.max().item() if finite.numel() else 1.0
            near = {"rtol": rounding, "atol": rounding * scale, "equal_nan": True}
            same = torch.allclose(mine.double(), wide, **near)  # type: ignore[arg-type]
        if not same:
            raise WrongResult("other numbers than by rule")


def timed(rule: Call, other: Call, seconds: float) -> Ratio:
    """The ratio of two alternating calls."""
    for call in (rule, other):  # warms up pages, caches and threads
        call()
    repeats = max(1, math.ceil(SHORTEST_SAMPLE / max(_sample(rule, 1), 1e-9)))
    rules: list[float] = []
    ratios: list[float] = []
    end = time.perf_counter() + seconds
    while len(ratios) < FEWEST or (len(ratios) < MOST and time.perf_counter() < end):
        first, second = (rule, other) if len(ratios) % 2 else (other, rule)
        times = {id(call): _sample(call, repeats) for call in (first, second)}
        rules.append(times[id(rule)])
        ratios.append(times[id(other)] / times[id(rule)])
        if len(ratios) >= FEWEST and is_decided(interval(ratios)):
            break
        if len(ratios) == FIRST and min(ratios) > HOPELESS:
            break
    low, high = interval(ratios)
    return Ratio(statistics.median(ratios), low, high, statistics.median(rules))


def _sample(call: Call, repeats: int) -> float:
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - start) / repeats


def is_decided(span: tuple[float, float]) -> bool:
    """Certainly not faster by the margin, or certainly much faster."""
    return span[0] > MARGIN or span[1] < MARGIN * MARGIN


def interval(samples: list[float]) -> tuple[float, float]:
    """The 99 % confidence interval of the median, for any distribution."""
    ordered = sorted(samples)
    outside = max(math.floor(len(ordered) / 2 - 1.29 * math.sqrt(len(ordered))), 0)
    return ordered[outside], ordered[len(ordered) - 1 - outside]
