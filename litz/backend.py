"""The backend: what `torch.compile(model, backend="litz")` calls.

In: Dynamo's graph with `mode` and `options`. Out: a callable. A graph that cannot be compiled runs
as eager and says so once; `on_error="raise"` makes it an error that names the op and the line.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.fx
from torch._dynamo.exc import TorchDynamoException, exceptions_allowed_to_be_fallback
from torch._subclasses.fake_tensor import unset_fake_temporarily

from litz import config as settings
from litz import requirements as requirements  # checked before what needs it is imported
from litz.capture import (
    depends_on_data,
    devices_of,
    is_symbolic,
    parameters_of,
    simplify_masks,
    sizes_of,
    specialize,
    through_autograd,
    without_guards,
)
from litz.compiler import Parameters, compile_graph
from litz.config import Config
from litz.errors import (
    CompileFailed,
    CudaGraphsRefused,
    InternalError,
    LitzError,
    ModeWithOptions,
    SizeUnknown,
)
from litz.ir.graph import NamedTensor
from litz.lower import GUARDS
from litz.passes import partition
from litz.report import BySizes, Explanation, Fallback
from litz.runtime import CompiledGraph, for_size
from litz.runtime.memory import watched
from litz.trace import Trace


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
    names = [str(n.target) for n in module.graph.nodes if n.op == "placeholder"]

    def compile_one(gm: torch.fx.GraphModule, _: Sequence[Any], kind: str) -> Callable[..., Any]:
        if is_symbolic(gm):
            return _for_all_sizes(gm, kind, config, notes)
        given = parameters_of(gm, inputs, names) if config.freezing else None
        return _compiled_or_eager(gm, kind, config, notes, given)

    def split(joint: torch.fx.GraphModule, args: Sequence[Any], **given: Any) -> Any:
        trace = Trace(config.debug, verify=config.verify)
        parts = trace(partition, joint, args, config, trace, **given)
        trace.report("joint graph")
        return parts

    try:
        if config.joint_graph_constant_folding:
            simplify_masks(module)
        return through_autograd(module, inputs, compile_one, split)
    except (TorchDynamoException, *exceptions_allowed_to_be_fallback):
        # What Dynamo answers by tracing anew or by breaking the graph there.
        raise
    except Exception as error:
        if config.on_error == "raise" and not isinstance(error, LitzError):
            raise  # torch's, about the program
        _refuse(error, "joint", config, notes)
        return _eager_of(module)


def _compiled_or_eager(
    module: torch.fx.GraphModule, kind: str, config: Config, notes: Explanation,
    parameters: Parameters = None, others: Callable[[list[Any]], Any] | None = None,
) -> Callable[..., Any]:  # fmt: skip
    try:
        # torch traces under a mode in which tensors hold no data; passes compute with constants.
        with unset_fake_temporarily():
            compiled, report = compile_graph(module, kind, config, parameters)
    except Exception as error:
        _refuse(error, kind, config, notes)
        return _eager(module)
    notes.graphs.append(report)
    frozen = compiled.frozen if isinstance(compiled, CompiledGraph) else None
    if parameters and frozen is not None and not frozen.discards:
        frozen.elsewhere = others or ByParameters(module, kind, config, notes, parameters)
    return compiled.call


def _for_all_sizes(
    module: torch.fx.GraphModule, kind: str, config: Config, notes: Explanation
) -> Callable[..., Any]:
    """One compile for every size inside the guards; if that cannot be, one for each size. Sizes
    that data tells are not known when a call begins: then it is one compile, or eager."""
    by_data = depends_on_data(module)
    try:
        recorded = config.triton.cudagraphs or config.triton.require_cudagraphs
        if recorded and not by_data and any(d.type != "cpu" for d in devices_of(module)):
            raise SizeUnknown("of any tensor", "each size is a CUDA graph of its own")
        with unset_fake_temporarily(), without_guards(module):
            compiled, report = compile_graph(module, kind, config)
    except Exception as error:
        if by_data:
            _refuse(error, kind, config, notes)
            return _eager(module)
        expected = isinstance(error, SizeUnknown) or isinstance(error.__cause__, GUARDS)
        if config.on_error == "raise" and isinstance(error, InternalError) and not expected:
            raise
        notes.by_size.append(BySizes(kind, str(error)))
        return BySize(module, kind, config, notes)
    notes.graphs.append(report)
    return compiled.call


def _eager_of(module: torch.fx.GraphModule) -> Callable[..., Any]:
    """Dynamo's own graph op by op, with autograd as eager has it."""

    def run(*args: Any) -> Any:
        return module.forward(*args)

    return run


def _eager(module: torch.fx.GraphModule) -> Callable[[list[Any]], Any]:
    """The captured graph op by op, called with its arguments as one list."""

    def run(args: list[Any]) -> Any:
        given = list(args)
        args.clear()
        return module.forward(*given)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


