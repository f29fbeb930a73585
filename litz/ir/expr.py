"""Expressions: one frozen, hash-consed node type for index arithmetic and for values.

In: constructors. Out: `Expr`. Two expressions are equal exactly if they are the same object, so
sharing is free, every analysis can be memoised by node, and a chain of n ops costs n nodes however
often its values are used. Example: `add(axis("i0", 8), const(1, I64))` prints as `i0 + 1`.

    Expr = const | axis | size | load | cast | narrow | bitcast | reduce | scan | <a row of OPS>
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from litz.errors import SizeUnknown
from litz.ir import fp8
from litz.ir.dtypes import BF16, BOOL, F32, F64, FP8_DTYPES, I64, DType
from litz.ir.ops import OPS, REDUCTIONS, SCANS

if TYPE_CHECKING:
    from litz.ir.program import Buffer

# The hint of a size whose value was never seen.
HINT = 64
UNSEEN = -1  # a magnitude that is not computed yet
# Read and filled without a lock: two threads that made the same node at once would get two objects,
# and equal expressions would look different. `compile_graph` lets one thread in at a time, and
# nothing outside it makes nodes (tests/faults/test_threads.py asserts that). A node that dies
# removes its own entry, never a younger one of the same key. Caches keyed by nodes (`lru_cache`,
# `simple`) keep their nodes alive, so that a key never comes to mean another node.
_NODES: WeakValueDictionary[tuple[Any, ...], Expr] = WeakValueDictionary()


class Expr:
    """A node. `op` names its kind; `attr` is data that is no expression (value, name, buffer)."""

    __slots__ = (
        "__weakref__", "args", "attr", "axes", "digest", "dtype", "magnitude", "op", "order",
        "simple", "simple_value",
    )  # fmt: skip

    op: str
    args: tuple[Expr, ...]
    attr: Any
    dtype: DType
    axes: frozenset[Expr]  # the free axis variables below this node
    simple: Expr | None  # the simplified form as an address, once `ir/index.py` has found it,
    simple_value: Expr | None  # and as a value, which may wrap
    magnitude: int | None  # how large it can get, once `ir/magnitude.py` has found it
    digest: str | None  # a hash of its structure, and its sort key among nodes,
    order: tuple[int, int, str, str] | None  # once `ir/order.py` has computed them

    def __repr__(self) -> str:
        try:
            from litz.ir.text import expr_text
        except ImportError:
            # The modules are still importing each other: under -OO, `dataclass` prints the defaults
            # of a class into its docstring.
            return self.op
        return expr_text(self)

    @property
    def is_const(self) -> bool:
        return self.op == "const"

    @property
    def number(self) -> int:
        """The value of an integer constant: a known size or index."""
        if self.op != "const":
            raise SizeUnknown(str(self))
        return int(self.attr)

    def __int__(self) -> int:
        return self.number

    @property
    def hint(self) -> int:
        """The value if it is known, else the one seen while tracing. Only for choices of speed: the
        code must be right for every size."""
        return int(self.attr) if self.op == "const" else _hint(self)

    @property
    def extent(self) -> Expr:
        """The size of an axis variable."""
        assert self.op == "axis"
        return self.args[0]

    # The guard of a load, if it has one, is the last operand, behind the index.
    @property
    def buffer(self) -> Buffer:
        return self.attr[0]  # type: ignore[no-any-return]

    @property
    def index(self) -> tuple[Expr, ...]:
        return self.args[:-1] if self.attr[1] else self.args

    @property
    def guard(self) -> Expr | None:
        return self.args[-1] if self.attr[1] else None


def _attr_key(attr: Any) -> Any:
    """A key in which 0.0 and -0.0 differ, 1 and True differ, and NaN equals itself."""
    if isinstance(attr, float):
        return ("float", struct.pack("<d", attr))
    if isinstance(attr, (bool, int)):
        return (type(attr).__name__, attr)
    return attr


def _node(op: str, args: tuple[Expr, ...], attr: Any, dtype: DType) -> Expr:
    key = (op, args, _attr_key(attr), dtype)
    found = _NODES.get(key)
    if found is not None:
        return found
    node = object.__new__(Expr)
    node.op, node.args, node.attr, node.dtype = op, args, attr, dtype
    node.simple = node.simple_value = node.digest = node.order = None
    node.magnitude = UNSEEN
    if op == "axis":
        node.axes = frozenset((node,))
    elif op == "reduce":
        node.axes = args[0].axes - frozenset(attr[1])
    elif not args:
        node.axes = frozenset()
    elif len(args) == 1:
        node.axes = args[0].axes
    else:
        node.axes = frozenset().union(*(a.axes for a in args))
    _NODES[key] = node
    return node


def const(value: bool | int | float, dtype: DType) -> Expr:
    """A constant, wrapped and rounded into its type."""
    if dtype is BOOL:
        value = bool(value)
    elif dtype.is_float:
        value = _rounded(_as_double(value) if dtype is not F64 else float(value), dtype)
    else:
        value = int(value) & ((1 << dtype.bits) - 1)
        if dtype.kind == "i" and value >> (dtype.bits - 1):
            value -= 1 << dtype.bits
    return _node("const", (), value, dtype)


def _as_double(value: bool | int | float) -> float:
    """A double that rounds to any shorter float as the number itself does (round to odd). An
    integer of more than 53 bits may be between two doubles: the one whose last bit is set is never
    a tie of a shorter type."""
    near = float(value)
    if not isinstance(value, int) or near == value:  # Python compares them exactly
        return near
    other = math.nextafter(near, math.inf if value > near else -math.inf)
    return near if struct.pack("<d", near)[0] & 1 else other


def _rounded(value: float, dtype: DType) -> float:
    """The nearest number of a float type, ties to even; too large a number becomes infinite."""
    if dtype in FP8_DTYPES:
        return float(fp8.rounded(_rounded(value, F32), dtype))
    if dtype is F64 or not math.isfinite(value):
        return value
    if dtype is BF16:
        (bits,) = struct.unpack("<I", struct.pack("<f", _rounded(value, F32)))
        bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
        return float(struct.unpack("<f", struct.pack("<I", bits))[0])
    code = "<f" if dtype is F32 else "<e"
    try:
        return float(struct.unpack(code, struct.pack(code, value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)


def integer(value: int) -> Expr:
    """An index constant."""
    return const(value, I64) if value.bit_length() > 63 else _node("const", (), int(value), I64)


def axis(name: str, extent: Expr | int) -> Expr:
    """A loop variable over 0 .. extent-1. The extent is part of it, so ranges need no context."""
    size = integer(extent) if isinstance(extent, int) else extent
    return _node("axis", (size,), name, I64)


def size(
    name: str, low: int = 0, high: int | None = None, hint: int = HINT, made: Expr | None = None,
    dtype: DType = I64,
) -> Expr:  # fmt: skip
    """A symbolic size: an i64 argument of the program with its known range, and the value it had
    while tracing as a hint. One that is `made` of others is computed as soon as those are known. A
    number that the program reads off a tensor may be an f64."""
    return _node("size", () if made is None else (made,), (name, low, high, hint), dtype)


@lru_cache(maxsize=4096)
def _hint(node: Expr) -> int:
    if node.op == "size":
        return int(node.attr[3])
    return int(_about(node))


def _about(node: Expr) -> Any:
    """The value of an expression of sizes, at their hints."""
    if node.op == "const" or node.op == "size":
        return node.attr if node.op == "const" else node.attr[3]
    args = [_about(a) for a in node.args]
    if node.op == "cast":
        return float(args[0]) if node.dtype.is_float else int(args[0])
    return OPS[node.op].numpy(*args)


def load(buffer: Buffer, index: tuple[Expr, ...], guard: Expr | None = None) -> Expr:
    """An element of a buffer; where the guard is false nothing is read and the value is zero."""
    if guard is not None and guard.is_const:
        if not guard.attr:
            return const(0, buffer.dtype)
        guard = None
    args = index if guard is None else (*index, guard)
    return _node("load", args, (buffer, guard is not None), buffer.dtype)


def cast(value: Expr, dtype: DType) -> Expr:
    """A conversion that the program asks for: it is always done."""
    return value if value.dtype is dtype else _node("cast", (value,), None, dtype)


def narrow(value: Expr, dtype: DType) -> Expr:
    """A rounding to a storage type that the program did not ask for; it disappears if fusion keeps
    the value inside a kernel."""
    return value if value.dtype is dtype else _node("narrow", (value,), None, dtype)


def bitcast(value: Expr, dtype: DType) -> Expr:
    """The same bits, read as another type of the same size."""
    return value if value.dtype is dtype else _node("bitcast", (value,), None, dtype)


def reduce(kind: str, axes: tuple[Expr, ...], value: Expr) -> Expr:
    """`value` combined over `axes`, which it binds."""
    spec = REDUCTIONS[kind]
    dtype = I64 if spec.gives_index else F64 if spec.widens else value.dtype
    return _node("reduce", (value,), (kind, axes), dtype)


def scan(kind: str, along: Expr, value: Expr) -> Expr:
    """The running combination of `value` up to and including the position on the axis `along`."""
    dtype = I64 if SCANS[kind].gives_index else value.dtype
    return _node("scan", (value, along), kind, dtype)


def apply(name: str, *args: Expr, site: Any = None) -> Expr:
    """An op of the table over operands; a check has a `site` (`ir/checks.py`)."""
    spec = OPS[name]
    assert len(args) == spec.arity, f"{name} takes {spec.arity} operands, got {len(args)}"
    if spec.result == "bool":
        dtype = BOOL
    else:
        dtype = args[0].dtype if spec.result == "index" else args[-1].dtype
    return _node(name, args, site, dtype)


def rebuild(node: Expr, args: tuple[Expr, ...]) -> Expr:
    """The same node over other operands."""
    if args == node.args:
        return node
    if node.op == "load":
        guarded = node.attr[1]
        return load(node.buffer, args[:-1] if guarded else args, args[-1] if guarded else None)
    return _node(node.op, args, node.attr, node.dtype)


def walk(*roots: Expr) -> Iterator[Expr]:
    """Every node below the roots once, operands before users, without recursion."""
    seen: set[Expr] = set()
    for root in roots:
        stack: list[Expr | None] = [root]
        while stack:
            node = stack.pop()
            if node is None:  # all below the next one has been seen
                node = stack.pop()
                assert node is not None
                yield node
            elif node not in seen:
                seen.add(node)
                if node.args:
                    stack += (node, None, *reversed(node.args))
                else:
                    yield node


def extent_of(axes: Iterable[Expr]) -> int:
    """How many points axes have; an estimate from hints if extents are symbolic."""
    total = 1
    for variable in axes:
        total *= variable.extent.hint
    return total


def transform(
    root: Expr,
    change: Callable[[Expr, tuple[Expr, ...]], Expr],
    memo: dict[Expr, Expr] | None = None,
) -> Expr:
    """Rebuild bottom-up: `change(node, new_args)` gives each node's replacement, once per node."""
    done = {} if memo is None else memo
    stack = [root]
    while stack:
        node = stack[-1]
        if node in done:
            stack.pop()
            continue
        missing = [a for a in node.args if a not in done]
        if missing:
            stack.extend(missing)
            continue
        done[node] = change(node, tuple(done[a] for a in node.args))
        stack.pop()
    return done[root]


def substitute(
    root: Expr, values: Mapping[Expr, Expr], memo: dict[Expr, Expr] | None = None
) -> Expr:
    """Replace nodes (usually axes) by expressions."""
    if not values:
        return root

    def change(node: Expr, args: tuple[Expr, ...]) -> Expr:
        replacement = values.get(node)
        if replacement is not None:
            return replacement
        if node.op == "reduce":
            bound = tuple(values.get(a, a) for a in node.attr[1])
            return reduce(node.attr[0], bound, args[0])
        return rebuild(node, args)

    return transform(root, change, memo)
