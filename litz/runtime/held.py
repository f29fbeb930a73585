"""What is held of parameters: packed weights and whatever else depends on them alone.

In: a plan whose first kernels read parameters alone. Out: their results, kept from call to call and
made anew when a parameter has changed. torch counts changes in place; what it does not count
(`.data`, foreign pointers) a few samples of each parameter show. A write of single elements through
`.data` may escape both: `cpp.weight_prepack=False` keeps nothing.
"""

from __future__ import annotations

import ctypes
import threading
from typing import Any

import torch

from litz.ir.program import Extern, Plan, ViewArg
from litz.ir.source import SAMPLES, Binary, Source
from litz.runtime.memory import window
from litz.runtime.steps import NATIVE, is_whole, numbers, op_of, torch_dtype

CHANGED = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)


class Held:
    """The tensors by name, and when they were made."""

    def __init__(self, plan: Plan, source: Source, binary: Binary) -> None:
        assert source.preparation is not None
        self._names = [b.name for b in plan.sources]
        self._final = set(plan.sources) <= set(plan.graph.constants)
        self._packing = [s for s in plan.graph.body[: plan.graph.prepared] if isinstance(s, Extern)]
        self.packed: dict[str, torch.Tensor | None] = {
            b.name: None for step in self._packing for b in step.writes
        }
        self.tensors = {
            b.name: torch.empty_strided(
                numbers(b.shape), numbers(b.strides), dtype=torch_dtype(b.dtype)
            )
            for b in plan.graph.held
            if b.name not in self.packed
        }
        self.seen = torch.zeros(len(plan.sources) * (SAMPLES + 1), dtype=torch.int64)
        self.versions: list[int] | None = None
        self.made = 0  # how often
        self._prepare = NATIVE(binary.address[source.preparation.name])
        self._changed = CHANGED(binary.address["litz_changed"])
        self._lock = threading.Lock()

    @property
    def bytes(self) -> int:
        packed: int = sum(t.numel() * t.itemsize for t in self.packed.values() if t is not None)
        held: int = sum(t.untyped_storage().nbytes() for t in self.tensors.values())
        return packed + held

    @property
    def is_final(self) -> bool:
        """Whether all of it is made of constants, and so for good."""
        return self._final

    def make(self, address: int, parameters: dict[str, torch.Tensor]) -> None:
        """Make all of it; the table at the address knows where parameters lie."""
        self._prepare(address)
        self._pack(parameters)
        self.made += 1

    def refresh(self, address: int, parameters: tuple[torch.Tensor, ...]) -> None:
        """Make all anew if one parameter is not what it was."""
        with self._lock:
            changed, now = self._changed(address), _versions(parameters)
            if changed or now != self.versions:
                self.make(address, dict(zip(self._names, parameters, strict=True)))
                self.versions = now

    def _pack(self, parameters: dict[str, torch.Tensor]) -> None:
        known = self.tensors | parameters

        def value(operand: Any) -> Any:
            if isinstance(operand, ViewArg):
                base = known[operand.buffer.name]
                return base if is_whole(operand) else window(base, operand)
            return operand

        with torch.no_grad():
            for step in self._packing:
                (made,) = step.writes
                self.packed[made.name] = op_of(step)(*map(value, step.args))


def _versions(parameters: tuple[Any, ...]) -> list[int]:
    try:
        return [t._version for t in parameters]
    except RuntimeError:  # a tensor made in inference mode counts nothing; its samples do
        return [-1 if t.is_inference() else t._version for t in parameters]
