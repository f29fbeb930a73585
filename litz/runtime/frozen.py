"""Frozen parameters: a graph that took them as constants refuses to run when they have changed.

In: the parameters, as they were when the graph was compiled. Out: a check for each call, of version
counters and addresses, and, if asked for, parameters without memory. A write that torch does not
count (`weight.data.mul_(2)`) is not seen: the graph goes on with the values it has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any

import torch

from litz.errors import DiscardedParameter, FrozenParameterChanged
from litz.ir.graph import NamedTensor

_VERSION = attrgetter("_version")
_ADDRESS = torch.Tensor.data_ptr


class Frozen:
    """The parameters of one graph, as inputs of it. `discards` frees their memory."""

    def __init__(self, parameters: Mapping[str, NamedTensor], discards: bool) -> None:
        self.inputs = list(parameters)
        self.labels = [label for label, _ in parameters.values()]
        given = [tensor for _, tensor in parameters.values()]
        self.discarded = discards
        for tensor in given if discards else ():
            discard(tensor)
        self.facts: list[Any] = list(map(id, given)) if discards else _facts(given)

    def check(self, parameters: tuple[torch.Tensor, ...]) -> None:
        """Raise unless each is what it was."""
        facts = list(map(id, parameters)) if self.discarded else _facts(parameters)
        if facts == self.facts:
            return
        count = len(parameters)
        changed = [k for k, (a, b) in enumerate(zip(facts, self.facts, strict=True)) if a != b]
        labels = dict.fromkeys(self.labels[k % count] for k in changed)
        raise FrozenParameterChanged(next(iter(labels)), len(labels))


def _facts(parameters: Any) -> list[Any]:
    """Versions, then addresses."""
    try:
        versions = list(map(_VERSION, parameters))
    except RuntimeError:  # a tensor made in inference mode counts nothing
        versions = [-1 if t.is_inference() else t._version for t in parameters]
    return versions + list(map(_ADDRESS, parameters))


# -- parameters without memory -------------------------------------------------------------------

# What may still be asked: Dynamo's guards and a look at a module ask for no more.
_HARMLESS = ("shape", "dtype", "device", "requires_grad", "layout", "is_leaf", "grad", "_version",
             "ndim", "grad_fn", "is_sparse", "is_quantized", "is_meta")  # fmt: skip
_HARMLESS_CALLS = ("size", "stride", "dim", "storage_offset", "numel", "is_inference", "__repr__",
                   "is_conj", "is_neg", "is_contiguous", "untyped_storage", "__hash__")  # fmt: skip


class _Discarded:
    """Refuses every op but looking at the layout."""

    @classmethod
    def __torch_function__(
        cls, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function not in _ALLOWED:
            raise DiscardedParameter(getattr(function, "__name__", str(function)))
        with torch._C.DisableTorchFunctionSubclass():
            return function(*args, **(kwargs or {}))

    def __repr__(self, **_: Any) -> str:
        with torch._C.DisableTorchFunctionSubclass():
            shape = tuple(self.shape)  # type: ignore[attr-defined]
        return f"a parameter of shape {shape} that was discarded (freezing_discard_parameters)"


class DiscardedTensor(_Discarded, torch.Tensor):
    """A buffer of a module, without memory."""


class DiscardedWeight(_Discarded, torch.nn.Parameter):
    """A parameter of a module, without memory."""


_ALLOWED: set[Any] = {getattr(torch.Tensor, name).__get__ for name in _HARMLESS}
_ALLOWED |= {getattr(torch.Tensor, name) for name in _HARMLESS_CALLS}


def discard(tensor: torch.Tensor) -> None:
    """Take the memory away from a tensor that keeps its type, layout and place in its module."""
    if isinstance(tensor, _Discarded):
        return
    with torch.no_grad():
        tensor.data = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
        # Memory of its own, so that no other tensor loses what it still shows.
        tensor.untyped_storage().resize_(0)
    is_weight = isinstance(tensor, torch.nn.Parameter)
    tensor.__class__ = DiscardedWeight if is_weight else DiscardedTensor
