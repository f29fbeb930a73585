"""Checks inside kernels: which op asked for one, and the record that a failed one leaves.

In: the op that is being lowered. Out: `Site`, which check nodes of the loop IR carry, and the
exception of a failed check. Example: `x[i]` of five rows, with `i` from memory, is

    x[check_index(i[i0], 5, site("index", "aten.index.Tensor", "model.py:12", 0, True))]

Three ops check: `check_index(index, size)` gives the index, `check_divisor(y)` the divisor,
`check(condition, first, second, value)` the value. Where one fails, the first two give a value that
is safe to continue with (0, 1), and the kernel notes the failure. A record is RECORD_WORDS words of
64 bits:

    0  the number of the site; 0 as long as no check has failed
    1  the index as it was compared (a negative one that counts from the end had the size added),
       or the bits of the value as a float64: `first` of a check
    2  the size: `second` of a check

On the CPU, the first check to fail writes the record: a compare-and-swap of word 0 decides. The
hot path is a comparison and a branch; a failing thread notes the failure on its stack and writes
the record when it ends. Later kernels of a segment do not run, and the call raises after the
segment. On a GPU every failing lane stores all three words, the last two XORed with word 0. A
record that mixes words of two sites is recognised by that, and its error names only op and line.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable
from dataclasses import astuple, dataclass, fields
from functools import cached_property

from litz.errors import (
    GatherOutOfRange,
    IndexOutOfRange,
    IntegerDivisionByZero,
    InternalError,
    OutOfMemory,
    ValueRefused,
)
from litz.ir.expr import Expr, walk

RECORD_WORDS = 3
# No tensor is larger: a larger size in a GPU's record is a mixture of two sites.
LARGEST = 1 << 48

CHECK_OPS = ("check_index", "check_divisor", "check")


@dataclass(frozen=True)
class Site:
    """A check of one op on one of the user's lines. `kind` decides what is raised, as in eager: an
    "index" raises an IndexError; a "gather", a "divisor" of zero, a "value" that is not allowed and
    too small a "count" raise a RuntimeError. "bounds" is an access outside its buffer, which is a
    bug of ours; "memory" is a failed allocation in a kernel. An index that `wraps` may count from
    the end; `text` is eager's message for a value or a count."""

    kind: str
    op: str = ""
    line: str = ""
    dim: int = -1
    wraps: bool = False
    text: str = ""

    def __str__(self) -> str:
        """`site("index", "aten.index.Tensor", "model.py:12", 0)`, without trailing defaults."""
        values = list(astuple(self))
        while len(values) > 1 and values[-1] == fields(self)[len(values) - 1].default:
            values.pop()
        return f"site({', '.join(map(repr, values))})"

    @cached_property
    def number(self) -> int:
        """A hash: the same in every process, since one kernel serves many graphs; never 0."""
        return int.from_bytes(hashlib.sha256(str(self).encode()).digest()[:7]) | 1

    def error(self, index: int | None = None, size: int | None = None) -> Exception:
        """The exception of a failed check, from words 1 and 2 of its record."""
        dim = None if self.dim < 0 else self.dim
        if self.kind == "bounds":
            where = "outside" if index is None else f"at element {index}, outside"
            of = "of a buffer" if size is None else f"of a buffer of {size} elements"
            return InternalError(f"a kernel accessed memory {where} {of} (debug_index_asserts)")
        if self.kind == "memory":
            return OutOfMemory(index)
        if self.kind == "divisor":
            return IntegerDivisionByZero(self)
        if self.kind in ("value", "count"):
            one = f"{size} elements" if self.kind == "count" else _float_text(index)
            return ValueRefused(self.text, "" if index is None else one, self)
        if index is not None and size is not None and self.wraps and index < 0:
            index -= size  # as the program wrote it
        kind = IndexOutOfRange if self.kind == "index" else GatherOutOfRange
        return kind(self, index, size, dim, wraps=self.wraps)


BOUNDS = Site("bounds")
MEMORY = Site("memory")
DIVISOR = Site("divisor")  # of an op whose lowering rule gives no site


def sites_of(roots: Iterable[Expr]) -> list[Site]:
    """The sites of the checks below some expressions, once each, in order."""
    nodes = (node for node in walk(*roots) if node.op in CHECK_OPS)
    return list(dict.fromkeys(node.attr or Site("index") for node in nodes))


def error_of(sites: Iterable[Site], number: int, index: int, size: int) -> Exception:
    """The exception of a record."""
    known = {site.number: site for site in (BOUNDS, MEMORY, DIVISOR, *sites)}
    if number not in known:
        return InternalError(f"a kernel noted an error of unknown site {number}")
    return known[number].error(index, size)


def device_error(sites: Iterable[Site], number: int, first: int, second: int) -> Exception:
    """The exception of a record that a GPU wrote."""
    size = second ^ number
    if 0 <= size < LARGEST:
        return error_of(sites, number, first ^ number, size)
    found = next((site for site in sites if site.number == number), BOUNDS)
    return found.error()


def _float_text(bits: int | None) -> str:
    """The value whose bits a kernel noted."""
    (value,) = struct.unpack("<d", struct.pack("<q", bits or 0))
    return f"one is {value:.9g}"
