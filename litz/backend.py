"""The backend: the function that `torch.compile(model, backend="litz")` calls.

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
    devices_of,
    forbid_new_guards,
    has_unbacked_sizes,
    is_symbolic,
    parameters_of,
    simplify_masks,
    specialization_key,
    specialize,
    synthetic_bases_of,
    through_aot_autograd,
)
from litz.compiler import Parameters, compile_graph
from litz.config import Config
from litz.cyclic_gc import fewer_collections
from litz.errors import (
    CompileFailed,
    CudaGraphsRefused,
    InternalError,
    LitzError,
    ModeWithOptions,
    SizeUnknown,
)
from litz.ir.graph import NamedTensor
from litz.lower import GUARD_ERRORS
from litz.passes import partition
from litz.report import Explanation, Fallback, SizeSpecialization, discarding_explanation
from litz.runtime import for_size
from litz.runtime.memory import on_storage_freed
from litz.runtime.modes import call_without_modes, function_modes, without_modes
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
    notes = discarding_explanation() if explanation is None else explanation
    names = [str(n.target) for n in module.graph.nodes if n.op == "placeholder"]
    without_memory = [k for k, t in enumerate(inputs) if _is_zero_tensor(t)]
    if without_memory:
        given = _with_memory(inputs, without_memory)
        run = litz(module, given, mode=mode, options=options, explanation=notes)
        return lambda *args: run(*_with_memory(args, without_memory))

    def compile_one(gm: torch.fx.GraphModule, _: Sequence[Any], kind: str) -> Callable[..., Any]:
        if synthetic_bases_of(gm, kind) and not has_unbacked_sizes(gm):
            why = "some inputs share memory, whose size is not guarded"
            notes.by_size.append(SizeSpecialization(kind, why))
            return SizeSpecialized(gm, kind, config, notes)
        if is_symbolic(gm):
            return _for_all_sizes(gm, kind, config, notes)
        given = parameters_of(gm, inputs, names) if config.freezing else None
        return _compiled_or_eager(gm, kind, config, notes, given)

    def split(joint: torch.fx.GraphModule, args: Sequence[Any], **given: Any) -> Any:
        trace = Trace(config.debug, verify=config.verify)
        with fewer_collections():
            parts = trace(partition, joint, args, config, trace, **given)
        trace.report("joint graph")
        return parts

    try:
        if config.joint_graph_constant_folding:
            simplify_masks(module)
        parts = (compile_one, split, config.fallback_random, _eager_of(module))
        return through_aot_autograd(module, inputs, *parts)
    except (TorchDynamoException, *exceptions_allowed_to_be_fallback):
        # Dynamo answers these by tracing anew or by a graph break.
        raise
    except Exception as error:
        if config.on_error == "raise" and not isinstance(error, LitzError):
            raise  # torch's own error, about the user's program
        _refuse(error, "joint", config, notes)
        return _eager_of(module)


def _is_zero_tensor(value: Any) -> bool:
    """Whether it is an autograd ZeroTensor, which has no memory; Dynamo guards that it is one."""
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
        frozen.other_parameters_graph = others or ParameterSpecialized(
            module, kind, config, notes, parameters
        )
    return compiled.call


def _for_all_sizes(
    module: torch.fx.GraphModule, kind: str, config: Config, notes: Explanation
) -> Callable[..., Any]:
    """One compile for every size inside the guards; if that fails, one compile for each size. A
    graph with unbacked sizes, unknown when a call begins, gets the one compile or runs as eager."""
    by_data = has_unbacked_sizes(module)
    try:
        recorded = config.triton.cudagraphs or config.triton.require_cudagraphs
        if recorded and not by_data and target_for(devices_of(module), config).supports_cudagraphs:
            raise SizeUnknown("of any tensor", "each size is a CUDA graph of its own")
        with COMPILE_LOCK, forbid_new_guards(module):
            compiled, report = compile_graph(module, kind, config)
    except Exception as error:
        if by_data:
            _refuse(error, kind, config, notes)
            return _eager(module)
        expected = isinstance(error, SizeUnknown) or isinstance(error.__cause__, GUARD_ERRORS)
        if config.on_error == "raise" and isinstance(error, InternalError) and not expected:
            raise
        notes.by_size.append(SizeSpecialization(kind, str(error)))
        return SizeSpecialized(module, kind, config, notes)
    notes.graphs.append(report)
    _provide_unfolded(compiled, partial(_for_all_sizes, module, kind), config, notes)
    return compiled.call


def _provide_unfolded(
    compiled: LinkedGraph, compile: Callable[..., Callable[..., Any]],
    config: Config, notes: Explanation,
) -> None:  # fmt: skip
    """Set `unfolded`: the same graph without folds, for parameter values with which folding would
    be wrong. It is compiled when a call first needs it."""
    if not compiled.guards_folding:
        return
    plain = replace(config, cpp=replace(config.cpp, fold_affine_into_weights=False))
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
    """Run the graph without function modes: it was captured with their effects inside."""
    if function_modes():
        return call_without_modes(lambda given: module.forward(*given), list(args))
    return module.forward(*args)


def _refuse(error: Exception, kind: str, config: Config, notes: Explanation) -> None:
    """Note why a graph runs as eager, or raise if `on_error` is "raise"."""
    if isinstance(error, CudaGraphsRefused):
        raise error
    if config.on_error == "raise":
        raise _as_user_sees_it(error) from error
    _warn_once(kind, str(error))
    notes.fallbacks.append(Fallback(kind, str(error)))


class RecompileLimit:
    """How many variants of one graph may be compiled: `most`, then one more every `CALLS` calls. A
    program whose sizes or parameters never come again does not compile for ever, and one that runs
    for weeks is not left with the variants of its first minute."""

    CALLS = 100

    def __init__(self, most: int) -> None:
        self.most, self.calls, self.made = most, 0, 0

    @property
    def is_left(self) -> bool:
        return self.made < self.most + self.calls // self.CALLS


class CompiledVariant:
    """A compiled variant, and the number of the call that used it last."""

    def __init__(self, run: Callable[..., Any], used: int) -> None:
        self.run, self.used = run, used


class SizeSpecialized:
    """A graph with symbolic sizes, or with inputs of any size (`synthetic_bases_of`): compiled once
    for each combination of sizes it is called with.

    Dynamo traces and guards such a graph once, so a new size costs our stages alone. When the table
    is full, a combination that comes for the second time replaces the least recently used one.
    """

    MOST = 64  # combinations at once; any other runs as eager

    def __init__(
        self, module: torch.fx.GraphModule, kind: str, config: Config, notes: Explanation
    ) -> None:
        self._boxed_call = True
        self.module, self.kind, self.config, self.notes = module, kind, config, notes
        self.bases = synthetic_bases_of(module, kind)
        self.compiled: dict[tuple[Any, ...], CompiledVariant] = {}
        self.came: dict[tuple[Any, ...], None] = {}  # sizes that ran as eager, the oldest first
        self.allowance = RecompileLimit(self.MOST)

    def __call__(self, args: list[Any]) -> Any:
        sizes = specialization_key(args, self.bases)
        self.allowance.calls += 1
        found = self.compiled.get(sizes) or self._another(sizes, args)
        found.used = self.allowance.calls
        tensors = [a for a in args if isinstance(a, torch.Tensor)]
        args.clear()
        return found.run(tensors)

    def _another(self, sizes: tuple[Any, ...], args: list[Any]) -> CompiledVariant:
        with COMPILE_LOCK:
            if sizes in self.compiled:  # by another thread in the meantime
                return self.compiled[sizes]
            if len(self.compiled) >= self.MOST and not self._made_room(sizes):
                return CompiledVariant(self._eager(sizes), 0)
            self.allowance.made += 1
            self.compiled[sizes] = made = CompiledVariant(self._compile(args), self.allowance.calls)
            return made

    def _made_room(self, sizes: tuple[Any, ...]) -> bool:
        reason = f"it was called with more than {self.MOST} combinations of sizes."
        _warn_once(self.kind, reason)
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
            return self._eager(specialization_key(args))
        config = for_size(self.config, len(self.compiled))
        if config is not self.config:
            most = self.config.triton.cudagraph_sizes
            self.notes.by_size.append(
                SizeSpecialization(self.kind, f"not recorded: {most} sizes are")
            )
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


class ParameterSpecialized:
    """A frozen graph called with other parameters than it was compiled with: those of a second
    module of the class, or a weight that was replaced. It is compiled once for each set of
    parameters, and kept as long as they live."""

    MOST = 64  # sets of parameters at once; any other runs a graph that is not frozen

    def __init__(
        self, module: torch.fx.GraphModule, kind: str, config: Config, notes: Explanation,
        parameters: Mapping[int, NamedTensor],
    ) -> None:  # fmt: skip
        self.compile = partial(_compiled_or_eager, module, kind, config, notes)
        self.labels = {k: label for k, (label, _) in parameters.items()}
        self.compiled: dict[tuple[int, ...], tuple[Callable[..., Any], list[Any]]] = {}
        self.unfrozen: Callable[..., Any] | None = None
        self.allowance = RecompileLimit(self.MOST)

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
            if found is not None:  # by another thread in the meantime
                return found
            if len(self.compiled) >= self.MOST or not self.allowance.is_left:
                self.unfrozen = self.unfrozen or self.compile()
                return self.unfrozen, []
            self.allowance.made += 1
            given = {k: (label, args[k]) for k, label in self.labels.items()}
            tensors = [tensor for _, tensor in given.values()]
            run = self.compile(given, self)
            made = run, on_storage_freed(tensors, self, lambda this: this._drop(key))
            self.compiled[key] = made
            return made

    def _drop(self, key: tuple[int, ...]) -> None:
        self.compiled.pop(key, None)


def _as_user_sees_it(error: Exception) -> Exception:
    """An internal error stays as it is; any other is wrapped to name the op and the line."""
    if isinstance(error, InternalError | CompileFailed):
        return error
    if isinstance(error, LitzError):
        return CompileFailed("compile", getattr(error, "origin", None), error)
    return InternalError(f"{type(error).__name__}: {error}")


# Warnings already given, the oldest first, and how many are remembered. Two threads at once may
# both give the same warning, which is harmless.
_WARNED: dict[str, None] = {}
MAX_WARNED = 1000


def _warn_once(kind: str, reason: str) -> None:
    if reason not in _WARNED:
        _WARNED[reason] = None
        for oldest in list(_WARNED)[: max(len(_WARNED) - MAX_WARNED, 0)]:
            _WARNED.pop(oldest, None)
        warnings.warn(
            f"Litz runs the {kind} graph as eager: {reason} "
            'Set options={"on_error": "raise"} to make this an error.',
            stacklevel=2,
        )


def forget_warnings() -> None:
    """Let every warning be given again: for `litz.reset()`."""
    _WARNED.clear()
