"""Eager with its results laid out as torch foretells them, op by op.

In: a function and its inputs. Out: eager's results. Litz lays a result out as torch's description
of its op says. Where that is wrong, what follows may lie elsewhere than eager's: a pad or a cat
asks how its operand lies. Such strides are torch's if Litz's are what eager itself gives once the
description is made true, and not otherwise.
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


class Which(Enum):
    """The results that are laid out anew: those whose strides are foretold wrongly only where a
    dimension of one lets them be anything, or all."""

    ONES = "dimensions of one"
    ALL = "all"


def steps(tensor: torch.Tensor) -> list[int]:
    """Strides that mean something: not those of a dimension of one, or of nothing."""
    if not tensor.numel():
        return []
    return [s for s, n in zip(tensor.stride(), tensor.shape, strict=True) if n > 1]


def as_foretold(
    function: Callable[..., Any], inputs: Sequence[torch.Tensor], which: Which
) -> list[torch.Tensor]:
    """The results, and the inputs as they are left."""
    given = copy.deepcopy(list(inputs))
    with torch.no_grad(), _Foretold(which):
        return list(function(*given)) + given


def is_shape_misforetold(function: Callable[..., Any], inputs: Sequence[torch.Tensor]) -> bool:
    """Whether torch foretells an op a result of another shape than eager gives."""
    given, mode = copy.deepcopy(list(inputs)), _Foretold(Which.ONES)
    with torch.no_grad(), mode:
        function(*given)
    return mode.other_shapes


class _Foretold(TorchDispatchMode):
    def __init__(self, which: Which) -> None:
        super().__init__()
        self.which, self.fake, self.other_shapes = which, FakeTensorMode(), False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        foretold = None
        if all(r.alias_info is None for r in func._schema.returns):  # no view, no write
            foretold = self._foretell(func, args, kwargs)
        results = func(*args, **kwargs)
        if foretold is None:
            return results
        return pytree.tree_map(self._laid, results, foretold)

    def _foretell(self, func: Any, args: Any, kwargs: Any) -> Any:
        try:
            with self.fake:
                return func(*pytree.tree_map(self._faked, args), **kwargs)
        except Exception:  # it depends on numbers: torch foretells nothing
            return None

    def _faked(self, value: Any) -> Any:
        return self.fake.from_tensor(value) if isinstance(value, torch.Tensor) else value

    def _laid(self, result: Any, foretold: Any) -> Any:
        if not isinstance(result, torch.Tensor):
            return result
        if result.shape != foretold.shape:
            self.other_shapes = True
            return result
        if steps(result) == steps(foretold):  # the same elements, whichever way
            return result.as_strided(result.shape, foretold.stride())
        places = result.shape, foretold.stride()
        shared = any(n > 1 and step == 0 for n, step in zip(*places, strict=True))
        if self.which is Which.ONES or shared:  # nothing is copied to where elements meet
            return result
        laid = torch.empty_strided(result.shape, foretold.stride(), dtype=result.dtype)
        return laid.copy_(result)
