"""The meaning of programs, in NumPy: slow, obvious, and the oracle of every other stage.

In: a `LoopProgram` or `KernelGraph` with its input arrays. Out: its output values; inputs that the
program stores into are updated in place. Each axis becomes an `arange` along a dimension of its
own, so an expression over a whole loop nest is one broadcast array. Arrays of bf16 and fp8 are
float32 arrays that hold such numbers. Within one nest every value is computed before any is stored.
Example: `run_program(program, [np.ones((8, 128), np.float32)])` gives `[array of 8 sums]`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from litz.errors import IndexOutOfRange
from litz.ir import fp8
from litz.ir.checks import CHECK_OPS, Site
from litz.ir.dtypes import BF16, BOOL, FP8_DTYPES, DType
from litz.ir.expr import Expr, walk
from litz.ir.index import ZERO
from litz.ir.ops import OPS, REDUCTIONS, SCANS
from litz.ir.program import (
    Buffer,
    Extern,
    Kernel,
    KernelGraph,
    Loop,
    LoopProgram,
    Store,
    UnbackedBinding,
    ViewArg,
    written,
)

Array = np.ndarray[Any, Any]
# Called with the step and its resolved operands, as `call(step, args, kwargs)`; array operands are
# views of the program's own storage, so an op that mutates them just writes.
ExternCall = Callable[[Extern, list[Any], dict[str, Any]], Sequence[Array | None]]
# Called instead of the interpreter, with a kernel and the environment that it runs in.
RunKernel = Callable[[Kernel, "Environment"], None]


def run_program(
    program: LoopProgram,
    inputs: Sequence[Array | int],
    constants: Mapping[str, Array] | None = None,
    extern: ExternCall | None = None,
) -> list[Any]:
    """The outputs of a loop program."""
    return _run(program, inputs, constants or {}, extern)


def run_kernels(
    graph: KernelGraph,
    inputs: Sequence[Array | int],
    constants: Mapping[str, Array] | None = None,
    extern: ExternCall | None = None,
) -> list[Any]:
    """The outputs of a kernel graph."""
    return _run(graph, inputs, constants or {}, extern)


@dataclass
class Environment:
    """The values behind names: sizes, buffers as flat storage, axes as arrays."""

    sizes: dict[str, int | float] = field(default_factory=dict)
    storage: dict[str, Array] = field(default_factory=dict)
    axes: dict[Expr, Array] = field(default_factory=dict)
    # Scratch has one copy for every outer iteration: its arrays have the outer axes in front.
    scratch: dict[str, Array] = field(default_factory=dict)
    outer: tuple[Expr, ...] = ()
    values: dict[Expr, Array] = field(default_factory=dict)

    def number(self, size: Expr) -> int:
        """The value of a size."""
        return int(size.attr if size.is_const else evaluate(size, Environment(sizes=self.sizes)))

    def shape(self, sizes: Sequence[Expr]) -> tuple[int, ...]:
        return tuple(self.number(s) for s in sizes)

    def allocate(self, buffer: Buffer) -> Array:
        """Allocate zeroed storage for a buffer; returns its elements in their shape."""
        span = _span(self.shape(buffer.shape), self.shape(buffer.strides))
        dtype = object if buffer.dtype.kind == "x" else buffer.dtype.numpy
        self.storage[buffer.name] = np.zeros(span, dtype)
        return self.elements(buffer)

    def fill(self, buffer: Buffer, values: Array) -> None:
        """Allocate a buffer and store `values` in it."""
        elements = self.allocate(buffer)
        if elements.shape != np.shape(values):
            raise ValueError(f"{buffer} has shape {elements.shape}, got {np.shape(values)}")
        elements[...] = convert(np.asarray(values), buffer.dtype)

    def elements(self, buffer: Buffer) -> Array:
        return self.view(ViewArg(buffer, buffer.shape, buffer.strides, ZERO))

    def view(self, window: ViewArg) -> Array:
        if window.buffer.name not in self.storage and ZERO in window.buffer.shape:
            self.allocate(window.buffer)  # no loop runs over an empty buffer
        flat, offset = self.storage[window.buffer.name], self.number(window.offset)
        shape, strides = self.shape(window.shape), self.shape(window.strides)
        span = _span(shape, strides)  # an empty window may begin anywhere
        if span and (offset < 0 or offset + span > len(flat)):
            raise ValueError(f"{window} does not lie inside {window.buffer}")
        return as_strided(flat[offset:], shape, [flat.itemsize * step for step in strides])

    def resolve(self, value: Any) -> Any:
        """An operand of an extern call, or an output, as arrays and numbers."""
        if isinstance(value, ViewArg):
            return self.view(value)
        if isinstance(value, Expr) and value.dtype.is_float:
            return float(evaluate(value, Environment(sizes=self.sizes)))
        if isinstance(value, Expr):
            return self.number(value)
        if isinstance(value, (list, tuple)):
            return type(value)(map(self.resolve, value))
        return value

    def target(self, buffer: Buffer) -> tuple[Array, list[Array]]:
        """The array that an access of a buffer goes to, and the indices in front of its own.

        The first is always zero, so that a scalar is indexed by arrays like all the rest.
        """
        zero = np.asarray(0)
        if buffer.name in self.scratch:
            outer = [self.axes[a] for a in self.outer]
            return self.scratch[buffer.name][np.newaxis], [zero, *outer]
        return self.elements(buffer)[np.newaxis], [zero]


def _span(shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """How many elements of storage a shape with strides spans."""
    if 0 in shape:
        return 0
    return 1 + sum((n - 1) * step for n, step in zip(shape, strides, strict=True))


# -- programs --------------------------------------------------------------------------------


def _run(
    program: LoopProgram | KernelGraph,
    inputs: Sequence[Array | int],
    constants: Mapping[str, Array],
    extern: ExternCall | None,
) -> list[Any]:
    env = execute(program, inputs, constants, extern)
    found = [env.resolve(output.value) for output in program.outputs]
    return [v.copy() if isinstance(v, np.ndarray) else v for v in found]


def execute(
    program: LoopProgram | KernelGraph,
    inputs: Sequence[Array | int],
    constants: Mapping[str, Array],
    extern: ExternCall | None,
    kernel: RunKernel | None = None,
) -> Environment:
    """Every buffer as the program leaves it. Kernels may be run by `kernel` instead."""
    env = Environment()
    for item, given in zip(program.inputs, inputs, strict=True):
        _bind_sizes(env, item, given)
    for item, given in zip(program.inputs, inputs, strict=True):
        if isinstance(item, Buffer):
            env.fill(item, np.asarray(given))
    for buffer in program.constants:
        if buffer.name in constants:  # a constant that no step reads may be missing
            env.fill(buffer, constants[buffer.name])
    changed: set[Buffer] = set()
    for step in program.body:
        if kernel is not None and isinstance(step, Kernel):
            kernel(step, env)
        else:
            run_step(env, step, extern)
        changed.update(written(step))
    for item, given in zip(program.inputs, inputs, strict=True):
        if item in changed and isinstance(item, Buffer) and isinstance(given, np.ndarray):
            given[...] = env.elements(item)
    return env


def _bind_sizes(env: Environment, item: Buffer | Expr, given: Array | int) -> None:
    """Read symbolic sizes off an input: it is one itself, or has some as dimensions."""
    pairs = (
        [(item, given)] if isinstance(item, Expr) else zip(item.shape, np.shape(given), strict=True)
    )
    for size, number in pairs:
        if size.op == "size":
            known = env.sizes.setdefault(size.attr[0], int(number))
            if known != number:
                raise ValueError(f"{size.attr[0]} is {known} in one input and {number} in another")


def run_step(
    env: Environment, step: Loop | Kernel | Extern, extern: ExternCall | None = None
) -> None:
    """Run one step in an environment."""
    if isinstance(step, Loop):
        _run_group(env, step.axes, step.reduced, step.stores)
    elif isinstance(step, Kernel):
        env.outer = step.outer
        outer = env.shape([a.extent for a in step.outer])
        env.scratch = {
            b.name: np.zeros(outer + env.shape(b.shape), b.dtype.numpy) for b in step.scratch
        }
        for phase in step.phases:
            _run_group(env, step.outer + phase.inner, phase.summed, phase.inside)
            _run_group(env, step.outer, phase.inner, phase.completing)
        env.scratch = {}
    else:
        _run_extern(env, step, extern)


def _run_extern(env: Environment, step: Extern, extern: ExternCall | None) -> None:
    if extern is None:
        raise ValueError(f"the program calls {step.target}: pass extern=")
    kwargs = {key: env.resolve(value) for key, value in step.kwargs}
    results = extern(step, [env.resolve(a) for a in step.args], kwargs)
    for binding in step.binds:
        env.sizes[binding.symbol.attr[0]] = _unbacked_size(
            binding, results[0] if step.single else results
        )
    for buffer, result in zip(step.outputs, results, strict=True):
        if buffer is not None and result is not None:
            env.fill(buffer, result)


def _unbacked_size(binding: UnbackedBinding, result: Any) -> int | float:
    """The unbacked size, read off a call's result."""
    for part in binding.path:
        if part == "offset":  # a result here is never a view of its operand
            return 0
        result = result[part] if isinstance(part, int) else getattr(result, part)
    number = float(result) if binding.symbol.dtype.is_float else int(result)
    return number if binding.divisor == 1 else number // binding.divisor


