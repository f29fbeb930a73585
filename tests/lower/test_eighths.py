"""Programs with floats of eight bits: conversions and copies are generated, the rest is eager's."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from litz.config import snapshot
from litz.target import cuda
from tests.stages import Stages, compiled, staged, through_aot

X = torch.randn(33, 65, generator=torch.Generator().manual_seed(0)) * 100
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
    found: list[Stages] = []
    target = replace(cuda(capability, 132), device="cpu")

    def compiler(module: torch.fx.GraphModule) -> Any:
        found.append(staged(module, target, snapshot(options), inputs))
        return module.forward

    with torch.no_grad():
        through_aot(function, compiler)(*inputs)
    return found[0]


def test_gpus_that_would_round_twice_leave_it_to_eager() -> None:
    for capability, ours in (((8, 9), 0), ((9, 0), 1)):
        made = on_gpu(capability, lambda x: x.to(KINDS[0]), X)
        assert len(made.scheduled) == ours
