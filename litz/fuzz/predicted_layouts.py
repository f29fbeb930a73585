"""Eager with the strides that torch predicts, op by op.

In: a function and its inputs. Out: eager's results. Litz gives a result the strides that torch's
fake kernel of its op predicts. If the prediction is wrong, later strides may differ from eager's
too: a pad or a cat depends on the strides of its operand. Such strides are torch's fault if Litz's
are those of eager with the predicted strides, and Litz's otherwise.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode


class Restride(Enum):
    """The results that get predicted strides: all; or only those that differ from eager's in
    dimensions of size one, where a stride can be anything."""

    ONES = "dimensions of one"
    ALL = "all"


def steps(tensor: torch.Tensor) -> list[int]:
    """Strides that matter: not those of dimensions of size one, or of an empty tensor."""
    if not tensor.numel():
        return []
    return [s for s, n in zip(tensor.stride(), tensor.shape, strict=True) if n > 1]


def as_predicted(
    function: Callable[..., Any], inputs: Sequence[torch.Tensor], which: Restride
) -> list[torch.Tensor]:
    """The results, and the inputs after the call."""
    given = copy.deepcopy(list(inputs))
    with torch.no_grad(), _PredictedLayouts(which):
        return list(function(*given)) + given


def is_shape_mispredicted(function: Callable[..., Any], inputs: Sequence[torch.Tensor]) -> bool:
    """Whether torch predicts another shape for the result of an op than eager gives."""
    given, mode = copy.deepcopy(list(inputs)), _PredictedLayouts(Restride.ONES)
    with torch.no_grad(), mode:
        function(*given)
    return mode.other_shapes


class _PredictedLayouts(TorchDispatchMode):
    def __init__(self, which: Restride) -> None:
        super().__init__()
        self.which, self.fake, self.other_shapes = which, FakeTensorMode(), False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        predicted = None
        if all(r.alias_info is None for r in func._schema.returns):  # no view, no mutation
            predicted = self._predict(func, args, kwargs)
        results = func(*args, **kwargs)
        if predicted is None:
            return results
        return pytree.tree_map(self._laid, results, predicted)

    def _predict(self, func: Any, args: Any, kwargs: Any) -> Any:
        try:
            with self.fake:
                return func(*pytree.tree_map(self._faked, args), **kwargs)
        except Exception:  # the result depends on data: torch predicts nothing
            return None

    def _faked(self, value: Any) -> Any:
        return self.fake.from_tensor(value) if isinstance(value, torch.Tensor) else value

    def _laid(self, result: Any, predicted: Any) -> Any:
        if not isinstance(result, torch.Tensor):
            return result
        if result.shape != predicted.shape:
            self.other_shapes = True
            return result
        if steps(result) == steps(predicted):  # the same memory either way
            return result.as_strided(result.shape, predicted.stride())
        places = result.shape, predicted.stride()
        shared = any(n > 1 and step == 0 for n, step in zip(*places, strict=True))
        if self.which is Restride.ONES or shared:  # overlapping elements cannot be copied to
            return result
        laid = torch.empty_strided(result.shape, predicted.stride(), dtype=result.dtype)
        return laid.copy_(result)
