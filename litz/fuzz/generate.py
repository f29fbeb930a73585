"""Random programs: each step is executed as it is drawn, and kept if its value can be compared.

In: a seed. Out: `Program`. A step is run in eager, in float64, and in float64 with noise. It is
dropped if eager rejects it, if its value is large, if rounding carries it far, or if it is an
integer that rounding changes: no two right answers would then agree.
"""

from __future__ import annotations

import copy
import random
from typing import Any

import torch

from litz.fuzz.program import DTYPES, FLOATS, LAYOUTS, Input, Program, Step, namespace
from litz.fuzz.reference import Watched, Widened, default_dtype, widened
from litz.fuzz.vocabulary import MUTATIONS, WEIGHTED, Family

MOST_ELEMENTS = 2500
MOST_DIMENSIONS = 5
MOST_MAGNITUDE = 1e4  # well inside float16: nothing overflows in one run and not in another
MOST_SPREAD = 0.02  # of the largest number: beyond it, a comparison would find nothing
SIZES = (1, 2, 3, 4, 5, 7, 8, 16, 17, 33)

# A read of memory that nothing wrote, or a write past its end, is seen in every program.
ALWAYS = {"debug_poison_memory": True}
# Flags that change the code and must not change its meaning, the default first.
OPTIONS: dict[str, tuple[Any, ...]] = {
    "cpp.opt_level": (2, 1, 0, 0, 0, 0),  # mostly 0: LLVM is quick there, and not what is tried
    "max_fusion_size": (64, 64, 64, 1, 4),
    "unroll_reductions_threshold": (8, 8, 1),
    "cpp.simdlen": (None, None, None, 128, 256, 32),
    "emulate_precision_casts": (False, False, False, True),
    "pick_loop_orders": (True, True, False),
    "loop_ordering_after_fusion": (True, True, False),
    "aggressive_fusion": (False, False, True),
    "score_fusion_memory_threshold": (1, 1, 1000),
    "online_softmax": (True, True, False),
    "cpp.min_chunk_size": (4096, 4096, 1),
    "cpp.threads": (-1, -1, 2, 1),
    "inplace_buffers": (True, True, True, False),
    "allow_buffer_reuse": (True, True, True, False),
}


def generate(seed: int) -> Program:
    """Twenty to sixty steps."""
    return Generator(random.Random(seed)).program()


class Runs:
    """The same lines run three ways, with a way back from a line that is not wanted."""

    def __init__(self, inputs: tuple[Input, ...]) -> None:
        self.seen: list[torch.dtype] = []
        eager = namespace()
        for i in inputs:
            eager[i.name] = eval(i.text, eager)
        names = [i.name for i in inputs]
        self.values = [{n: eager[n] for n in names}]
        for _ in range(2):
            wide = widened([eager[n] for n in names])
            self.values.append(dict(zip(names, wide, strict=True)))
        self.wide = [Widened(self.seen, 0), Widened(self.seen, 1)]
        self.modes = [Watched(self.seen), *self.wide]

    @property
    def eager(self) -> dict[str, torch.Tensor]:
        return self.values[0]

    def do(self, step: Step) -> bool:
        """Run a line in all; a line that fails, or gives no tensor, leaves no trace."""
        before = copy.deepcopy(self.values) if not step.name else [dict(v) for v in self.values]
        length = len(self.seen)
        try:
            for mode, values in zip(self.modes, self.values, strict=True):
                self._do(step, mode, values)
            kept = self._comparable(step)
        except (RuntimeError, IndexError, TypeError, ValueError, NotImplementedError):
            # Lines are drawn at random: torch refuses many, and such a program is none to compare.
            kept = False
        if not kept:
            self.values = before
            del self.seen[length:]
        for wide in self.wide:
            wide.at = len(self.seen)
        return kept

    def _do(self, step: Step, mode: Any, values: dict[str, torch.Tensor]) -> None:
        space = namespace() | values
        wide = torch.float64 if isinstance(mode, Widened) else torch.float32
        with torch.no_grad(), default_dtype(wide), mode:
            exec(step.text, space)
        if step.name:
            values[step.name] = space[step.name]

    def _comparable(self, step: Step) -> bool:
        if not step.name:
            return all(self._is_comparable(name) for name in self.eager)
        made = self.eager[step.name]
        if not isinstance(made, torch.Tensor) or made.dtype not in DTYPES.values():
            return False
        small = made.numel() <= MOST_ELEMENTS and made.dim() <= MOST_DIMENSIONS
        return small and self._is_comparable(step.name)

    def _is_comparable(self, name: str) -> bool:
        eager, exact, noisy = (values[name] for values in self.values)
        if not eager.is_floating_point():
            return bool(torch.equal(eager, exact) and torch.equal(eager, noisy))
        finite = eager.isfinite()
        if not torch.equal(finite, exact.isfinite()) or not torch.equal(finite, noisy.isfinite()):
            return False
        if not finite.any():
            return True
        largest = float(eager[finite].abs().max())
        spread = float((noisy - exact)[finite].abs().max())
        return largest <= MOST_MAGNITUDE and spread <= MOST_SPREAD * (largest + 1e-6)


