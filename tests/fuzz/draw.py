"""The strategy: programs drawn step by step, each step executed as it is drawn.

In: hypothesis. Out: `Program`. A step is a row of a table of texts with holes: `{a}` is the operand,
`{b}` another of broadcastable shape, `{d}` a dimension, `{n}` a small number.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st

from tests.fuzz.programs import (
    DTYPES,
    FLOATS,
    MOST_ELEMENTS,
    MOST_MAGNITUDE,
    Line,
    Program,
    names,
)

Draw = Callable[[st.SearchStrategy[Any]], Any]

# Continuous functions of a float, safe over all of its range.
SMOOTH = (
    """
{a}.exp()|{a}.sin()|{a}.cos()|{a}.tanh()|{a}.sigmoid()|{a}.relu()|-{a}|{a}.abs()|{a} * {a}
({a}.abs() + 1).log()|({a}.abs() + 0.5).rsqrt()|({a}.abs() + 0.1).sqrt()|1 / ({a}.abs() + 0.5)
{a}.erf()|{a}.expm1()|{a}.abs().log1p()|{a}.atan()|{a}.clamp(-1, 0.5)|F.gelu({a})|F.silu({a})
F.gelu({a}, approximate="tanh")|F.leaky_relu({a}, 0.1)|F.softplus({a})|F.elu({a})|F.mish({a})
{a}.asinh()|F.hardswish({a})|F.hardtanh({a})|{a} ** 3|({a}.abs() + 0.5) ** 1.7|{a}.sinh()
""".replace("\n", "|")
    .strip("|")
    .split("|")
)
# Of any number.
PLAIN = ["{a} * 2", "{a} + 1", "{a} - 3", "{a}.clone()", "3 - {a}", "{a} * 0.5", "{a}.clamp(min=1)"]
# Jumps: exact operands alone.
JUMPS = (
    """
{a}.floor()|{a}.ceil()|{a}.round()|{a}.trunc()|{a}.sign()|{a} > 0|{a} <= {b}|{a} == {b}|{a} != 0
torch.isnan({a})|{a}.isfinite()|{a}.bool()|~({a} > {b})|{a}.argmax({d})|{a}.argmin({d})|{a}.argmax()
{a}.any({d})|{a}.all()|{a}.max({d})[1]|{a}.min({d})[1]|{a}.logical_not()|torch.signbit({a})
{a}.any({d}, keepdim=True)|{a} // 2|{a} % 3|{a}.remainder({b})|{a}.fmod({b})|{a} // {b}
torch.div({a}, {b}, rounding_mode="trunc")|{a}.logical_and({b})|{a}.heaviside({b})
""".replace("\n", "|")
    .strip("|")
    .split("|")
)
INTEGER = (
    """
{a} & {b}|{a} | {b}|{a} ^ {b}|~{a}|{a}.bitwise_left_shift({n})|{a} >> {n}|{a}.abs()|-{a}|{a} ** {n}
{a} // 3|{a} % 5|{a} % -4|torch.div({a}, 2, rounding_mode="trunc")|{a}.fmod(3)|{a}.sign()|{a} * {b}
""".replace("\n", "|")
    .replace("{a} | {b}", "{a}.bitwise_or({b})")
    .strip("|")
    .split("|")
)
PAIRS = (
    """
{a} + {b}|{a} - {b}|{a} * {b}|torch.maximum({a}, {b})|torch.minimum({a}, {b})|torch.lerp({a}, {b}, 0.3)
{a} / ({b}.abs() + 1)|torch.atan2({a}, {b}.abs() + 1)|torch.add({a}, {b}, alpha=2)|{a}.clamp(max={b})
torch.hypot({a}, {b})|torch.addcmul({a}, {b}, {b})|torch.rsub({a}, {b})
""".replace("\n", "|")
    .strip("|")
    .split("|")
)
CHOICES = ["torch.where({c}, {a}, {b})", "{a}.masked_fill({c}, 2)", "torch.where({c}, {a}, 0)"]
VIEWS = (
    """
{a}.transpose({d}, {e})|{a}.unsqueeze({d})|{a}.squeeze()|{a}.flatten()|{a}.mT|{a}[..., ::2]|{a}[1:]
{a}.narrow({d}, 0, 1)|{a}.select({d}, -1)|{a}.select({d}, 0)|{a}.movedim({d}, {e})|{a}[..., :-1]
{a}.diagonal(0, {d}, {e})|{a}.unfold({d}, 2, 1)|{a}.chunk(2, {d})[-1]|{a}.unbind({d})[0]
{a}.reshape(-1)|{a}.reshape({s})|{a}.contiguous()|{a}.expand(2, *{a}.shape)|{a}.view({s})
{a}.split(2, {d})[0]|{a}[None]|{a}.permute({p})|{a}.T|{a}.unflatten({d}, (-1, 2))|{a}[..., None]
""".replace("\n", "|")
    .strip("|")
    .split("|")
)
MOVES = (
    """
{a}.flip({d})|{a}.repeat({r})|{a}.roll({n}, {d})|F.pad({a}, (1, 2))|F.pad({a}, (-1, 1, 0, 1))
torch.cat([{a}, {b2}], {d})|torch.stack([{a}, {a}], {d})|torch.cat([{a}, {a}, {a}, {a}, {a}], {d})
torch.tril({a})|torch.triu({a}, 1)|{a}.repeat_interleave(2, {d})|{a}.index_select({d}, {i})
{a}[{i}]|{a}[..., {i}]|{a}.gather({d}, {g})|{a}.take_along_dim({g}, {d})|F.pad({a}, (1, 0), value=2)
{a}[{j}]|{a}[..., {j}]|{a}.index_select({d}, {j}.flatten())|F.embedding({j}, {a})
{a}[{i}, {i}]|{a}[{i}, :, {i}]|torch.slice_scatter({a}.contiguous(), {a}[1:], 0, 0, -1)
torch.cat([{a}, {b2}.to({t})], {d})|torch.select_scatter({a}.contiguous(), {a}.select({d}, 0), {d}, -1)
""".replace("\n", "|")
    .strip("|")
    .split("|")
)
REDUCTIONS = (
    """
{a}.sum()|{a}.sum({d})|{a}.sum({d}, keepdim=True)|{a}.amax({d})|{a}.amin({d}, keepdim=True)|{a}.max()
{a}.max({d})[0]|{a}.sum(({d}, {e}))|{a}.amax(({d}, {e}), keepdim=True)|{a}.cumsum({d})|{a}.min()
""".replace("\n", "|")
    .strip("|")
    .split("|")
)
FLOAT_REDUCTIONS = (
    """
{a}.mean()|{a}.mean({d}, keepdim=True)|{a}.softmax({d})|{a}.log_softmax({d})|{a}.logsumexp({d})
{a}.var({d}, correction=0)|{a}.std({d}, keepdim=True)|torch.var_mean({a}, {d})[1]|{a}.norm(dim={d})
F.layer_norm({a}, {a}.shape[-1:])|{a} @ {a}.mT|F.linear({a}, {a}.flatten(0, -2))|{a}.mean(({d}, {e}))
F.rms_norm({a}, {a}.shape[-1:])|F.normalize({a}, dim={d})|{a}.clamp(-1.5, 1.5).prod({d})
""".replace("\n", "|")
    .strip("|")
    .split("|")
)
MUTATIONS = (
    """
{a}.add_(1)|{a}.mul_(2)|{a}.copy_({b})|{a}[..., :1].add_(1)|{a}.neg_()|{a}.sub_({b})|{a}.zero_()
{a}.transpose({d}, {e}).add_({b})|{a}.fill_(2)|{a}[..., 0] = 1|{a}.copy_({a}.flip({d}))|{a}.clamp_(-1, 1)
""".replace("\n", "|")
    .strip("|")
    .split("|")
)

NEW, SAME, EXACT = "new", "same", "exact"


@dataclass(frozen=True)
class Family:
    """Texts with holes. `makes`: a rounded float, the operand's own values, or exact ones."""

    texts: list[str]
    makes: str
    takes: Callable[[Any], bool] = lambda value: True
    weight: int = 1
    sums: bool = False


