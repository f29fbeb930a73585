"""Reductions and scans along the row of a tile.

In: a `reduce` or `scan` node whose element is known at each point. Out: lines. A row in registers
is folded in one step. A row in blocks is combined in an accumulator as wide as the block, which is
folded after the loop. A scan carries its result from block to block.
"""

from __future__ import annotations

from collections.abc import Callable

from litz.codegen.triton.online_softmax import OnlineSum
from litz.codegen.triton.ops import TYPES
from litz.codegen.triton.values import Text, Values, literal
from litz.ir.dtypes import BOOL, DType
from litz.ir.expr import Expr
from litz.ir.ops import REDUCTIONS, SCANS, neutral

# The prelude's function that combines two elements, or two elements with their positions.
COMBINE_FUNCTIONS = {"sum": "sum", "wide_sum": "sum", "prod": "product", "logsumexp": "log_add_exp"}
ARG_REDUCERS = {"argmax": "first_max", "argmin": "first_min"}
ARG_SCANNERS = {"argmax": "last_max", "argmin": "last_min"}
# A position after all others, in 32 and in 64 bits.
NOWHERE = {False: 2**31 - 1, True: 2**62}


def _combine(kind: str) -> str:
    """The reduction that a kind is computed by: any is the maximum of zeros and ones."""
    return {"any": "max", "all": "min"}.get(kind, kind)


def _function(kind: str) -> str:
    """The function that combines two elements."""
    kind = _combine(kind)
    return COMBINE_FUNCTIONS.get(kind) or f"nan_{kind}"


def _start(kind: str, combine: str, dtype: DType) -> str:
    if kind in ("any", "all"):
        return str(int(kind == "all"))
    return literal(neutral(combine, dtype), dtype)


