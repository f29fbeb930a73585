"""Prepacked weights: packed weights, and whatever else depends on parameters alone.

In: a `Prepack`. Out: its results, kept from call to call and made anew when a parameter has
changed. torch's version counters show most in-place writes; a `ChangeDetector` sees the others
(`.data`, NumPy, tensors of inference mode), byte by byte. Watching makes writes slower, so
parameters that change between calls, as in training, are watched only after some calls without a
change; until then each call prepacks anew.

Dynamo gives one graph to all modules of a class, so there is a set of results for each list of
parameters, identified by their addresses. Example: twelve blocks of a model, one after the other,
have twelve sets. A workspace is bound to one set, and a call keeps it to its end. A set is dropped
when one of its parameters is freed, or when too many others were used since. Fold guards (may a
scale be folded into the weights?) are evaluated when a set is made; if one fails, the set is not
used.
"""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from collections import OrderedDict
from typing import Any, Literal

import torch

from litz.config import Config
from litz.ir.aten import op_of, torch_dtype
from litz.ir.call_plan import Prepack
from litz.ir.program import ViewArg
from litz.ir.source import Binary
from litz.runtime.change_detection import TRACKER, ChangeDetector
from litz.runtime.layouts import NATIVE, is_full_view, static_sizes
from litz.runtime.memory import Workspace, empty, on_storage_freed, strided_view
from litz.runtime.modes import without_modes
from litz.runtime.poison import poisoned

CHANGED = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)
FINGERPRINT = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64)
# Calls without a change before parameters are watched again: the number doubles each time they are
# written to after all, up to this.
MAX_BACKOFF = 64
# Sets that are kept: more than most models have blocks of one class. Each takes the memory that it
# would take if its module were compiled by itself.
MAX_CACHED_SETS = 128


RECORD = ctypes.c_int64 * 3  # filled in by `ChangeDetector`
RECORD_BYTES = ctypes.sizeof(RECORD)
Check = Literal["contents", "versions"]  # how a change of a parameter is detected


class PrepackedWeights:
    """One set: the tensors by name, and the versions of the parameters they were made of."""

    def __init__(self, prepack: Prepack, poison: bool = False) -> None:
        packed = {b.name for step in prepack.calls for b in step.writes}
        with without_modes():
            self.tensors: dict[str, torch.Tensor] = {
                b.name: empty(static_sizes(b.shape), static_sizes(b.strides), torch_dtype(b.dtype))
                for b in prepack.makes
                if b.name not in packed
            }
            for tensor in self.tensors.values() if poison else ():
                poisoned(tensor)
        self.known: dict[str, torch.Tensor] = dict(self.tensors)  # and what ATen packed
        self.seen = _nothing_seen(prepack)
        self.place = ctypes.addressof(self.seen)
        self.record = RECORD.from_buffer(self.seen, ctypes.sizeof(self.seen) - RECORD_BYTES)
        self.versions: list[int] | None = None
        self.guards_hold = True  # whether these parameters may be folded as the graph does
        self.owners: list[Any] = []
        self.watch: ChangeDetector | None = None
        self.unchanged_calls = self.backoff = 0

    def should_watch(self, versions: list[int]) -> bool:
        """Whether parameters that are prepacked anew were unchanged for so many calls that watching
        them pays."""
        if self.watch is not None:  # it was in vain
            self.watch.end()
            self.watch, self.unchanged_calls = None, 0
            self.backoff = min(2 * self.backoff + 1, MAX_BACKOFF)
        elif versions != self.versions:
            self.unchanged_calls = 0
        else:
            self.unchanged_calls += 1
        return self.unchanged_calls >= self.backoff

    @property
    def bytes(self) -> int:
        own = [t.untyped_storage().nbytes() for t in self.tensors.values()]
        packed = [t for name, t in self.known.items() if name not in self.tensors]
        return sum([*own, *(t.numel() * t.itemsize for t in packed)])


