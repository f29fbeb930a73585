"""Values: an expression becomes lines of Python, one a node, hoisted out of the loop if possible.

In: an `Expr` and the tile. Out: a text for it: a name, a number, or, for indices over axes alone,
the arithmetic itself. Example: `exp(b1[x * 20 + r])` becomes

    v0 = tl.load(b1 + (x * 20 + r), x_in & r_in, other=0)
    v1 = libdevice.exp(v0)
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from dataclasses import dataclass

from litz.codegen.triton.block_pointers import access_of, loaded
from litz.codegen.triton.ops import OP_TEMPLATES, TYPES, apply_template, converted, zero
from litz.codegen.triton.tiles import NONE, Sides, Tile
from litz.ir.checks import Site
from litz.ir.dtypes import BOOL, F32, F64, I64, DType
from litz.ir.expr import Expr, const, walk
from litz.ir.index import ONE, Poly, bounds, from_poly, is_nonnegative, to_poly
from litz.ir.magnitude import is_exact
from litz.ir.program import Kernel, exprs_of
from litz.ir.sizes import at_least, greatest, is_polynomial

MIN_NORMAL = 2.0**-126  # the least normal number of f32
ARITHMETIC = {"add": "+", "sub": "-", "mul": "*", "floordiv": "//", "mod": "%"}


@dataclass(frozen=True)
class Text:
    """A Python expression and the sides of the tile along which it varies."""

    text: str
    sides: Sides = NONE


def literal(value: float | int | bool, dtype: DType) -> str:
    """A number as a Python literal; with its type, or as its bits, where Triton would read another
    one. Triton makes 0.0 of -0.0, an f64 of a number below the normal ones of f32, an f32 of a
    number that an f64 is compared with, and reads a bfloat16 from six decimals."""
    if dtype is BOOL:
        return str(bool(value))
    if not dtype.is_float:
        return str(int(value))
    if dtype.is_half:
        return converted(f"tl.full((), {literal(value, F32)}, tl.float32)", F32, dtype)
    value = float(value)
    if not math.isfinite(value):
        return f'float("{value}")'
    if not value:
        return "0.0" if math.copysign(1, value) > 0 else _bits(value, dtype)
    if abs(value) >= MIN_NORMAL and (dtype is not F64 or const(value, F32).attr == value):
        return repr(value)
    return f"tl.full((), {value!r}, tl.float64)" if dtype is F64 else _bits(value, dtype)


def _bits(value: float, dtype: DType) -> str:
    floats, integers, bits = ("<d", "<Q", 64) if dtype is F64 else ("<f", "<I", 32)
    (number,) = struct.unpack(integers, struct.pack(floats, value))
    return f"tl.full((), {number:#x}, tl.uint{bits}).to(tl.float{bits}, bitcast=True)"


def typed(text: str, dtype: DType, shape: str = "()") -> str:
    """A number with an explicit type, if no operand beside it gives it one."""
    wide = f"tl.full({shape}, {text}, {TYPES[dtype.compute.name]})"
    return converted(wide, dtype.compute, dtype)


def size_name(symbol: Expr) -> str:
    """The name of a size argument."""
    return f"n_{symbol.attr[0]}"


class Values:
    """Emits expressions. In a loop along the row, `lines` takes the lines that depend on the row
    and `before` all others; without a loop they are the same list."""

    def __init__(self, kernel: Kernel, tile: Tile, prefix: str = "v") -> None:
        self.tile, self.kernel, self.prefix = tile, kernel, prefix
        self.before: list[str] = []
        self.lines = self.before
        self.loop: Expr | None = None  # the row axis of the current loop
        self.known: dict[Expr, Text] = {}
        self.in_loop: dict[Expr, Text] = {}
        self.in_phase: dict[Expr, Text] = {}
        # The value of each scratch buffer in registers, and its index.
        self.scratch: dict[str, tuple[Expr, Text]] = {}
        self.stored: dict[tuple[str, Expr], Text] = {}  # values that this kernel has stored
        self.scan: Callable[[Expr, Text], Text]
        self.checks = False
        self._names = 0
        self._pure: dict[Expr, bool] = {}
        self._changing = self._find_changing()

    def _find_changing(self) -> set[Expr]:
        """Nodes that read memory this kernel writes: their values hold for one phase only."""
        written = {s.buffer for s in self.kernel.stores} - set(self.kernel.scratch)
        found: set[Expr] = set()
        for node in walk(*exprs_of(self.kernel)):
            reads = node.op == "load" and node.buffer in written
            if reads or any(a in found for a in node.args):
                found.add(node)
        return found

    def reads_written(self, root: Expr) -> bool:
        """Whether a value needs memory that this kernel wrote and that is not in registers."""
        nodes = (n for n in walk(root) if n.op == "load" and n in self._changing)
        return any((n.buffer.name, n.index[0]) not in self.stored for n in nodes)

    # -- naming ------------------------------------------------------------------------------

    def name(self) -> str:
        self._names += 1
        return f"{self.prefix}{self._names - 1}"

    def line(self, text: str, sides: Sides, inside: bool) -> Text:
        """Give an expression a name, inside the loop or before it."""
        name = self.name()
        (self.lines if inside else self.before).append(f"{name} = {text}")
        return Text(name, sides)

    def _is_inside(self, node: Expr) -> bool:
        return self.loop is not None and self.loop in node.axes

    def _memo(self, node: Expr) -> dict[Expr, Text]:
        if self._is_inside(node):
            return self.in_loop
        return self.in_phase if node in self._changing else self.known

    def bind(self, node: Expr, text: Text) -> None:
        """Set the text of a node that was computed elsewhere."""
        self._memo(node)[node] = text

    # -- emission ----------------------------------------------------------------------------

    def value(self, root: Expr) -> Text:
        """The text of an expression here; every node is emitted once."""
        stack = [root]
        while stack:
            node = stack[-1]
            if self._found(node) is not None:
                stack.pop()
                continue
            missing = [a for a in self._operands(node) if self._found(a) is None]
            if missing:
                stack.extend(reversed(missing))
                continue
            stack.pop()
            self._memo(node)[node] = self._emit(node)
        found = self._found(root)
        assert found is not None
        return found

    def _found(self, node: Expr) -> Text | None:
        if node.is_const:
            return Text(literal(node.attr, node.dtype))
        if node.op == "size":
            return Text(size_name(node))
        if self.is_int32(node):
            return Text(self.place(node), node.axes & self.tile.sides)
        return self._memo(node).get(node)

    def _operands(self, node: Expr) -> tuple[Expr, ...]:
        if node.op == "load" and node.buffer.name in self.scratch:
            return () if node.guard is None else (node.guard,)
        assert node.op != "reduce", f"{node} is used before its phase has run"
        return node.args[:1] if node.op == "scan" else node.args

    def _emit(self, node: Expr) -> Text:
        inside = self._is_inside(node)
        if node.op == "load":
            return self._load(node, inside)
        args = [self.value(a) for a in self._operands(node)]
        sides = NONE.union(*(a.sides for a in args))
        if node.op == "scan":
            return self.scan(node, args[0])
        if node.op in ("cast", "narrow"):
            text = converted(self.tensor(node.args[0]), node.args[0].dtype, node.dtype)
            return self.line(text, sides, inside)
        if node.op == "bitcast":
            text = f"{self.tensor(node.args[0])}.to({TYPES[node.dtype.name]}, bitcast=True)"
            return self.line(text, sides, inside)
        if node.op in ("check_index", "check"):
            return self._checked(node, inside)
        return self.line(self._applied(node), sides, inside)

    def _applied(self, node: Expr) -> str:
        """An op of the table. Numbers take the type of the operands beside them. If there are none,
        as in an op over constants that has no value at compile time, they are typed."""
        dtype = node.args[-1].dtype
        template = OP_TEMPLATES[node.op]
        others = [a for a in node.args if not a.is_const and not self.is_int32(a)]
        bare = template.is_operator and any(a.dtype is dtype for a in others)
        compared = node.dtype is BOOL and all(a.is_const or self.is_int32(a) for a in node.args)
        args = [
            self.value(a).text if a.is_const and (bare or compared) else
            self.wrapped(a) if bare or compared else self.operand(a)
            for a in node.args
        ]  # fmt: skip
        if all(a.is_const for a in node.args):
            args = [self.tensor(a) for a in node.args]
        if node.op == "isnan" and dtype.is_narrow:
            args = [f"{args[0]}.to(tl.float32)"]
        return apply_template(node.op, dtype, *args)

    def wrapped(self, node: Expr) -> str:
        """A value as an operand of an operator."""
        text = self.value(node).text
        return text if text.isidentifier() or node.is_const else f"({text})"

    def operand(self, node: Expr) -> str:
        """A value in its own type, which a bare number or arithmetic on axes would not have. An f32
        may be a bare number, where it is beside a tensor or Triton accepts either."""
        if node.is_const:
            text = self.value(node).text
            if node.dtype is F32:
                return f"({text})" if text.startswith("-") else text
            return typed(text, node.dtype)
        text = self.wrapped(node)
        return f"{text}.to(tl.int64)" if self.is_int32(node) else text

    def tensor(self, node: Expr) -> str:
        """A value in its own type that is certainly a tensor: it has methods, and Python's
        operators on it give tensors."""
        return typed(self.value(node).text, node.dtype) if node.is_const else self.operand(node)

    def full(self, value: Text, node: Expr) -> str:
        """A value at every point of the tile."""
        shape = self.tile.shape(self.tile.sides)
        if node.is_const:
            return typed(value.text, node.dtype, shape)
        text = self.operand(node)
        return text if value.sides == self.tile.sides else f"tl.broadcast_to({text}, {shape})"

    # -- indices -----------------------------------------------------------------------------

    def is_int32(self, node: Expr) -> bool:
        """Whether a node is arithmetic on axes that fits 32 bits at every step."""
        known = self._pure.get(node)
        if known is None:
            known = self._pure[node] = self._own_int32(node)
        return known

    def _own_int32(self, node: Expr) -> bool:
        if node.dtype is not I64 or node.op in ("const", "axis", "size"):
            return node.dtype is I64 and node.op in ("axis", "size")
        if node.op not in ARITHMETIC:
            return False
        if not all(a.is_const or self.is_int32(a) for a in node.args):
            return False
        if node.op in ("floordiv", "mod") and not _divides_plainly(*node.args):
            return False
        span = bounds(to_poly(node))
        if span is None:
            return False
        reach = [greatest(end) for end in span]
        return self.tile.tiling.wide or all(n is not None and n < 2**31 for n in reach)

    def place(self, node: Expr) -> str:
        """Arithmetic on axes, as text."""
        if node.op == "axis":
            return str(node.attr)
        if node.op == "size":
            return size_name(node)
        if node.is_const:
            return str(node.attr)
        sums = ("add", "sub")
        left, right = (self.place(a) for a in node.args)
        if node.op not in sums and node.args[0].op in sums:
            left = f"({left})"
        if node.args[1].op in ARITHMETIC and (node.op not in sums or node.args[1].op in sums):
            right = f"({right})"
        if node.op == "add" and right.startswith("-"):
            return f"{left} - {right[1:]}"
        return f"{left} {ARITHMETIC[node.op]} {right}"

    def count(self, extent: Expr) -> str:
        """A number of points, or of tiles, as text."""
        text = self.place(extent)
        return text if extent.is_const or extent.op == "size" else f"({text})"

    # -- memory ------------------------------------------------------------------------------

    def pointer(self, name: str, index: Expr, sides: Sides) -> str:
        """The pointer of an access, broadcast along sides on which the index does not depend."""
        place = self.value(index)
        text = name if index.is_const and not index.attr else f"{name} + {self._steps_to(index)}"
        if sides <= place.sides:
            return text
        return f"tl.broadcast_to({text}, {self.tile.shape(sides)})"

    def _steps_to(self, index: Expr) -> str:
        """First the part of the index that all points of the tile share, then the rest: the pointer
        moves by the first part once, and the rest is small, mostly constant steps."""
        sides = self.tile.varying & index.axes
        if not self.is_int32(index) or not sides:
            return self._offset(index)
        shared, rest = Poly(), Poly()
        for monomial, number in to_poly(index).items():
            varies = any(atom.axes & sides for atom in monomial)
            (rest if varies else shared)[monomial] = number
        texts = [f"({self.place(from_poly(shared))})"] if shared else []
        row, left = self.loop, from_poly(rest)
        if row in self.tile.lanes and row in sides:
            # A point of a row is the first one of its block plus a lane.
            steps = rest.pop((row,), 0)
            if steps and not any(row in a.axes for monomial in rest for a in monomial):
                times = f" * {steps}" if steps != 1 else ""
                texts.append(f"({self.tile.starts[row]}){times}")
                left = from_poly({**rest, (self.tile.lanes[row],): steps})
        if not texts or not all(self.is_int32(e) or e.is_const for e in (from_poly(shared), left)):
            return self._offset(index)
        last = self.place(left)
        return " + ".join([*texts, last if last.isidentifier() else f"({last})"])

    def base(self, name: str, index: Expr) -> str:
        """The base of a block pointer."""
        self.value(index)
        return name if index.is_const and not index.attr else f"{name} + {self._offset(index)}"

    def broadcast(self, node: Expr, text: str, sides: Sides) -> str:
        """A value at every point along some sides, in the type of its buffer."""
        shape = self.tile.shape(sides)
        if node.is_const:
            return typed(self.value(node).text, node.dtype, shape)
        return text if self.value(node).sides == sides else f"tl.broadcast_to({text}, {shape})"

    def _offset(self, index: Expr) -> str:
        text = self.value(index).text
        return text if text.isidentifier() or index.is_const else f"({text})"

    def _load(self, node: Expr, inside: bool) -> Text:
        guard = None if node.guard is None else self.value(node.guard)
        held = self._register_value(node)
        if held is not None and guard is not None:
            nothing = typed("0", node.dtype)
            text = f"tl.where({self.wrapped(node.args[-1])}, {held.text}, {nothing})"
            return self.line(text, held.sides | guard.sides, inside)
        if held is not None:
            return held
        sides = self.value(node.index[0]).sides | (NONE if guard is None else guard.sides)
        access = access_of(self.tile, node.buffer, node.index[0], sides)
        if access is not None and guard is None:
            base = self.base(node.buffer.name, access.rest)
            return self.line(loaded(self.tile, access, base), sides, inside)
        aligned = self.tile.aligned if inside and guard is None else None
        if aligned is not None and aligned.takes(node.index[0]):
            return self.line(aligned.loaded(node.buffer), sides, inside)
        pointer = self.pointer(node.buffer.name, node.index[0], sides)
        guarded = () if node.guard is None else (self.wrapped(node.guard),)
        mask = self.tile.mask(sides, *guarded)
        more = [mask, f"other={zero(node.dtype)}"] if mask else []
        if inside and self.loop not in self.tile.varying:  # windows overlap: it is read again
            more.append('eviction_policy="evict_last"')
        return self.line(f"tl.load({', '.join([pointer, *more])})", sides, inside)

    def _register_value(self, node: Expr) -> Text | None:
        """The value that a load would read, if it is in registers."""
        if node.buffer in self.kernel.scratch:
            place, text = self.scratch[node.buffer.name]
            assert place is node.index[0], f"{node}: registers hold {node.buffer.name}[{place}]"
            return text
        return self.stored.get((node.buffer.name, node.index[0]))

    def _checked(self, node: Expr, inside: bool) -> Text:
        operands = [self.tensor(a) for a in node.args]  # the check returns one of them
        sides = frozenset().union(*(self.value(a).sides for a in node.args))
        site: Site = node.attr or Site("index")
        self.checks = True
        mask = self.tile.mask(sides) or "True"
        text = OP_TEMPLATES[node.op].of(node.dtype).format(*operands, mask, site.number)
        given = node.args[0] if node.op == "check_index" else node.args[-1]
        return self.line(text, self.value(given).sides, inside)


def _divides_plainly(value: Expr, by: Expr) -> bool:
    """Whether division towards zero equals division towards minus infinity."""
    if not is_polynomial(by) or not at_least(by, ONE) or not is_exact(value):
        return False
    span = bounds(to_poly(value))
    return span is not None and is_nonnegative(span[0])
