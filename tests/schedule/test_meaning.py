"""A schedule changes how a kernel runs and never what it computes.

Every kernel of some thirty functions, before and after scheduling, by the interpreter: over buffers
with their shapes and strides, and over the flat storage of the same buffers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided

from litz.ir.interpret import run_kernels
from litz.ir.program import Buffer, Kernel, KernelGraph
from litz.ir.scheduled import ScheduledKernel
from litz.ir.sizes import span
from tests import draws
from tests.stages import stages
from tests.test_stages import FUNCTIONS

Array = np.ndarray[Any, Any]


def _window(flat: Array, buffer: Buffer) -> Array:
    """The elements of a buffer in its storage."""
    shape = [n.number for n in buffer.shape]
    return as_strided(flat, shape, [s.number * flat.itemsize for s in buffer.strides])


def _storage(buffer: Buffer, numbers: np.random.Generator) -> Array:
    """Random numbers; integers are zero or one, so that they are indices of anything."""
    values = 3 * numbers.standard_normal(max(span(buffer).number, 1))
    return (values if buffer.dtype.is_float else values > 0).astype(buffer.dtype.numpy)


def _plain(kernel: Kernel, storage: dict[Buffer, Array]) -> dict[Buffer, Array]:
    given = [_window(flat.copy(), b).copy() for b, flat in storage.items()]
    run_kernels(KernelGraph(tuple(storage), (), (kernel,), ()), given)
    return dict(zip(storage, given, strict=True))


def _flat(made: ScheduledKernel, storage: dict[Buffer, Array]) -> dict[Buffer, Array]:
    named = {b.name: b for b in (*made.kernel.writes, *made.kernel.reads)}
    used = {f"b{k}": b for k, b in enumerate(made.arguments) if f"b{k}" in named}
    given = [storage[b].copy() for b in used.values()]
    run_kernels(KernelGraph(tuple(named[n] for n in used), (), (made.kernel,), ()), given)
    return {b: _window(g, b) for b, g in zip(used.values(), given, strict=True)}


@pytest.mark.parametrize("options", [{}, {"pick_loop_orders": False, "cpp__simdlen": 128}], ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_scheduled_kernel_computes_the_same(name: str, options: dict[str, Any]) -> None:
    function, inputs = FUNCTIONS[name]
    made = stages(function, *inputs, **options)
    numbers = draws.numpy_generator(0)
    for kernel, scheduled in zip(made.plan.graph.kernels, made.scheduled, strict=True):
        storage = {b: _storage(b, numbers) for b in scheduled.arguments}
        expected, found = _plain(kernel, storage), _flat(scheduled, storage)
        assert set(kernel.writes) <= set(found)
        for buffer, values in found.items():
            np.testing.assert_allclose(values, expected[buffer], 1e-5, 1e-6, err_msg=str(buffer))
