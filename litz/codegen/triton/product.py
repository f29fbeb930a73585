"""Matrix products for tensor cores: the loop along the sum, and the order of tiles.

In: a kernel whose tiling has a depth. Out: lines: where a program's tile lies, and the tile of
sums, which what follows then takes as it takes any value. Both operands are loaded as they are
stored. For 4096 x 768 times 768 x 768:

    v0 = tl.zeros([128, 128], tl.float32)
    for start in range(0, 768, 64):
        left = tl.load(b1 + (y * 768 + (start + tl.arange(0, 64)[None, :])))
        right = tl.load(b2 + (x * 768 + (start + tl.arange(0, 64)[:, None])))
        v0 = tl.dot(left, right, v0)
"""

from __future__ import annotations

from litz.codegen.triton.ops import TYPES
from litz.codegen.triton.tiles import Tile
from litz.codegen.triton.values import Text, Values
from litz.ir.expr import Expr, axis, substitute
from litz.ir.product import kernel_product, stored_load
from litz.ir.program import Kernel
from litz.ir.scheduled import Tiling

INDENT = "    "


def order_of_tiles(kernel: Kernel, tiling: Tiling) -> tuple[list[str], dict[Expr, str]]:
    """Lines, and the number of a program's tile along each axis: columns pass by a few tiles of
    rows at a time."""
    *batch, rows, columns = kernel.outer
    *_, height, width = tiling.blocks
    down, across = (-(-a.extent.number // n) for a, n in ((rows, height), (columns, width)))
    together = min(tiling.together, down)
    lines = ["tile = tl.program_id(0)"]
    numbers = dict.fromkeys(batch, f"tile // {down * across}")
    if batch:
        lines.append(f"inside = tile % {down * across}")
    inside = "inside" if batch else "tile"
    if together == 1 or across == 1:
        return lines, numbers | {rows: f"{inside} // {across}", columns: f"{inside} % {across}"}
    lines.append(f"first = {inside} // {together * across} * {together}")
    lines.append(f"share = tl.minimum({down} - first, {together})")
    lines.append(f"turn = {inside} % {together * across}")
    return lines, numbers | {rows: "first + turn % share", columns: "turn // share"}


def sums(values: Values, kernel: Kernel, tile: Tile, tiling: Tiling) -> None:
    """The tile of sums, bound to the product's node."""
    product = kernel_product(kernel)
    assert product is not None
    depth, step = product.depth.extent.number, tiling.depth
    shape, sides = tile.shape(tile.sides), tile.sides
    total = values.line(f"tl.zeros({shape}, {TYPES[product.node.dtype.name]})", sides, False)
    even = depth % step == 0
    lines = [f"for start in range(0, {depth}, {step}):"]
    for name, operand, place in (("left", product.left, "[None, :]"),
                                 ("right", product.right, "[:, None]")):  # fmt: skip
        along = axis(f"{name}_at", depth)
        lines.append(f"{INDENT}{along.attr} = start + tl.arange(0, {step}){place}")
        node = stored_load(operand)
        assert node is not None
        index = substitute(node.index[0], {product.depth: along})
        inside = [] if even else [f"({along.attr} < {depth})"]
        mask = tile.mask(sides & index.axes, *inside)
        where = f"{node.buffer.name} + ({values.place(index)})"
        load = f"tl.load({where}, {mask}, other=0)" if mask else f"tl.load({where})"
        lines.append(f"{INDENT}{name} = {load}")
    lines.append(f"{INDENT}{total.text} = tl.dot(left, right, {total.text})")
    values.before += lines
    values.bind(product.node, Text(total.text, sides))
