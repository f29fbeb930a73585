"""Matrix products of ours run under Triton's interpreter, and are compiled for a real GPU."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode

from litz.build import triton as built
from litz.config import snapshot
from litz.ir.choices import ANY, BY_RULE, Choices, GemmChoice
from litz.ir.scheduled import Tiling
from litz.ir.source import DeviceKernel
from litz.target import cuda
from tests.codegen.triton.apart import Outcomes, outcomes
from tests.codegen.triton.gemm_cases import CASES
from tests.stages import Stages, staged, through_aot

pytest.importorskip("triton")
ROOT = Path(__file__).parents[3]
ELF = b"\x7fELF"


@pytest.fixture(scope="module")
def outcome() -> Outcomes:
    return outcomes("tests.codegen.triton.gemm_cases")


@pytest.mark.parametrize("name", CASES)
def test_a_product_means_what_the_loop_ir_says(name: str, outcome: Any) -> None:
    assert name in outcome, "the process ended before"
    assert not outcome[name][0], outcome[name][0]


def test_every_product_becomes_a_cubin(outcome: Any, tmp_path: Path, monkeypatch: Any) -> None:
    """No GPU, no C compiler; what is compiled ahead is not compiled again."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(built, "PRECOMPILED", {})
    kernels = [DeviceKernel(**k) for _, made in outcome.values() for k in made]
    named = {k.text: replace(k, name=k.name) for k in kernels}
    built.precompile_kernels(named.values(), 90, 2, time.monotonic() + 300)
    assert len(built.PRECOMPILED) == len(named)
    monkeypatch.setattr(built, "_here", None)
    for kernel in named.values():
        (cubin,) = built.compile_kernels((kernel,), 90, 1).values()
        assert cubin.code.startswith(ELF) and cubin.warps == kernel.warps
        assert (kernel.scratch > 0) == ("make_tensor_descriptor" in kernel.text)


def test_nothing_is_compiled_ahead_when_time_is_up(monkeypatch: Any) -> None:
    monkeypatch.setattr(built, "PRECOMPILED", {})
    monkeypatch.setattr(built.WORKERS, "run", None)
    kernel = DeviceKernel("k", "", ("*fp32",), 1, 1, 1)
    built.precompile_kernels([kernel], 90, 2, time.monotonic() - 1)
    assert not built.PRECOMPILED


def product(choice: GemmChoice, *shape: int, dtype: torch.dtype, **options: Any) -> Stages:
    """x @ w.t() of rows, sum and columns on a GPU, up to its schedule."""
    found: list[Stages] = []
    target = replace(cuda((9, 0), 132), device="cpu")
    choices = Choices(gemms={ANY: choice})

    def compiler(module: torch.fx.GraphModule) -> Any:
        found.append(staged(module, target, snapshot(options), inputs, choices))
        return module.forward

    rows, depth, columns = shape
    with FakeTensorMode(), torch.no_grad():
        inputs = [torch.empty(rows, depth, dtype=dtype), torch.empty(columns, depth, dtype=dtype)]
        through_aot(lambda x, w: x @ w.t(), compiler)(*inputs)
    return found[0]


def tiling(choice: GemmChoice, *shape: int, dtype: torch.dtype = torch.bfloat16) -> Tiling:
    (kernel,) = product(choice, *shape, dtype=dtype).scheduled
    assert eval(repr(kernel.choice), {"Tiling": Tiling}) == kernel.choice
    return kernel.choice


def test_the_library_computes_what_nobody_chose() -> None:
    assert not product(BY_RULE, 256, 64, 96, dtype=torch.bfloat16).scheduled
    assert len(product(BY_RULE, 1, 64, 96, dtype=torch.bfloat16).scheduled) == 1
    alone = {"max_autotune_gemm_backends": "LITZ"}
    assert len(product(BY_RULE, 256, 64, 96, dtype=torch.bfloat16, **alone).scheduled) == 1
    ours, library = GemmChoice(form="TILES"), {"max_autotune_gemm_backends": "ATEN"}
    assert not product(ours, 256, 64, 96, dtype=torch.bfloat16, **library).scheduled


