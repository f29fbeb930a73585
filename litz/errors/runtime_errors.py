"""Errors of a running graph, as in eager: a bad index, divisor or value, or a failed check.

In: the op, the user's line, and the number that a kernel noted. Out: an exception of the class that
eager raises there, with a more detailed text. Example: `IndexOutOfRange(origin, 7, 5, 0)` reads
`index 7 is out of bounds for dimension 0 with size 5 at model.py:12, in aten.embedding. ...`
"""

from __future__ import annotations

from collections.abc import Mapping

from litz.errors.roots import SourceLocation, UserError, where


class OutOfRange(UserError):
    """An index is out of range: the base class of the two errors below.

    It is never raised itself: eager raises an IndexError in some ops and a RuntimeError in others.
    """

    def __init__(
        self, origin: SourceLocation | None = None, index: int | None = None,
        size: int | None = None, dim: int | None = None, *, wraps: bool = False,
    ) -> None:  # fmt: skip
        self.origin, self.index, self.size, self.dim = origin, index, size, dim
        what = "an index" if index is None else f"index {index}"
        which = "a dimension" if dim is None else f"dimension {dim}"
        bound = "" if size is None else f" for {which} with size {size}"
        allowed = "Check the values that this line indexes with."
        if size is not None:
            first = -size if wraps else 0
            allowed = f"Allowed are {first} to {size - 1}." if size else "None is allowed."
        super().__init__(f"{what} is out of bounds{bound}{where(origin)}. {allowed}")


class IndexOutOfRange(OutOfRange, IndexError):
    """A tensor of indices holds an index outside of the indexed tensor.

    Generated code checks each index that it reads from memory, as eager does. Like eager's error
    this is an IndexError; its text has the op, your line, the index and the allowed range. Ops
    that accept negative indices in eager accept them here. On a GPU the next call of the graph
    raises it, since the host does not wait for the call that failed.
    """


class GatherOutOfRange(OutOfRange, RuntimeError):
    """A tensor of indices holds an index out of range, in an op where eager raises RuntimeError.

    These are gather, scatter and related ops, `index_add`, `index_select` along dimension one, the
    unpooling ops and a few losses. Everything else is as for `IndexOutOfRange`.
    """


class IntegerDivisionByZero(UserError, RuntimeError):
    """Integers were divided by zero.

    Eager raises a RuntimeError that reads "ZeroDivisionError", and so does Litz; the rest of the
    text says where. Make the divisor non-zero, or divide floats, which gives inf or NaN.
    """

    def __init__(self, origin: SourceLocation | None = None) -> None:
        self.origin = origin
        super().__init__(
            f"ZeroDivisionError: integers were divided by zero{where(origin)}. "
            "Make the divisor non-zero, or divide floats."
        )


class ValueRefused(UserError, RuntimeError):
    """An element of a tensor has a value that the op does not accept, or a tensor has too few.

    For example, `binary_cross_entropy` and `bernoulli` accept probabilities only, and not NaN. The
    text begins like eager's, then gives the value and your line.
    """

    def __init__(self, text: str, found: str = "", origin: SourceLocation | None = None) -> None:
        self.found, self.origin = found, origin
        super().__init__(f"{text}{f' ({found})' if found else ''}{where(origin)}.")


class OutOfMemory(UserError, RuntimeError):
    """A kernel could not allocate memory for the rows that it keeps while it runs.

    Like eager's error for a failed allocation, this is a RuntimeError. The call has no results;
    the next one may succeed. Free memory, or compute on smaller tensors.
    """

    def __init__(self, size: int | None = None) -> None:
        self.size = size
        what = "memory" if size is None else f"{size} bytes"
        super().__init__(
            f"a kernel could not allocate {what} for the rows that it keeps. "
            "Free memory, or compute on smaller tensors."
        )


class ScalarAssertion(UserError, RuntimeError):
    """An unbacked size or number, one known only from data, breaks a condition of the program.

    The condition comes from `torch._check`, whose message the text begins with, from a custom op's
    fake kernel, or from torch itself: the slice `x[:n]` needs `n <= len(x)`. Eager raises a
    RuntimeError there or a little later. Fix the data or the program. `scalar_asserts=False`
    removes checks of numbers; what a size that does not fit then causes is not defined.
    """

    def __init__(
        self, message: str, where: str, values: Mapping[str, float] | None = None
    ) -> None:  # fmt: skip
        self.where, self.values = where, dict(values or {})
        given = ", ".join(f"{name} is {value}" for name, value in self.values.items())
        cause_text = f"{message.rstrip('.')}{f' ({given})' if given else ''}: {where}."
        super().__init__(f"{cause_text} Mend the data, or what the program says of it.")
