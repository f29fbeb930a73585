"""Agreement: whether a candidate's results are right, since a wrong fast kernel is not a result.

In: a program, and a candidate's results. Out: a sentence, or "". The measure is the relative
distance to the program in float64, over each result as a whole:

    |found - float64| <= EAGER * |eager - float64| + SPREAD * |noisy - float64| + a few roundings

where `noisy` is the program in float64 with its arguments moved by a rounding; the largest of RUNS
distances counts. The numbers are those of `litz/fuzz/compare.py`: EAGER is 2, since sums run in
another order; SPREAD is 8, since the error of one number is luck, eager's too, and a sum that
cancels is as wrong as its arguments are. ROUNDINGS is 4: a language model has no float argument to
move, and the distance of a single number, such as its loss, says nothing about another order of
sums. A result that is rounding error alone even in float64, such as the gradient of a key if there
is only one, is below NOTHING relative to the largest result, and may be a rounding of that. Results
that are not floats must be equal. Example:

    Agreement(program).fault(compiled_result)  # "" or "result 0 is 3e-02 from float64, eager 1e-07"
"""

from __future__ import annotations

from typing import Any

import torch

from litz.bench.case import Program, tensors_in

EAGER, SPREAD, RUNS, ROUNDINGS = 2.0, 8.0, 3, 4
NOTHING = 1e-12


class Agreement:
    """Eager's results and their distances to float64, computed once for all candidates."""

    def __init__(self, program: Program) -> None:
        self.eager = tensors_in(program())
        self.exact = tensors_in(program.widened()())
        self.largest = max((_size(e) for e in self.exact), default=0.0)
        self.distances = self._distances(self.eager)
        noisy = [tensors_in(program.widened(1.0, seed)()) for seed in range(RUNS)]
        self.spreads = [max(found) for found in zip(*map(self._distances, noisy), strict=True)]

    def _distances(self, results: list[torch.Tensor]) -> list[float]:
        pairs = zip(results, self.exact, strict=True)
        return [_distance(found, exact) for found, exact in pairs]

    def fault(self, result: Any) -> str:
        """What is wrong with a candidate's result, or ""."""
        found = tensors_in(result)
        if len(found) != len(self.eager):
            return f"it gives {len(found)} results, eager {len(self.eager)}"
        faults = (self._fault(k, tensor) for k, tensor in enumerate(found))
        return next(filter(None, faults), "")

    def _fault(self, k: int, found: torch.Tensor) -> str:
        eager = self.eager[k]
        if (found.dtype, found.shape) != (eager.dtype, eager.shape):
            return f"result {k} is {found.dtype} {list(found.shape)}, not as eager's"
        if not eager.is_floating_point():
            return "" if torch.equal(found, eager) else f"result {k} is not equal to eager's"
        rounding = torch.finfo(eager.dtype).eps
        is_nothing = _size(self.exact[k]) <= NOTHING * self.largest
        if is_nothing and _size(found) <= rounding * self.largest:
            return ""
        distance = _distance(found, self.exact[k])
        allowed = EAGER * self.distances[k] + SPREAD * self.spreads[k]
        allowed += ROUNDINGS * rounding
        if distance <= allowed:  # false for NaN
            return ""
        return f"result {k} is {distance:.1e} from float64, eager {self.distances[k]:.1e}"


def _distance(found: torch.Tensor, exact: torch.Tensor) -> float:
    """The distance of the whole tensor, relative to its size; absolute if that is zero."""
    if not found.is_floating_point():
        return 0.0
    return _size(found.double() - exact.double()) / (_size(exact) or 1.0)


def _size(tensor: torch.Tensor) -> float:
    return float(tensor.double().norm()) if tensor.is_floating_point() else 0.0
