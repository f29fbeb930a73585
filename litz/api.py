"""The public functions: compile, explain, list_options, list_mode_options, reset.

In: a model or function. Out: a compiled one, or an `Explanation` of what compiling it does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from litz import config as settings
from litz import registration as registration  # so that torch knows the backend by its name
from litz.backend import forget_warnings, litz
from litz.capture import call_isolated
from litz.config import list_mode_options, list_options
from litz.errors import ModeWithOptions
from litz.report import Explanation
from litz.runtime.memory import IDLE_ARENAS


def compile(
    model: Any = None,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    disable: bool = False,
) -> Any:
    """`torch.compile` with this backend and the same arguments; also a decorator."""
    if mode is not None and options:
        raise ModeWithOptions()
    settings.snapshot(options, mode=mode)  # a wrong name or type fails here, not at the first call
    return torch.compile(
        model, fullgraph=fullgraph, dynamic=dynamic, backend="litz", mode=mode,
        options=dict(options) if options else None, disable=disable,
    )  # type: ignore[call-overload]  # fmt: skip


def explain(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Explanation:
    """Compile a fresh copy of `function`, call it once, and say what was done and why. Earlier
    compiles of this process are kept."""
    explanation = Explanation()
    call_isolated(function, partial(litz, explanation=explanation), args, kwargs)
    return explanation


def reset() -> None:
    """Forget everything compiled in this process. Never call it while another thread compiles:
    torch frees the cache entries that the other thread is about to write to."""
    torch._dynamo.reset()
    forget_warnings()
    IDLE_ARENAS.clear()


__all__ = ["compile", "explain", "list_mode_options", "list_options", "reset"]