class PrepackCache:
    """The sets of one graph. `spaces` are its workspaces that no call is using."""

    def __init__(
        self, prepack: Prepack, binary: Binary, spaces: list[Workspace], config: Config
    ) -> None:
        self._prepack, self._spaces = prepack, spaces
        self._names = [b.name for b in prepack.sources]
        # The least recently used first.
        self.sets: OrderedDict[tuple[int, ...], PrepackedWeights] = OrderedDict()
        self.made = 0  # how often a set was prepacked
        self._unseen = _nothing_seen(prepack)
        self._prepare = NATIVE(binary.address[prepack.segment.name])
        self._changed = CHANGED(binary.address["litz_changed"])
        self._fingerprint = FINGERPRINT(binary.address["litz_fingerprint"])
        self._check: Check = config.cpp.weight_prepack_check
        self._poison = config.debug_poison_memory
        self._lock = threading.Lock()
        ALL.add(self)

    @property
    def bytes(self) -> int:
        return sum(one.bytes for one in list(self.sets.values()))

    def enter(self, space: Workspace) -> None:
        """Bind a new workspace: to the only set if it is final, else to none yet."""
        if self._prepack.final:
            self._bind(space, self.sets[()])
        else:
            space.bind_prepacked({}, ctypes.addressof(self._unseen))

    def make_final(self, space: Workspace, constants: dict[str, torch.Tensor]) -> PrepackedWeights:
        """Make the only set; the workspace's table has the addresses of the constants."""
        self.sets[()] = one = PrepackedWeights(self._prepack, self._poison)
        self._bind(space, one)
        self._make(one, space.address, constants)
        return one

    def refresh(
        self, space: Workspace, parameters: tuple[torch.Tensor, ...]
    ) -> dict[str, torch.Tensor] | None:
        """The set of these parameters, made anew if one has changed; the addresses of its tensors
        are in the workspace's table. None if the parameters may not be folded."""
        with self._lock:
            now = _versions(parameters)
            with TRACKER.lock:
                changed = self._changed(space.address)
            if changed < 0:  # these are other parameters
                self._bind(space, self._set_of(parameters))
                changed = self._changed(space.address)
            one: PrepackedWeights = space.prepacked
            if changed or now != one.versions:
                if one.should_watch(now):
                    one.watch = self._watch(one, parameters)
                one.versions = None  # until all is made
                self._make(one, space.address, dict(zip(self._names, parameters, strict=True)))
                one.versions = now if not space.error.value else None
            return one.known if one.guards_hold else None

    def _watch(
        self, one: PrepackedWeights, parameters: tuple[torch.Tensor, ...]
    ) -> ChangeDetector | None:
        if self._check == "contents":
            return ChangeDetector(parameters, one.record, self._fingerprint)
        return ChangeDetector(
            [t for t in parameters if t.is_inference()], one.record, self._fingerprint
        )

    def _bind(self, space: Workspace, one: PrepackedWeights) -> None:
        """Bind a workspace to a set. Its table points to the empty record until all entries are
        set, so that a call after an interrupt binds again."""
        space.bind_prepacked({}, ctypes.addressof(self._unseen))
        space.prepacked = one
        space.bind_prepacked(one.tensors, one.place)

    def _set_of(self, parameters: tuple[torch.Tensor, ...]) -> PrepackedWeights:
        key = tuple(t.data_ptr() for t in parameters)
        one = self.sets.get(key)
        if one is None:
            for oldest in list(self.sets)[: max(len(self.sets) + 1 - MAX_CACHED_SETS, 0)]:
                self._drop(oldest)
            one = PrepackedWeights(self._prepack, self._poison)
            one.seen[: len(key)] = key
            one.owners = on_storage_freed(parameters, self, lambda prepacked: prepacked._drop(key))
            self.sets[key] = one
        self.sets.move_to_end(key)  # atomic, so that `_drop` always finds the set
        return one

    def _drop(self, key: tuple[int, ...]) -> None:
        """Forget a set, and the idle workspaces that are bound to it. A running call keeps its own.
        It takes no lock, since a weak reference may call it at any point of any thread."""
        one = self.sets.pop(key, None)
        if one is None:
            return
        one.seen[0] = -1  # other parameters may soon have these addresses
        kept = []
        while self._spaces:
            try:
                space = self._spaces.pop()
            except IndexError:  # another thread took it
                break
            kept += [space] if space.prepacked is not one else []
        self._spaces.extend(kept)

    def _make(
        self, one: PrepackedWeights, address: int, parameters: dict[str, torch.Tensor]
    ) -> None:
        self._prepare(address)
        known = one.tensors | parameters
        with without_modes():
            for step in self._prepack.calls:
                (made,) = step.writes
                one.known[made.name] = op_of(step)(*(_operand(a, known) for a in step.args))
        one.guards_hold = all(one.known[name].item() for name in self._prepack.fold_guards)
        self.made += 1


ALL: weakref.WeakSet[PrepackCache] = weakref.WeakSet()


def _unlock() -> None:
    """In a forked process: replace the locks, whose holders are gone; unfinished sets are made
    anew."""
    for prepacked in list(ALL):
        prepacked._lock = threading.Lock()


os.register_at_fork(after_in_child=_unlock)


def _operand(value: Any, known: dict[str, torch.Tensor]) -> Any:
    """An argument of a call that packs or checks."""
    if isinstance(value, tuple):
        return [_operand(each, known) for each in value]
    if not isinstance(value, ViewArg):
        return value
    base = known[value.buffer.name]
    return base if is_full_view(value) else strided_view(base, value)


def _nothing_seen(prepack: Prepack) -> Any:
    """An empty record: no parameter has the address -1, and nothing is watched."""
    count = len(prepack.sources) + len(RECORD())
    return (ctypes.c_int64 * count)(*[-1] * count)


def _versions(parameters: tuple[Any, ...]) -> list[int]:
    try:
        return [t._version for t in parameters]
    except RuntimeError:  # an inference tensor has no version; a detector watches its contents
        return [-1 if t.is_inference() else t._version for t in parameters]
