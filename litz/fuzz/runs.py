"""A function compiled by Litz without Dynamo, and run natively or by the interpreter.

In: a function and its inputs. Out: its results and its inputs as they are left. Frames and guards
are left out: they take most of the time and none of the risk. What fails, raises: nothing here
falls back to eager.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.fx
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch._functorch.aot_autograd import aot_function
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily

from litz.capture import decompositions
from litz.compiler import compile_graph
from litz.config import snapshot
from litz.ir.interpret import run_kernels
from litz.ir.program import Extern, KernelGraph, ViewArg, written
from litz.runtime import CompiledGraph
from litz.runtime.steps import torch_dtype

Array = np.ndarray[Any, Any]


class Compiled:
    """Traced and compiled on its first call. `interpret` makes later calls run the kernels' IR.
    Inputs are on the CPU, and so are results; the code may be for another device."""

    def __init__(
        self, function: Callable[..., Any], options: Mapping[str, Any], device: str = "cpu"
    ) -> None:
        self.config = snapshot(dict(options))
        self.interpret, self.device = False, device
        self.native: Any
        self.traced = aot_function(
            function,
            fw_compiler=self._compile,
            inference_compiler=self._compile,
            decompositions=decompositions(),
            keep_inference_input_mutations=True,
        )

    def _compile(self, module: torch.fx.GraphModule, _: Any) -> Callable[..., Any]:
        with unset_fake_temporarily():  # as the backend does: passes compute with constants
            native, _report = compile_graph(module, "inference", self.config)
        self.native = native

        def run(args: list[Any]) -> Any:
            return interpreted(self.native, args) if self.interpret else self.native(args)

        run._boxed_call = True  # type: ignore[attr-defined]
        return run

    def __call__(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        if self.device == "cpu":
            with torch.no_grad():
                return list(self.traced(*inputs))
        there = Elsewhere(self.device)
        given = [there.moved(t) for t in inputs]
        with torch.no_grad(), torch.device(self.device):
            results = list(self.traced(*given))
        return there.back(results)


class Elsewhere:
    """Tensors on another device: what shares memory shares it there, too, and lies there alike."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.pairs: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}  # here, there

    def moved(self, tensor: torch.Tensor) -> torch.Tensor:
        """The same elements there."""
        here = tensor.untyped_storage()
        if here._cdata not in self.pairs:
            there = torch.UntypedStorage(here.nbytes(), device=self.device).copy_(here)
            self.pairs[here._cdata] = here, there
        return _over(self.pairs[here._cdata][1], tensor)

    def back(self, results: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Results here, and what was moved there as it is now."""
        known = {there._cdata: here for here, there in self.pairs.values()}
        for here, there in self.pairs.values():
            here.copy_(there)
        found = []
        for tensor in results:
            there = tensor.untyped_storage()
            if there._cdata not in known:
                known[there._cdata] = torch.UntypedStorage(there.nbytes()).copy_(there)
            found.append(_over(known[there._cdata], tensor))
        return found


def _over(storage: torch.UntypedStorage, like: torch.Tensor) -> torch.Tensor:
    """A tensor over other memory, laid out as one is."""
    fresh = torch.empty(0, dtype=like.dtype, device=storage.device)
    return fresh.set_(storage, like.storage_offset(), like.shape, like.stride())  # type: ignore


def traced(function: Callable[..., Any], inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """What AOTAutograd's graph gives when eager runs it: torch's own part, without ours."""

    def keep(module: torch.fx.GraphModule, _: Any) -> Callable[..., Any]:
        boxed: Callable[..., Any] = make_boxed_func(module.forward)
        return boxed

    run = aot_function(
        function, fw_compiler=keep, inference_compiler=keep, keep_inference_input_mutations=True
    )
    with torch.no_grad():
        return list(run(*inputs))


def promised(function: Callable[..., Any], inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The results as torch foretells them, without values: their shapes and strides."""
    with torch.no_grad(), FakeTensorMode() as fake:
        given = [fake.from_tensor(t) for t in inputs]
        return list(function(*given)) + given


def interpreted(graph: CompiledGraph, args: list[Any]) -> list[Any]:
    """What the kernels mean, in the order they are planned; inputs are updated as by the code."""
    given = list(args)
    args.clear()
    program = graph.plan.graph
    constants = {name: as_array(t) for name, t in graph.constants}
    arrays = [as_array(t) for t in given]
    results = run_kernels(program, arrays, constants, extern=call_aten)
    changed = {b for step in program.body for b in written(step)}
    for buffer, tensor, array in zip(program.inputs, given, arrays, strict=True):
        if buffer in changed:
            tensor.copy_(as_tensor(array, tensor.dtype))
    return _as_outputs(program, results)


def _as_outputs(program: KernelGraph, results: list[Any]) -> list[Any]:
    values = [output.value for output in program.outputs]
    return [
        _laid_out(r, v) if isinstance(v, ViewArg) else r
        for v, r in zip(values, results, strict=True)
    ]


def _laid_out(result: Array, view: ViewArg) -> torch.Tensor:
    """The values with a window's strides, which may show one element several times, and its offset,
    which AOTAutograd gives to inputs that the program reshapes in place."""
    shape, strides = result.shape, [s.number for s in view.strides]
    dtype, offset = torch_dtype(view.buffer.dtype), view.offset.number
    span = 1 + sum((n - 1) * step for n, step in zip(shape, strides, strict=True))
    flat = torch.empty(offset + (span if result.size else 0), dtype=dtype)
    places = torch.arange(len(flat)).as_strided(shape, strides, offset)
    flat[places] = as_tensor(result, dtype)
    return flat.as_strided(shape, strides, offset)


def as_array(tensor: torch.Tensor) -> Array:
    """A fresh array of the values; bf16 as the float32 that the interpreter holds it in."""
    wide = tensor.float() if tensor.dtype is torch.bfloat16 else tensor
    array: Array = wide.detach().numpy().copy()
    return array


def as_tensor(array: Array, dtype: torch.dtype) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(array)).reshape(array.shape).to(dtype)


def call_aten(step: Extern, args: list[Any], kwargs: dict[str, Any]) -> list[Any]:
    """An ATen call of the interpreter: the op itself over the operands' values."""
    namespace, name, overload = step.target.split(".")
    op = getattr(getattr(getattr(torch.ops, namespace), name), overload)
    given = [_operand(a, meant) for a, meant in zip(args, step.args, strict=True)]
    named = {k: _operand(kwargs[k], meant) for k, meant in step.kwargs}
    results = op(*given, **named)
    listed = [results] if step.single else results or ()
    return [None if r is None else as_array(r) for r in listed]


def _operand(value: Any, meant: Any) -> Any:
    """An array as the tensor that its window on a buffer stands for."""
    if isinstance(meant, ViewArg):
        # An opaque type is held as torch's own; all others lie as the call will find them.
        is_known = meant.buffer.dtype.kind != "x"
        return (
            _laid_out(value, meant)
            if is_known
            else as_tensor(value, torch_dtype(meant.buffer.dtype))
        )
    if isinstance(meant, (list, tuple)):
        return [_operand(v, m) for v, m in zip(value, meant, strict=True)]
    return value