def _refuse(error: Exception, kind: str, config: Config, notes: Explanation) -> None:
    """Note why a graph runs as eager, or raise if the user wants to know at once."""
    if isinstance(error, CudaGraphsRefused):
        raise error
    if config.on_error == "raise":
        raise _as_user_sees_it(error) from error
    _say_once(kind, str(error))
    notes.fallbacks.append(Fallback(kind, str(error)))


class BySize:
    """A graph with symbolic sizes: compiled once for each combination of sizes it is called with.

    Dynamo traces and guards such a graph once, so a new size costs our stages alone.
    """

    MOST = 64  # combinations; what comes after them runs as eager

    def __init__(
        self, module: torch.fx.GraphModule, kind: str, config: Config, notes: Explanation
    ) -> None:
        self._boxed_call = True
        self.module, self.kind, self.config, self.notes = module, kind, config, notes
        self.compiled: dict[tuple[Any, ...], Callable[..., Any]] = {}

    def __call__(self, args: list[Any]) -> Any:
        sizes = sizes_of(args)
        run = self.compiled.get(sizes)
        if run is None:
            run = self.compiled[sizes] = self._compile(args)
        tensors = [a for a in args if isinstance(a, torch.Tensor)]
        args.clear()
        return run(tensors)

    def _compile(self, args: list[Any]) -> Callable[..., Any]:
        eager = self._eager(sizes_of(args))
        if len(self.compiled) >= self.MOST:
            _say_once(self.kind, f"it was called with more than {self.MOST} combinations of sizes.")
            return eager
        try:
            fixed = specialize(self.module, args)
        except Exception as error:
            _refuse(error, self.kind, self.config, self.notes)
            return eager
        config = for_size(self.config, len(self.compiled))
        if config is not self.config:
            most = self.config.triton.cudagraph_sizes
            self.notes.by_size.append(BySizes(self.kind, f"not recorded: {most} sizes are"))
        return _compiled_or_eager(fixed, self.kind, config, self.notes)

    def _eager(self, sizes: tuple[Any, ...]) -> Callable[..., Any]:
        """The symbolic graph itself, with the sizes put back among the tensors."""
        places = [n for n in self.module.graph.nodes if n.op == "placeholder"]

        def run(tensors: list[Any]) -> Any:
            numbers, rest = iter(sizes), iter(tensors)
            full = [
                next(rest) if isinstance(p.meta.get("val"), torch.Tensor) else next(numbers)
                for p in places
            ]
            return self.module.forward(*full)

        return run


class ByParameters:
    """A frozen graph for other parameters than it was compiled with: a second module of the class,
    a weight that was replaced. Compiled once for each list of them, as long as they live."""

    MOST = 64  # lists; what comes after them runs without being frozen

    def __init__(
        self, module: torch.fx.GraphModule, kind: str, config: Config, notes: Explanation,
        parameters: Mapping[int, NamedTensor],
    ) -> None:  # fmt: skip
        self.compile = partial(_compiled_or_eager, module, kind, config, notes)
        self.labels = {k: label for k, (label, _) in parameters.items()}
        self.compiled: dict[tuple[int, ...], tuple[Callable[..., Any], list[Any]]] = {}
        self.unfrozen: Callable[..., Any] | None = None
        self.count = 0
        self.lock = threading.Lock()

    def __call__(self, args: list[Any]) -> Any:
        key = tuple(args[k].data_ptr() for k in self.labels)
        with self.lock:
            run, _ = self.compiled.get(key) or self._compile(key, args)
        return run(args)

    def _compile(
        self, key: tuple[int, ...], args: list[Any]
    ) -> tuple[Callable[..., Any], list[Any]]:
        if self.count >= self.MOST:
            self.unfrozen = self.unfrozen or self.compile()
            return self.unfrozen, []
        self.count += 1
        given = {k: (label, args[k]) for k, label in self.labels.items()}
        tensors = [tensor for _, tensor in given.values()]
        run = self.compile(given, self)
        self.compiled[key] = run, watched(tensors, self, lambda this: this._drop(key))
        return self.compiled[key]

    def _drop(self, key: tuple[int, ...]) -> None:
        self.compiled.pop(key, None)


def _as_user_sees_it(error: Exception) -> Exception:
    """A bug of ours stays what it is; all else names the op and the line it failed on."""
    if isinstance(error, InternalError | CompileFailed):
        return error
    if isinstance(error, LitzError):
        return CompileFailed("compile", getattr(error, "origin", None), error)
    return InternalError(f"{type(error).__name__}: {error}")


_SAID: set[str] = set()


def _say_once(kind: str, reason: str) -> None:
    if reason not in _SAID:
        _SAID.add(reason)
        warnings.warn(
            f"Litz runs the {kind} graph as eager: {reason} "
            'Set options={"on_error": "raise"} to make this an error.',
            stacklevel=2,
        )


def forget_warnings() -> None:
    """Say again what has been said: for `litz.reset()`."""
    _SAID.clear()
