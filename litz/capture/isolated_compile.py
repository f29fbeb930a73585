"""A call that is compiled in isolation from everything else the process has compiled.

In: a function, a backend and arguments. Out: the result of the call. Dynamo attaches its cache
entries to a function's code, counts them there, and remembers the sizes it has seen by the code's
name. The function is therefore copied, with its own code and name. Functions that it calls behind a
graph break are compiled under their own code and their entries are invalidated afterwards; before
torch 2.13 they still count there. Example: `call_isolated(f, backend, (x,), {})` leaves an earlier
`torch.compile(f)` compiled as it was.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FunctionType
from typing import Any

import torch
from torch._dynamo import convert_frame, eval_frame
from torch._dynamo.guards import DeletedGuardManagerWrapper

_TORCH = str(Path(torch.__file__).parent)
_NUMBER = itertools.count()
# From torch 2.13 on, the entries of such a call are stored and counted separately.
ISOLATED = {
    name: True
    for name in ("isolate_recompiles",)
    if name in inspect.signature(torch.compile).parameters
}


def call_isolated(
    function: Callable[..., Any], backend: Callable[..., Any], args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> Any:  # fmt: skip
    """Compile and call once."""
    try:
        run: Any = torch.compile(_copied(_plain(function)), backend=backend, **ISOLATED)
        return run(*args, **kwargs)
    finally:
        _forget(backend)


def _plain(function: Any) -> Any:
    """The original function or module, if it was wrapped by `torch.compile`."""
    if isinstance(function, eval_frame.OptimizedModule):
        return function._orig_mod
    return eval_frame.innermost_fn(function)


def _copied(function: Any) -> FunctionType:
    """The same function, or one that calls it, with its own code object."""

    def called(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    # Dynamo traces code in torch's files only if other code calls it.
    own = isinstance(function, FunctionType)
    source = function if own and not function.__code__.co_filename.startswith(_TORCH) else called
    name = f"{source.__code__.co_name}_{next(_NUMBER)}"
    code = source.__code__.replace(co_name=name)
    made = FunctionType(
        code, source.__globals__, source.__name__, source.__defaults__, source.__closure__
    )
    made.__kwdefaults__ = source.__kwdefaults__
    made.__dict__.update(source.__dict__)
    return made


def _forget(backend: Callable[..., Any]) -> None:
    """Drop everything that this backend compiled, and Dynamo's reference to the backend."""
    with convert_frame.compile_lock:
        for name, known in list(eval_frame.cached_backends.items()):
            if _is(known, backend):
                del eval_frame.cached_backends[name]
        for seen in list(convert_frame.input_codes.seen):
            code = seen()
            entries = [] if code is None else eval_frame._debug_get_cache_entry_list(code)
            # Not `reset_code`: another thread may be about to enter its own entry for that code.
            for entry in [entry for entry in entries if _is(entry.backend, backend)]:
                gone = DeletedGuardManagerWrapper("it was compiled for one call")
                entry.guard_manager.extra_state.invalidate(entry, gone)


def _is(known: Any, backend: Callable[..., Any]) -> bool:
    """Whether a backend that Dynamo knows is this one; `torch.compile` may have wrapped it."""
    return getattr(known, "compiler_fn", known) is backend
