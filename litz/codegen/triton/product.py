"""Matrix products for tensor cores: the loop along the sum, and the order of tiles.

In: a kernel whose tiling has a depth. Out: lines: where a program's tile lies, and the tile of
sums, which what follows then takes as it takes any value. Operands are loaded as they are stored,
by threads or, through descriptors, by the GPU's own engine; or computed from what is loaded. For
4096 x 768 times 768 x 768:

    v0 = tl.zeros([128, 128], tl.float32)
    for start in range(0, 768, 64):
        left_at = start + tl.arange(0, 64)[None, :]
        l0 = tl.load(b1 + (y * 768 + left_at))
        right = right_tiles.load([x_at, start]).T
        v0 = tl.dot(l0, right, v0)
"""

from __future__ import annotations

from litz.codegen.triton.ops import TYPES, converted
from litz.codegen.triton.tiles import Tile
from litz.codegen.triton.values import Text, Values, typed
from litz.ir.dtypes import EIGHTHS, F32, I8
from litz.ir.expr import Expr, axis, substitute
from litz.ir.product import (
    SIDES,
    Product,
    matrix_of,
    multiplied,
    multiplied_type,
    product_of,
    stored_load,
)
from litz.ir.program import Kernel
from litz.ir.scheduled import Tiling

INDENT = "    "
# Memory of each descriptor that a program makes.
DESCRIPTOR_BYTES = 128
# Points of a sum after which what tensor cores made of floats of eight bits, which they add up with
# fewer bits than f32 has, goes to sums of f32: as many as cuBLAS takes.
IMPRECISE = 128


