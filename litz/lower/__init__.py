"""Stage 3: a captured graph becomes loops over buffers, by one small rule per op family.

In: `Graph`. Out: `LoopProgram`: one loop per op, not fused yet, and an `Extern` for each op that
stays with ATen. Example: `aten.relu(x)` becomes `loop i0 < 8: t0[i0] = max(x[i0], f32(0.0))`.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

import torch
import torch.fx
from torch.utils import _pytree as pytree

from litz.config import Config
from litz.errors import UnsupportedDevice, UnsupportedOp
from litz.ir.aten import FROM_TORCH, dtype_of
from litz.ir.calls import ASSERT_OPS
from litz.ir.choices import NO_CHOICES, Choices
from litz.ir.dtypes import BOOL, F64, FP8_DTYPES
from litz.ir.expr import Expr, apply, size, walk
from litz.ir.graph import ROUNDED, Graph, constant_name, origin_of
from litz.ir.index import ONE, ZERO
from litz.ir.overflow import overflows
from litz.ir.program import (
    HOST,
    Buffer,
    Extern,
    Loop,
    LoopProgram,
    Output,
    Store,
    ViewArg,
    exprs_of,
)
from litz.ir.recognise import recognise_loops
from litz.ir.refused import may_refuse, refuses
from litz.ir.sizes import roots, sizes_of, solution, used_in
from litz.lower import (
    attention,
    convolution,
    create,
    flex_attention,
    gather,
    join,
    matmul,
    pad,
    pointwise,
    pool,
    random,
    reduce,
    resample,
    scan,
    scatter,
    search,
    special,
    view,
)
from litz.lower.assert_messages import restore_assert_messages
from litz.lower.extern import lower_extern, lower_runtime_assert, lower_update
from litz.lower.registry import FallbackToAten, rule_for
from litz.lower.scalars import SYMBOLIC, scalar
from litz.lower.sdpa_patterns import find_sdpa_patterns, lower_sdpa_pattern
from litz.lower.symbols import GUARD_ERRORS, UNDECIDED_ERRORS, is_zero, number_or_size, size_of
from litz.lower.unbacked_bindings import DeferredAsserts, asserted_conditions, unbacked_bindings_of
from litz.lower.values import Lowering, View, element, positions, to_storage
from litz.target import Target
from litz.trace import stage

FAMILIES = (
    attention,
    convolution,
    create,
    flex_attention,
    gather,
    join,
    pad,
    pointwise,
    pool,
    matmul,
    random,
    reduce,
    resample,
    scan,
    scatter,
    search,
    special,
    view,
)


@stage("lower", "loops over buffers, one rule an op family")
def lower(
    graph: Graph, target: Target, config: Config, choices: Choices = NO_CHOICES
) -> LoopProgram:
    """Lower every node in order."""
    low = Lowering(config, target, choices)
    low.lower_node = _lower_call
    low.deferred_asserts = DeferredAsserts(asserted_conditions(graph.nodes))
    patterns = find_sdpa_patterns(graph.nodes)
    inside = {n for found in patterns.values() for n in found.nodes}
    known: dict[torch.fx.Node, Any] = {}
    inputs: list[Buffer | Expr] = []
    constants: list[Buffer] = []
    outputs: tuple[Output, ...] = ()
    for node in graph.nodes:
        low.origin = origin_of(node)
        if node.op == "placeholder":
            known[node] = _input(low, node)
            given = known[node]
            inputs.append(given.buffer if isinstance(given, View) else _argument(given))
            low.bound.update(_backed_symbols(inputs[-1]))
            if node.name in graph.static:
                low.static.add(known[node].buffer)
        elif node.op == "get_attr":
            known[node] = _attribute(low, graph, str(node.target))
            if isinstance(known[node], View):
                constants.append(known[node].buffer)
                if graph.frozen:
                    low.static.add(known[node].buffer)
        elif node in patterns:
            lower_sdpa_pattern(low, patterns[node], known)
        elif node.op == "call_function" and node not in inside:
            known[node] = _lower_call(low, node, known)
        elif node.op == "output":
            outputs = tuple(_output(known, value) for value in node.args[0])  # type: ignore
    held = tuple(dict.fromkeys(constants))  # an attribute may be read by several nodes
    steps = restore_assert_messages(low.body, graph.nodes)
    body = eliminate_dead_steps([step for step in steps if _runs(step)], inputs, outputs)
    body = recognise_loops(body)
    chosen = tuple(low.decisions)
    return LoopProgram(tuple(inputs), held, body, outputs, frozenset(low.static), chosen)


def _runs(step: Loop | Extern) -> bool:
    """A loop over an empty tensor has no iterations."""
    return isinstance(step, Extern) or all(a.extent is not ZERO for a in step.axes)


def eliminate_dead_steps(
    body: list[Loop | Extern], inputs: list[Buffer | Expr], outputs: tuple[Output, ...]
) -> tuple[Loop | Extern, ...]:
    """Drop steps whose results nothing reads: a rule may not need all of its operands."""
    needed = {b for b in inputs if isinstance(b, Buffer)}
    needed |= {o.value.buffer for o in outputs if isinstance(o.value, ViewArg)}
    kept: list[Loop | Extern] = []
    has_unbacked = any(isinstance(step, Extern) and step.binds for step in body)
    known = roots(*(n for o in outputs for n in sizes_of(o.value))) if has_unbacked else set()
    for step in reversed(body):
        tells = isinstance(step, Extern) and known.intersection(b.symbol for b in step.binds)
        effect = isinstance(step, Extern) and (step.has_effect or step.guards_folding)
        if tells or effect or needed.intersection(step.writes):
            kept.append(step)
            needed.update(step.reads)
            known.update(used_in(step) if has_unbacked else ())
    return tuple(reversed(kept))


def _input(low: Lowering, node: torch.fx.Node) -> Any:
    value = node.meta.get("val")
    if isinstance(value, torch.SymInt):
        return number_or_size(value)
    if isinstance(value, torch.SymFloat):
        return size(node.name, dtype=F64)
    if isinstance(value, torch.SymBool):
        return apply("ne", size(node.name, 0, 1, 1), ZERO)
    if not isinstance(value, torch.Tensor):
        raise low.unsupported(f"the graph takes {type(value).__name__} as an input")
    return low.whole(_storage(low, value, node.name))


def _argument(given: Any) -> Expr:
    """The number that a call gets for a symbolic input."""
    found = size_of(given)
    return found.args[0] if found.dtype is BOOL else found


def _backed_symbols(item: Buffer | Expr) -> Iterator[Expr]:
    """The sizes that an argument determines: itself, or s0 where its size is `2 * s0 + 1`."""
    for n in (*item.shape, *item.strides) if isinstance(item, Buffer) else (item,):
        yield n
        yield from (s for s in roots(n) if solution(s, n) is not None)


def _attribute(low: Lowering, graph: Graph, path: str) -> Any:
    """A tensor the module holds, or a graph that control flow calls."""
    held = graph.attributes[path]
    if not isinstance(held, torch.Tensor):
        return held
    return low.whole(_storage(low, held, constant_name(path)))


def _storage(low: Lowering, like: torch.Tensor, name: str) -> Buffer:
    _check_supported(low, like)
    if like.layout is not torch.strided:
        raise low.unsupported(f"a tensor of layout {like.layout}")
    return low.buffer(like, name)


TORCH_NAMES = {dtype: str(known) for known, dtype in FROM_TORCH.items()}
# Ops by which a program changes a dtype.
CASTS = ("aten._to_copy.default", "prims.convert_element_type.default")
# Subtractions with swapped operands.
REVERSED = ("aten.rsub.Scalar", "aten.rsub.Tensor")
# Divisions by another name.
QUOTIENTS = ("aten.floor_divide.default", "aten.floor_divide.Scalar")


def _lower_call(low: Lowering, node: torch.fx.Node, known: dict[torch.fx.Node, Any]) -> Any:
    args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), lambda n: known[n])
    if node.target is operator.getitem:
        return args[0][args[1]]
    if node.target is torch.ops.aten.copy_.default:
        return _write_back(low, args[0], args[1])
    if str(node.target) in ASSERT_OPS and not low.config.scalar_asserts:
        return None
    like = node.meta.get("val")
    bound = unbacked_bindings_of(node, low.bound)
    low.bound.update(b.symbol for b in bound.binds)
    if isinstance(like, SYMBOLIC) and not bound.binds:
        return scalar(node, args)
    items = [u for u in node.users if u.target is operator.getitem]
    low.used = used = frozenset(u.args[1] for u in items)  # type: ignore[misc]
    low.rounds = bool(node.meta.get(ROUNDED))
    low.pointwise_users = node.target in EXTERN_BY_DESIGN and _has_pointwise_users(node)
    low.original_aten = str(node.meta.get("original_aten") or node.target)
    low.is_user_op = low.original_aten in (str(node.target), *CASTS, *REVERSED, *QUOTIENTS)
    _check_supported(low, like)
    lowering = None if bound.binds else rule_for(node.target)  # ATen's call binds unbacked sizes
    refused = low.is_user_op and _is_refused(low, args, kwargs)
    if refused or (low.is_user_op and _overflows(node, like, args, kwargs)):
        lowering = None  # and ATen raises eager's error
    is_view = lowering is not None and lowering.__module__ == view.__name__
    if lowering is not None and (is_view or not low.config.fallback_by_default):
        if not is_view and _is_empty(like):  # there is nothing to compute
            return pytree.tree_map(lambda result: low.whole(low.buffer(result)), like)
        before = len(low.body)
        try:
            if not is_view:
                _check_types(like, (args, kwargs))
                _check_devices(low, like, (args, kwargs))
                _check_fp8(low, like, (args, kwargs))
            result = lowering(low, like, *args, **kwargs)
            _check_ops_supported(low, before)
            return result
        except FallbackToAten:
            pass  # counted as an extern call below
        except UNDECIDED_ERRORS as why:
            # Python's own functions (float, round) do not take a symbolic number.
            undecided = isinstance(why, GUARD_ERRORS) or _is_symbolic((args, kwargs))
            if is_view or not undecided:
                raise
            del low.body[before:]
            low.decide("refused", node.name, f"{low.origin.op} is left to ATen: {why}")
    if not low.config.implicit_fallbacks and node.target not in EXTERN_BY_DESIGN:
        raise UnsupportedOp(low.origin.op, low.origin, "it has no lowering (implicit_fallbacks)")
    low.used = used  # a rule that fell back may have lowered other nodes
    results = lower_extern(low, node.target, like, args, kwargs, bound.binds)
    if low.config.scalar_asserts:
        low.deferred_asserts.add(bound.assumptions)
        for condition in low.deferred_asserts.ready(low.bound):
            lower_runtime_assert(low, condition)
    return results


def _is_refused(low: Lowering, args: Any, kwargs: dict[str, Any]) -> bool:
    """Whether eager raises for operands of these dtypes."""
    if not (low.target.eager.refuses_types and may_refuse(low.original_aten)):
        return False
    views = (v for v in pytree.tree_leaves((args, kwargs)) if isinstance(v, View))
    types = (TORCH_NAMES.get(v.dtype, v.dtype.name) for v in views)
    return refuses(low.original_aten, types, kwargs.get("dtype"))


def _overflows(node: torch.fx.Node, like: Any, args: Any, kwargs: dict[str, Any]) -> bool:
    """Whether eager may refuse a number that the dtype of the result cannot represent."""
    return isinstance(like, torch.Tensor) and overflows(node.target, args, kwargs, like.dtype)


def _has_pointwise_users(node: torch.fx.Node) -> bool:
    """Whether elementwise ops read a result and no reduction reads theirs: all of them can fuse
    into its kernel as an epilogue, and the result need not be stored."""
    seen: set[torch.fx.Node] = set()
    waiting = [(user, False) for user in node.users]
    while waiting:
        user, computed = waiting.pop()
        family = _family(user.target)
        if family in (pointwise.__name__, view.__name__):
            if user not in seen:
                seen.add(user)
                waiting += [(u, computed or family == pointwise.__name__) for u in user.users]
        elif not computed or family == reduce.__name__:
            return False
    return bool(seen)


def _family(target: Any) -> str:
    """The module that has an op's rule."""
    found = rule_for(target)
    return str(getattr(found, "func", found).__module__) if found is not None else ""


