"""Programs with fp8 floats: conversions and copies are generated, the rest is eager's."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode

from litz.config import snapshot
from litz.target import cuda
from tests import draws
from tests.stages import Stages, compiled, staged, through_aot

X = torch.randn(33, 65, generator=draws.generator(0)) * 100
KINDS = [torch.float8_e4m3fn, torch.float8_e5m2]


def _moved(x: torch.Tensor, dtype: torch.dtype) -> list[torch.Tensor]:
    e = x.to(dtype)
    wide = [e.float() + 1, e.bfloat16(), (x.half().to(dtype).double() * 3).sum(1), e[:, :1].int()]
    made = [torch.full((5,), 2.5, dtype=dtype), torch.zeros_like(e), F.pad(e, (1, 1))]
    chosen = [torch.where(x > 0, e, e.flip(0)), e[[1, 2]], e.index_select(1, torch.tensor([3, 0]))]
    return [e, *wide, *made, *chosen, torch.cat([e, e]), e.t().contiguous(), e.repeat(2, 1)]


@pytest.mark.parametrize("dtype", KINDS, ids=str)
def test_conversions_and_copies(dtype: torch.dtype) -> None:
    run = compiled(lambda x: _moved(x, dtype))
    for found, wanted in zip(run(X), _moved(X, dtype), strict=True):
        assert found.dtype is wanted.dtype and found.stride() == wanted.stride()
        torch.testing.assert_close(found.float(), wanted.float(), equal_nan=True)
    assert not run.aten_ops


@pytest.mark.parametrize("dtype", KINDS, ids=str)
def test_what_no_integer_holds(dtype: torch.dtype) -> None:
    x = torch.tensor([1.0, torch.nan, -3.0, torch.inf] * 10).to(dtype)
    run = compiled(lambda x: [x.long(), x.int(), x.to(torch.int8), x.to(torch.uint8)])
    wanted = x.long(), x.int(), x.to(torch.int8), x.to(torch.uint8)
    assert all(a.equal(b) for a, b in zip(run(x), wanted, strict=True)) and not run.aten_ops


def test_an_update_in_place() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        y.copy_(x)
        return y.float() + x

    given, wanted = (torch.zeros(33, 65).to(KINDS[0]) for _ in range(2))
    run = compiled(function)
    assert run(X, given).equal(function(X, wanted)) and given.float().equal(wanted.float())
    assert not run.aten_ops


def test_other_ops_are_eagers() -> None:
    run = compiled(lambda x: [x.to(KINDS[0]).abs(), x.to(KINDS[0]) == 2])
    found, same = run(X)
    assert found.float().equal(X.to(KINDS[0]).float().abs())
    assert same.equal(X.to(KINDS[0]) == 2) and run.aten_ops == ["abs", "eq"]
    with pytest.raises(NotImplementedError, match="not implemented for 'Float8_e5m2'"):
        compiled(lambda x: x.to(KINDS[1]) + x.to(KINDS[1]))(X)


def on_gpu(capability: tuple[int, int], function: Any, *inputs: Any, **options: Any) -> Stages:
    """The stages; the op itself is not run, since a CPU may not have it."""
    found: list[Stages] = []
    target = replace(cuda(capability, 132), device="cpu")

    def compiler(module: torch.fx.GraphModule) -> Any:
        found.append(staged(module, target, snapshot(options), inputs))
        results = [node.meta["val"] for node in module.graph.output_node().args[0]]
        return lambda *_: results

    with torch.no_grad():
        through_aot(function, compiler)(*inputs)
    return found[0]


def test_gpus_that_would_round_twice_leave_it_to_eager() -> None:
    for capability, ours in (((8, 9), 0), ((9, 0), 1)):
        made = on_gpu(capability, lambda x: x.to(KINDS[0]), X)
        assert len(made.scheduled) == ours


# -- scaled products ---------------------------------------------------------------------------

OURS = {"max_autotune_gemm_backends": "LITZ"}
A, W = (torch.randn(n, 96, generator=draws.generator(n)) for n in (48, 80))
A, W = A.to(KINDS[0]), W.to(KINDS[1])
ONE = torch.tensor(0.5), torch.tensor(1.7)
BIAS = torch.arange(80).bfloat16()


def scaled(out: torch.dtype | None = torch.bfloat16) -> Any:
    def function(x: Any, w: Any, a: Any, b: Any, *bias: Any) -> Any:
        return torch._scaled_mm(x, w.t(), a, b, *bias, out_dtype=out)

    return function


def _by_eager(scales: Any, bias: Any, out: torch.dtype) -> torch.Tensor:
    """Eager of torch 2.11 has no scales of rows and columns on a CPU: they follow its product."""
    if torch.__version__ >= "2.13" or scales is ONE:
        return scaled(out)(A, W, *scales, *bias)
    one = torch.tensor(1.0)
    product = scaled(torch.float32)(A, W, one, one) * scales[0] * scales[1]
    return sum((b.float() for b in bias), product).to(out)


@pytest.mark.parametrize("out", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("scales", [ONE, (torch.rand(48, 1), torch.rand(1, 80))])
def test_a_scaled_product_is_eagers(scales: Any, out: torch.dtype) -> None:
    bias = (BIAS.to(out),) if out is not torch.float32 else ()
    made = on_gpu((9, 0), scaled(out), A, W, *scales, *bias, **OURS)
    assert [k.choice.depth > 0 for k in made.scheduled] == [True]
    found = torch.from_numpy(made.lowered()[0]).float()
    eager = _by_eager(scales, bias, out).float()
    exact = {torch.bfloat16: 2**-7, torch.float16: 2**-10}.get(out, 1e-5)
    torch.testing.assert_close(found, eager, rtol=exact, atol=exact)


LONG = torch.zeros(128, 256).to(KINDS[0])
BLOCKS = torch.rand(2, 128).t(), torch.rand(2, 128)  # a scale for each 128 steps of a sum
REFUSED = {
    "cuBLAS computes it": (scaled(), (A, W, *ONE), {}),
    "another type": (scaled(None), (A, W, *ONE), OURS),
    "neither one number": (scaled(), (LONG, LONG, *BLOCKS), OURS),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_other_scaled_products_are_the_librarys(reason: str) -> None:
    function, inputs, options = REFUSED[reason]
    with FakeTensorMode() as mode:
        given = [mode.from_tensor(t) for t in inputs]
        made = on_gpu((9, 0), function, *given, **options)
    assert not made.scheduled
    (decision,) = made.kernels.decisions
    assert decision.action == "refused" and reason in decision.reason


def test_on_a_cpu_it_is_atens() -> None:
    run = compiled(scaled())
    assert run(A, W, *ONE).equal(scaled()(A, W, *ONE)) and run.aten_ops == ["_scaled_mm"]


def test_a_product_of_widened_numbers_has_sums_of_f32() -> None:
    """Tensor cores add up bytes with fewer bits; that is for scaled products alone."""

    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (x.float()[:, None] * w.float()).sum(2)

    made = on_gpu((9, 0), function, A, W, **OURS)
    assert made.scheduled and not any(k.choice.depth for k in made.scheduled)
