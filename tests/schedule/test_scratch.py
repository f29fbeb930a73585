"""Scratch on a GPU: a register holds one place of it, so what is read elsewhere is no register."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from litz.ir.interpret import run_kernels
from litz.ir.parse import parse_graph
from litz.ir.program import Kernel, exprs_of, loads
from litz.schedule.scratch import place_scratch
from tests import draws

# `half` is read at its own place alone, until `square` is computed again at the places 0 and 1.
CHAIN = """
input x: f32[16]
buffer y: f32[8]
kernel chain:
  outer i < 8
  scratch half: f32[2]
  scratch square: f32[2]
  phase r < 2:
    half[r] = x[i * 2 + r] * f32(0.5)
  phase r < 2:
    square[r] = half[r] * half[r]
  phase:
    y[i] = square[0] + square[1]
output y
"""


def test_what_is_computed_again_elsewhere_takes_what_it_reads_along() -> None:
    graph = parse_graph(CHAIN)
    (kernel,) = graph.body
    assert isinstance(kernel, Kernel)
    settled, placed = place_scratch(kernel, 1024, 2)
    for buffer in settled.scratch:
        (at,) = (s.index for s in settled.stores if s.buffer == buffer)
        reads = [n for n in loads(*exprs_of(settled)) if n.buffer == buffer]
        assert all(n.index == at for n in reads), f"{buffer.name} is read elsewhere"
    x = draws.numpy_generator(0).standard_normal(16).astype(np.float32)
    (before,), (after,) = (run_kernels(g, [x]) for g in (graph, replace(graph, body=(settled,))))
    assert not placed and np.array_equal(before, after)


SHIFTED = """
input x: f32[12]
buffer y: f32[12]
kernel shifted:
  outer i < 3
  scratch row: f32[4]
  phase r < 4:
    row[r] = x[i * 4 + r] * f32(2.0)
  phase r < 4:
    y[i * 4 + r] = guarded(r >= 1, row[r + -1])
output y
"""


def test_what_is_computed_again_reads_only_where_it_was_read() -> None:
    """The row before the first one is not there."""
    graph = parse_graph(SHIFTED)
    (kernel,) = graph.body
    assert isinstance(kernel, Kernel)
    settled, placed = place_scratch(kernel, 1024, 2)
    reads = [n for n in loads(*exprs_of(settled)) if n.buffer.name == "x"]
    assert not settled.scratch and reads and all(n.guard is not None for n in reads)
    x = draws.numpy_generator(0).standard_normal(12).astype(np.float32)
    (before,), (after,) = (run_kernels(g, [x]) for g in (graph, replace(graph, body=(settled,))))
    assert not placed and np.array_equal(before, after)
