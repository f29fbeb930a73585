"""Every stage against the interpreter: lowered loops, fused kernels, machine code, eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tests import draws
from tests.stages import as_array, compiled, copied, stages

SEED = draws.generator(0)
X = torch.randn(6, 20, generator=SEED)
W = torch.randn(20, 20, generator=SEED)
T = torch.randn(20, 6, generator=SEED).t()
I = torch.tensor([1, 3, 0, 5])  # noqa: E741
B = X.bfloat16()
N = (X * 10).int()


def _updated(x: torch.Tensor) -> torch.Tensor:
    x.mul_(2)
    x[:, 1:3].add_(1)
    return x.sum(0)


FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "add": (lambda x: x + 1, (X,)),
    "broadcast": (lambda x, w: x[:, None] * w[:3], (X, W)),
    "transposed": (lambda x, t: x * t + t.exp(), (X, T)),
    "softmax": (lambda x: F.softmax(x, -1), (X,)),
    "softmax_columns": (lambda x: F.softmax(x, 0), (X,)),
    "layer_norm": (lambda x, w: F.layer_norm(x, (20,), w[0], w[1]), (X, W)),
    "rms_norm": (lambda x, w: F.rms_norm(x, (20,), w[0]), (X, W)),
    "group_norm": (lambda x: F.group_norm(x.view(2, 6, 10), 3), (X,)),
    "gelu_linear": (lambda x, w: F.gelu(x @ w) + x, (X, W)),
    "attention": (lambda x, w: F.softmax((x @ w) @ x.t(), -1) @ x, (X, W)),
    "column_sum": (lambda x: x.sum(0), (X,)),
    "full_sum": (lambda x: x.sum() + x.mean(), (X,)),
    "argmax": (lambda x: x.argmax(1) + x.argmin(1), (X,)),
    "var": (lambda x: x.var(1) + x.std(0).sum(), (X,)),
    "cumsum": (lambda x: x.cumsum(1) - x.cumsum(0), (X,)),
    "cat": (lambda x, t: torch.cat([-x[:, 10:], t, x[:, :10]], 1) * 2, (X, T)),
    "cat_many": (lambda x: torch.cat([x[:, k : k + 3] for k in range(6)], 1), (X,)),
    "pad": (lambda x: F.pad(x.relu(), (1, 2, 3, 0), value=7.0).sum(0), (X,)),
    "gather": (lambda x, i: x.exp()[i] + F.embedding(i, x), (X, I)),
    "scatter": (lambda x, i: x.index_add(0, i, x[:4] * 2), (X, I)),
    "bf16": (lambda b: F.softmax(b * 2, -1) + b.sum(1, keepdim=True), (B,)),
    "bool": (lambda x: (x > 0) & ~(x > 1) | (x.abs() < 0.1), (X,)),
    "integers": (lambda n: (n // 3) * (n % 7) + n.sum(1, keepdim=True), (N,)),
    "where": (lambda x: torch.where(x > 0, x.log1p(), x.expm1()).max(1), (X,)),
    "update": (_updated, (X,)),
    "reshape": (lambda x: (x.view(2, 3, 20).permute(2, 0, 1).reshape(4, 30) + 1).sum(1), (X,)),
    "diamond": (lambda x: (x.tanh() * (1 - x.tanh())).sum(1) + x.tanh().sum(1), (X,)),
}


def _flat(result: Any) -> list[torch.Tensor]:
    return list(result) if isinstance(result, (tuple, list)) else [result]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_stage_means_the_same(name: str) -> None:
    function, inputs = FUNCTIONS[name]
    given = [copied(i) for i in inputs]
    expected = [as_array(t) for t in _flat(function(*given))]
    expected += [as_array(t) for t in given]  # inputs after the call, updated or not
    made = stages(function, *inputs)
    native_inputs = [copied(i) for i in inputs]
    native = [as_array(t) for t in _flat(compiled(function)(*native_inputs))]
    native += [as_array(t) for t in native_inputs]
    # bf16 rounds to eight bits: stages that keep a value wide differ by that rounding alone.
    tolerance = 2e-2 if name == "bf16" else 2e-5
    for stage, found in (("lower", made.lowered()), ("fuse", made.fused()), ("native", native)):
        assert len(found) == len(expected), stage
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance, err_msg=stage)


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("lanes", [32, 128])
def test_the_vector_width_changes_no_result(name: str, lanes: int) -> None:
    function, inputs = FUNCTIONS[name]
    wide = _flat(compiled(function)(*(copied(i) for i in inputs)))
    narrow = _flat(compiled(function, cpp__simdlen=lanes)(*(copied(i) for i in inputs)))
    torch.testing.assert_close(narrow, wide)
