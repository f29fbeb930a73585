"""Block pointers: an access of a whole tile with constant strides, as one value.

In: an index into a buffer and the sides of the tile along which it varies. Out: the text of a load
or a store. None if the stride along some side is not constant, if a guard varies between points, or
if Triton has no such pointer (bools, 64-bit indices): plain pointers are then used. With
`triton.use_block_ptr`, `b1[x * 100 + r]` over rows of 100 becomes

    tl.load(tl.make_block_ptr(b1 + (x * 100), [100], [1], [0], [128], [0]), boundary_check=(0,),
            padding_option="zero")
"""

from __future__ import annotations

from dataclasses import dataclass

from litz.codegen.triton.tiles import Sides, Tile
from litz.ir.dtypes import BOOL
from litz.ir.expr import Expr
from litz.ir.index import coefficient
from litz.ir.program import Buffer
from litz.ir.sizes import is_known


@dataclass(frozen=True)
class Access:
    """The sides it runs along in the order of the tile, the stride along each, and the index
    without them."""

    sides: tuple[Expr, ...]
    strides: tuple[int, ...]
    rest: Expr


def access_of(tile: Tile, buffer: Buffer, index: Expr, sides: Sides) -> Access | None:
    """The strides of an access, if they are constant along all sides."""
    if not tile.tiling.block_pointers or tile.tiling.wide or buffer.dtype is BOOL:
        return None
    if not sides or sides != index.axes & tile.sides or any(a not in tile.starts for a in sides):
        return None
    if not is_known(*(a.extent for a in sides)):
        return None
    ordered = tuple(a for a in tile.ordered if a in sides)
    strides: list[int] = []
    for axis in ordered:
        found = coefficient(index, axis)
        if found is None or not found[0].is_const or found[0].number < 1:
            return None
        strides.append(found[0].number)
        index = found[1]
    return None if index.axes & sides else Access(ordered, tuple(strides), index)


def pointer_text(tile: Tile, access: Access, base: str) -> tuple[str, str]:
    """The pointer, and the boundary check of sides whose last block is partial."""
    shape = [a.extent.number for a in access.sides]
    starts = ", ".join(tile.starts[a] for a in access.sides)
    blocks = [tile.length(a) for a in access.sides]
    order = sorted(range(len(shape)), key=lambda k: access.strides[k])
    text = f"tl.make_block_ptr({base}, {shape}, {list(access.strides)}, [{starts}], {blocks}"
    checked = [str(k) for k, a in enumerate(access.sides) if tile.is_masked(a)]
    check = f", boundary_check=({', '.join(checked)},)" if checked else ""
    return f"{text}, {order})", check


def loaded(tile: Tile, access: Access, base: str) -> str:
    """The load, in the tile's shape."""
    pointer, check = pointer_text(tile, access, base)
    padding = ', padding_option="zero"' if check else ""
    text = f"tl.load({pointer}{check}{padding})"
    if len(access.sides) == tile.rank:
        return text
    return f"{text}[{', '.join(':' if a in access.sides else 'None' for a in tile.places)}]"


def stored(tile: Tile, access: Access, base: str, value: str) -> str:
    """The store of a value that varies along all sides of the access, from the tile's shape."""
    pointer, check = pointer_text(tile, access, base)
    if len(access.sides) < tile.rank:
        value = f"tl.reshape({value}, {[tile.length(a) for a in access.sides]})"
    return f"tl.store({pointer}, {value}{check})"