def on_gpu(
    function: Any, *shapes: tuple[int, ...], types: tuple[torch.dtype, ...] = (),
    choice: GemmChoice = BY_RULE, **options: Any,
) -> Stages:  # fmt: skip
    """A function of bfloat16, or of these types, on a GPU, up to its schedule."""
    found: list[Stages] = []
    target = replace(cuda((9, 0), 132), device="cpu")
    choices = Choices(gemms={ANY: choice})

    def compiler(module: torch.fx.GraphModule) -> Any:
        found.append(staged(module, target, snapshot(options), inputs, choices))
        return module.forward

    with FakeTensorMode(), torch.no_grad():
        kinds = types or (torch.bfloat16,) * len(shapes)
        inputs = [torch.empty(*s, dtype=d) for s, d in zip(shapes, kinds, strict=True)]
        inputs = [t.to(memory_format=torch.channels_last) if t.dim() == 4 else t for t in inputs]
        through_aot(lambda *args: function(*args), compiler)(*inputs)
    return found[0]


def kernels_of(function: Any, *shapes: tuple[int, ...], **options: Any) -> list[Any]:
    """How kernels on a GPU are tiled, with what flags."""
    return [k.choice for k in on_gpu(function, *shapes, **options).scheduled]


SHORT = ((100352, 64), (256, 64), (256,))


def test_short_sums_with_more_behind_them_are_ours() -> None:
    """The way through memory is what takes the time; a library cannot save it."""

    def linear(x: Any, w: Any, b: Any) -> Any:
        return F.linear(x, w, b)

    (ours,) = kernels_of(lambda *args: F.gelu(linear(*args)), *SHORT)
    assert ours.depth == 64 and ours.programs == 132
    # Nothing follows it; a reduction stores what it reads anyway; few rows; a long sum; apart.
    assert not kernels_of(linear, *SHORT)
    for function, shapes, options in (
        (lambda *args: F.layer_norm(linear(*args).relu(), (256,)), SHORT, {}),
        (lambda *args: linear(*args).relu(), ((512, 64), (256, 64), (256,)), {}),
        (lambda *args: linear(*args).relu(), ((32768, 512), (256, 512), (256,)), {}),
        (lambda *args: linear(*args).relu(), SHORT, {"epilogue_fusion": False}),
    ):
        assert not any(k.depth for k in kernels_of(function, *shapes, **options))


def test_convolutions_of_single_places_are_products() -> None:
    def image(*args: Any, **more: Any) -> Any:
        return F.conv2d(*args, **more).relu()

    shapes = ((32, 64, 56, 56), (256, 64, 1, 1), (256,))
    alone = {"max_autotune_conv_backends": "TRITON"}
    (ours,) = kernels_of(image, *shapes, **alone)
    assert ours.depth == 64 and ours.descriptors == ("left", "right")
    for options in ({}, {"max_autotune_conv_backends": "ATEN"}, {"conv_1x1_as_mm": False} | alone):
        assert not any(k.depth for k in kernels_of(image, *shapes, **options))
    deep = ((32, 512, 14, 14), (256, 512, 1, 1), (256,))
    assert all(k.depth for k in kernels_of(image, *deep, **alone))
    strided = kernels_of(lambda *a: image(*a, stride=2), *deep, max_autotune_conv_backends="LITZ")
    assert not any(k.depth for k in strided)


BYTES = (torch.bfloat16, torch.int8, torch.bfloat16)
ALONE = {"max_autotune_gemm_backends": "LITZ"}


def int8(x: Any, w: Any, s: Any) -> Any:
    return x @ (w.to(x.dtype) * s[:, None]).t()


def weight(rows: int, **options: Any) -> Stages:
    """x @ w of so many rows, 256 points and 512 columns, w in int8 with a scale a column."""
    return on_gpu(int8, (rows, 256), (512, 256), (512,), types=BYTES, **options)


@pytest.mark.parametrize("rows", [1, 16, 512])
def test_a_weight_of_bytes_is_widened_where_it_is_read(rows: int) -> None:
    made = weight(rows, **({} if rows == 1 else ALONE))
    (kernel,) = made.scheduled
    assert bool(kernel.choice.depth) == (rows > 1)
    assert {b.dtype.name for b in kernel.arguments} == {"bf16", "i8"}
    reasons = [d.reason for d in made.kernels.decisions if d.action == "inlined"]
    assert reasons == ["the gemm that reads it computes it (prologue_fusion)"] * 2


@pytest.mark.parametrize(
    ("rows", "options", "reason"),
    [
        (513, {}, "each of 5 tiles would compute it"),
        (16, {"prologue_fusion": False}, "(prologue_fusion, or timing)"),
        (16, {"choice": GemmChoice(prologue=False)}, "(prologue_fusion, or timing)"),
    ],
)
def test_a_weight_is_widened_apart(rows: int, options: Any, reason: str) -> None:
    made = weight(rows, **ALONE, **options)
    assert len(made.scheduled) == 2
    assert any(d.action == "refused" and reason in d.reason for d in made.kernels.decisions)


