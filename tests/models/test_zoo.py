"""Real models through the whole compiler, in fp32 and bf16, against eager and a float64 run."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import litz
from litz.bench.zoo import SMALL, ZOO, first_tensor, workload
from tests.stages import compiles_noted

# What may be left to ATen: products, attention, and what has no rule would show here by name.
ALLOWED = {
    "aten.mm.default",
    "aten.addmm.default",
    "aten.bmm.default",
    "aten.baddbmm.default",
    "aten.convolution.default",
    "mkldnn._convolution_pointwise.default",
    "mkldnn._convolution_pointwise.binary",
    "mkldnn._reorder_convolution_weight.default",
    "aten._scaled_dot_product_flash_attention_for_cpu.default",
}


def _distance(found: torch.Tensor, expected: torch.Tensor) -> float:
    found, expected = found.double(), expected.double()
    return float((found - expected).norm() / expected.norm())


@pytest.mark.parametrize("name", ZOO)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_model_equals_eager(name: str, dtype: torch.dtype) -> None:
    work = workload(name, SMALL, dtype)
    eager = first_tensor(work())
    litz.reset()
    with torch.no_grad(), compiles_noted() as made:
        compiled = torch.compile(work.model, backend="litz", options={"on_error": "raise"})
        found = first_tensor(compiled(**work.inputs))
    assert any(report.kernels for _, report in made)
    assert float(eager.abs().max()) > 1e-6  # or nothing would be compared
    assert {op for _, report in made for op in report.aten_ops} <= ALLOWED
    assert found.dtype is dtype and found.stride() == eager.stride()
    if dtype is torch.float32:
        assert _distance(found, eager) < 1e-5
    else:
        exact = first_tensor(workload(name, SMALL, torch.float64)())
        assert _distance(found, exact) <= 1.5 * _distance(eager, exact)


def test_identical_layers_compile_once() -> None:
    """Twice the layers make twice the kernels but no new functions."""
    functions = {}
    kernels = {}
    for layers in (2, 4):
        work = workload("bert", replace(SMALL, layers=layers))
        litz.reset()
        with torch.no_grad():
            (graph,) = litz.explain(work.model, **work.inputs).graphs
        functions[layers], kernels[layers] = len(graph.source.functions), len(graph.kernels)
    assert kernels[4] > kernels[2]
    assert functions[4] == functions[2]