def _check_supported(low: Lowering, like: Any) -> None:
    """Tensors must be on the target's device or on the host."""
    supported = tuple(dict.fromkeys((HOST, low.target.device)))
    for tensor in pytree.tree_leaves(like):
        if isinstance(tensor, torch.Tensor) and str(tensor.device) not in supported:
            raise UnsupportedDevice(str(tensor.device), low.origin, supported)


def _check_types(like: Any, operands: Any) -> None:
    """Complex numbers, wide unsigned integers and other dtypes without arithmetic here stay with
    ATen; only views of them, which are index maps, are ours."""
    for leaf in pytree.tree_leaves((like, operands)):
        opaque = isinstance(leaf, View) and leaf.dtype.kind == "x"
        opaque = opaque or isinstance(leaf, complex)
        if opaque or (isinstance(leaf, torch.Tensor) and dtype_of(leaf.dtype).kind == "x"):
            raise FallbackToAten("a type that is not generated")


def _check_devices(low: Lowering, like: Any, operands: Any) -> None:
    """An op with a result on another device, or an operand of several elements there, is ATen's."""
    for result in pytree.tree_leaves(like):
        if isinstance(result, torch.Tensor) and str(result.device) != low.target.device:
            raise FallbackToAten("a result on another device")
    for operand in pytree.tree_leaves(operands):
        if not isinstance(operand, View) or operand.buffer.device == low.target.device:
            continue
        if any(n is not ONE for n in operand.buffer.shape):
            raise FallbackToAten("an operand on another device")


