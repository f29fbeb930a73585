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
from litz.ir.choices import ANY, BY_RULE, NO_CHOICES, Choices, ProductChoice
from litz.ir.scheduled import Tiling
from litz.ir.source import DeviceKernel
from litz.target import cuda
from tests.codegen.triton.apart import Outcomes, outcomes
from tests.codegen.triton.product_cases import CASES
from tests.stages import Stages, staged, through_aot

pytest.importorskip("triton")
ROOT = Path(__file__).parents[3]
ELF = b"\x7fELF"


@pytest.fixture(scope="module")
def outcome() -> Outcomes:
    return outcomes("tests.codegen.triton.product_cases")


@pytest.mark.parametrize("name", CASES)
def test_a_product_means_what_the_loop_ir_says(name: str, outcome: Any) -> None:
    assert name in outcome, "the process ended before"
    assert not outcome[name][0], outcome[name][0]


def test_every_product_becomes_a_cubin(outcome: Any, tmp_path: Path, monkeypatch: Any) -> None:
    """No GPU, no C compiler; what is compiled ahead is not compiled again."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(built, "AHEAD", {})
    kernels = [DeviceKernel(**k) for _, made in outcome.values() for k in made]
    named = {k.text: replace(k, name=k.name) for k in kernels}
    built.compile_ahead(named.values(), 90, 2, time.monotonic() + 300)
    assert len(built.AHEAD) == len(named)
    monkeypatch.setattr(built, "_here", None)
    for kernel in named.values():
        (cubin,) = built.compile_kernels((kernel,), 90, 1).values()
        assert cubin.code.startswith(ELF) and cubin.warps == kernel.warps
        assert (kernel.scratch > 0) == ("make_tensor_descriptor" in kernel.text)


def test_nothing_is_compiled_ahead_when_time_is_up(monkeypatch: Any) -> None:
    monkeypatch.setattr(built, "AHEAD", {})
    monkeypatch.setattr(built.WORKERS, "run", None)
    kernel = DeviceKernel("k", "", ("*fp32",), 1, 1, 1)
    built.compile_ahead([kernel], 90, 2, time.monotonic() - 1)
    assert not built.AHEAD


def product(choice: ProductChoice, *shape: int, dtype: torch.dtype, **options: Any) -> Stages:
    """x @ w.t() of rows, sum and columns on a GPU, up to its schedule."""
    found: list[Stages] = []
    target = replace(cuda((9, 0), 132), device="cpu")
    choices = Choices(products={ANY: choice})

    def compiler(module: torch.fx.GraphModule) -> Any:
        found.append(staged(module, target, snapshot(options), inputs, choices))
        return module.forward

    rows, depth, columns = shape
    with FakeTensorMode(), torch.no_grad():
        inputs = [torch.empty(rows, depth, dtype=dtype), torch.empty(columns, depth, dtype=dtype)]
        through_aot(lambda x, w: x @ w.t(), compiler)(*inputs)
    return found[0]


def tiling(choice: ProductChoice, *shape: int, dtype: torch.dtype = torch.bfloat16) -> Tiling:
    (kernel,) = product(choice, *shape, dtype=dtype).scheduled
    assert eval(repr(kernel.choice), {"Tiling": Tiling}) == kernel.choice
    return kernel.choice


def test_the_library_computes_what_nobody_chose() -> None:
    assert not product(BY_RULE, 256, 64, 96, dtype=torch.bfloat16).scheduled
    assert len(product(BY_RULE, 1, 64, 96, dtype=torch.bfloat16).scheduled) == 1
    alone = {"max_autotune_gemm_backends": "LITZ"}
    assert len(product(BY_RULE, 256, 64, 96, dtype=torch.bfloat16, **alone).scheduled) == 1
    ours, library = ProductChoice(form="TILES"), {"max_autotune_gemm_backends": "ATEN"}
    assert not product(ours, 256, 64, 96, dtype=torch.bfloat16, **library).scheduled


def kernels_of(function: Any, *shapes: tuple[int, ...], **options: Any) -> list[Any]:
    """How many kernels on a GPU, with what flags; calls of libraries are None."""
    found: list[Stages] = []
    target = replace(cuda((9, 0), 132), device="cpu")

    def compiler(module: torch.fx.GraphModule) -> Any:
        found.append(staged(module, target, snapshot(options), inputs, NO_CHOICES))
        return module.forward

    with FakeTensorMode(), torch.no_grad():
        inputs = [torch.empty(*s, dtype=torch.bfloat16) for s in shapes]
        inputs = [t.to(memory_format=torch.channels_last) if t.dim() == 4 else t for t in inputs]
        through_aot(lambda *args: function(*args), compiler)(*inputs)
    return [k.choice for k in found[0].scheduled]


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
    (ours,) = kernels_of(image, *shapes, max_autotune_conv_backends="LITZ")
    assert ours.depth == 64 and ours.descriptors == ("left", "right")
    for options in ({}, {"max_autotune_conv_backends": "LITZ", "conv_1x1_as_mm": False}):
        assert not any(k.depth for k in kernels_of(image, *shapes, **options))
    deep = ((32, 512, 14, 14), (256, 512, 1, 1), (256,))
    (ours,) = kernels_of(image, *deep, max_autotune_conv_backends="TRITON")
    assert ours.depth
    strided = kernels_of(lambda *a: image(*a, stride=2), *deep, max_autotune_conv_backends="LITZ")
    assert not any(k.depth for k in strided)


def test_what_is_chosen_is_done() -> None:
    chosen = ProductChoice(form="PERSISTENT", height=128, width=256, step=64, warps=8, stages=3)
    assert eval(repr(chosen)) == chosen
    made = tiling(chosen, 4096, 768, 3072)
    assert made.blocks == (128, 256) and (made.depth, made.warps, made.stages) == (64, 8, 3)
    assert made.programs == 132 and made.descriptors == ("left", "right")


@pytest.mark.parametrize(
    ("depth", "dtype"), [(100, torch.bfloat16), (99, torch.float16), (50, torch.float32)]
)
def test_rows_that_lie_unevenly_are_not_copied(depth: int, dtype: torch.dtype) -> None:
    """The engine wants 16 bytes; 100 halves are 200."""
    assert not tiling(ProductChoice(form="DESCRIPTORS"), 256, depth, 96, dtype=dtype).descriptors


def test_singles_are_shortened_only_where_torch_may() -> None:
    ours = ProductChoice(form="TILES")
    assert tiling(ours, 256, 64, 96, dtype=torch.float32).precision == "ieee"
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        assert tiling(ours, 256, 64, 96, dtype=torch.float32).precision == "tf32"
        assert tiling(ours, 256, 64, 96, dtype=torch.bfloat16).precision == ""
    finally:
        torch.backends.cuda.matmul.allow_tf32 = False
