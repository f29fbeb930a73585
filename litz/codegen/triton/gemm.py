"""GEMM kernels for tensor cores: the loop over k, and the order of tiles.

In: a kernel whose tiling has a depth. Out: lines for the position of a program's tile and for the
tile of sums, which the epilogue uses like any other value. Operands are loaded as they are stored,
by threads or, through descriptors, by the GPU's copy engine (TMA); or computed from loads. For
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
from litz.ir.dtypes import F32, FP8_DTYPES, I8
from litz.ir.expr import Expr, axis, substitute
from litz.ir.gemm import (
    SIDES,
    GemmParts,
    gemm_of,
    mma_dtype,
    mma_operand,
    operand_strides,
    stored_load,
)
from litz.ir.program import Kernel
from litz.ir.scheduled import Tiling

INDENT = "    "
# Bytes of each descriptor that a program makes.
DESCRIPTOR_BYTES = 128
# Tensor cores sum fp8 products with fewer bits than f32 has. After this many points of k, their
# sums are added to sums of f32: as many as cuBLAS takes.
MAX_IMPRECISE_ACC = 128


class MmaGemmEmitter:
    """Writes the parts peculiar to a GEMM; `values` writes the rest."""

    def __init__(self, values: Values, kernel: Kernel, tile: Tile, tiling: Tiling) -> None:
        self.values, self.kernel, self.tile, self.tiling = values, kernel, tile, tiling
        gemm = gemm_of(kernel)
        assert gemm is not None
        self.gemm: GemmParts = gemm
        (self.rows,), (self.columns,) = gemm.rows, gemm.columns

    # -- tiles -------------------------------------------------------------------------------

    @property
    def _counts(self) -> tuple[int, int]:
        """The numbers of tiles along rows and columns."""
        sides = zip((self.rows, self.columns), self.tiling.blocks[-2:], strict=True)
        down, across = (-(-a.extent.number // n) for a, n in sides)
        return down, across

    def grouped_tile_order(self) -> tuple[list[str], dict[Expr, str]]:
        """Lines, and the number of a program's tile along each axis: columns vary within groups of
        a few tiles of rows."""
        down, across = self._counts
        group_m = min(self.tiling.group_m, down)
        lines = [] if self.tiling.programs else ["tile = tl.program_id(0)"]
        numbers = dict.fromkeys(self.gemm.batch, f"tile // {down * across}")
        if numbers:
            lines.append(f"inside = tile % {down * across}")
        inside = "inside" if numbers else "tile"
        if group_m == 1 or across == 1:
            numbers |= {self.rows: f"{inside} // {across}", self.columns: f"{inside} % {across}"}
        else:
            lines.append(f"first = {inside} // {group_m * across} * {group_m}")
            lines.append(f"share = tl.minimum({down} - first, {group_m})")
            lines.append(f"turn = {inside} % {group_m * across}")
            numbers |= {self.rows: "first + turn % share", self.columns: "turn // share"}
        for variable, block in zip((self.rows, self.columns), self.tiling.blocks[-2:], strict=True):
            lines.append(f"{variable.attr}_at = ({numbers[variable]}) * {block}")
        return lines, numbers

    def persistent_loop(self, lines: list[str]) -> list[str]:
        """All lines of the kernel: the setup, then a loop over the tiles of a program."""
        made = [self._descriptor(side) for side in self.tiling.descriptors]
        if not self.tiling.programs:
            return [*made, *lines]
        down, across = self._counts
        tiles = down * across
        for variable in self.gemm.batch:
            tiles *= variable.extent.number
        programs = min(self.tiling.programs, tiles)
        head = f"for tile in tl.range(tl.program_id(0), {tiles}, {programs}, flatten=True):"
        return [*made, head, *(INDENT + line for line in lines)]

    def _descriptor(self, side: str) -> str:
        """A descriptor of an operand as a matrix of tiles, in the order of its memory."""
        matrix, node = operand_strides(self.gemm, side), self._load(side)
        assert matrix is not None
        variable = self.rows if side == "left" else self.columns
        block = self.tiling.blocks[-2 if side == "left" else -1]
        across = (variable.extent.number, matrix.mn, block)
        along = (self.gemm.depth.extent.number, matrix.depth, self.tiling.depth)
        dims = [across, along] if matrix.depth == 1 else [along, across]
        if self.gemm.batch:
            (batch,) = self.gemm.batch
            dims.insert(0, (batch.extent.number, matrix.batch, 1))
        shape, strides, blocks = ([d[k] for d in dims] for k in range(3))
        base = node.buffer.name + (f" + {matrix.start}" if matrix.start else "")
        return f"{side}_tiles = tl.make_tensor_descriptor({base}, {shape}, {strides}, {blocks})"

    def _load(self, side: str) -> Expr:
        node = stored_load(self.gemm.left if side == "left" else self.gemm.right)
        assert node is not None
        return node

    # -- sums --------------------------------------------------------------------------------

    def mainloop(self) -> None:
        """The tile of sums, bound to the GEMM's node."""
        values, gemm, step = self.values, self.gemm, self.tiling.depth
        shape, sides = self.tile.shape(self.tile.sides), self.tile.sides
        kind = TYPES[gemm.node.dtype.name]
        total = values.line(f"tl.zeros({shape}, {kind})", sides, False)
        lines = [f"for start in range(0, {gemm.depth.extent.number}, {step}):"]
        names = []
        for side in SIDES:
            copied = side in self.tiling.descriptors
            made, name = self._tma_load(side) if copied else self._prologue_load(side)
            lines += [INDENT + line for line in made]
            names.append(name)
        more = f', input_precision="{self.tiling.precision}"' if self.tiling.precision else ""
        more += f", out_dtype={kind}" if gemm.node.dtype is not F32 else ""
        if mma_dtype(gemm) in FP8_DTYPES:
            more += f", max_num_imprecise_acc={min(step, MAX_IMPRECISE_ACC)}"
        lines.append(f"{INDENT}{total.text} = tl.dot({', '.join(names)}, {total.text}{more})")
        values.before += lines
        values.bind(gemm.node, Text(total.text, sides))

    def _tma_load(self, side: str) -> tuple[list[str], str]:
        """Lines that load a tile through a descriptor, and its name."""
        matrix = operand_strides(self.gemm, side)
        assert matrix is not None
        variable = self.rows if side == "left" else self.columns
        place = [f"{variable.attr}_at", "start"]
        shape = [self.tiling.blocks[-2 if side == "left" else -1], self.tiling.depth]
        if matrix.depth != 1:
            place.reverse()
            shape.reverse()
        inner = ""
        if self.gemm.batch:
            (batch,) = self.gemm.batch
            place.insert(0, str(batch.attr))
            inner = f".reshape({shape})"
        turned = (matrix.depth == 1) != (side == "left")
        text = f"{side}_tiles.load([{', '.join(place)}]){inner}{'.T' if turned else ''}"
        return [f"{side} = {text}"], side

    def _prologue_load(self, side: str) -> tuple[list[str], str]:
        """Lines that compute an operand from its loads, and its name. Values that do not vary along
        k are computed before the loop."""
        gemm, step = self.gemm, self.tiling.depth
        left = side == "left"
        depth = gemm.depth.extent.number
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
        operand = mma_operand(gemm.left if left else gemm.right)
        moved = substitute(operand, {gemm.depth: along})
        name = inner.full(inner.value(moved), moved)
        kind = mma_dtype(gemm)
        assert kind is not None
        if moved.dtype is not kind and kind not in FP8_DTYPES:
            name = inner.line(converted(name, moved.dtype, kind), tile.sides, True).text
        if moved.op != "load" and tile.is_masked(along):
            # Computed from the zeros after the end of the sum, a value need not be zero.
            nothing = typed("0", moved.dtype) if kind in FP8_DTYPES else "0.0"
            nothing = "0" if kind is I8 else nothing
            text = f"tl.where({along.attr}_in, {name}, {nothing})"
            name = inner.line(text, tile.sides, True).text
        self.values.checks |= inner.checks
        return inner.lines, name
