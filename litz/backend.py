"""The backend: what `torch.compile(model, backend="litz")` calls.

In: Dynamo's graph with `mode` and `options`. Out: a callable. A graph that cannot be compiled runs
as eager and says so once; `on_error="raise"` makes it an error that names the op and the line.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.fx
from torch._dynamo.exc import TorchDynamoException, exceptions_allowed_to_be_fallback

from litz import config as settings
from litz import requirements as requirements  # checked before what needs it is imported
from litz.capture import (
    COMPILE_LOCK,
    bases_of,
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
from litz.report import BySizes, Explanation, Fallback, unread
from litz.runtime import for_size
from litz.runtime.memory import watched
from litz.runtime.modes import apart, function_modes, without_modes
from litz.target import target_for
from litz.toolchain import LinkedGraph
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
    notes = unread() if explanation is None else explanation
    names = [str(n.target) for n in module.graph.nodes if n.op == "placeholder"]
    without_memory = [k for k, t in enumerate(inputs) if _is_zero_tensor(t)]
    if without_memory:
        given = _with_memory(inputs, without_memory)
        run = litz(module, given, mode=mode, options=options, explanation=notes)
        return lambda *args: run(*_with_memory(args, without_memory))

    def compile_one(gm: torch.fx.GraphModule, _: Sequence[Any], kind: str) -> Callable[..., Any]:
        if bases_of(gm, kind) and not depends_on_data(gm):
            why = "some inputs share memory, whose size is not guarded"
            notes.by_size.append(BySizes(kind, why))
            return BySize(gm, kind, config, notes)
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
        parts = (compile_one, split, config.fallback_random, _eager_of(module))
        return through_autograd(module, inputs, *parts)
    except (TorchDynamoException, *exceptions_allowed_to_be_fallback):
        # What Dynamo answers by tracing anew or by breaking the graph there.
        raise
    except Exception as error:
        if config.on_error == "raise" and not isinstance(error, LitzError):
            raise  # torch's, about the program
        _refuse(error, "joint", config, notes)
        return _eager_of(module)


def _is_zero_tensor(value: Any) -> bool:
    """Whether it is one of autograd's zeros that take no memory; Dynamo guards that it stays so."""
    return isinstance(value, torch.Tensor) and value._is_zerotensor()


def _with_memory(args: Sequence[Any], places: Sequence[int]) -> list[Any]:
    return [a.clone() if k in places else a for k, a in enumerate(args)]


def _compiled_or_eager(
    module: torch.fx.GraphModule, kind: str, config: Config, notes: Explanation,
    parameters: Parameters = None, others: Callable[[list[Any]], Any] | None = None,
) -> Callable[..., Any]:  # fmt: skip
    try:
        compiled, report = compile_graph(module, kind, config, parameters)
    except Exception as error:
        _refuse(error, kind, config, notes)
        return _eager(module)
    notes.graphs.append(report)
    _provide_unfolded(compiled, partial(_compiled_or_eager, module, kind), config, notes)
    frozen = compiled.frozen
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
        if recorded and not by_data and target_for(devices_of(module), config).records:
            raise SizeUnknown("of any tensor", "each size is a CUDA graph of its own")
        with COMPILE_LOCK, without_guards(module):
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
    _provide_unfolded(compiled, partial(_for_all_sizes, module, kind), config, notes)
    return compiled.call


def _provide_unfolded(
    compiled: LinkedGraph, compile: Callable[..., Callable[..., Any]],
    config: Config, notes: Explanation,
) -> None:  # fmt: skip
    """For parameters that may not be folded into each other: the same graph without folds, compiled
    when a call first needs it."""
    if not compiled.asks:
        return
    plain = replace(config, cpp=replace(config.cpp, fold_channel_factors=False))
    made: list[Callable[..., Any]] = []

    def unfolded(args: list[Any]) -> Any:
        if not made:
            with COMPILE_LOCK, without_modes():
                if not made:
                    made.append(compile(plain, notes))
        return made[0](args)

    compiled.unfolded = unfolded


def _eager_of(module: torch.fx.GraphModule) -> Callable[..., Any]:
    """Dynamo's own graph op by op, with autograd as eager has it."""

    def run(*args: Any) -> Any:
        return _as_eager(module, args)

    return run


def _eager(module: torch.fx.GraphModule) -> Callable[[list[Any]], Any]:
    """The captured graph op by op, called with its arguments as one list."""

    def run(args: list[Any]) -> Any:
        given = list(args)
        args.clear()
        return _as_eager(module, given)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


def _as_eager(module: torch.fx.GraphModule, args: Sequence[Any]) -> Any:
    """Modes of functions are in the graph, as far as they concern it."""
    if function_modes():
        return apart(lambda given: module.forward(*given), list(args))
    return module.forward(*args)


def _refuse(error: Exception, kind: str, config: Config, notes: Explanation) -> None:
    """Note why a graph runs as eager, or raise if the user wants to know at once."""
    if isinstance(error, CudaGraphsRefused):
        raise error
    if config.on_error == "raise":
        raise _as_user_sees_it(error) from error
    _say_once(kind, str(error))
    notes.fallbacks.append(Fallback(kind, str(error)))


class Allowance:
    """How many variants of one graph are compiled: `most`, and after those one for every so many
    calls. So a program whose sizes or parameters never come again does not compile for ever, and
    one that runs for weeks is not left with the variants of its first minute."""

    CALLS = 100

    def __init__(self, most: int) -> None:
        self.most, self.calls, self.made = most, 0, 0

    @property
    def is_left(self) -> bool:
        return self.made < self.most + self.calls // self.CALLS


