"""A compiled graph: the callable that AOTAutograd calls.

In: the list of inputs. Out: the list of outputs. The call itself is the function that the wrapper
printed; here are the objects that it uses. Example: `print(compiled.text)` shows the wrapper.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import torch

from litz.config import Config
from litz.errors import InternalError
from litz.ir.call_plan import CallPlan, Prepack
from litz.ir.checks import error_of
from litz.ir.graph import NamedTensor
from litz.ir.source import Binary
from litz.runtime.frozen import Frozen
from litz.runtime.layouts import Native, mismatch, native_segments
from litz.runtime.memory import IDLE_ARENAS, Workspace
from litz.runtime.prepacked import PrepackCache
from litz.runtime.profile import timed_segments
from litz.runtime.wrapper import Wrapper, exec_wrapper
from litz.trace import KERNELS


class CompiledGraph:
    """Everything that calls share; the state of one call is in its workspace. `call(args)` takes
    the inputs as one list, which it clears, so that inputs with no other owner are freed as soon as
    they were used."""

    def __init__(
        self, plan: CallPlan, binary: Binary, constants: dict[str, torch.Tensor], config: Config,
        frozen: Mapping[str, NamedTensor] | None = None,
    ) -> None:  # fmt: skip
        self.plan, self.binary, self.config = plan, binary, config
        segments: Mapping[str, Native]
        if config.debug >= KERNELS:
            segments = timed_segments(plan, binary, config.debug)
        else:
            segments = native_segments(plan, binary)
        self.free: list[Workspace] = []
        prepack = plan.prepack
        self.prepacked = (
            None if prepack is None else PrepackCache(prepack, binary, self.free, config)
        )
        if prepack is not None and prepack.final:
            self._prepare(prepack, constants)
        self.unfolded: Callable[[list[Any]], Any] | None = None  # the backend provides it
        self.frozen = Frozen(frozen, config.freezing_discard_parameters) if frozen else None
        wrapper = Wrapper(plan, plan.body, segments, constants, config, self.prepacked, self.frozen)
        self.constants = list(wrapper.constants.items())
        self.text = wrapper.text()
        self.views = None if plan.body.symbols else tuple(wrapper.views)  # None: see `resize`
        self.call = self._bind_wrapper(wrapper.names)
        self._boxed_call = True

    def __call__(self, args: list[Any]) -> list[Any]:
        return self.call(args)

    def _bind_wrapper(self, names: dict[str, Any]) -> Callable[[list[Any]], list[Any]]:
        scope = {
            **names, "take": self.free.pop, "give_back": self.free.append,
            "new_space": self._new_space, "fail": self._fail, "mismatch": mismatch,
            "give_arena": IDLE_ARENAS.append, "forget": self._forget,
        }  # fmt: skip
        if self.prepacked is not None:
            scope["refresh"] = self.prepacked.refresh
            scope["unfolded"] = self._unfolded
        if self.frozen is not None:
            scope |= {"still": self.frozen.still, "elsewhere": self.frozen.other}
        return exec_wrapper(self.text, scope)

    @property
    def guards_folding(self) -> bool:
        """Whether there are parameter values with which its folds would be wrong."""
        return self.plan.prepack is not None and bool(self.plan.prepack.fold_guards)

    def _unfolded(self, args: list[Any]) -> Any:
        """Run a call whose parameters may not be folded."""
        if self.unfolded is None:
            raise InternalError("nothing stands in for a graph whose folds are not for a parameter")
        return self.unfolded(args)

    def _prepare(self, prepack: Prepack, constants: dict[str, torch.Tensor]) -> None:
        """Prepack constants, once."""
        assert self.prepacked is not None
        known = {b.name: constants[b.name] for b in prepack.constants}
        space = Workspace(self.plan, (), huge=False)
        space.borrow()
        for name, tensor in known.items():
            if name in self.plan.table:
                space.table[self.plan.table[name]] = tensor.data_ptr()
        self.prepacked.make_final(space, known)
        IDLE_ARENAS.append(space.arena)
        if space.error.value:
            self._fail(space)

    def _new_space(self) -> Workspace:
        space = Workspace(self.plan, self.views, self.config.cpp.huge_pages)
        if self.prepacked is not None:
            self.prepacked.enter(space)
        return space

    def _forget(self, space: Workspace, error: BaseException) -> None:
        """A call ends with an error. If a kernel recorded a failed check, that came first and is
        raised instead."""
        if space.error.value and isinstance(error, Exception):
            try:
                self._fail(space)
            except Exception as first:
                raise first from error
        space.error.value = 0

    def _fail(self, space: Workspace) -> NoReturn:
        """Raise the error of the failed check in the record."""
        record = space.error
        error = error_of(self.plan.sites, record.value, record.index, record.size)
        record.value = 0
        raise error
