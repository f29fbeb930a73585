"""Random programs: each step is executed when it is drawn, and kept if its value can be compared.

In: a seed. Out: `Program`. `trials` runs a step at the sizes of every call and decides whether it
is kept. Some of the programs are called once; the others in a call mode that `call_modes` draws.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from litz.fuzz.call_modes import SMALL, Sizes, draw_call_mode, draw_sizes, holds_layers
from litz.fuzz.dynamo import with_gradients
from litz.fuzz.program import (
    DTYPES,
    FLOATS,
    LAYOUTS,
    NAMES,
    PLAIN,
    POSITIVE,
    CallMode,
    Input,
    Program,
    Step,
)  # fmt: skip
from litz.fuzz.reference import memory
from litz.fuzz.trials import Trials
from litz.fuzz.vocabulary import LAYERS, MUTATIONS, WEIGHTED, Family

MOST_ELEMENTS = 2500
MOST_OF_CALLS = 40_000  # elements of a value in programs that are called at several sizes

# Set in every program: it shows reads of memory that nothing wrote, and writes past its end.
ALWAYS = {"debug_poison_memory": True}
# Flags that change the code and must not change its meaning, the default first.
OPTIONS: dict[str, tuple[Any, ...]] = {
    "cpp.opt_level": (2, 1, 0, 0, 0, 0),  # mostly 0: LLVM is fast there, and is not under test
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
    "use_dce": (True, True, True, False),
    "joint_graph_constant_folding": (True, True, True, False),
    "split_reductions": (True, True, False),
    "epilogue_fusion": (True, True, False),
    "prologue_fusion": (True, True, False),
    "realize_reads_threshold": (4, 4, 0, 64),
    "realize_opcount_threshold": (30, 30, 0, 200),
    "max_fusion_unique_io_buffers": (None, None, None, 2),
    "multi_kernel_hints": ((), (), (), (16, 130)),
    "max_autotune_gemm_backends": ("ATEN,LITZ", "ATEN,LITZ", "ATEN"),
    "cpp.weight_prepack": (True, True, False),
    "cpp.enable_concat_linear": (False, False, True),
    "fallback_by_default": (False,) * 9 + (True,),
}


# Parts of texts whose results may have as many elements as the square of their operand's.
GROWS = ("@", "diag_embed", "outer", "meshgrid", "einsum", "linear({", "torch.eye", "addmm")
# Holes for parameters, and their names.
PARAMETER, PARAMETER_NAME = re.compile(r"\{([wWuU]):([a-z0-9,]+)\}"), re.compile(r"p\d")
MOST_OF_PARAMETER = 10_000  # elements
OFTEN = 0.3  # the probability that a step of a module is a layer
Fits = Callable[[torch.Tensor, torch.Tensor, int], bool]


def generate(seed: int) -> Program:
    """A program of twenty to sixty steps."""
    call_mode, calls = draw_call_mode(seed)
    layers = (calls > 1 or call_mode != PLAIN) and holds_layers(seed)
    return Generator(random.Random(seed), call_mode, calls, layers).program()


class Generator:
    """Draws one program."""

    def __init__(
        self, source: random.Random, call_mode: CallMode, calls: int, layers: bool = False
    ) -> None:
        self.source, self.call_mode, self.calls = source, call_mode, calls
        self.is_plain, self.layers = calls == 1 and call_mode == PLAIN, layers
        self.most = MOST_ELEMENTS if self.is_plain else MOST_OF_CALLS
        self.sizes: Sizes = (
            [[n] for n in source.sample(SMALL, 3)]
            if self.is_plain
            else draw_sizes(source, calls, layers)
        )
        self.inputs = self._inputs()
        self.trials = Trials(self.inputs, self.most)
        self.steps: list[Step] = []

    def program(self) -> Program:
        longest = 60 if self.is_plain else 30
        wanted = round(self.source.triangular(20, longest, 20))  # short ones are more frequent
        for _ in range(4 * wanted):
            if len(self.steps) < wanted:
                self._step()
        used = {name for step in self.steps for name in step.operands}
        inputs = tuple(i for i in self.inputs if i.name in used or not PARAMETER_NAME.match(i.name))
        parts = inputs, tuple(self.steps), self._outputs(), self._options()
        program = Program(*parts, call_mode=self.call_mode)
        if self.call_mode.gradients and not _is_differentiable(program):
            return replace(program, call_mode=replace(self.call_mode, gradients=False, dynamo=True))
        return program

    # -- inputs ------------------------------------------------------------------------------

    def _inputs(self) -> tuple[Input, ...]:
        made = [self._input(f"x{k}") for k in range(self.source.randint(1, 4))]
        first = made[0]
        is_wide = all(s and s[-1] > 1 for s in first.shapes) and not self.call_mode.gradients
        if is_wide and self.source.random() < 0.1:
            shapes = [(*s[:-1], s[-1] - 1) for s in first.shapes]
            shown = Input(f"x{len(made)}", (), first.dtype, base=first.name)
            made.append(shown.reshaped(shapes))
        return tuple(made)

    def _input(self, name: str) -> Input:
        draw = self.source
        dtype = draw.choice([*FLOATS, "float32", "float32", "float32", *DTYPES])
        shapes = self._shapes()
        rank = len(shapes[0])
        layouts = [n for n in LAYOUTS if rank >= {"transposed": 2, "contiguous": 0}.get(n, 1)]
        layout = draw.choice(["contiguous", *layouts])
        special = dtype in FLOATS and draw.random() < 0.06 and not self.call_mode.gradients
        made = Input(name, (), dtype, draw.randint(1, 99), layout, special)
        return made.reshaped(shapes)

    def _shapes(self) -> list[tuple[int, ...]]:
        """A shape for each call, from the program's few sizes and ones, which often broadcast."""
        rank = self.source.choice([2, 2, 3, 3, 1, 4, 0])
        one = [1] * self.calls
        dims = [self.source.choice([*self.sizes, *self.sizes, one]) for _ in range(rank)]
        if rank and self.source.random() < 0.02:
            dims[self.source.randrange(rank)] = [0] * self.calls
        while max(math.prod(d[k] for d in dims) for k in range(self.calls)) > self.most:
            dims[dims.index(max(dims, key=max))] = [2] * self.calls
        return [tuple(d[call] for d in dims) for call in range(self.calls)]

    # -- steps -------------------------------------------------------------------------------

    def _step(self) -> None:
        is_layer = self.layers and self.source.random() < OFTEN
        family = self.source.choice(LAYERS if is_layer else WEIGHTED)
        operands = [n for n, t in self.trials.eager.items() if family.takes(t)]
        if family is MUTATIONS:
            operands = [n for n in operands if self._may_change(n)]
        if not operands:
            return
        # Later values more often: programs grow deep, and most values are used.
        a = self.source.choice(operands[-8:] if self.source.random() < 0.7 else operands)
        text = self.source.choice(family.texts)
        is_large = max(shape.numel() for shape in self.trials.shapes(a)) > MOST_ELEMENTS
        if is_large and any(sign in text for sign in GROWS):
            return
        pieces = range(-1, self.source.randint(1, 2)) if "{q}" in text else [0]
        for piece in pieces:
            template = self._filled(text, a, piece)
            if template is None:
                return
            step = replace(self._numbered(family, *template), drawn=text)
            if self.trials.do(step):
                self.steps.append(step)

    def _may_change(self, name: str) -> bool:
        """Whether a value may be mutated. Autograd refuses it if gradients are asked for; and a
        module's parameter is not among the inputs that are compared after a call."""
        fixed = [i.name for i in self.inputs if self.call_mode.gradients or i.parameter]
        values = self.trials.eager
        return memory(values[name]) not in {memory(values[n]) for n in fixed}

    def _numbered(self, family: Family, text: str, names: dict[str, str]) -> Step:
        """Tensors in holes become numbered operands, so that a shrinker can exchange them."""
        order = list(names)
        holes = {hole: f"{{{order.index(hole)}}}" for hole in order}
        name = "" if family is MUTATIONS else f"v{len(self.steps)}"
        return Step(name, text.format(**holes), tuple(names.values()))

    def _filled(self, text: str, a: str, piece: int) -> tuple[str, dict[str, str]] | None:
        """The text with its numbers filled in, and the tensors for the remaining holes."""
        x = self.trials.eager[a]
        names = {"a": a}
        text = text.replace("{q}", str(piece))
        if PARAMETER.search(text):
            filled = self._with_parameters(text, a, names)
            if filled is None:
                return None
            text = filled
        for hole, fits in (("b", broadcasts), ("s", same_shape), ("c", is_mask)):
            if f"{{{hole}}}" in text:
                pool = [n for n in self.trials.eager if self._fits(fits, a, n)]
                if not pool:
                    return None
                names[hole] = self.source.choice(pool)
        for hole in ("j", "g"):
            if f"{{{hole}}}" in text:
                if not x.dim():
                    return None
                text = self._indexed(text, hole, x, names)
        kept = {hole: f"{{{hole}}}" for hole in names}
        numbers = self._numbers(a, x)
        return text.format(**kept, **numbers), names

    def _with_parameters(self, text: str, a: str, names: dict[str, str]) -> str | None:
        """The text with a new parameter in each parameter hole; None if the operand's sizes, and so
        the parameters', change from call to call."""
        shapes = self.trials.shapes(a)
        sizes = {"l": {s[-1] for s in shapes if s}, "c": {s[1] for s in shapes if len(s) > 1}}
        known = {letter: found.pop() for letter, found in sizes.items() if len(found) == 1}
        dtype = self.trials.eager[a].dtype if self.trials.eager[a].is_floating_point() else None
        while (hole := PARAMETER.search(text)) is not None:
            kind, letters = hole.groups()
            if not all(n.isdigit() or n in known for n in letters.split(",")):
                return None
            shape = tuple(int(n) if n.isdigit() else known[n] for n in letters.split(","))
            if math.prod(shape) > MOST_OF_PARAMETER:
                return None
            name = f"p{len(self.inputs)}"
            self._give(name, shape, NAMES[dtype or torch.float32], kind)
            names[name] = name
            text = text.replace(hole.group(), f"{{{name}}}", 1)
        return text

    def _give(self, name: str, shape: tuple[int, ...], dtype: str, kind: str) -> None:
        """Add an input: a parameter if this program is a module and the layer does not write to
        it."""
        layout = POSITIVE if kind.isupper() else "contiguous"
        held = self.layers and kind.lower() == "w"
        made = Input(name, (), dtype, self.source.randint(1, 99), layout, parameter=held)
        self.inputs = (*self.inputs, made.reshaped([shape] * self.calls))
        self.trials.give(self.inputs[-1])

    def _fits(self, fits: Fits, a: str, name: str) -> bool:
        """Whether an operand fits in every call."""
        every = (run.eager for run in self.trials.runs)
        return all(fits(values[a], values[name], self.most) for values in every)

    def _indexed(self, text: str, hole: str, x: torch.Tensor, names: dict[str, str]) -> str:
        """The text with an index in its hole: an integer value of the program, or a constant."""
        pool = [
            n
            for n, t in self.trials.eager.items()
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
        size = f"({{a}}.shape[{d}] or 1)" if self.calls > 1 else str(max(x.shape[d], 1))
        return text.replace(f"{{{hole}}}", f"({index} % {size})")

    def _numbers(self, a: str, x: torch.Tensor) -> dict[str, Any]:
        draw, rank = self.source, x.dim()
        return {
            "d": draw.randint(-rank, max(rank - 1, 0)),
            "e": draw.randint(0, max(rank - 1, 0)),
            "n": draw.randint(0, 3),
            "k": draw.randint(1, 3),
            "t": draw.choice(list(DTYPES)),
            "f": draw.choice(FLOATS),
            "z": self._new_shape([shape.numel() for shape in self.trials.shapes(a)]),
            "p": tuple(draw.sample(range(rank), rank)),
            "r": tuple(draw.randint(1, 2) for _ in range(rank + draw.randint(0, 1))),
            "i": f"torch.tensor({[draw.randint(-1, 1) for _ in range(draw.randint(1, 4))]})",
            "l": ("{a}.shape[-1]" if self.calls > 1 else x.shape[-1]) if rank else 3,
        }

    def _new_shape(self, counts: list[int]) -> tuple[int, ...]:
        """A shape with as many elements, in every call."""
        n = counts[0] if self.calls == 1 else -1
        factors = [k for k in (2, 3, 4, 5, 8, 16) if all(m and m % k == 0 for m in counts)]
        if not factors:
            return (1, n)
        k = self.source.choice(factors)
        rest = n // k if self.calls == 1 else -1
        return self.source.choice([(k, rest), (rest, k), (rest, 1, k)])

    # -- outputs and flags -------------------------------------------------------------------

    def _outputs(self) -> tuple[str, ...]:
        """The values that nothing uses, and some others. Not those that share a parameter's memory:
        a module has its own copy, not the input that a call is compared with."""
        used = {name for step in self.steps for name in step.operands if step.name}
        values = self.trials.eager
        held = {memory(values[i.name]) for i in self.inputs if i.parameter}
        steps = [step.name for step in self.steps if step.name]
        made = [name for name in steps if memory(values[name]) not in held]
        chosen = [n for n in made if n not in used or self.source.random() < 0.1]
        return tuple(chosen or made[-1:] or [self.inputs[0].name])

    def _options(self) -> dict[str, Any]:
        drawn = {name: self.source.choice(values) for name, values in OPTIONS.items()}
        changed = {name: value for name, value in drawn.items() if value != OPTIONS[name][0]}
        return changed | ALWAYS


def _is_differentiable(program: Program) -> bool:
    """Whether eager computes its gradients: autograd refuses some mutations in the backward."""
    run = with_gradients(program.function())
    try:
        for call in range(program.calls):
            run(*program.fresh_inputs(call))
    except RuntimeError:
        return False
    return True


def broadcasts(x: torch.Tensor, y: torch.Tensor, most: int) -> bool:
    try:
        return bool(torch.broadcast_shapes(x.shape, y.shape).numel() <= most)
    except RuntimeError:
        return False


def same_shape(x: torch.Tensor, y: torch.Tensor, _: int) -> bool:
    return bool(x.shape == y.shape)


def is_mask(x: torch.Tensor, y: torch.Tensor, most: int) -> bool:
    return y.dtype is torch.bool and broadcasts(x, y, most)
