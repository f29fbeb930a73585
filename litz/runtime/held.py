"""What is held of parameters: packed weights and whatever else depends on them alone.

In: a `Prepack`. Out: their results, kept from call to call and
made anew when a parameter has changed. torch counts most changes in place; what it does not count
(`.data`, NumPy, tensors of inference mode) a `Watch` sees, byte by byte. A watch costs those who
write, so parameters that change between calls, as in training, are watched only after they were
left alone for some calls; until then each call makes its own.

Dynamo gives one graph to all modules of a class, so there is a set of results for each list of
parameters, known by their addresses. A workspace is bound to one set, and a call keeps it to its
end. A set goes when one of its parameters does, or when too many others were used since. Example:
twelve blocks of a model, one after the other, have twelve sets. Questions about parameters (may a
scale go into the weights?) are answered when a set is made; a set that does not fit is not used.
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
from litz.runtime.layouts import NATIVE, is_whole, numbers
from litz.runtime.memory import Workspace, empty, watched, window
from litz.runtime.modes import without_modes
from litz.runtime.poison import poisoned
from litz.runtime.writes import TRACKER, Watch

CHANGED = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)
FINGERPRINT = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64)
# Calls that parameters must be left alone before they are watched again: twice as many each time
# that they were written to after all, up to this.
MOST_PATIENCE = 64
# Lists of parameters that results are kept for: more blocks than most models have of one class.
# Each takes the memory that it would take if its module were compiled by itself.
MOST_SETS = 128


RECORD = ctypes.c_int64 * 3  # what `Watch` fills in
RECORD_BYTES = ctypes.sizeof(RECORD)
Check = Literal["contents", "versions"]  # what tells whether a parameter has changed


class HeldSet:
    """The tensors by name, made of one list of parameters, and when."""

    def __init__(self, prepack: Prepack, poison: bool = False) -> None:
        packed = {b.name for step in prepack.calls for b in step.writes}
        with without_modes():
            self.tensors: dict[str, torch.Tensor] = {
                b.name: empty(numbers(b.shape), numbers(b.strides), torch_dtype(b.dtype))
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
        self.fits = True  # whether the graph may compute with what was made of these parameters
        self.owners: list[Any] = []
        self.watch: Watch | None = None
        self.calm = self.patience = 0

    def left_alone(self, versions: list[int]) -> bool:
        """Whether parameters that are to be looked at anew have been left alone for so long that
        they are worth a watch."""
        if self.watch is not None:  # in vain
            self.watch.end()
            self.watch, self.calm = None, 0
            self.patience = min(2 * self.patience + 1, MOST_PATIENCE)
        elif versions != self.versions:
            self.calm = 0
        else:
            self.calm += 1
        return self.calm >= self.patience

    @property
    def bytes(self) -> int:
        own = [t.untyped_storage().nbytes() for t in self.tensors.values()]
        packed = [t for name, t in self.known.items() if name not in self.tensors]
        return sum([*own, *(t.numel() * t.itemsize for t in packed)])


class Held:
    """The sets of one graph. `spaces` are its workspaces that no call is using."""

    def __init__(
        self, prepack: Prepack, binary: Binary, spaces: list[Workspace], config: Config
    ) -> None:
        self._prepack, self._spaces = prepack, spaces
        self._names = [b.name for b in prepack.sources]
        # In the order they were last looked for.
        self.sets: OrderedDict[tuple[int, ...], HeldSet] = OrderedDict()
        self.made = 0  # how often
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
        """Make a fresh workspace known: to the only set, or to none so far."""
        if self._prepack.final:
            self._bind(space, self.sets[()])
        else:
            space.hold({}, ctypes.addressof(self._unseen))

    def make_final(self, space: Workspace, constants: dict[str, torch.Tensor]) -> HeldSet:
        """Make the only set; the workspace's table knows where the constants lie."""
        self.sets[()] = one = HeldSet(self._prepack, self._poison)
        self._bind(space, one)
        self._make(one, space.address, constants)
        return one

    def refresh(
        self, space: Workspace, parameters: tuple[torch.Tensor, ...]
    ) -> dict[str, torch.Tensor] | None:
        """The tensors of these parameters, made anew if one is not what it was; their addresses
        are in the workspace's table. None if the graph is not for such parameters."""
        with self._lock:
            now = _versions(parameters)
            with TRACKER.lock:
                changed = self._changed(space.address)
            if changed < 0:  # the parameters are others
                self._bind(space, self._set_of(parameters))
                changed = self._changed(space.address)
            one: HeldSet = space.held
            if changed or now != one.versions:
                if one.left_alone(now):
                    one.watch = self._watch(one, parameters)
                one.versions = None  # until all is made
                self._make(one, space.address, dict(zip(self._names, parameters, strict=True)))
                one.versions = now if not space.error.value else None
            return one.known if one.fits else None

    def _watch(self, one: HeldSet, parameters: tuple[torch.Tensor, ...]) -> Watch | None:
        if self._check == "contents":
            return Watch(parameters, one.record, self._fingerprint)
        return Watch([t for t in parameters if t.is_inference()], one.record, self._fingerprint)

    def _bind(self, space: Workspace, one: HeldSet) -> None:
        """The table comes last. Until it is whole its record is nobody's, so that a call behind an
        interrupt binds anew."""
        space.hold({}, ctypes.addressof(self._unseen))
        space.held = one
        space.hold(one.tensors, one.place)

    def _set_of(self, parameters: tuple[torch.Tensor, ...]) -> HeldSet:
        key = tuple(t.data_ptr() for t in parameters)
        one = self.sets.get(key)
        if one is None:
            for oldest in list(self.sets)[: max(len(self.sets) + 1 - MOST_SETS, 0)]:
                self._drop(oldest)
            one = HeldSet(self._prepack, self._poison)
            one.seen[: len(key)] = key
            one.owners = watched(parameters, self, lambda held: held._drop(key))
            self.sets[key] = one
        self.sets.move_to_end(key)  # in one step: what is not listed is not dropped either
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
        with without_modes():
            for step in self._prepack.calls:
                (made,) = step.writes
                one.known[made.name] = op_of(step)(*(_operand(a, known) for a in step.args))
        one.fits = all(one.known[name].item() for name in self._prepack.questions)
        self.made += 1


ALL: weakref.WeakSet[Held] = weakref.WeakSet()


def _unlock() -> None:
    """In a forked process: the threads that held these are not there, and what they were making is
    made anew."""
    for held in list(ALL):
        held._lock = threading.Lock()


os.register_at_fork(after_in_child=_unlock)


def _operand(value: Any, known: dict[str, torch.Tensor]) -> Any:
    """What a call that packs or asks is given."""
    if isinstance(value, tuple):
        return [_operand(each, known) for each in value]
    if not isinstance(value, ViewArg):
        return value
    base = known[value.buffer.name]
    return base if is_whole(value) else window(base, value)


def _nothing_seen(prepack: Prepack) -> Any:
    """Of each parameter an address that is none, and the record of a watch that nobody keeps."""
    count = len(prepack.sources) + len(RECORD())
    return (ctypes.c_int64 * count)(*[-1] * count)


def _versions(parameters: tuple[Any, ...]) -> list[int]:
    try:
        return [t._version for t in parameters]
    except RuntimeError:  # a tensor made in inference mode counts nothing; its watch sees it
        return [-1 if t.is_inference() else t._version for t in parameters]