class Variant:
    """A compiled variant, and at which call it was used last."""

    def __init__(self, run: Callable[..., Any], used: int) -> None:
        self.run, self.used = run, used


class BySize:
    """A graph with symbolic sizes, or with inputs of any size (`bases_of`): compiled once for each
    combination of sizes it is called with.

    Dynamo traces and guards such a graph once, so a new size costs our stages alone. Where there
    are too many of them, what was not used for the longest makes room for what came twice.
    """

    MOST = 64  # combinations at once; what comes beside them runs as eager

    def __init__(
        self, module: torch.fx.GraphModule, kind: str, config: Config, notes: Explanation
    ) -> None:
        self._boxed_call = True
        self.module, self.kind, self.config, self.notes = module, kind, config, notes
        self.bases = bases_of(module, kind)
        self.compiled: dict[tuple[Any, ...], Variant] = {}
        self.came: dict[tuple[Any, ...], None] = {}  # what ran as eager lately, the oldest first
        self.allowance = Allowance(self.MOST)

    def __call__(self, args: list[Any]) -> Any:
        sizes = sizes_of(args, self.bases)
        self.allowance.calls += 1
        found = self.compiled.get(sizes) or self._another(sizes, args)
        found.used = self.allowance.calls
        tensors = [a for a in args if isinstance(a, torch.Tensor)]
        args.clear()
        return found.run(tensors)

    def _another(self, sizes: tuple[Any, ...], args: list[Any]) -> Variant:
        with COMPILE_LOCK:
            if sizes in self.compiled:  # by another thread, just now
                return self.compiled[sizes]
            if len(self.compiled) >= self.MOST and not self._made_room(sizes):
                return Variant(self._eager(sizes), 0)
            self.allowance.made += 1
            self.compiled[sizes] = made = Variant(self._compile(args), self.allowance.calls)
            return made

    def _made_room(self, sizes: tuple[Any, ...]) -> bool:
        reason = f"it was called with more than {self.MOST} combinations of sizes."
        _say_once(self.kind, reason)
        if sizes not in self.came or not self.allowance.is_left:
            self.came[sizes] = None
            if len(self.came) > self.MOST:
                del self.came[next(iter(self.came))]
            return False
        del self.came[sizes]
        del self.compiled[min(self.compiled, key=lambda s: self.compiled[s].used)]
        return True

    def _compile(self, args: list[Any]) -> Callable[..., Any]:
        try:
            with without_modes():
                fixed = specialize(self.module, args)
        except Exception as error:
            _refuse(error, self.kind, self.config, self.notes)
            return self._eager(sizes_of(args))
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
            return _as_eager(self.module, full)

        return run


class ByParameters:
    """A frozen graph for other parameters than it was compiled with: a second module of the class,
    a weight that was replaced. Compiled once for each list of them, as long as they live."""

    MOST = 64  # lists at once; what comes beside them runs without being frozen

    def __init__(
        self, module: torch.fx.GraphModule, kind: str, config: Config, notes: Explanation,
        parameters: Mapping[int, NamedTensor],
    ) -> None:  # fmt: skip
        self.compile = partial(_compiled_or_eager, module, kind, config, notes)
        self.labels = {k: label for k, (label, _) in parameters.items()}
        self.compiled: dict[tuple[int, ...], tuple[Callable[..., Any], list[Any]]] = {}
        self.unfrozen: Callable[..., Any] | None = None
        self.allowance = Allowance(self.MOST)

    def __call__(self, args: list[Any]) -> Any:
        key = tuple(args[k].data_ptr() for k in self.labels)
        self.allowance.calls += 1
        run, _ = self.compiled.get(key) or self._compile(key, args)
        return run(args)

    def _compile(
        self, key: tuple[int, ...], args: list[Any]
    ) -> tuple[Callable[..., Any], list[Any]]:
        with COMPILE_LOCK:
            found = self.compiled.get(key)
            if found is not None:  # by another thread, just now
                return found
            if len(self.compiled) >= self.MOST or not self.allowance.is_left:
                self.unfrozen = self.unfrozen or self.compile()
                return self.unfrozen, []
            self.allowance.made += 1
            given = {k: (label, args[k]) for k, label in self.labels.items()}
            tensors = [tensor for _, tensor in given.values()]
            run = self.compile(given, self)
            made = run, watched(tensors, self, lambda this: this._drop(key))
            self.compiled[key] = made
            return made

    def _drop(self, key: tuple[int, ...]) -> None:
        self.compiled.pop(key, None)


def _as_user_sees_it(error: Exception) -> Exception:
    """A bug of ours stays what it is; all else names the op and the line it failed on."""
    if isinstance(error, InternalError | CompileFailed):
        return error
    if isinstance(error, LitzError):
        return CompileFailed("compile", getattr(error, "origin", None), error)
    return InternalError(f"{type(error).__name__}: {error}")


# What has been said, the oldest first, and how much of that is remembered. Two threads at once may
# both say something; no more happens.
_SAID: dict[str, None] = {}
MOST_SAID = 1000


def _say_once(kind: str, reason: str) -> None:
    if reason not in _SAID:
        _SAID[reason] = None
        for oldest in list(_SAID)[: max(len(_SAID) - MOST_SAID, 0)]:
            _SAID.pop(oldest, None)
        warnings.warn(
            f"Litz runs the {kind} graph as eager: {reason} "
            'Set options={"on_error": "raise"} to make this an error.',
            stacklevel=2,
        )


def forget_warnings() -> None:
    """Say again what has been said: for `litz.reset()`."""
    _SAID.clear()
