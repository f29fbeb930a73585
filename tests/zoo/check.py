"""Whether a compiled architecture computes what it means: each kind of run, against float64.

In: an entry. Out: a `Result`: what came of it, the errors beside eager's, and what was compiled.
For each tensor of a run, with |.| the norm of the whole of it, and `all` every tensor of the run,

    |found - exact| <= EAGER * |eager - exact| + SPREAD * |noisy - exact|
                       + ROUNDINGS * eps * |exact| + eps * |all| / 8

where `exact` is the run in float64, and `noisy` the same with every weight and input moved by a
rounding, the furthest of RUNS. The last term is for gradients that are zero but for rounding, as
that of a key's bias. What is not a float must be equal to eager's, and tokens token for token.
"""

from __future__ import annotations

import copy
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn
from torch._dynamo.utils import counters
from torch.utils import _pytree as pytree

from litz.backend import litz
from litz.report import Explanation
from tests import draws
from tests.zoo.entry import Entry
from tests.zoo.runs import RUNS, Calls, in_float64

EAGER, SPREAD, RUNS_WITH_NOISE, ROUNDINGS = 2.0, 8.0, 2, 4
OPTIONS = {"on_error": "raise", "fallback_random": True}
# What torch leaves to eager unless asked: recurrent layers, sizes that data decides, and, without a
# word, what it has compiled too often.
CAPTURED = {
    "allow_rnn": True,
    "capture_dynamic_output_shape_ops": True,
    "fail_on_recompile_limit_hit": True,
}
Tensors = list[torch.Tensor]


@dataclass
class Result:
    """What came of one entry."""

    key: str
    name: str
    family: str
    status: str = "passed"  # failed; torch: its own backend aot_eager cannot do it either
    failures: list[str] = field(default_factory=list)
    errors: dict[str, list[float]] = field(default_factory=dict)  # by kind: ours, eager's
    kernels: int = 0
    aten: dict[str, int] = field(default_factory=dict)
    graphs: int = 0
    breaks: int = 0
    by_size: int = 0
    fallbacks: list[str] = field(default_factory=list)
    seconds: float = 0.0


def check(entry: Entry, key: str = "") -> Result:
    """Try every kind of run of an entry."""
    result = Result(key, entry.name, entry.family)
    start = time.perf_counter()
    draws.begin(f"zoo {entry.name}")
    model = entry.build()
    calls = [entry.inputs(size) for size in entry.sizes]
    for kind in entry.kinds:
        torch._dynamo.reset()
        counters.clear()
        notes = Explanation()
        try:
            with torch._dynamo.config.patch(CAPTURED):
                _check_kind(entry, kind, model, calls, notes, result)
        except Exception as error:  # of eager or of float64: the entry itself is wrong
            result.failures.append(f"not compiled at all, {_said(error)} ({kind})")
        result.kernels += notes.kernels
        result.aten = dict(Counter(result.aten) + notes.aten_ops)
        result.graphs += len(notes.graphs)
        result.by_size += len(notes.by_size)
        result.breaks += sum(counters["graph_break"].values())
        result.fallbacks += [f.reason for f in notes.fallbacks]
    if result.failures:
        is_ours = not all(f.startswith("aot_eager") for f in result.failures)
        result.status = "failed" if is_ours else "torch"
    result.seconds = round(time.perf_counter() - start, 1)
    return result


def _check_kind(
    entry: Entry, kind: str, model: nn.Module, calls: Calls, notes: Explanation, result: Result
) -> None:
    if kind == "bfloat16":
        model = copy.deepcopy(model).bfloat16()
        calls = _cast(calls, torch.bfloat16)
    bound = Bound(entry, kind, model, calls)
    ours = partial(litz, options=OPTIONS, explanation=notes)
    fault = bound.fault(ours)
    result.errors[kind] = [bound.found_error, bound.eager_error]
    if not fault and notes.fallbacks:
        fault = f"it ran as eager: {notes.fallbacks[0]}"
    if not fault and not notes.graphs:
        result.failures.append(f"aot_eager too: torch hands no graph to a backend ({kind})")
    if fault:
        torchs = _torchs_fault(bound)
        reason = f"aot_eager too: {torchs}, ours: {fault}" if torchs else fault
        result.failures.append(f"{reason} ({kind})")


def _torchs_fault(bound: Bound) -> str:
    torch._dynamo.reset()
    return bound.fault("aot_eager")


