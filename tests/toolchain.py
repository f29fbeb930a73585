"""The steps of a target's toolchain, each for the target that it is given.

In: kernels and a target, as `litz/compiler.py` has them. Out: what the target's own function makes
of them. Example: `emit(plan, [schedule(k, host(), Config())], host())`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from litz import compiler
from litz.config import Config
from litz.ir.call_plan import CallPlan
from litz.ir.program import Kernel, Plan
from litz.ir.scheduled import ScheduledKernel
from litz.target import CpuTarget, Target, host
from litz.targets import TOOLCHAINS, toolchain_of
from litz.trace import Trace


def schedule(kernel: Kernel, target: Target, *given: Any, **named: Any) -> ScheduledKernel[Any]:
    return toolchain_of(target).schedule(kernel, target, *given, **named)


def emit(plan: Plan, kernels: list[ScheduledKernel[Any]], target: Target) -> Any:
    return toolchain_of(target).emit(plan, kernels, target)


def build(source: Any, target: Target, config: Config, trace: Trace) -> Any:
    """Built and loaded."""
    tools = toolchain_of(target)
    return tools.load(source, tools.build(source, target, config, trace))


def drive(source: Any, call: CallPlan, target: Target) -> Any:
    return toolchain_of(target).drive(source, call, target)


def link(
    call: CallPlan, binary: Any, constants: Any, config: Config, target: Target | None = None,
    *given: Any,
) -> Any:  # fmt: skip
    return toolchain_of(target or host()).link(call, binary, constants, config, *given)


def stage_of(name: str) -> Any:
    """The function of a stage, be it every target's or the CPU's."""
    return getattr(compiler, name, None) or getattr(TOOLCHAINS[CpuTarget], name)


def replace_stage(patch: pytest.MonkeyPatch, name: str, function: Any) -> None:
    """Have the compiler call another function for a stage."""
    if hasattr(compiler, name):
        patch.setattr(compiler, name, function)
    else:
        changed = replace(TOOLCHAINS[CpuTarget], **{name: function})
        patch.setitem(TOOLCHAINS, CpuTarget, changed)