class ProductEmitter:
    """Writes what is peculiar to a product; `values` writes the rest."""

    def __init__(self, values: Values, kernel: Kernel, tile: Tile, tiling: Tiling) -> None:
        self.values, self.kernel, self.tile, self.tiling = values, kernel, tile, tiling
        product = product_of(kernel)
        assert product is not None
        self.product: Product = product
        (self.rows,), (self.columns,) = product.rows, product.columns

    # -- tiles -------------------------------------------------------------------------------

    @property
    def _counts(self) -> tuple[int, int]:
        """Tiles of rows and of columns."""
        sides = zip((self.rows, self.columns), self.tiling.blocks[-2:], strict=True)
        down, across = (-(-a.extent.number // n) for a, n in sides)
        return down, across

    def order_of_tiles(self) -> tuple[list[str], dict[Expr, str]]:
        """Lines, and the number of a program's tile along each axis: columns pass by a few tiles of
        rows at a time."""
        down, across = self._counts
        together = min(self.tiling.together, down)
        lines = [] if self.tiling.programs else ["tile = tl.program_id(0)"]
        numbers = dict.fromkeys(self.product.batch, f"tile // {down * across}")
        if numbers:
            lines.append(f"inside = tile % {down * across}")
        inside = "inside" if numbers else "tile"
        if together == 1 or across == 1:
            numbers |= {self.rows: f"{inside} // {across}", self.columns: f"{inside} % {across}"}
        else:
            lines.append(f"first = {inside} // {together * across} * {together}")
            lines.append(f"share = tl.minimum({down} - first, {together})")
            lines.append(f"turn = {inside} % {together * across}")
            numbers |= {self.rows: "first + turn % share", self.columns: "turn // share"}
        for variable, block in zip((self.rows, self.columns), self.tiling.blocks[-2:], strict=True):
            lines.append(f"{variable.attr}_at = ({numbers[variable]}) * {block}")
        return lines, numbers

    def whole(self, lines: list[str]) -> list[str]:
        """All lines of the kernel: behind what is done once, for each of a program's tiles."""
        made = [self._descriptor(side) for side in self.tiling.descriptors]
        if not self.tiling.programs:
            return [*made, *lines]
        down, across = self._counts
        tiles = down * across
        for variable in self.product.batch:
            tiles *= variable.extent.number
        programs = min(self.tiling.programs, tiles)
        head = f"for tile in tl.range(tl.program_id(0), {tiles}, {programs}, flatten=True):"
        return [*made, head, *(INDENT + line for line in lines)]

    def _descriptor(self, side: str) -> str:
        """An operand as a matrix of tiles, along the sum or across it first."""
        matrix, node = matrix_of(self.product, side), self._load(side)
        assert matrix is not None
        variable = self.rows if side == "left" else self.columns
        block = self.tiling.blocks[-2 if side == "left" else -1]
        across = (variable.extent.number, matrix.across, block)
        along = (self.product.depth.extent.number, matrix.depth, self.tiling.depth)
        dims = [across, along] if matrix.depth == 1 else [along, across]
        if self.product.batch:
            (batch,) = self.product.batch
            dims.insert(0, (batch.extent.number, matrix.batch, 1))
        shape, strides, blocks = ([d[k] for d in dims] for k in range(3))
        base = node.buffer.name + (f" + {matrix.start}" if matrix.start else "")
        return f"{side}_tiles = tl.make_tensor_descriptor({base}, {shape}, {strides}, {blocks})"

    def _load(self, side: str) -> Expr:
        node = stored_load(self.product.left if side == "left" else self.product.right)
        assert node is not None
        return node

    # -- sums --------------------------------------------------------------------------------

    def sums(self) -> None:
        """The tile of sums, bound to the product's node."""
        values, product, step = self.values, self.product, self.tiling.depth
        shape, sides = self.tile.shape(self.tile.sides), self.tile.sides
        kind = TYPES[product.node.dtype.name]
        total = values.line(f"tl.zeros({shape}, {kind})", sides, False)
        lines = [f"for start in range(0, {product.depth.extent.number}, {step}):"]
        names = []
        for side in SIDES:
            copied = side in self.tiling.descriptors
            made, name = self._copied(side) if copied else self._computed(side)
            lines += [INDENT + line for line in made]
            names.append(name)
        more = f', input_precision="{self.tiling.precision}"' if self.tiling.precision else ""
        more += f", out_dtype={kind}" if product.node.dtype is not F32 else ""
        if multiplied_type(product) in EIGHTHS:
            more += f", max_num_imprecise_acc={min(step, IMPRECISE)}"
        lines.append(f"{INDENT}{total.text} = tl.dot({', '.join(names)}, {total.text}{more})")
        values.before += lines
        values.bind(product.node, Text(total.text, sides))

    def _copied(self, side: str) -> tuple[list[str], str]:
        """Lines that take a tile through a descriptor, and its name."""
        matrix = matrix_of(self.product, side)
        assert matrix is not None
        variable = self.rows if side == "left" else self.columns
        place = [f"{variable.attr}_at", "start"]
        shape = [self.tiling.blocks[-2 if side == "left" else -1], self.tiling.depth]
        if matrix.depth != 1:
            place.reverse()
            shape.reverse()
        inner = ""
        if self.product.batch:
            (batch,) = self.product.batch
            place.insert(0, str(batch.attr))
            inner = f".reshape({shape})"
        turned = (matrix.depth == 1) != (side == "left")
        text = f"{side}_tiles.load([{', '.join(place)}]){inner}{'.T' if turned else ''}"
        return [f"{side} = {text}"], side

    def _computed(self, side: str) -> tuple[list[str], str]:
        """Lines that load what an operand is made of and compute it, and its name. What does not
        change along the sum is computed before the loop."""
        product, step = self.product, self.tiling.depth
        left = side == "left"
        depth = product.depth.extent.number
        along = axis(f"{side}_at", depth)
        variable = self.rows if left else self.columns
        block = self.tiling.blocks[-2 if left else -1]
        tile = Tile(self.kernel, self.tiling)
        tile.blocks = {variable: block, along: step} if left else {along: step, variable: block}
        inner = Values(self.kernel, tile, side[0])
        inner.loop = along
        inner.before = self.values.before
        inner.lines = [f"{along.attr} = start + {tile.numbers(along, step)}"]
        if tile.is_masked(along):
            inner.lines.append(f"{along.attr}_in = {along.attr} < {depth}")
        operand = multiplied(product.left if left else product.right)
        moved = substitute(operand, {product.depth: along})
        name = inner.full(inner.value(moved), moved)
        kind = multiplied_type(product)
        assert kind is not None
        if moved.dtype is not kind and kind not in EIGHTHS:
            name = inner.line(converted(name, moved.dtype, kind), tile.sides, True).text
        if moved.op != "load" and tile.is_masked(along):
            # What is computed from the zeros behind the end of the sum need not be zero.
            nothing = typed("0", moved.dtype) if kind in EIGHTHS else "0.0"
            nothing = "0" if kind is I8 else nothing
            text = f"tl.where({along.attr}_in, {name}, {nothing})"
            name = inner.line(text, tile.sides, True).text
        self.values.checks |= inner.checks
        return inner.lines, name