class Bound:
    """A run of eager and of float64, and how far from them another may be."""

    def __init__(self, entry: Entry, kind: str, model: nn.Module, calls: Calls) -> None:
        self.model, self.calls, self.noisy = model, calls, 1
        self.run: Callable[..., Tensors] = partial(RUNS[kind], entry)
        self.eager = self._drawn(copy.deepcopy(model), copy.deepcopy(calls), lambda f: f)
        self.exact = self.eager
        self.found_error = self.eager_error = 0.0
        if kind == "generate":
            return
        self.eps = max(torch.finfo(p.dtype).eps for p in model.parameters())
        self.exact = self._widened(0.0)
        noisy = [self._widened(self.eps) for _ in range(RUNS_WITH_NOISE)]
        self.spreads = [max(d) for d in zip(*map(self._distances, noisy), strict=True)]
        self.eager_distances = self._distances(self.eager)
        self.sizes = [_norm(e) for e in self.exact]
        self.eager_error = self._worst(self.eager_distances)

    def _widened(self, eps: float) -> Tensors:
        model = copy.deepcopy(self.model).double()
        calls = _cast(self.calls, torch.float64)
        if eps:
            draws.seed(self.noisy)
            self.noisy += 1
            with torch.no_grad():
                for p in model.parameters():
                    p.copy_(_moved(eps, p))
            calls = pytree.tree_map(partial(_moved, eps), calls)
        with in_float64():
            return self._drawn(model, calls, lambda f: f)

    def _drawn(self, *args: Any) -> Tensors:
        """A run whose draws, if it makes any, are those of every other run."""
        draws.seed()
        return self.run(*args)

    def _distances(self, results: Tensors) -> list[float]:
        return [_norm(f, e) for f, e in zip(results, self.exact, strict=True)]

    def _worst(self, distances: list[float]) -> float:
        """Relative, of results that are not as good as zero."""
        floor = 1e-6 * max(self.sizes, default=0.0)
        pairs = zip(distances, self.sizes, strict=True)
        return max((d / size for d, size in pairs if size > floor), default=0.0)

    def fault(self, backend: Any) -> str:
        """What is wrong with the run through a backend."""
        wrap = partial(torch.compile, backend=backend)
        try:
            found = self._drawn(copy.deepcopy(self.model), copy.deepcopy(self.calls), wrap)
        except Exception as error:  # whatever it is, it is what came of the entry
            return _said(error)
        if len(found) != len(self.eager):
            return f"{len(found)} results, eager {len(self.eager)}"
        faults = [self._fault(k, tensor) for k, tensor in enumerate(found)]
        if self.exact is not self.eager and not any(": not" in f for f in faults):
            self.found_error = self._worst(self._distances(found))
        faults = [f for f in faults if f]
        return f"{len(faults)} of {len(found)} are wrong, {faults[0]}" if faults else ""

    def _fault(self, k: int, found: torch.Tensor) -> str:
        eager, exact = self.eager[k], self.exact[k]
        if (found.dtype, found.shape) != (eager.dtype, eager.shape):
            return f"result {k}: not {eager.dtype} {list(eager.shape)}, as eager's"
        if not (eager.is_floating_point() or eager.is_complex()):
            return "" if torch.equal(found, eager) else f"result {k}: differs from eager's"
        distance, size = _norm(found, exact), self.sizes[k]
        allowed = EAGER * self.eager_distances[k] + SPREAD * self.spreads[k]
        whole = sum(s * s for s in self.sizes) ** 0.5
        allowed += self.eps * (ROUNDINGS * size + whole / 8)
        if distance <= allowed:  # false for NaN
            return ""
        return f"result {k}: {distance:.1e} from float64, eager {self.eager_distances[k]:.1e}"


def _said(error: Exception) -> str:
    text = " ".join(str(error).split()).split(" raised: ")[-1]  # torch prints the backend first
    return f"{type(error).__name__}: {text[:300]}"


def _norm(found: torch.Tensor, exact: torch.Tensor | None = None) -> float:
    """Of a tensor, or of the difference of two; equal infinities do not differ."""
    if not (found.is_floating_point() or found.is_complex()):
        return 0.0
    wide = found.detach().to(torch.complex128)
    if exact is None:
        return float(torch.where(wide.isfinite(), wide, 0).abs().norm())
    difference = wide - exact.detach().to(torch.complex128)
    # A mask of a half type's least number becomes another number in float64.
    equal = (wide == exact) | ((wide.real < -1e30) & (exact.real < -1e30))
    return float(torch.where(equal, 0, difference).abs().norm())


def _cast(value: Any, dtype: torch.dtype) -> Any:
    def cast(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor) and leaf.is_floating_point():
            return leaf.to(dtype)
        if isinstance(leaf, torch.Tensor) and leaf.is_complex() and dtype is torch.float64:
            return leaf.to(torch.complex128)
        return leaf

    return pytree.tree_map(cast, value)


def _moved(eps: float, value: Any) -> Any:
    if not isinstance(value, torch.Tensor) or not value.is_floating_point():
        return value
    return value * (1 + eps * (2 * torch.rand_like(value) - 1))
