"""A compiled graph: what AOTAutograd calls.

In: the list of inputs. Out: the list of outputs. The call itself is the function that
`wrapper` printed; here is what it stands on. Example: `print(compiled.text)` shows what a call
does.
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
from litz.runtime.held import Held
from litz.runtime.layouts import NATIVE, Native, mismatch
from litz.runtime.memory import IDLE, Workspace
from litz.runtime.profile import timed_segments
from litz.runtime.wrapper import Wrapper, bound
from litz.trace import KERNELS


class CompiledGraph:
    """Holds what a call needs and nothing of a call. `call(args)` takes the inputs as one list,
    which it clears, so that what nobody else holds is freed as soon as it was used."""

    def __init__(
        self, plan: CallPlan, binary: Binary, constants: dict[str, torch.Tensor], config: Config,
        frozen: Mapping[str, NamedTensor] | None = None,
    ) -> None:  # fmt: skip
        self.plan, self.binary, self.config = plan, binary, config
        segments: Mapping[str, Native]
        if config.debug >= KERNELS:
            segments = timed_segments(plan, binary, config.debug)
        else:
            segments = {s.name: NATIVE(binary.address[s.name]) for s in plan.segments}
        self.free: list[Workspace] = []
        prepack = plan.prepack
        self.held = None if prepack is None else Held(prepack, binary, self.free, config)
        if prepack is not None and prepack.final:
            self._prepare(prepack, constants)
        self.unfolded: Callable[[list[Any]], Any] | None = None  # the backend provides it
        self.frozen = Frozen(frozen, config.freezing_discard_parameters) if frozen else None
        wrapper = Wrapper(plan, plan.body, segments, constants, config, self.held, self.frozen)
        self.constants = list(wrapper.constants.items())
        self.text = wrapper.text()
        self.views = None if plan.body.symbols else tuple(wrapper.views)  # else `resize` does
        self.call = self._written(wrapper.names)
        self._boxed_call = True

    def __call__(self, args: list[Any]) -> list[Any]:
        return self.call(args)

    def _written(self, names: dict[str, Any]) -> Callable[[list[Any]], list[Any]]:
        scope = {
            **names, "take": self.free.pop, "give_back": self.free.append,
            "new_space": self._new_space, "fail": self._fail, "mismatch": mismatch,
            "give_arena": IDLE.append, "forget": self._forget,
        }  # fmt: skip
        if self.held is not None:
            scope["refresh"] = self.held.refresh
            scope["unfolded"] = self._unfolded
        if self.frozen is not None:
            scope |= {"still": self.frozen.still, "elsewhere": self.frozen.other}
        return bound(self.text, scope)

    @property
    def asks(self) -> bool:
        """Whether there are parameters that it may not compute with."""
        return self.plan.prepack is not None and bool(self.plan.prepack.questions)

    def _unfolded(self, args: list[Any]) -> Any:
        """A call with parameters that the folds of this graph are not for."""
        if self.unfolded is None:
            raise InternalError("nothing stands in for a graph whose folds are not for a parameter")
        return self.unfolded(args)

    def _prepare(self, prepack: Prepack, constants: dict[str, torch.Tensor]) -> None:
        """Prepack constants, here and once."""
        assert self.held is not None
        known = {b.name: constants[b.name] for b in prepack.constants}
        space = Workspace(self.plan, (), huge=False)
        space.borrow()
        for name, tensor in known.items():
            if name in self.plan.table:
                space.table[self.plan.table[name]] = tensor.data_ptr()
        self.held.make_final(space, known)
        IDLE.append(space.arena)
        if space.error.value:
            self._fail(space)

    def _new_space(self) -> Workspace:
        space = Workspace(self.plan, self.views, self.config.cpp.huge_pages)
        if self.held is not None:
            self.held.enter(space)
        return space

    def _forget(self, space: Workspace, error: BaseException) -> None:
        """A call ends with an error. What a kernel noted came first, and is its cause."""
        if space.error.value and isinstance(error, Exception):
            try:
                self._fail(space)
            except Exception as first:
                raise first from error
        space.error.value = 0

    def _fail(self, space: Workspace) -> NoReturn:
        """Raise what a kernel noted in the record."""
        record = space.error
        error = error_of(self.plan.sites, record.value, record.index, record.size)
        record.value = 0
        raise error
