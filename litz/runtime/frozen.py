"""Frozen parameters: a graph that took them as constants refuses to run when they have changed.

In: the parameters, as they were when the graph was compiled. Out: a check of addresses and version
counters at each call and, on request, parameters without memory. Parameters at other addresses are
other parameters (Dynamo gives one graph to all modules of a class): such a call goes to
`other_parameters_graph`, which the backend provides unless parameters are discarded. A write that
torch does not count (`weight.data.mul_(2)`) is not noticed: the graph goes on with its own copy of
the values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter
from typing import Any

import torch

from litz.errors import DiscardedParameter, FrozenParameterChanged
from litz.ir.graph import NamedTensor
from litz.runtime.memory import copy_of, on_storage_freed

_VERSION = attrgetter("_version")
_ADDRESS = torch.Tensor.data_ptr


class Frozen:
    """The parameters of one graph, as inputs of it. `discards` frees their memory."""

    def __init__(self, parameters: Mapping[str, NamedTensor], discards: bool) -> None:
        self.inputs = list(parameters)
        self.labels = [label for label, _ in parameters.values()]
        given = [tensor for _, tensor in parameters.values()]
        self.discards = discards
        for tensor in given if discards else ():
            discard(tensor)
        self.memory = {t.untyped_storage().data_ptr() for t in given if not discards}
        self.facts: list[int] = self._facts(given)
        # Discarded parameters are kept alive, so that no others get their ids. The rest expire when
        # they are freed, since new parameters may get their addresses.
        self.given = given if discards else on_storage_freed(given, self, Frozen.expire)
        self.other_parameters_graph: Callable[[list[Any]], Any] = self._refuse_others

    def still(self, parameters: tuple[torch.Tensor, ...]) -> bool:
        """Whether these are the parameters; raise if they are and have changed."""
        facts = self._facts(parameters)
        if facts == self.facts:
            return True
        count = len(parameters)
        if facts[:count] != self.facts[:count]:
            return False
        pairs = zip(facts[count:], self.facts[count:], strict=True)
        labels = dict.fromkeys(self.labels[k] for k, (now, then) in enumerate(pairs) if now != then)
        raise FrozenParameterChanged(next(iter(labels)), len(labels))

    def own(self, constant: torch.Tensor) -> torch.Tensor:
        """The constant, copied if it shares memory with a parameter that may be written to."""
        shared = constant.untyped_storage().data_ptr() in self.memory
        return copy_of(constant) if shared else constant

    def expire(self) -> None:
        """The memory of a parameter is freed: no later call can have these parameters."""
        self.facts = []

    def other(self, args: list[Any]) -> Any:
        """Run a call with other parameters."""
        return self.other_parameters_graph(args)

    def _facts(self, parameters: Iterable[torch.Tensor]) -> list[int]:
        """Addresses (or ids) that identify the parameters, then the version of each."""
        if self.discards:
            return list(map(id, parameters))
        return list(map(_ADDRESS, parameters)) + list(map(_VERSION, parameters))

    def _refuse_others(self, args: list[Any]) -> Any:
        if any(isinstance(each, _Discarded) for each in args):
            raise DiscardedParameter("the graph of another module")
        raise FrozenParameterChanged(self.labels[0], len(self.labels))


# -- parameters without memory -------------------------------------------------------------------

# Attributes that stay readable: Dynamo's guards and the repr of a module need no others.
_HARMLESS = ("shape", "dtype", "device", "requires_grad", "layout", "is_leaf", "grad", "_version",
             "ndim", "grad_fn", "is_sparse", "is_quantized", "is_meta", "nbytes",
             "itemsize")  # fmt: skip
_HARMLESS_CALLS = ("size", "stride", "dim", "storage_offset", "numel", "is_inference", "__repr__",
                   "is_conj", "is_neg", "is_contiguous", "untyped_storage", "__hash__")  # fmt: skip


class _Discarded:
    """Refuses every op that does more than read the layout."""

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
    """Free the memory of a tensor, which keeps its type, its layout and its place in its module."""
    if isinstance(tensor, _Discarded):
        return
    with torch.no_grad():
        layout = {"dtype": tensor.dtype, "device": tensor.device}
        tensor.data = torch.empty_strided(tensor.shape, tensor.stride(), **layout)
        # It has new memory by now, so that freeing it takes nothing from tensors that shared it.
        tensor.untyped_storage().resize_(0)
    is_weight = isinstance(tensor, torch.nn.Parameter)
    tensor.__class__ = DiscardedWeight if is_weight else DiscardedTensor