INSIDE = GemmChoice(form="TILES", prologue=True)


def test_a_choice_overrules_the_rule_about_operands() -> None:
    assert len(weight(4096, choice=INSIDE).scheduled) == 1
    single = (torch.float32, torch.bfloat16)

    def cast(x: Any, w: Any) -> Any:
        return x.bfloat16() @ w.t()

    shapes = ((256, 64), (512, 64))
    apart = on_gpu(cast, *shapes, types=single, **ALONE)
    assert len(apart.scheduled) == 2
    assert any("moves no more bytes" in d.reason for d in apart.kernels.decisions)
    assert len(on_gpu(cast, *shapes, types=single, choice=INSIDE).scheduled) == 1


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda x, w: (lambda t: (t @ w.t(), t.sum(0)))(x.sin()), "others read it"),
        (lambda x, w: (lambda t: (t @ w.t(), t))(x.sin()), "an output or an ATen call needs it"),
        (lambda x, w: (lambda t: t @ t.t())(x.sin()), "both operands"),
        (lambda x, w: x.cumsum(1) @ w.t(), "it is a reduction"),
        (lambda x, w: F.pad(x, (1, 1))[:, 2:] @ w.t(), "no longer be a gemm"),
        (lambda x, w: (x @ w.t()).relu() @ w, "the epilogue of another gemm"),
    ],
)
def test_operands_that_no_choice_takes_in(function: Any, reason: str) -> None:
    """And what is left is a product of tensor cores."""
    made = on_gpu(function, (256, 64), (128, 64), choice=INSIDE)
    assert any(k.choice.depth for k in made.scheduled)
    refused = [d.reason for d in made.kernels.decisions if d.action == "refused"]
    assert any(reason in found for found in refused), refused


def test_a_cast_that_others_need_as_well_is_done_twice_but_no_operand_is() -> None:
    def normed(x: Any, w: Any) -> Any:
        return F.rms_norm(x, x.shape[-1:]) @ w.t()

    sums, product = on_gpu(normed, (256, 64), (128, 64), choice=INSIDE).scheduled
    assert product.choice.depth and {b.dtype.name for b in sums.arguments} == {"bf16", "f32"}

    def shared(x: Any, w: Any) -> Any:
        wide = x.float()
        return wide @ w.t().float(), (wide * 2).bfloat16() @ w.t()

    made = on_gpu(shared, (256, 64), (128, 64), choice=INSIDE)
    assert len([k for k in made.scheduled if k.choice.depth]) == 2


def test_short_sums_with_an_operand_to_compute_are_loaded_by_threads() -> None:
    shapes = ((300000, 64), (128, 64), (128,))
    made = on_gpu(lambda *args: int8(*args).relu(), *shapes, types=BYTES, choice=BY_RULE)
    assert all(k.choice.programs for k in made.scheduled if k.choice.depth)
    inside = GemmChoice(prologue=True)
    made = on_gpu(lambda *args: int8(*args).relu(), *shapes, types=BYTES, choice=inside)
    (kernel,) = made.scheduled
    assert kernel.choice.depth and not kernel.choice.programs


def test_what_is_chosen_is_done() -> None:
    chosen = GemmChoice(form="PERSISTENT", height=128, width=256, step=64, warps=8, stages=3)
    assert eval(repr(chosen)) == chosen
    made = tiling(chosen, 4096, 768, 3072)
    assert made.blocks == (128, 256) and (made.depth, made.warps, made.stages) == (64, 8, 3)
    assert made.programs == 132 and made.descriptors == ("left", "right")


@pytest.mark.parametrize(
    ("depth", "dtype"), [(100, torch.bfloat16), (99, torch.float16), (50, torch.float32)]
)
def test_rows_that_lie_unevenly_are_not_copied(depth: int, dtype: torch.dtype) -> None:
    """The engine wants 16 bytes; 100 halves are 200."""
    assert not tiling(GemmChoice(form="DESCRIPTORS"), 256, depth, 96, dtype=dtype).descriptors


def test_singles_are_shortened_only_where_torch_may() -> None:
    ours = GemmChoice(form="TILES")
    assert tiling(ours, 256, 64, 96, dtype=torch.float32).precision == "ieee"
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        assert tiling(ours, 256, 64, 96, dtype=torch.float32).precision == "tf32"
        assert tiling(ours, 256, 64, 96, dtype=torch.bfloat16).precision == ""
    finally:
        torch.backends.cuda.matmul.allow_tf32 = False
