"""Regions: products cut out of a graph with what their kernels do besides, equal layers once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from litz.autotune.gemm_regions import Region, regions
from litz.autotune.trial import Variant, callable_of, inputs_of
from litz.config import snapshot
from litz.fuse import fuse
from litz.ir.choices import NO_CHOICES
from litz.lower import lower
from litz.target import host
from litz.targets import toolchain_of
from tests.stages import stages


def _cut(function: Callable[..., Any], *inputs: torch.Tensor, static: int) -> list[Region]:
    """The regions of a function whose last so many inputs are parameters."""
    target, config = host(), snapshot({})
    graph = stages(function, *inputs).graph
    places = [n.name for n in graph.nodes if n.op == "placeholder"]
    graph.static = frozenset(places[-static:])
    kernels = fuse(lower(graph, target, config), target, config)
    return regions(graph, kernels, target, config)


def _runs_as_written(region: Region) -> None:
    """What is compiled of a region gives what its graph gives op by op."""
    target, config = host(), snapshot({})
    program = lower(region.graph, target, config)
    inputs = inputs_of(program)
    found = callable_of(
        Variant(program, NO_CHOICES), target, toolchain_of(target), config, inputs
    )()
    for one, other in zip(found, region.graph.module(*inputs), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def _layer(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """A linear layer over rows in two dimensions, what follows it, and a view between them."""
    rows = torch.addmm(b, x.view(-1, x.shape[-1]), w.t()).view(*x.shape[:-1], -1)
    return F.gelu(rows) + x


def test_a_product_comes_with_what_follows_it() -> None:
    x, w, b = torch.randn(4, 10, 64), torch.randn(64, 64), torch.randn(64)
    (region,) = _cut(_layer, x, w, b, static=2)
    size = region.size
    assert (size.rows, size.depth, size.columns, size.batches) == (40, 64, 64, 1)
    assert size.has_epilogue and size.static_weight
    targets = [str(n.target) for n in region.graph.nodes if n.op == "call_function"]
    assert "aten.addmm.default" in targets and "aten.erf.default" in targets
    assert len(region.graph.static) == 2
    _runs_as_written(region)


def test_equal_layers_have_one_mark() -> None:
    x, weights = torch.randn(4, 10, 64), [torch.randn(64, 64) for _ in range(3)]
    biases = [torch.randn(64) for _ in range(3)]

    def three(x: torch.Tensor, *given: torch.Tensor) -> torch.Tensor:
        y = _layer(_layer(x, given[0], given[3]), given[1], given[4])
        return torch.addmm(given[5], y.view(40, 64), given[2])  # not transposed: another packing

    found = _cut(three, x, *weights, *biases, static=6)
    marks = [region.program_key for region in found]
    assert len(found) == 3 and marks[0] == marks[1] != marks[2]
    for region in found:
        _runs_as_written(region)


def test_steps_of_a_recurrence_have_one_mark() -> None:
    """They read other slices; which tensor those are of counts."""
    x, y, w = torch.randn(16, 3, 64), torch.randn(16, 3, 64), torch.randn(64, 64)

    def steps(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (x[:, 0] @ w).relu() + y[:, 0], (x[:, 2] @ w).relu() + y[:, 1], x[:, 1] @ w

    found = _cut(steps, x, y, w, static=1)
    marks = [region.program_key for region in found]
    assert len(found) == 3 and marks[0] == marks[1] != marks[2]


def test_a_product_that_stays_with_aten_is_one_too() -> None:
    x, y = torch.randn(12, 48), torch.randn(64, 48)
    (region,) = _cut(lambda x, y, z: (x @ y.t()).relu() + z, x, y, torch.randn(64), static=1)
    assert not region.size.static_weight
    _runs_as_written(region)


def test_attention_is_no_product() -> None:
    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (F.scaled_dot_product_attention(q, k, v).view(-1, 64) @ w).relu()

    q, k, v = (torch.randn(2, 4, 32, 64) for _ in range(3))
    (region,) = _cut(attend, q, k, v, torch.randn(64, 64), static=1)
    assert region.node.startswith("mm") and region.size.depth == 64
    _runs_as_written(region)


def test_what_is_made_of_parameters_comes_along() -> None:
    """A weight of small integers stays narrow in the region as in the whole."""

    def scaled(x: torch.Tensor, w: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
        return x @ (w.to(torch.float32) * s)

    x, w = torch.randn(16, 64), torch.randint(-8, 8, (64, 64), dtype=torch.int8)
    (region,) = _cut(scaled, x, w, torch.rand(64), static=2)
    dtypes = {n.meta["val"].dtype for n in region.graph.nodes if n.op == "placeholder"}
    assert torch.int8 in dtypes
    _runs_as_written(region)
