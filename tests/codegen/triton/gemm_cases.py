"""Matrix products as the GPU computes them: every form, type and layout, at small sizes with edges.

In: `TRITON_INTERPRET=1 python -m tests.codegen.triton.gemm_cases`. Out: a line of JSON for a
case, as `cases` prints them: its name, what was wrong with it, and its kernels.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from litz.ir.choices import ANY, Choices, GemmChoice
from tests import draws
from tests.codegen.triton.apart import told
from tests.codegen.triton.cases import _interpreter
from tests.stages import as_array

TILE = {"height": 32, "width": 32, "step": 32, "warps": 4, "stages": 2}
TYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32, "i8": torch.int8}


def drawn(seed: int, *shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    generator = draws.generator(seed)
    if dtype is torch.int8:
        return torch.randint(-90, 90, shape, generator=generator).to(dtype)
    return torch.randn(*shape, generator=generator).to(dtype)


@dataclass(frozen=True)
class Case:
    """A function of products, the choice about them, and how many kernels it becomes."""

    function: Callable[..., Any]
    inputs: tuple[torch.Tensor, ...]
    choice: GemmChoice
    descriptors: tuple[str, ...] = ()
    kernels: int = 1
    options: dict[str, Any] = field(default_factory=dict)
    loose: float = 1e-5
    tf32: bool = False
    in_turns: bool = False  # by rule; a choice says it itself


def _choice(form: str, **more: Any) -> GemmChoice:
    return GemmChoice(form=form, **{**TILE, **more})


def _forms() -> dict[str, Case]:
    """x @ w of 70 x 96 by 96 x 90: both sides end inside a tile. The weight lies either way."""
    found = {}
    for name, dtype in TYPES.items():
        rows, columns = (64, 96) if name == "i8" else (70, 90)
        x = drawn(0, rows, 96, dtype=dtype)
        product = torch._int_mm if name == "i8" else torch.mm
        for form in ("TILES", "DESCRIPTORS", "PERSISTENT"):
            w = drawn(1, columns, 96, dtype=dtype)
            copied = () if form == "TILES" else ("left", "right")
            given = {"tf32": name == "f32"}
            turned = Case(lambda x, w, p=product: p(x, w.t()), (x, w), _choice(form), copied)
            found[f"{name} {form}"] = replace(turned, **given)
            wide = drawn(1, 96, columns + 6, dtype=dtype)
            halves = name in ("bf16", "f16")
            copied = copied if halves else copied[:1]
            plain = Case(lambda x, w, p=product: p(x, w), (x, wide), _choice(form), copied)
            found[f"{name} {form} by rows"] = replace(plain, **given)
    return found


E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
ONE_SCALE = torch.tensor(0.7), torch.tensor([[1.3]])
SCALES = drawn(8, 48, 1).float().abs(), drawn(9, 1, 80).float().abs()


def _scaled(left: torch.dtype, right: torch.dtype, form: str, **given: Any) -> Case:
    """48 x 96 by 96 x 80, whose last tiles are not full."""
    x, w = drawn(0, 48, 96, dtype=left), drawn(1, 80, 96, dtype=right)
    scales, out = given.pop("scales", ONE_SCALE), given.pop("out", torch.bfloat16)
    bias = drawn(2, 80)

    def function(x: Any, w: Any, a: Any, b: Any, bias: Any) -> Any:
        return torch._scaled_mm(x, w.t(), a, b, bias, out_dtype=out).relu()

    copied = () if form == "TILES" else ("left", "right")
    return Case(function, (x, w, *scales, bias), _choice(form, step=64), copied, loose=EPILOGUE,
                **given)  # fmt: skip


X, W, B, R = drawn(0, 70, 96), drawn(1, 90, 96), drawn(2, 90), drawn(3, 70, 90)
IMAGE = drawn(0, 2, 96, 5, 7).to(memory_format=torch.channels_last)
THREE, FOUR = drawn(4, 3, 40, 64), drawn(5, 3, 64, 48)
# A sum in another order may be rounded to a neighbour.
ONE_BIT = {torch.bfloat16: 2**-7, torch.float16: 2**-10}
EPILOGUE = 2e-2  # halves are rounded where they are stored, and that differs from stage to stage
EAGER = 2e-2  # the same, and of sums

CASES: dict[str, Case] = {
    **_forms(),
    "exact f32": Case(
        lambda x, w: x @ w, (drawn(0, 70, 96).float(), drawn(1, 96, 90).float()),
        _choice("DESCRIPTORS", step=16),
    ),
    "odd sum": Case(torch.mm, (drawn(0, 70, 50), drawn(1, 50, 90)), _choice("DESCRIPTORS")),
    "linear, gelu": Case(
        lambda x, w, b: F.gelu(F.linear(x, w, b)), (X, W, B), _choice("PERSISTENT"),
        ("left", "right"), loose=EPILOGUE,
    ),
    "residual": Case(
        lambda x, w, r: F.linear(x, w) + r, (X, W, R), _choice("DESCRIPTORS"), ("left", "right"),
        loose=EPILOGUE,
    ),
    "epilogue apart": Case(
        lambda x, w, r: F.linear(x, w) + r, (X, W, R), _choice("TILES", fused=False), (), 2,
        loose=EPILOGUE,
    ),
    "two results": Case(
        lambda x, w: (F.linear(x, w).relu(), F.linear(x, w) > 0), (X, W), _choice("TILES"),
        loose=EPILOGUE,
    ),
    "scaled": Case(
        lambda b, x, w: torch.addmm(b, x, w.t(), beta=0.5, alpha=2), (B, X, W), _choice("TILES"),
        loose=EPILOGUE,
    ),
    **{
        f"batch {form}": Case(torch.bmm, (THREE, FOUR), _choice(form), copied, loose=EPILOGUE)
        for form, copied in (("TILES", ()), ("PERSISTENT", ("left", "right")))
    },
    "batch of heads": Case(
        lambda q, k: q @ k.transpose(-1, -2), (drawn(6, 2, 3, 40, 32), drawn(7, 2, 3, 48, 32)),
        _choice("DESCRIPTORS"), ("left", "right"), loose=EPILOGUE,
    ),
    **{
        f"slices {form}": Case(
            lambda x, w: F.linear(x, w).relu(), (X, W), _choice(form, split_k=3), copied, 2,
            loose=EPILOGUE,
        )
        for form, copied in (("TILES", ()), ("DESCRIPTORS", ("left", "right")))
    },
    "by rule, since memory is what takes the time": Case(
        lambda x, w, b: F.linear(x, w, b).relu(),
        (drawn(0, 1100, 48), drawn(1, 128, 48), drawn(2, 128)),
        GemmChoice(), ("left", "right"), loose=EPILOGUE, in_turns=True,
    ),
    **{
        f"convolution {form}": Case(
            lambda x, w, b: F.conv2d(x, w, b).relu(), (IMAGE, drawn(1, 90, 96, 1, 1), B),
            _choice(form), copied, loose=EPILOGUE,
        )
        for form, copied in (("TILES", ()), ("PERSISTENT", ("left", "right")))
    },
    **{f"scaled e4m3 {form}": _scaled(E4M3, E4M3, form)
       for form in ("TILES", "DESCRIPTORS", "PERSISTENT")},
    "scaled e4m3 by e5m2": _scaled(E4M3, E5M2, "TILES", out=torch.float32),
    "scaled e5m2 by e4m3": _scaled(E5M2, E4M3, "DESCRIPTORS", out=torch.float16),
    **({"scaled by rows and columns": _scaled(E4M3, E4M3, "TILES", scales=SCALES)}
       if torch.__version__ >= "2.13" else {}),  # eager has no such scales before, on a CPU
    "scaled in slices": Case(
        lambda x, w, a, b: torch._scaled_mm(x, w.t(), a, b, out_dtype=torch.bfloat16),
        (drawn(0, 48, 96, dtype=E4M3), drawn(1, 80, 96, dtype=E4M3), *ONE_SCALE),
        _choice("TILES", split_k=3), (), 2, loose=EPILOGUE,
    ),
    "scaled by rule, without the library": Case(
        lambda x, w, a, b: torch._scaled_mm(x, w.t(), a, b, out_dtype=torch.bfloat16),
        (drawn(0, 80, 96, dtype=E4M3), drawn(1, 80, 96, dtype=E4M3), *ONE_SCALE), GemmChoice(),
        options={"max_autotune_gemm_backends": "LITZ"}, loose=EPILOGUE,
    ),
    "by rule, without the library": Case(
        lambda x, w: x @ w, (drawn(0, 70, 64), drawn(1, 64, 90)), GemmChoice(),
        options={"max_autotune_gemm_backends": "TRITON"},
    ),
}  # fmt: skip


def _int8(x: torch.Tensor, w: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    """One scale for each column."""
    return x @ (w.to(x.dtype) * s[:, None]).t()


def _int8_in_groups(x: torch.Tensor, w: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    """One for each column and 32 points of the sum; the weight lies the other way round."""
    return x @ (w.to(x.dtype).view(-1, 32, w.shape[1]) * s[:, None]).reshape(w.shape)


def _int4(x: torch.Tensor, w: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    """Two numbers in a byte, the even one in its low half."""
    numbers = torch.stack([w & 15, w >> 4], -1).reshape(len(w), -1, 32)
    return x @ ((numbers.to(x.dtype) - 8) * s.t()[:, :, None]).reshape(len(w), -1).t()


def _normed(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)) @ w.t()


I8, U8 = drawn(8, 90, 96, dtype=torch.int8), drawn(9, 90, 48, dtype=torch.int8).view(torch.uint8)
S, G = drawn(10, 90) / 8, drawn(11, 3, 90) / 8
ROWS = torch.randint(0, 70, (40,), generator=draws.generator(12))
INSIDE = _choice("TILES", prologue=True)
ALONE = {"max_autotune_gemm_backends": "LITZ"}
# What computes an operand, computed where it is read.
CASES |= {
    "bytes": Case(lambda x, w: x @ w.to(x.dtype).t(), (X, I8), INSIDE),
    "bytes of both": Case(
        lambda x, w: x.bfloat16() @ w.bfloat16().t(), (drawn(0, 70, 96, dtype=torch.int8), I8),
        INSIDE, loose=EPILOGUE,
    ),
    "int8": Case(_int8, (X, I8, S), INSIDE, loose=EPILOGUE),
    "int8, other operand copied": Case(
        _int8, (X, I8, S), _choice("PERSISTENT", prologue=True), ("left",), loose=EPILOGUE
    ),
    "int8, f32": Case(
        _int8, (X.float(), I8, S.float()), _choice("TILES", step=16, prologue=True), loose=1e-4
    ),  # of sums up to 200, some of which are near zero
    "int8, f16": Case(_int8, (X.half(), I8, S.half()), INSIDE, loose=EPILOGUE),
    "int8 in groups": Case(_int8_in_groups, (X, I8.t().contiguous(), G), INSIDE, loose=EPILOGUE),
    "int4": Case(_int4, (X, U8, G), INSIDE, loose=EPILOGUE),
    "int8 of an odd sum": Case(
        lambda x, w, s: _int8(x + 1, w + 3, s), (X[:, :50], I8[:, :50].contiguous(), S), INSIDE,
        loose=EPILOGUE,
    ),
    "int8 in slices": Case(
        _int8, (X, I8, S), _choice("TILES", prologue=True, split_k=3), (), 2, loose=EPILOGUE
    ),
    "int8 apart": Case(
        _int8, (X, I8, S), _choice("TILES", prologue=False), (), 2, loose=EPILOGUE
    ),
    "int8 by rule": Case(_int8, (X, I8, S), GemmChoice(), options=ALONE, loose=EPILOGUE),
    "a cast, and more behind": Case(
        lambda x, w, b: F.gelu(F.linear(x.bfloat16(), w, b)), (X.float(), W, B), INSIDE,
        loose=EPILOGUE,
    ),
    "gate": Case(lambda g, x, w: (F.silu(g) * x) @ w.t(), (X, X + 1, W), INSIDE, loose=EPILOGUE),
    "norm": Case(_normed, (X, W), INSIDE, (), 2, loose=EPILOGUE),
    "rows of a table": Case(
        lambda x, rows, w: x[rows] @ w.t(), (X, ROWS, W), INSIDE, loose=EPILOGUE
    ),
    "one row for all": Case(
        lambda x, w: (x[:1] * 2).expand(70, 96) @ w.t(), (X, W), INSIDE, loose=EPILOGUE
    ),
    "batch of bytes": Case(
        lambda x, w: x @ w.to(x.dtype), (THREE, drawn(5, 3, 64, 48, dtype=torch.int8)), INSIDE,
        loose=EPILOGUE,
    ),
}  # fmt: skip


def check(name: str) -> list[dict[str, Any]]:
    """Run a case and compare it; its kernels, as they go to the builder."""
    there, case = _interpreter(), CASES[name]
    target = replace(there.TARGET, threads=4, gemm_max_rows=1)
    choices = Choices(gemms={ANY: case.choice})
    options = {**case.options, "target": target, "choices": choices}
    torch.backends.cuda.matmul.allow_tf32 = case.tf32
    made = there.tiled(lambda *args: case.function(*args), *case.inputs, **options)
    tilings = [k.choice for k in made.scheduled if k.choice.depth]
    assert len(tilings) == 1 and len(made.scheduled) == case.kernels, made.scheduled
    assert tilings[0].descriptors == case.descriptors, tilings[0]
    in_turns = case.in_turns or case.choice.form == "PERSISTENT"
    assert (tilings[0].programs > 0) == in_turns
    graph, device = there.graph_of(made)
    found = [as_array(t) for t in there.ran(graph, device, made.inputs)]
    expected = made.fused()
    exact = max(case.loose, ONE_BIT.get(case.inputs[0].dtype, 0.0))
    for k, (a, b) in enumerate(zip(found, expected, strict=True)):
        np.testing.assert_allclose(a, b, rtol=exact, atol=exact, err_msg=f"result {k}")
    if case.choice.prologue is not None:  # roundings between may be left out; nothing else may
        wanted = as_array(case.function(*case.inputs))
        np.testing.assert_allclose(found[0], wanted, rtol=EAGER, atol=EAGER * abs(wanted).max())
    return [asdict(kernel) for kernel in device.source.kernels]


if __name__ == "__main__":
    told(sys.argv[1:], CASES, check)