def _run_group(
    env: Environment,
    axes: tuple[Expr, ...],
    reduced: tuple[Expr, ...],
    stores: tuple[Store, ...],
) -> None:
    """The stores of one loop nest: dimension k of every array is the k-th axis."""
    rank = len(axes) + len(reduced)
    env.axes, env.values = {}, {}
    for k, axis in enumerate(axes + reduced):
        shape = [1] * rank
        shape[k] = -1
        env.axes[axis] = np.arange(env.number(axis.extent)).reshape(shape)
    full = tuple(env.number(a.extent) for a in axes) + (1,) * len(reduced)
    computed = []
    for store in stores:
        value = convert(evaluate(store.value, env), store.buffer.dtype)
        computed.append((store, [evaluate(i, env) for i in store.index], value))
    for store, index, value in computed:
        if store.buffer.name not in env.storage and store.buffer.name not in env.scratch:
            env.allocate(store.buffer)
        array, front = env.target(store.buffer)
        where = [np.broadcast_to(i, full) for i in (*front, *index)]
        _check_range(where, array.shape)
        placed = np.broadcast_to(value, full)
        if store.mode in ("set", "put"):  # where points collide, NumPy keeps the last
            array[tuple(where)] = placed
        else:
            _combine_in_order(array, where, placed, store)