class Generator:
    """Draws one program."""

    def __init__(self, source: random.Random) -> None:
        self.source = source
        self.sizes = source.sample(SIZES, 3)
        self.inputs = self._inputs()
        self.runs = Runs(self.inputs)
        self.steps: list[Step] = []

    def program(self) -> Program:
        wanted = round(self.source.triangular(20, 60, 20))  # short ones more often: they are quick
        for _ in range(4 * wanted):
            if len(self.steps) < wanted:
                self._step()
        return Program(self.inputs, tuple(self.steps), self._outputs(), self._options())

    # -- inputs ------------------------------------------------------------------------------

    def _inputs(self) -> tuple[Input, ...]:
        made = [self._input(f"x{k}") for k in range(self.source.randint(1, 4))]
        first = made[0]
        if first.shape and first.shape[-1] > 1 and self.source.random() < 0.1:
            shape = (*first.shape[:-1], first.shape[-1] - 1)
            made.append(Input(f"x{len(made)}", shape, first.dtype, base=first.name))
        return tuple(made)

    def _input(self, name: str) -> Input:
        draw = self.source
        dtype = draw.choice([*FLOATS, "float32", "float32", "float32", *DTYPES])
        shape = self._shape()
        rank = len(shape)
        layouts = [n for n in LAYOUTS if rank >= {"transposed": 2, "contiguous": 0}.get(n, 1)]
        layout = draw.choice(["contiguous", *layouts])
        special = dtype in FLOATS and draw.random() < 0.06
        return Input(name, shape, dtype, draw.randint(1, 99), layout, special)

    def _shape(self) -> tuple[int, ...]:
        """Of the program's few sizes and ones, so that operands often broadcast."""
        rank = self.source.choice([2, 2, 3, 3, 1, 4, 0])
        shape = [self.source.choice([*self.sizes, *self.sizes, 1]) for _ in range(rank)]
        if rank and self.source.random() < 0.02:
            shape[self.source.randrange(rank)] = 0
        while torch.Size(shape).numel() > MOST_ELEMENTS:
            shape[shape.index(max(shape))] = 2
        return tuple(shape)

    # -- steps -------------------------------------------------------------------------------

    def _step(self) -> None:
        family = self.source.choice(WEIGHTED)
        operands = [n for n, t in self.runs.eager.items() if family.takes(t)]
        if not operands:
            return
        # Late values more often: programs grow deep, and what is made is used.
        a = self.source.choice(operands[-8:] if self.source.random() < 0.7 else operands)
        template = self._filled(self.source.choice(family.texts), a)
        if template is None:
            return
        step = self._numbered(family, *template)
        if self.runs.do(step):
            self.steps.append(step)

    def _numbered(self, family: Family, text: str, names: dict[str, str]) -> Step:
        """Tensors in holes become numbered operands, so that a shrinker can exchange them."""
        order = list(names)
        holes = {hole: f"{{{order.index(hole)}}}" for hole in order}
        name = "" if family is MUTATIONS else f"v{len(self.steps)}"
        return Step(name, text.format(**holes), tuple(names.values()))

    def _filled(self, text: str, a: str) -> tuple[str, dict[str, str]] | None:
        """The text with numbers in it, and the tensors for the holes that remain."""
        x = self.runs.eager[a]
        names = {"a": a}
        for hole, fits in (("b", broadcasts), ("s", same_shape), ("c", is_mask)):
            if f"{{{hole}}}" in text:
                pool = [n for n, t in self.runs.eager.items() if fits(x, t)]
                if not pool:
                    return None
                names[hole] = self.source.choice(pool)
        for hole in ("j", "g"):
            if f"{{{hole}}}" in text:
                if not x.dim():
                    return None
                text = self._indexed(text, hole, x, names)
        kept = {hole: f"{{{hole}}}" for hole in names}
        return text.format(**kept, **self._numbers(x)), names

    def _indexed(self, text: str, hole: str, x: torch.Tensor, names: dict[str, str]) -> str:
        """The text with an index in its hole: an integer value of the program, or counted."""
        pool = [
            n
            for n, t in self.runs.eager.items()
            if not t.is_floating_point()
            and (t.shape == x.shape if hole == "g" else t.dim() > 0 and t.numel() <= 40)
        ]  # fmt: skip
        index = f"{{{hole}}}.long()"
        if pool and self.source.random() < 0.9:
            names[hole] = self.source.choice(pool)
        else:
            index = "torch.arange({a}.numel()).view_as({a})" if hole == "g" else "torch.arange(5)"
        d = self.source.randrange(x.dim()) if hole == "g" else 0
        if hole == "g":
            text = text.replace("{d}", str(d))
        return text.replace(f"{{{hole}}}", f"({index} % {max(x.shape[d], 1)})")

    def _numbers(self, x: torch.Tensor) -> dict[str, Any]:
        draw, rank = self.source, x.dim()
        return {
            "d": draw.randint(-rank, max(rank - 1, 0)),
            "e": draw.randint(0, max(rank - 1, 0)),
            "n": draw.randint(0, 3),
            "k": draw.randint(1, 3),
            "t": draw.choice(list(DTYPES)),
            "f": draw.choice(FLOATS),
            "z": self._new_shape(x.numel()),
            "p": tuple(draw.sample(range(rank), rank)),
            "r": tuple(draw.randint(1, 2) for _ in range(rank + draw.randint(0, 1))),
            "i": f"torch.tensor({[draw.randint(-1, 1) for _ in range(draw.randint(1, 4))]})",
            "l": x.shape[-1] if rank else 3,
        }

    def _new_shape(self, n: int) -> tuple[int, ...]:
        factors = [k for k in (2, 3, 4, 5, 8, 16) if n and n % k == 0]
        if not factors:
            return (1, n)
        k = self.source.choice(factors)
        return self.source.choice([(k, n // k), (n // k, k), (n // k, 1, k)])

    # -- what is returned, and how it is compiled --------------------------------------------

    def _outputs(self) -> tuple[str, ...]:
        """What nothing uses, and now and then more."""
        used = {name for step in self.steps for name in step.operands if step.name}
        made = [step.name for step in self.steps if step.name]
        chosen = [n for n in made if n not in used or self.source.random() < 0.1]
        return tuple(chosen or made[-1:] or [self.inputs[0].name])

    def _options(self) -> dict[str, Any]:
        drawn = {name: self.source.choice(values) for name, values in OPTIONS.items()}
        changed = {name: value for name, value in drawn.items() if value != OPTIONS[name][0]}
        return changed | ALWAYS


def broadcasts(x: torch.Tensor, y: torch.Tensor) -> bool:
    try:
        return bool(torch.broadcast_shapes(x.shape, y.shape).numel() <= MOST_ELEMENTS)
    except RuntimeError:
        return False


def same_shape(x: torch.Tensor, y: torch.Tensor) -> bool:
    return bool(x.shape == y.shape)


def is_mask(x: torch.Tensor, y: torch.Tensor) -> bool:
    return y.dtype is torch.bool and broadcasts(x, y)
