"""The strategy: programs drawn step by step, each step executed as it is drawn.

In: hypothesis. Out: `Program`. A step is a text of the vocabulary with its holes filled. It is kept
if eager takes it and its values can be compared: small enough for every type, finite if operands
are, and of exact operands if it jumps (a comparison, a rounding, an argmax). Exact are inputs and
what views and integer ops make of them; all other floats may differ in their last bits between two
right answers, and a jump would make that difference as large as it likes.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st

from tests.fuzz.programs import DTYPES, FLOATS, Line, Program, names
from tests.fuzz.vocabulary import EXACT, MUTATED, NEW, SAME, WEIGHTED, Family, is_float, is_integer

Draw = Callable[[st.SearchStrategy[Any]], Any]
MOST_ELEMENTS = 3000
MOST_MAGNITUDE = 1e4  # well inside float16, so that nothing overflows in one run and not in another
# Flags that change the code and must not change its meaning: the default, then others.
OPTIONS: dict[str, list[Any]] = {
    "cpp__opt_level": [2, 1, 0],
    "max_fusion_size": [64, 64, 64, 1, 4],
    "unroll_reductions_threshold": [8, 8, 1],
    "cpp__simdlen": [None, None, 128, 256, 32],
    "emulate_precision_casts": [False, False, False, True],
    "pick_loop_orders": [True, True, False],
    "inplace_buffers": [True, True, False],
    "cpp__min_chunk_size": [4096, 1],
    "cpp__threads": [-1, 2, 1],
    "debug_index_asserts": [False, False, True],
}
REJECTED = (RuntimeError, IndexError, TypeError, ValueError, NotImplementedError)


@dataclass
class Known:
    """A value of the program so far: its tensor in eager, and whether it is exact."""

    name: str
    tensor: torch.Tensor
    exact: bool


class Drawer:
    """Draws one program."""

    def __init__(self, draw: Draw) -> None:
        self.draw = draw
        self.space = names()
        self.known: list[Known] = []
        self.lines: list[Line] = []
        self.used: set[str] = set()

    def number(self, low: int, high: int) -> int:
        return int(self.draw(st.integers(low, high)))

    def one_of(self, options: list[Any]) -> Any:
        return options[self.number(0, len(options) - 1)]

    # -- inputs ------------------------------------------------------------------------------

    def inputs(self) -> tuple[Line, ...]:
        lines = []
        shape = self.shape()
        for k in range(self.number(1, 3)):
            if k and self.number(0, 2) == 0:
                shape = self.shape()
            dtype = self.one_of([*FLOATS, "float32", "float32", *DTYPES])
            special = dtype in FLOATS and self.number(0, 9) == 9
            text = f"x{k} = {self.placed(shape, dtype, special)}"
            exec(text, self.space)
            self.known.append(Known(f"x{k}", self.space[f"x{k}"], exact=True))
            lines.append(Line(text))
        return tuple(lines)

    def shape(self) -> tuple[int, ...]:
        sizes = [1, 2, 3, 4, 5, 7, 8, 16, 17, 33, 0]
        rank = self.one_of([2, 3, 1, 2, 3, 4, 0])
        shape = [self.one_of(sizes[: 8 if rank > 2 else 10]) for _ in range(rank)]
        if rank and self.number(0, 19) == 19:
            shape[self.number(0, rank - 1)] = 0
        return tuple(shape)

    def placed(self, shape: tuple[int, ...], dtype: str, special: bool) -> str:
        """A tensor of that shape: contiguous, transposed, a slice of a larger one, or expanded."""
        seed, kind = self.number(1, 99), self.number(0, 5)
        flag = ", True" if special else ""
        if kind == 1 and len(shape) >= 2:
            swapped = (*shape[:-2], shape[-1], shape[-2])
            return f"data({seed}, {swapped}, {dtype}{flag}).transpose(-1, -2)"
        if kind == 2 and shape:
            larger = (*shape[:-1], 2 * shape[-1] + 1)
            return f"data({seed}, {larger}, {dtype}{flag})[..., 1::2]"
        if kind == 3 and shape:
            larger = (shape[0] + 2, *shape[1:])
            return f"data({seed}, {larger}, {dtype}{flag})[1:-1]"
        if kind == 4 and len(shape) >= 2:
            return f"data({seed}, {(1, *shape[1:])}, {dtype}{flag}).expand({shape})"
        return f"data({seed}, {shape}, {dtype}{flag})"

    # -- steps -------------------------------------------------------------------------------

    def step(self) -> None:
        """Draw a step and keep it if eager takes it and its values stay comparable."""
        family = self.one_of(WEIGHTED)
        pool = [v for v in self.known if family.takes(v.tensor)]
        if not pool:
            return
        a = pool[len(pool) - 1 - min(self.number(0, 5), len(pool) - 1)]
        text = self.one_of(family.texts)
        holes, operands = self.fill(text, a)
        if holes is None:
            return
        filled = text.format(**holes)
        if family.makes == MUTATED:
            self.mutate(filled, a, operands)
        else:
            self.assign(filled, family, a, operands)

    def fill(self, text: str, a: Known) -> tuple[dict[str, Any] | None, list[Known]]:
        rank = a.tensor.dim()
        holes: dict[str, Any] = {"a": a.name, "d": self.number(-rank, max(rank - 1, 0))}
        operands = [a]
        if "{e}" in text:
            holes["e"] = self.number(0, max(rank - 1, 0))
        if "{n}" in text:
            holes["n"] = self.number(0, 3)
        if "{t}" in text:
            holes["t"] = self.one_of(list(DTYPES))
        if "{s}" in text:
            holes["s"] = self.new_shape(a.tensor)
        if "{p}" in text:
            holes["p"] = tuple(self.draw(st.permutations(range(rank))))
        if "{r}" in text:
            holes["r"] = tuple(self.number(1, 2) for _ in range(rank + self.number(0, 1)))
        if "{i}" in text:
            holes["i"] = f"torch.tensor({[self.number(0, 1) for _ in range(self.number(1, 4))]})"
        if "{j}" in text:
            pool = [v for v in self.known if is_integer(v.tensor) and v.tensor.dim()]
            pool = [v for v in pool if v.tensor.numel() <= 20]
            if not pool or not rank:
                return None, []
            operands.append(self.one_of(pool))
            holes["j"] = f"({operands[-1].name}.long() % {min(a.tensor.shape) or 1})"
        if "{g}" in text:
            holes["g"] = f"(torch.zeros_like({a.name}, dtype=int64) + {self.number(0, 1)})"
        for hole, fits in (("b", self.broadcasts), ("b2", _same_shape), ("c", self.is_mask)):
            if f"{{{hole}}}" in text:
                pool = [v for v in self.known if fits(a, v)]
                if not pool:
                    return None, []
                operands.append(self.one_of(pool))
                holes[hole] = operands[-1].name
        return holes, operands

    def broadcasts(self, a: Known, b: Known) -> bool:
        try:
            return torch.broadcast_shapes(a.tensor.shape, b.tensor.shape).numel() <= MOST_ELEMENTS
        except RuntimeError:
            return False

    def is_mask(self, a: Known, b: Known) -> bool:
        return b.tensor.dtype is torch.bool and self.broadcasts(a, b)

    def new_shape(self, x: torch.Tensor) -> tuple[int, ...]:
        n = x.numel()
        factors = [k for k in (2, 3, 4, 5, 8, 16) if n and n % k == 0]
        if not factors:
            return (1, -1) if n else tuple(x.shape)
        k = self.one_of(factors)
        return self.one_of([(k, -1), (-1, k), (n // k, 1, k)])

    def run(self, text: str) -> torch.Tensor | None:
        try:
            return eval(text, self.space)  # type: ignore[no-any-return]
        except REJECTED:
            return None

    def assign(self, text: str, family: Family, a: Known, operands: list[Known]) -> None:
        jumps = family.jumps or (".to(" in text and is_float(a.tensor) and "float" not in text)
        if jumps and not all(v.exact for v in operands):
            return
        exact = family.makes == EXACT or (family.makes == SAME and all(v.exact for v in operands))
        result = self.run(text)
        if not isinstance(result, torch.Tensor) or not self.comparable(result, operands, text):
            return
        name = f"v{len(self.lines)}"
        fresh = result.dtype if is_float(result) and family.makes == NEW else None
        summed = a.name if family.sums and is_float(a.tensor) else ""
        self.lines.append(Line(f"{name} = {text}", fresh, summed))
        self.space[name] = result
        self.used |= {v.name for v in operands}
        self.known.append(Known(name, result, exact or not is_float(result)))

    def comparable(self, result: torch.Tensor, operands: list[Known], text: str) -> bool:
        """Small, of a type Litz knows, no larger than numbers that every type can hold."""
        if result.numel() > MOST_ELEMENTS or result.dtype not in DTYPES.values():
            return False
        if result.dim() > 5:
            return False
        before = [v.tensor for v in operands]
        if ".to(" in text and before[0].is_floating_point() and not result.is_floating_point():
            wide = before[0].double()
            low = 0 if result.dtype is torch.uint8 else -100
            if result.dtype is not torch.bool and not ((wide > low) & (wide < 100)).all():
                return False
        if not result.is_floating_point():
            return True
        if re.search("var|std|gelu", text) and not before[0].isfinite().all():
            return False  # eager's answers are its own: the mean of an infinity is NaN in var_mean
        finite = result[result.isfinite()]
        if finite.numel() and finite.abs().max() > MOST_MAGNITUDE:
            return False
        return all(bool(t.isfinite().all()) for t in before) <= bool(result.isfinite().all())

    def mutate(self, text: str, a: Known, operands: list[Known]) -> None:
        """In place: what shares its memory changes too, so all such values are inexact after it."""
        if _overlaps(a.tensor):
            return
        if not all(v.tensor.isfinite().all() for v in operands):
            return
        memory = a.tensor.untyped_storage().data_ptr()
        if any(v.tensor.untyped_storage().data_ptr() == memory for v in operands[1:]):
            return  # what eager reads after it has written it depends on its loops
        if any(v.tensor.is_floating_point() and v.tensor.abs().amax() > 1e3
               for v in operands if v.tensor.numel()):  # fmt: skip
            return
        if not a.tensor.is_floating_point() and any(is_float(v.tensor) for v in operands):
            return
        try:
            exec(text, self.space)
        except REJECTED:
            return
        self.lines.append(Line(text))
        self.used |= {v.name for v in operands[1:]}
        for v in self.known:
            if is_float(v.tensor) and v.tensor.untyped_storage().data_ptr() == memory:
                v.exact = False

    def outputs(self) -> tuple[str, ...]:
        """What nothing used, and now and then more."""
        made = [v.name for v in self.known if v.name.startswith("v")]
        chosen = [n for n in made if n not in self.used or self.number(0, 7) == 7]
        return tuple(chosen or made[-1:] or ["x0"])

    def options(self) -> dict[str, Any]:
        drawn = {name: self.one_of(values) for name, values in OPTIONS.items()}
        return {name: value for name, value in drawn.items() if value != OPTIONS[name][0]}


def _overlaps(x: torch.Tensor) -> bool:
    """Whether two of its elements lie in one place."""
    places = torch.arange(x.untyped_storage().nbytes() // x.element_size())
    return places.as_strided(x.shape, x.stride()).unique().numel() < x.numel()


def _same_shape(a: Known, b: Known) -> bool:
    return a.tensor.shape == b.tensor.shape


@st.composite
def programs(draw: Draw) -> Program:
    """Three to fifteen steps, as many as eager takes."""
    drawer = Drawer(draw)
    inputs = drawer.inputs()
    wanted = drawer.number(3, 15)
    for _ in range(3 * wanted):
        if len(drawer.lines) < wanted:
            drawer.step()
    return Program(inputs, tuple(drawer.lines), drawer.outputs(), drawer.options())