def _combine_in_order(array: Array, where: list[Array], value: Array, store: Store) -> None:
    """Point by point: colliding ones are combined one after the other, rounded each time."""
    meaning = OPS[store.mode].numpy
    for point in np.ndindex(value.shape):
        place = tuple(i[point] for i in where)
        array[place] = convert(meaning(array[place], value[point]), store.buffer.dtype)


def _check_range(index: Sequence[Array], shape: tuple[int, ...]) -> None:
    """Raise for an index out of range: NumPy would count a negative one from the end."""
    for i, size in zip(index, shape, strict=True):
        outside = i[(i < 0) | (i >= size)]
        if outside.size:
            raise IndexOutOfRange(index=int(outside.flat[0]), size=size)


# -- expressions -----------------------------------------------------------------------------


def evaluate(root: Expr, env: Environment) -> Array:
    """The value of an expression at every point of the axes, each node computed once."""
    with np.errstate(all="ignore"):
        for node in walk(root):
            if node not in env.values:
                value = _value(node, [env.values[a] for a in node.args], env)
                env.values[node] = np.asarray(value)
    return env.values[root]


def _value(node: Expr, args: list[Array], env: Environment) -> Any:
    op = node.op
    if op == "const":
        return convert(np.asarray(node.attr), node.dtype)
    if op == "axis":
        return env.axes[node]
    if op == "size":
        return args[0] if args else np.asarray(env.sizes[node.attr[0]], node.dtype.numpy)
    if op == "load":
        return _load(node, args, env)
    if op in ("cast", "narrow"):
        return convert(args[0], node.dtype)
    if op == "bitcast":
        return _same_bits(args[0], node.args[0].dtype, node.dtype)
    if op == "reduce":
        return _reduced(node, args[0], env)
    if op == "scan":
        along = list(env.axes).index(node.args[1])
        full = np.broadcast_arrays(*args)[0]
        return convert(SCANS[node.attr].numpy(full, along), node.dtype)
    if op in CHECK_OPS:
        _check(node, args)
    return convert(np.asarray(OPS[op].numpy(*args)), node.dtype)


