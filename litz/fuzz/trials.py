"""Steps run when they are drawn: in eager, in float64, in float64 with noise.

In: inputs, then one step after the other. Out: whether a step is kept. It is not if eager rejects
it, if its value is large, if rounding moves it far, or if it is an integer that rounding changes:
two right answers would then differ.
"""

from __future__ import annotations

import copy
from typing import Any

import torch

from litz.fuzz.program import DTYPES, Input, Step, namespace
from litz.fuzz.reference import Watched, Widened, default_dtype, widened

MOST_DIMENSIONS = 5
MOST_MAGNITUDE = 1e4  # well inside float16, so that no run alone overflows
MOST_SPREAD = 0.02  # of the largest number: with more, a comparison would find nothing


class ReferenceRuns:
    """The same steps run three ways at the sizes of one call."""

    def __init__(self, inputs: tuple[Input, ...], call: int, most: int) -> None:
        self.seen: list[torch.dtype] = []
        self.most = most
        eager = namespace()
        for i in inputs:
            eager[i.name] = eval(i.text_at(call), eager)
        names = [i.name for i in inputs]
        self.values = [{n: eager[n] for n in names}]
        for _ in range(2):
            wide = widened([eager[n] for n in names])
            self.values.append(dict(zip(names, wide, strict=True)))
        self.wide = [Widened(self.seen, 0), Widened(self.seen, 1)]
        self.modes = [Watched(self.seen), *self.wide]

    @property
    def eager(self) -> dict[str, torch.Tensor]:
        return self.values[0]

    def give(self, item: Input, call: int) -> None:
        """Add an input."""
        made = eval(item.text_at(call), namespace())
        self.values[0][item.name] = made
        for values in self.values[1:]:
            (values[item.name],) = widened([made])

    def saved(self, step: Step) -> tuple[list[dict[str, torch.Tensor]], int]:
        """The state that a step may change."""
        before = copy.deepcopy(self.values) if not step.name else [dict(v) for v in self.values]
        return before, len(self.seen)

    def restore(self, before: list[dict[str, torch.Tensor]], length: int) -> None:
        self.values = before
        del self.seen[length:]

    def settle(self) -> None:
        for wide in self.wide:
            wide.at = len(self.seen)

    def do(self, step: Step) -> bool:
        """Run a step in all three ways; returns whether it is kept."""
        try:
            for mode, values in zip(self.modes, self.values, strict=True):
                self._do(step, mode, values)
            return self._comparable(step)
        except (RuntimeError, IndexError, TypeError, ValueError, NotImplementedError,
                ZeroDivisionError):  # fmt: skip
            # Steps are drawn at random: torch refuses many, and those cannot be compared.
            return False

    def _do(self, step: Step, mode: Any, values: dict[str, torch.Tensor]) -> None:
        space = namespace() | values
        wide = torch.float64 if isinstance(mode, Widened) else torch.float32
        with torch.no_grad(), default_dtype(wide), mode:
            exec(step.text, space)
        if step.name:
            values[step.name] = space[step.name]

    def _comparable(self, step: Step) -> bool:
        if not step.name:
            return all(self._is_comparable(name) for name in self.eager)
        made = self.eager[step.name]
        if not isinstance(made, torch.Tensor) or made.dtype not in DTYPES.values():
            return False
        small = made.numel() <= self.most and made.dim() <= MOST_DIMENSIONS
        return small and self._is_comparable(step.name)

    def _is_comparable(self, name: str) -> bool:
        eager, exact, noisy = (values[name] for values in self.values)
        if not eager.is_floating_point():
            return bool(torch.equal(eager, exact) and torch.equal(eager, noisy))
        finite = eager.isfinite()
        if not torch.equal(finite, exact.isfinite()) or not torch.equal(finite, noisy.isfinite()):
            return False
        if not finite.any():
            return True
        largest = float(eager[finite].abs().max())
        spread = float((noisy - exact)[finite].abs().max())
        return largest <= MOST_MAGNITUDE and spread <= MOST_SPREAD * (largest + 1e-6)


class Trials:
    """The runs of all calls; a step that one of them rejects is undone in all."""

    def __init__(self, inputs: tuple[Input, ...], most: int) -> None:
        self.runs = [ReferenceRuns(inputs, call, most) for call in range(len(inputs[0].shapes))]

    @property
    def eager(self) -> dict[str, torch.Tensor]:
        """The values of the first call."""
        return self.runs[0].eager

    def give(self, item: Input) -> None:
        """Add an input for later steps."""
        for call, run in enumerate(self.runs):
            run.give(item, call)

    def shapes(self, name: str) -> list[torch.Size]:
        return [run.eager[name].shape for run in self.runs]

    def do(self, step: Step) -> bool:
        """Run a step in all calls; one that fails, or returns no tensor, is undone."""
        before = [run.saved(step) for run in self.runs]
        kept = all(run.do(step) for run in self.runs)
        for run, saved in zip(self.runs, before, strict=True):
            if not kept:
                run.restore(*saved)
            run.settle()
        return kept