# Ops that convert or move fp8 floats, or multiply matrices of them. Eager has few others, and
# raises for the rest itself.
FP8_OPS = frozenset(
    {
        *("_to_copy", "convert_element_type", "clone", "copy", "lift_fresh_copy", "full", "cat"),
        *("full_like", "index", "index_select", "constant_pad_nd", "where", "flip", "roll"),
        *("embedding", "repeat", "slice_scatter", "select_scatter", "_scaled_mm"),
    }
)


def _check_fp8(low: Lowering, like: Any, operands: Any) -> None:
    leaves = pytree.tree_leaves((like, operands))
    tensors = (t.dtype for t in leaves if isinstance(t, (View, torch.Tensor)))
    if not any(t in FP8_DTYPES or FROM_TORCH.get(t) in FP8_DTYPES for t in tensors):
        return
    if not low.target.fp8:
        raise FallbackToAten("fp8 floats on a GPU that does not round them once")
    _, _, name = low.origin.op.partition(".")  # a higher-order op has no dot
    if name.partition(".")[0] not in FP8_OPS:
        raise FallbackToAten("an op on fp8 floats")


def _check_ops_supported(low: Lowering, before: int) -> None:
    """Fall back if the steps just lowered use an op that has no code on the target."""
    for step in low.body[before:] if low.target.unsupported_ops else ():
        if isinstance(step, Loop):
            used = {n.op for n in walk(*exprs_of(step))} & low.target.unsupported_ops
            if used:
                del low.body[before:]
                raise FallbackToAten(f"{min(used)} has no code on this target")


