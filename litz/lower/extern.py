"""Ops that stay with ATen: matmul, convolution, and whatever has no rule.

In: the captured node with its operands. Out: an `Extern` whose operands are strided views with
exactly the strides that eager would pass to the op.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from litz.ir.calls import STORAGE_OFFSET_ARG
from litz.ir.expr import Expr
from litz.ir.index import ZERO
from litz.ir.program import Extern, UnbackedBinding, ViewArg
from litz.ir.sizes import at_least, difference, total
from litz.lower.scalars import SYMBOLIC, number
from litz.lower.symbols import size_of
from litz.lower.values import Lowering, View

# Ops whose out= overload takes exactly the operands of the functional one.
WRITES_INTO = frozenset(
    {
        torch.ops.aten.mm.default,
        torch.ops.aten.addmm.default,
        torch.ops.aten.bmm.default,
        torch.ops.aten.baddbmm.default,
    }
)
# Ops that return values together with integers (indices, counts).
GIVES_INDICES = frozenset(
    {
        torch.ops.aten._unique2.default,
        torch.ops.aten.unique_dim.default,
        torch.ops.aten.unique_consecutive.default,
    }
)


def lower_extern(
    low: Lowering, target: Any, like: Any, args: Any, kwargs: dict[str, Any],
    binds: tuple[UnbackedBinding, ...] = (),
) -> Any:  # fmt: skip
    """Append the call and return the views of its results; it may bind unbacked sizes."""
    higher_order = isinstance(target, torch._ops.HigherOrderOperator)
    if not higher_order and not isinstance(target, torch._ops.OpOverload):
        raise low.unsupported("it is not an op of torch or of a library")
    if not higher_order and target._schema.is_mutable:
        raise low.unsupported("it writes into its operands")
    single = isinstance(like, (torch.Tensor, *SYMBOLIC))
    results = [like] if single else list(like or ())  # an assertion returns nothing
    if not all(r is None or isinstance(r, (torch.Tensor, int, *SYMBOLIC)) for r in results):
        raise low.unsupported("it returns something that is not a tensor")
    _check_indices(low, target, results)
    # Of several results, those that nothing reads may be absent at run time.
    outputs = tuple(
        low.buffer(r) if isinstance(r, torch.Tensor) and (single or k in low.used) else None
        for k, r in enumerate(results)
    )
    if qualified_name(target) in STORAGE_OFFSET_ARG:
        place = STORAGE_OFFSET_ARG[qualified_name(target)]
        args, kwargs = _counted_from_operand(low, place, args, kwargs)
    low.body.append(
        Extern(
            target=qualified_name(target),
            args=tuple(operand(a) for a in args),
            kwargs=tuple((k, operand(v)) for k, v in kwargs.items()),
            outputs=outputs,
            single=single,
            into=target in WRITES_INTO and str(like.device) == low.target.device,
            ordered=not higher_order and torch.Tag.nondeterministic_seeded in target.tags,
            origins=(low.origin,),
            binds=binds,
        )
    )
    # A number that an op returns was known at tracing, or is an unbacked size that the call binds.
    numbers = [number(r) if isinstance(r, SYMBOLIC) else r for r in results]
    views = [r if b is None else low.whole(b) for b, r in zip(outputs, numbers, strict=True)]
    return views[0] if single else views


def _counted_from_operand(
    low: Lowering, place: int, args: Any, kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments with a storage offset counted from the operand's first element. The program counts
    from the start of eager's storage. Ours starts elsewhere, in an arena, and the call gets a copy
    that starts with the operand."""

    def counted(given: Any) -> Any:
        if given is None:
            return None
        begins = total((low.base_offset[args[0].buffer], args[0].offset))
        offset = difference(size_of(given), begins)
        if begins is not ZERO and not at_least(offset, ZERO):  # no memory is before a beginning
            raise low.unsupported("its window may begin before its operand")
        return offset.number if offset.is_const else offset

    positional = tuple(counted(a) if k == place else a for k, a in enumerate(args))
    named = {k: counted(v) if k == "storage_offset" else v for k, v in kwargs.items()}
    return positional, named


def lower_update(low: Lowering, target: View, source: View) -> View:
    """`copy_` into an input of a dtype without arithmetic here: a call at the end."""
    if source.buffer is target.buffer:
        raise low.unsupported("an input of this type becomes a view of itself")
    args = (operand(target), operand(source))
    call = Extern("aten.copy_.default", args, (), (None,), True, mutates=(target.buffer,))
    low.body.append(replace(call, origins=(low.origin,)))
    return target


def _check_indices(low: Lowering, target: Any, results: list[Any]) -> None:
    """Indices and counts are int64, but torch before 2.13 predicts the dtype of the values, and
    every reader would be compiled for that."""
    if target in GIVES_INDICES and any(
        k in low.used and isinstance(r, torch.Tensor) and r.dtype is not torch.int64
        for k, r in enumerate(results[1:], 1)
    ):
        raise low.unsupported("torch predicts another type of its indices than it gives")


def lower_runtime_assert(low: Lowering, condition: Expr) -> None:
    """Append a check of a condition that torch assumes of an unbacked size."""
    message = f"torch compiled this program for {condition} alone"
    check = Extern("aten._assert_scalar.default", (condition, message), (), (), single=False)
    low.body.append(replace(check, origins=(low.origin,)))


def qualified_name(target: Any) -> str:
    """`aten.mm.default` or `higher_order.cond`: the name under `torch.ops`."""
    if isinstance(target, torch._ops.HigherOrderOperator):
        return f"higher_order.{target.name()}"
    return str(target)


def operand(value: Any) -> Any:
    """A view as a `ViewArg`; lists as tuples; numbers and torch's enums as they are."""
    if isinstance(value, View):
        return ViewArg(value.buffer, value.shape, value.strides, value.offset)
    if isinstance(value, (list, tuple)):
        return tuple(operand(v) for v in value)
    if isinstance(value, Expr):
        return value
    return value