class ReductionEmitter:
    """Writes reductions and scans, with names from `Values`."""

    def __init__(self, values: Values) -> None:
        self.v, self.tile = values, values.tile
        self._accumulators: dict[Expr, str] = {}  # the accumulator of each reduction over blocks
        self._online_sums: dict[Expr, tuple[str, str]] = {}
        values.scan = self.scan

    @property
    def _along(self) -> str:
        keep = ", keep_dims=True" if self.tile.rank > 1 else ""
        return f"{self.tile.rank - 1}{keep}"

    def _element(self, node: Expr) -> tuple[str, DType]:
        """The element at each point of the tile."""
        arg = node.args[0]
        dtype = arg.dtype.accumulator
        text = self.v.full(self.v.value(arg), arg)
        return (f"{text}.to(tl.int32)" if arg.dtype is BOOL else text), dtype

    def _masked(self, text: str, otherwise: str) -> str:
        row = self.tile.row
        assert row is not None
        return f"tl.where({row.attr}_in, {text}, {otherwise})" if self.tile.is_masked(row) else text

    def _position(self) -> str:
        row = self.tile.row
        assert row is not None
        broadcast = f"tl.broadcast_to({row.attr}, {self.tile.shape(self.tile.sides)})"
        return self._masked(broadcast, str(NOWHERE[self.tile.tiling.wide]))

    # -- reductions --------------------------------------------------------------------------

    def whole(self, node: Expr) -> None:
        """Reduce a row that is in registers."""
        kind, dtype = node.attr[0], node.args[0].dtype
        text, wide = self._element(node)
        start = _start(kind, REDUCTIONS[kind].combine, wide)
        element = self.v.line(self._masked(text, start), self.tile.sides, False).text
        position = ""
        if REDUCTIONS[kind].gives_index:
            position = self.v.line(self._position(), self.tile.sides, False).text
        self._finish(node, dtype, element, position)

    def begin(self, node: Expr) -> tuple[str, str]:
        """Before a loop: the accumulator, and the position of its element."""
        kind = node.attr[0]
        wide = node.args[0].dtype.accumulator
        shape = self.tile.shape(self.tile.sides)
        start = _start(kind, REDUCTIONS[kind].combine, wide)
        total = self.v.line(
            f"tl.full({shape}, {start}, {TYPES[wide.name]})", self.tile.sides, False
        )
        self._accumulators[node] = total.text
        if not REDUCTIONS[kind].gives_index:
            return total.text, ""
        number = "tl.int64" if self.tile.tiling.wide else "tl.int32"
        nowhere = f"tl.full({shape}, {NOWHERE[self.tile.tiling.wide]}, {number})"
        return total.text, self.v.line(nowhere, self.tile.sides, False).text

    def update(self, node: Expr, total: str, place: str) -> None:
        """Inside a loop: combine a block."""
        kind = node.attr[0]
        text, wide = self._element(node)
        lines = self.v.lines
        if place:
            start = _start(kind, REDUCTIONS[kind].combine, wide)
            element = f"{self._masked(text, start)}, {self._position()}"
            lines.append(f"{total}, {place} = {ARG_REDUCERS[kind]}({total}, {place}, {element})")
            return
        function = _function(kind)
        joined = f"{total} + {text}" if function == "sum" else f"{function}({total}, {text})"
        lines.append(f"{total} = {self._masked(joined, total)}")

    def begin_online_sum(self, online_sum: OnlineSum) -> Callable[[], None]:
        """Before a loop that finds a maximum: start the sum of exponentials relative to it. Returns
        the function that adds a block; `finish_online_sum` uses the two accumulators."""
        shape, sides = self.tile.shape(self.tile.sides), self.tile.sides
        dtype = online_sum.summed.dtype
        total = self.v.line(f"tl.full({shape}, 0.0, {TYPES[dtype.name]})", sides, False).text
        top = self._accumulators[online_sum.maximum]
        self._online_sums[online_sum.summed] = (total, top)

        def update() -> None:
            element = self.v.line(self._element(online_sum.maximum)[0], sides, True).text
            apart = f"tl.where({element} == {top}, 0.0, -tl.abs({element} - {top}))"
            less = self.v.line(f"libdevice.exp({apart})", sides, True).text
            joined = f"tl.where({element} > {top}, {total} * {less} + 1.0, {total} + {less})"
            self.v.lines.append(f"{total} = {self._masked(joined, total)}")

        return update

    def finish_online_sum(self, online_sum: OnlineSum) -> None:
        """After the loop, when the shift is known: rescale each lane's sum to it."""
        total, top = self._online_sums[online_sum.summed]
        shift = self.v.value(online_sum.shift)
        below = f"libdevice.exp({top} - {shift.text})"
        text = f"tl.sum({total} * {below}, {self._along})"
        self.v.bind(online_sum.summed, self.v.line(text, self.tile.outer, False))

    def finish(self, node: Expr, total: str, place: str) -> None:
        """After a loop: fold the accumulator."""
        self._finish(node, node.args[0].dtype, total, place)

    def folded(self, node: Expr, element: str, place: str) -> tuple[str, str]:
        """The accumulator's result for each row of the tile, and its position; not converted to the
        node's type yet."""
        kind, sides = node.attr[0], self.tile.outer
        if place:
            name, at = self.v.name(), self.v.name()
            function = ARG_REDUCERS[kind]
            reduced = f"tl.reduce(({element}, {place}), {self._reduced(function)})"
            self.v.before.append(f"{name}, {at} = {reduced}")
            return name, at
        function = _function(kind)
        if function == "sum":
            text = f"tl.sum({element}, {self._along})"
        else:
            text = f"tl.reduce({element}, {self._reduced(function)})"
        return self.v.line(text, sides, False).text, ""

    def nothing(self, node: Expr, place: bool) -> str:
        """The neutral value of a reduction, or its position."""
        kind, dtype = node.attr[0], node.args[0].dtype.accumulator
        if place:
            return str(NOWHERE[self.tile.tiling.wide])
        return _start(kind, REDUCTIONS[kind].combine, dtype)

    def _finish(self, node: Expr, dtype: DType, element: str, place: str) -> None:
        name, at = self.folded(node, element, place)
        text = name
        if at:
            text = f"{at}.to(tl.int64)"
        elif dtype is BOOL:
            text = f"{name} != 0"
        elif node.dtype is not dtype or (dtype.is_int and dtype.bits < 32):
            text = f"{name}.to({TYPES[node.dtype.name]})"
        sides = self.tile.outer
        self.v.bind(node, Text(name, sides) if text == name else self.v.line(text, sides, False))

    def _reduced(self, function: str) -> str:
        axis, *keep = self._along.split(", ")
        return ", ".join([axis, function, *keep])

    # -- scans -------------------------------------------------------------------------------

    def scan(self, node: Expr, _: Text) -> Text:
        """The running value at each point; in a loop, combined with the blocks before."""
        kind, sides = node.attr, self.tile.sides
        text, wide = self._element(node)
        looped = self.v.loop is not None
        if SCANS[kind].gives_index:
            return self._scan_places(node, text, wide)
        function = _function(kind)
        element = self.v.line(text, sides, looped).text
        running = self._running(element, function, wide)
        if not looped:
            return self._in_own_type(node, self.v.line(running, sides, False))
        start = _start(kind, SCANS[kind].combine, wide)
        shape = self.tile.shape(self.tile.outer)
        carried = self.v.name()
        self.v.before.append(f"{carried} = {_full(shape, self.tile.rank, start, TYPES[wide.name])}")
        joined = self.v.line(_joined(function, carried, running), sides, True)
        block = self._masked(element, start)
        folded = (
            f"tl.sum({block}, {self._along}){_wrapped(wide)}" if function == "sum"
            else f"tl.reduce({block}, {self._reduced(function)})"
        )  # fmt: skip
        self.v.lines.append(f"{carried} = {_joined(function, carried, folded)}")
        return self._in_own_type(node, joined)

    def _running(self, element: str, function: str, wide: DType) -> str:
        axis = self.tile.rank - 1
        if function == "sum":
            return f"tl.cumsum({element}, {axis}){_wrapped(wide)}"
        return f"tl.associative_scan({element}, {axis}, {function})"

    def _in_own_type(self, node: Expr, running: Text) -> Text:
        """Bools are carried as zeros and ones, but a reader may negate or compare them."""
        if node.args[0].dtype is not BOOL:
            return running
        return self.v.line(f"{running.text} != 0", running.sides, self.v.loop is not None)

    def _scan_places(self, node: Expr, text: str, wide: DType) -> Text:
        kind, sides, looped = node.attr, self.tile.sides, self.v.loop is not None
        function, axis = ARG_SCANNERS[kind], self.tile.rank - 1
        start = _start(kind, SCANS[kind].combine, wide)
        row = self.tile.row
        assert row is not None
        broadcast = f"tl.broadcast_to({row.attr}, {self.tile.shape(sides)})"
        element = self.v.line(self._masked(text, start), sides, looped).text
        places = self.v.line(broadcast, sides, looped).text
        best, at = self.v.name(), self.v.name()
        lines = self.v.lines if looped else self.v.before
        lines.append(
            f"{best}, {at} = tl.associative_scan(({element}, {places}), {axis}, {function})"
        )
        if looped:
            self._carry_places(function, start, wide, element, places, best, at)
        return self.v.line(f"{at}.to(tl.int64)", sides, looped)

    def _carry_places(
        self, function: str, start: str, wide: DType, element: str, places: str, best: str, at: str
    ) -> None:
        shape, rank = self.tile.shape(self.tile.outer), self.tile.rank
        top, where = self.v.name(), self.v.name()
        number = "tl.int64" if self.tile.tiling.wide else "tl.int32"
        self.v.before.append(f"{top} = {_full(shape, rank, start, TYPES[wide.name])}")
        self.v.before.append(f"{where} = {_full(shape, rank, '0', number)}")
        self.v.lines.append(f"{best}, {at} = {function}({top}, {where}, {best}, {at})")
        last, there = self.v.name(), self.v.name()
        reduced = f"tl.reduce(({element}, {places}), {self._reduced(function)})"
        self.v.lines.append(f"{last}, {there} = {reduced}")
        self.v.lines.append(f"{top}, {where} = {function}({top}, {where}, {last}, {there})")


def _full(shape: str, rank: int, start: str, kind: str) -> str:
    """A number in every row; without outer sides, a single number."""
    return f"tl.full({shape if rank > 1 else '()'}, {start}, {kind})"


def _wrapped(dtype: DType) -> str:
    """Triton sums small integers in 32 bits; the carry keeps its own type, in which a sum
    wraps."""
    return f".to({TYPES[dtype.name]})" if dtype.is_int and dtype.bits < 32 else ""


def _joined(function: str, before: str, after: str) -> str:
    return f"{before} + {after}" if function == "sum" else f"{function}({before}, {after})"
