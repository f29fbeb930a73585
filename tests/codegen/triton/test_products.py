"""Matrix products of ours run under Triton's interpreter, and are compiled for a real GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from litz.build import triton as built
from litz.config import snapshot
from litz.ir.choices import ANY, BY_RULE, Choices, ProductChoice
from litz.ir.scheduled import Tiling
from litz.ir.source import DeviceKernel
from litz.target import cuda
from tests.codegen.triton.product_cases import CASES
from tests.stages import Stages, staged, through_aot

pytest.importorskip("triton")
ROOT = Path(__file__).parents[3]
ELF = b"\x7fELF"


@pytest.fixture(scope="module")
def outcome() -> dict[str, tuple[str, list[dict[str, Any]]]]:
    """What was wrong with each case, and its kernels."""
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(
        [sys.executable, "-m", "tests.codegen.triton.product_cases"],
        capture_output=True, text=True, cwd=ROOT, env=environment, timeout=900,
    )  # fmt: skip
    lines = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("[")]
    assert lines, ran.stderr
    return {name: (wrong, kernels) for name, wrong, kernels in lines}


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
