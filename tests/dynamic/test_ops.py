"""Ops of torch's own database with every size symbolic, against eager: a sample of each family.

Those whose arguments are numbers are here for that: torch makes them symbolic, too, and they may be
negative.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db

from tests import draws
from tests.dynamic.symbolic import Symbolic

NAMES = {
    "add", "amax", "as_strided_scatter", "cat", "cumsum", "diag_embed", "gather", "index_put",
    "isin", "linalg.vector_norm", "matmul", "nn.functional.glu", "nn.functional.layer_norm",
    "nn.functional.unfold", "roll", "select", "select_scatter", "slice", "slice_scatter",
    "split", "std", "tile", "triu", "unfold_copy",
}  # fmt: skip
OPS = [op for op in op_db if op.name in NAMES and not op.variant_test_name]


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_an_op_of_symbolic_sizes(op: Any) -> None:
    draws.seed(0)
    samples = list(op.sample_inputs("cpu", torch.float32))
    sample = samples[len(samples) // 2]
    symbolic = Symbolic(lambda x, args: op.op(x, *args, **sample.kwargs))
    found = symbolic(sample.input, sample.args)
    expected = op.op(sample.input, *sample.args, **sample.kwargs)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert symbolic.graphs <= 1


def test_the_sample_is_whole() -> None:
    assert {op.name for op in OPS} == NAMES
