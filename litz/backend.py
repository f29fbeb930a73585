"""The backend: what `torch.compile(model, backend="litz")` calls.

In: Dynamo's graph with `mode` and `options`. Out: a callable. A graph that cannot be compiled runs
as eager and says so once; `on_error="raise"` makes it an error that names the op and the line.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.fx
from functorch.compile import make_boxed_func

from litz import config as settings
from litz.capture import through_autograd
from litz.compiler import compile_graph
from litz.config import Config
from litz.errors import CompileFailed, InternalError, LitzError, ModeWithOptions
from litz.report import Explanation, Fallback


def litz(
    module: torch.fx.GraphModule,
    inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    explanation: Explanation | None = None,
) -> Callable[..., Any]:
    """Compile one captured graph."""
    if mode is not None and options:
        raise ModeWithOptions()
    config = settings.snapshot(options, mode=mode)
    notes = Explanation() if explanation is None else explanation

    def compile_one(gm: torch.fx.GraphModule, _: Sequence[Any], kind: str) -> Callable[..., Any]:
        return _compiled_or_eager(gm, kind, config, notes)

    return through_autograd(module, inputs, compile_one)


def _compiled_or_eager(
    module: torch.fx.GraphModule, kind: str, config: Config, notes: Explanation
) -> Callable[..., Any]:
    try:
        compiled, report = compile_graph(module, kind, config)
    except Exception as error:
        if config.on_error == "raise":
            raise _as_user_sees_it(error) from error
        _say_once(kind, str(error))
        notes.fallbacks.append(Fallback(kind, str(error)))
        return make_boxed_func(module.forward)
    notes.graphs.append(report)
    return compiled


def _as_user_sees_it(error: Exception) -> Exception:
    """A bug of ours stays what it is; all else names the op and the line it failed on."""
    if isinstance(error, InternalError):
        return error
    if isinstance(error, LitzError):
        return CompileFailed("compile", getattr(error, "origin", None), error)
    return InternalError(f"{type(error).__name__}: {error}")


_SAID: set[str] = set()


def _say_once(kind: str, reason: str) -> None:
    if reason not in _SAID:
        _SAID.add(reason)
        warnings.warn(
            f"Litz runs a {kind} graph as eager: {reason} "
            'Set options={"on_error": "raise"} to make this an error.',
            stacklevel=2,
        )


def forget_warnings() -> None:
    """Say again what has been said: for `litz.reset()`."""
    _SAID.clear()