def _is_symbolic(operands: Any) -> bool:
    return any(isinstance(leaf, Expr) for leaf in pytree.tree_leaves(operands))


def _is_empty(like: Any) -> bool:
    results = pytree.tree_leaves(like)
    return bool(results) and all(
        isinstance(r, torch.Tensor) and any(map(is_zero, r.shape)) for r in results
    )


# Ops that ATen may compute by design, not for want of a rule.
EXTERN_BY_DESIGN = frozenset(
    {
        torch.ops.aten.mm.default,
        torch.ops.aten.addmm.default,
        torch.ops.aten.bmm.default,
        torch.ops.aten.baddbmm.default,
        torch.ops.aten.convolution.default,
        torch.ops.aten._scaled_mm.default,
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
    }
)


def _write_back(low: Lowering, target: View, source: View) -> View:
    """`copy_` into an input: a store at the end of the program."""
    fp8 = target.dtype in FP8_DTYPES and not low.target.fp8
    if fp8 or "x" in (target.dtype.kind, source.dtype.kind):
        return lower_update(low, target, source)
    place = positions(target.shape)
    value = to_storage(element(source, place, target.dtype), target.dtype)
    index = tuple(target.at(place).index)
    axes = tuple(a for a in place if a is not ZERO)
    low.body.append(Loop(axes, (), (Store(target.buffer, index, value),), (low.origin,)))
    return target


def _output(known: dict[torch.fx.Node, Any], value: Any) -> Output:
    if not isinstance(value, torch.fx.Node):
        return Output(value)
    found = known[value]
    if isinstance(found, View):
        return Output(ViewArg(found.buffer, found.shape, found.strides, found.offset))
    return Output(found)
