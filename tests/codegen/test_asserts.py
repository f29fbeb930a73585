"""Out-of-range accesses: asserted for the user's indices, checkable for all of a kernel's."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import litz
from litz.call import plan_call
from litz.config import Config
from litz.errors import InternalError
from litz.ir.dtypes import F32
from litz.ir.expr import apply, axis, integer, load
from litz.ir.index import ONE
from litz.ir.program import Buffer, Kernel, KernelGraph, Output, Phase, Plan, Store, ViewArg
from litz.target import host
from litz.trace import Trace
from tests.toolchain import build, drive, emit, link, schedule


def _reads_beyond(config: Config) -> torch.Tensor:
    """A kernel that a bug might make: y[i] = x[i + 3] over all of x."""
    n = 40
    x, y = (Buffer(name, F32, (integer(n),), (ONE,)) for name in ("x", "y"))
    i = axis("i0", n)
    value = load(x, (apply("add", i, integer(3)),))
    kernel = Kernel("k0_bug", (i,), (Phase((), False, (Store(y, (i,), value),)),), ())
    shown = ViewArg(y, y.shape, y.strides, integer(0))
    plan = Plan(KernelGraph((x,), (), (kernel,), (Output(shown),)))
    trace, target = Trace(), host()
    scheduled = [schedule(kernel, target, config)]
    kernels = emit(plan, scheduled, target)
    call = plan_call(plan, kernels, {}, config, target)
    binary = build(drive(kernels, call, target), target, config, trace)
    (result,) = link(call, binary, {}, config)([torch.zeros(n)])
    return result


def test_a_kernel_that_leaves_its_buffer_is_caught() -> None:
    with pytest.raises(InternalError, match="outside of a buffer"):
        _reads_beyond(Config(debug_index_asserts=True))


def test_correct_kernels_pass_the_assertions() -> None:
    def function(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        y = F.softmax(F.pad(x, (1, 2)), -1).t().contiguous()
        return torch.cat([y, y.flip(0)], 0)[index].cumsum(0) + x.sum(0).max()

    x, index = torch.randn(33, 45), torch.tensor([0, 5, -1])
    litz.reset()
    options = {"on_error": "raise", "debug_index_asserts": True}
    compiled = torch.compile(function, backend="litz", options=options)
    torch.testing.assert_close(compiled(x, index), function(x, index))


def test_without_the_assertion_an_index_is_clamped() -> None:
    litz.reset()
    table = torch.arange(4.0)
    options = {"on_error": "raise", "assert_indirect_indexing": False}
    compiled = torch.compile(lambda i: table[i] + 0, backend="litz", options=options)
    assert compiled(torch.tensor([0, 3, 9, -2])).tolist() == [0.0, 3.0, 3.0, 2.0]