def _is_float(value: Any) -> bool:
    return bool(value.tensor.is_floating_point())


def _is_integer(value: Any) -> bool:
    return not _is_float(value) and value.tensor.dtype is not torch.bool


FAMILIES = [
    Family(SMOOTH, NEW, _is_float, 3),
    Family(PLAIN, NEW, lambda v: v.tensor.dtype is not torch.bool),
    Family(PAIRS, NEW, lambda v: True, 3),
    Family(CHOICES, NEW, lambda v: True),
    Family(INTEGER, EXACT, _is_integer),
    Family(JUMPS, EXACT, lambda v: v.exact),
    Family(VIEWS, SAME, lambda v: True, 4),
    Family(MOVES, SAME, lambda v: True, 2),
    Family(REDUCTIONS, NEW, lambda v: True, 2, sums=True),
    Family(FLOAT_REDUCTIONS, NEW, _is_float, 2, sums=True),
    Family(["{a}.to({t}, copy=True)"], NEW, lambda v: True, 2),
    Family(MUTATIONS, "mutation", lambda v: True),
]
WEIGHTED = [family for family in FAMILIES for _ in range(family.weight)]


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
        pool = [v for v in self.known if family.takes(v)]
        if not pool:
            return
        a = pool[len(pool) - 1 - min(self.number(0, 5), len(pool) - 1)]
        text = self.one_of(family.texts)
        holes, operands = self.fill(text, a)
        if holes is None:
            return
        filled = text.format(**holes)
        if family.makes == "mutation":
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
            pool = [v for v in self.known if _is_integer(v) and v.tensor.dim()]
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
        except (RuntimeError, IndexError, TypeError, ValueError, NotImplementedError):
            return None

    def assign(self, text: str, family: Family, a: Known, operands: list[Known]) -> None:
        jumps = family is FAMILIES[5] or (".to(" in text and _is_float(a) and "float" not in text)
        if jumps and not all(v.exact for v in operands):
            return
        exact = family.makes == EXACT or (family.makes == SAME and all(v.exact for v in operands))
        result = self.run(text)
        if not isinstance(result, torch.Tensor) or not self.comparable(result, operands, text):
            return
        name = f"v{len(self.lines)}"
        is_float = result.is_floating_point()
        fresh = result.dtype if is_float and family.makes == NEW else None
        summed = a.name if family.sums and _is_float(a) else ""
        self.lines.append(Line(f"{name} = {text}", fresh, summed))
        self.space[name] = result
        self.used |= {v.name for v in operands}
        self.known.append(Known(name, result, exact or not is_float))

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
        if ("var" in text or "std" in text) and not before[0].isfinite().all():
            return False  # eager's mean of an infinity is NaN here and infinite in `mean`
        finite = result[result.isfinite()]
        if finite.numel() and finite.abs().max() > MOST_MAGNITUDE:
            return False
        return all(bool(t.isfinite().all()) for t in before) <= bool(result.isfinite().all())

    def mutate(self, text: str, a: Known, operands: list[Known]) -> None:
        """In place: what shares its memory changes too, so all such values are inexact after it."""
        if any(stride == 0 and n > 1 for stride, n in zip(a.tensor.stride(), a.tensor.shape)):
            return
        if not all(v.tensor.isfinite().all() for v in operands):
            return
        memory = a.tensor.untyped_storage().data_ptr()
        if any(v.tensor.untyped_storage().data_ptr() == memory for v in operands[1:]):
            return  # what eager reads after it has written it depends on its loops
        if any(v.tensor.is_floating_point() and v.tensor.abs().amax() > 1e3
               for v in operands if v.tensor.numel()):  # fmt: skip
            return
        if not a.tensor.is_floating_point() and any(_is_float(v) for v in operands):
            return
        try:
            exec(text, self.space)
        except (RuntimeError, IndexError, TypeError, ValueError, NotImplementedError):
            return
        self.lines.append(Line(text))
        self.used |= {v.name for v in operands[1:]}
        for v in self.known:
            if _is_float(v) and v.tensor.untyped_storage().data_ptr() == memory:
                v.exact = False

    def outputs(self) -> tuple[str, ...]:
        """What nothing used, and now and then more."""
        made = [v.name for v in self.known if v.name.startswith("v")]
        chosen = [n for n in made if n not in self.used or self.number(0, 7) == 7]
        return tuple(chosen or made[-1:] or ["x0"])

    def options(self) -> dict[str, Any]:
        """Flags that change the code and must not change its meaning."""
        drawn = {
            "cpp__opt_level": self.one_of([1, 2, 0]),
            "max_fusion_size": self.one_of([64, 64, 64, 1, 4]),
            "unroll_reductions_threshold": self.one_of([8, 8, 1]),
            "cpp__simdlen": self.one_of([None, None, 128, 256, 32]),
            "emulate_precision_casts": self.one_of([False, False, False, True]),
            "pick_loop_orders": self.one_of([True, True, False]),
            "cpp__min_chunk_size": self.one_of([4096, 1]),
            "cpp__threads": self.one_of([-1, 2, 1]),
        }
        return {k: v for k, v in drawn.items() if v != _DEFAULTS[k]}


_DEFAULTS: dict[str, Any] = {
    "cpp__opt_level": 2, "max_fusion_size": 64, "unroll_reductions_threshold": 8,
    "cpp__simdlen": None, "emulate_precision_casts": False, "pick_loop_orders": True,
    "cpp__min_chunk_size": 4096, "cpp__threads": -1,
}  # fmt: skip


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
