"""A pytest plugin: whatever a test compiles, it compiles for the GPU and runs on the interpreter.

In: `TRITON_INTERPRET=1 pytest -p tests.codegen.triton.plugin tests/lower`. Out: the same tests with
another target behind them, so that every rule of lowering is held against eager by the kernels that
a GPU would run.
"""

from __future__ import annotations

from typing import Any

import pytest

from litz import compiler
from litz.errors import DriverError
from tests.codegen.triton.interpreted import TARGET, link_interpreted


class _Compiled:
    """The callable of one graph; what went wrong inside a kernel is raised as it was."""

    def __init__(self, graph: Any, device: Any) -> None:
        self.graph, self.device, self._boxed_call = graph, device, True
        self.policy = graph.policy

    def __call__(self, args: list[Any]) -> Any:
        try:
            results = self.graph(args)
        except DriverError:
            raise self.device.error from None
        self.graph.check()  # a GPU would say so at the next call
        return results

    call = __call__
    call._boxed_call = True  # type: ignore[attr-defined]  # it takes its inputs as one list


def pytest_configure(config: pytest.Config) -> None:
    scheduled: list[Any] = []
    schedule = compiler.schedule

    def target_for(devices: Any, config: Any) -> Any:
        scheduled.clear()
        return TARGET

    def keep(kernel: Any, *args: Any) -> Any:
        scheduled.append(schedule(kernel, *args))
        return scheduled[-1]

    def build(source: Any, target: Any, config: Any, trace: Any) -> None:
        """The interpreter reads the source itself."""

    def link(plan: Any, source: Any, _: Any, constants: Any, config: Any, *more: Any) -> Any:
        return _Compiled(*link_interpreted(plan, source, list(scheduled), constants, config))

    compiler.target_for, compiler.schedule = target_for, keep
    compiler.build, compiler.link = build, link