def _check(node: Expr, args: list[Array]) -> None:
    """Raise the error that a compiled call would raise."""
    site: Site = node.attr or Site("index")
    if node.op == "check_index":
        size = int(args[1])
        outside = args[0][(args[0] < 0) | (args[0] >= size)]
        if outside.size:
            raise site.error(int(outside.flat[0]), size)
    elif node.op == "check_divisor":
        if (args[0] == 0).any():
            raise site.error()
    else:
        holds, first, second, _ = np.broadcast_arrays(*args)
        if not holds.all():
            raise site.error(int(first[~holds].flat[0]), int(second[~holds].flat[0]))


def _load(node: Expr, args: list[Array], env: Environment) -> Array:
    """Elements of a buffer: where the guard is false, zero, and nothing is read."""
    array, front = env.target(node.buffer)
    if node.guard is None:
        index, inside = args, np.asarray(True)
    else:
        index, inside = args[:-1], args[-1]
    *where, mask = np.broadcast_arrays(*front, *index, inside)
    result = np.zeros(mask.shape, array.dtype)
    chosen = [i[mask] for i in where]
    _check_range(chosen, array.shape)
    result[mask] = array[tuple(chosen)]
    return result


def _reduced(node: Expr, values: Array, env: Environment) -> Any:
    """A reduction keeps its dimension, with size one. A value that does not vary along it is
    broadcast first, so that each point counts."""
    kind, axes = node.attr
    arrays = [env.axes[a] for a in axes]
    full = np.broadcast_arrays(values, *arrays)[0]
    dimensions = tuple(list(env.axes).index(a) for a in axes)
    return convert(np.asarray(REDUCTIONS[kind].numpy(full, dimensions)), node.dtype)


def convert(values: Array, dtype: DType) -> Array:
    """Values as another type, as torch converts them."""
    if dtype.kind == "x":
        return values
    if dtype is BOOL:
        return np.not_equal(values, 0)
    if dtype in FP8_DTYPES:
        return fp8.rounded(values.astype(np.float32), dtype)
    if dtype.is_half:
        with np.errstate(over="ignore"):
            single = values.astype(np.float32)
            return _round_bf16(single) if dtype is BF16 else single.astype(np.float16)
    if dtype.is_int and values.dtype.kind == "f":
        values = values.astype(np.int64)  # truncates; too large a value then wraps as integers do
    result: Array = values.astype(dtype.numpy, copy=False)
    return result


def _same_bits(values: Array, source: DType, target: DType) -> Array:
    """The same bits as another type. bf16 is kept in float32, of whose bits it is the upper half;
    fp8 is kept in float32 as well."""
    if source in FP8_DTYPES:
        values = fp8.to_bits(values, source)
    if target in FP8_DTYPES:
        return fp8.from_bits(values, target)
    if source is BF16:
        values = (values.view(np.uint32) >> 16).astype(np.uint16)
    if target is BF16:
        return (values.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return values.view(target.numpy)


def _round_bf16(values: Array) -> Array:
    """The nearest bf16, ties to even: add just under half of the last kept bit, then truncate."""
    bits = values.view(np.uint32)
    rounded = (bits + (0x7FFF + ((bits >> 16) & 1))) & np.uint32(0xFFFF0000)
    result: Array = np.where(np.isnan(values), values, rounded.astype(np.uint32).view(np.float32))
    return result
