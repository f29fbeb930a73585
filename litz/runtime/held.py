"""What is held of parameters: packed weights and whatever else depends on them alone.

In: a plan whose first kernels read parameters alone. Out: their results, kept from call to call and
made anew when a parameter has changed. torch counts changes in place; what it does not count
(`.data`, foreign pointers) a few samples of each parameter show. A write of single elements through
`.data` may escape both: `cpp.weight_prepack=False` keeps nothing.

Dynamo gives one graph to all modules of a class, so there is a set of results for each list of
parameters, known by their addresses. A workspace is bound to one set, and a call keeps it to its
end. A set goes when one of its parameters does, or when too many others were used since. Example:
twelve blocks of a model, one after the other, have twelve sets.
"""

from __future__ import annotations

import ctypes
import threading
from typing import Any

import torch

from litz.ir.program import Extern, Plan, ViewArg
from litz.ir.source import SAMPLES, Binary, Source
from litz.runtime.memory import Workspace, watched, window
from litz.runtime.steps import NATIVE, is_whole, numbers, op_of, torch_dtype

CHANGED = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)
STEP = SAMPLES + 1  # what is remembered of a parameter: its address, then samples
# Lists of parameters that results are kept for: more blocks than most models have of one class.
# Each takes the memory that it would take if its module were compiled by itself.
MOST_SETS = 128


class HeldSet:
    """The tensors by name, made of one list of parameters, and when."""

    def __init__(self, plan: Plan, packing: list[Extern]) -> None:
        packed = {b.name for step in packing for b in step.writes}
        self.tensors = {
            b.name: torch.empty_strided(
                numbers(b.shape), numbers(b.strides), dtype=torch_dtype(b.dtype)
            )
            for b in plan.graph.held
            if b.name not in packed
        }
        self.known: dict[str, torch.Tensor] = dict(self.tensors)  # and what ATen packed
        self.seen = _nothing_seen(plan)
        self.place = ctypes.addressof(self.seen)
        self.versions: list[int] | None = None
        self.owners: list[Any] = []

    @property
    def bytes(self) -> int:
        own = [t.untyped_storage().nbytes() for t in self.tensors.values()]
        packed = [t for name, t in self.known.items() if name not in self.tensors]
        return sum([*own, *(t.numel() * t.itemsize for t in packed)])


class Held:
    """The sets of one graph. `spaces` are its workspaces that no call is using."""

    def __init__(self, plan: Plan, source: Source, binary: Binary, spaces: list[Workspace]) -> None:
        assert source.preparation is not None
        self._plan, self._layout, self._spaces = plan, source.layout, spaces
        self._names = [b.name for b in plan.sources]
        self._packing = [s for s in plan.graph.body[: plan.graph.prepared] if isinstance(s, Extern)]
        self.is_final = set(plan.sources) <= set(plan.graph.constants)  # and so made for good
        self.sets: dict[tuple[int, ...], HeldSet] = {}  # in the order they were last looked for
        self.made = 0  # how often
        self._unseen = _nothing_seen(plan)
        self._prepare = NATIVE(binary.address[source.preparation.name])
        self._changed = CHANGED(binary.address["litz_changed"])
        self._lock = threading.Lock()

    @property
    def bytes(self) -> int:
        return sum(one.bytes for one in list(self.sets.values()))

    def enter(self, space: Workspace) -> None:
        """Make a fresh workspace known: to the only set, or to none so far."""
        if self.is_final:
            self._bind(space, self.sets[()])
        else:
            space.hold(self._layout, {}, ctypes.addressof(self._unseen))

    def make_final(self, space: Workspace, constants: dict[str, torch.Tensor]) -> HeldSet:
        """Make the only set; the workspace's table knows where the constants lie."""
        self.sets[()] = one = HeldSet(self._plan, self._packing)
        self._bind(space, one)
        self._make(one, space.address, constants)
        return one

    def refresh(
        self, space: Workspace, parameters: tuple[torch.Tensor, ...]
    ) -> dict[str, torch.Tensor]:
        """The tensors of these parameters, made anew if one is not what it was; their addresses
        are in the workspace's table."""
        with self._lock:
            changed, now = self._changed(space.address), _versions(parameters)
            if changed < 0:  # the parameters are others
                self._bind(space, self._set_of(parameters))
                changed = self._changed(space.address)
            one: HeldSet = space.held
            if changed or now != one.versions:
                self._make(one, space.address, dict(zip(self._names, parameters, strict=True)))
                one.versions = None if space.error.value else now  # else it is made anew
            return one.known

    def _bind(self, space: Workspace, one: HeldSet) -> None:
        space.held = one
        space.hold(self._layout, one.tensors, one.place)

    def _set_of(self, parameters: tuple[torch.Tensor, ...]) -> HeldSet:
        key = tuple(t.data_ptr() for t in parameters)
        one = self.sets.pop(key, None)
        if one is None:
            for oldest in list(self.sets)[: len(self.sets) + 1 - MOST_SETS]:
                self._drop(oldest)
            one = HeldSet(self._plan, self._packing)
            one.seen[::STEP] = key
            one.owners = watched(parameters, self, lambda held: held._drop(key))
        self.sets[key] = one
        return one

    def _drop(self, key: tuple[int, ...]) -> None:
        """Forget a set, and the idle workspaces that are bound to it. A call that is under way
        keeps its own. This may run anywhere, so it takes no lock."""
        one = self.sets.pop(key, None)
        if one is None:
            return
        one.seen[0] = -1  # the addresses may be those of other parameters soon
        kept = []
        while self._spaces:
            try:
                space = self._spaces.pop()
            except IndexError:  # another thread took it
                break
            kept += [space] if space.held is not one else []
        self._spaces.extend(kept)

    def _make(self, one: HeldSet, address: int, parameters: dict[str, torch.Tensor]) -> None:
        self._prepare(address)
        known = one.tensors | parameters

        def value(operand: Any) -> Any:
            if isinstance(operand, ViewArg):
                base = known[operand.buffer.name]
                return base if is_whole(operand) else window(base, operand)
            return operand

        with torch.no_grad():
            for step in self._packing:
                (made,) = step.writes
                one.known[made.name] = op_of(step)(*map(value, step.args))
        self.made += 1


def _nothing_seen(plan: Plan) -> Any:
    """Of each parameter an address that is none, and no samples."""
    return (ctypes.c_int64 * (len(plan.sources) * STEP))(*[-1] * len(plan.sources) * STEP)


def _versions(parameters: tuple[Any, ...]) -> list[int]:
    try:
        return [t._version for t in parameters]
    except RuntimeError:  # a tensor made in inference mode counts nothing; its samples do
        return [-1 if t.is_inference() else t._version for t in parameters]
