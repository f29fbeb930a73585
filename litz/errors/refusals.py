"""What a running graph refuses, as eager does: an index, a divisor, a value, a failed check.

In: the op, the user's line, and the number that a kernel noted. Out: an exception of the class that
eager raises there, whose text says more. Example: `IndexOutOfRange(origin, 7, 5, 0)` reads
`index 7 is out of bounds for dimension 0 with size 5 at model.py:12, in aten.embedding. ...`
"""

from __future__ import annotations

from collections.abc import Mapping

from litz.errors.roots import Place, UserError, where


class OutOfRange(UserError):
    """An index is out of range: catch it for either of the two kinds below.

    It is never raised itself: eager raises an IndexError in some ops and a RuntimeError in others.
    """

    def __init__(
        self, origin: Place | None = None, index: int | None = None, size: int | None = None,
        dim: int | None = None, *, wraps: bool = False,
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
    """A tensor of indices holds one outside the tensor that it indexes.

    Generated code checks each index that it reads from memory, as eager does, and this is an
    IndexError like eager's, with the op, your line, the index and what is allowed. Ops that eager
    lets count from the end do so here; the others refuse a negative index. On a GPU the next call
    of the graph raises it, since nothing waits for the call that noted it.
    """


class GatherOutOfRange(OutOfRange, RuntimeError):
    """A tensor of indices holds one outside the tensor, in an op where eager raises RuntimeError.

    These are gather, scatter and their kin, `index_add`, `index_select` along dimension one, the
    unpooling ops and a few losses. All else is as for `IndexOutOfRange`.
    """


class IntegerDivisionByZero(UserError, RuntimeError):
    """Integers were divided by zero.

    Eager raises a RuntimeError that reads "ZeroDivisionError", and so does Litz; the rest of the
    text says where. Make the divisor non-zero, or divide floats, where it gives inf or NaN.
    """

    def __init__(self, origin: Place | None = None) -> None:
        self.origin = origin
        super().__init__(
            f"ZeroDivisionError: integers were divided by zero{where(origin)}. "
            "Make the divisor non-zero, or divide floats."
        )


class ValueRefused(UserError, RuntimeError):
    """An element of a tensor has a value that the op does not take, or a tensor has too few.

    `binary_cross_entropy` takes probabilities, and so does `bernoulli`; NaN is none. The text
    begins as eager's does, then gives the value and your line.
    """

    def __init__(self, text: str, found: str = "", origin: Place | None = None) -> None:
        self.found, self.origin = found, origin
        super().__init__(f"{text}{f' ({found})' if found else ''}{where(origin)}.")


class OutOfMemory(UserError, RuntimeError):
    """There was no memory for the rows that a kernel keeps while it runs.

    Eager raises a RuntimeError where it cannot allocate a tensor, and so is this. The results of
    the call are not there; the next one may succeed. Free memory, or compute on smaller tensors.
    """

    def __init__(self, size: int | None = None) -> None:
        self.size = size
        what = "memory" if size is None else f"{size} bytes"
        super().__init__(
            f"a kernel could not allocate {what} for the rows that it keeps. "
            "Free memory, or compute on smaller tensors."
        )


class ScalarAssertion(UserError, RuntimeError):
    """A size or a number that only data tells is not as the program says it is.

    The program says so by `torch._check`, whose message the text begins with, or by a custom op's
    fake kernel, or torch found that it must be so: the slice `x[:n]` needs `n <= len(x)`. Eager
    raises a RuntimeError there or a little later. Mend the data, or the program;
    `scalar_asserts=False` removes checks of numbers, and what then happens to a size that does not
    fit is not defined.
    """

    def __init__(
        self, message: str, where: str, values: Mapping[str, float] | None = None
    ) -> None:  # fmt: skip
        self.where, self.values = where, dict(values or {})
        given = ", ".join(f"{name} is {value}" for name, value in self.values.items())
        told = f"{message.rstrip('.')}{f' ({given})' if given else ''}: {where}."
        super().__init__(f"{told} Mend the data, or what the program says of it.")
