"""Graphs in parts: each part is given what it reads, gives what is needed later, and no more."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from litz.call.partitions import PartitionPlan, partition_plans
from litz.config import snapshot
from litz.ir.call_plan import Range
from litz.ir.program import Buffer, Plan, ViewArg, read, written
from litz.target import cuda
from tests import draws
from tests.stages import staged, through_aot

X = torch.randn(4, 8, 9, 9, generator=draws.generator(0))
W = torch.randn(8, 8, 3, 3, generator=draws.generator(1))


def _net(x: torch.Tensor, w: torch.Tensor) -> Any:
    """Convolutions bring memory that a kernel behind each takes over; a sort gives two results."""
    y = F.conv2d(F.conv2d(x, w, padding=1).relu(), w, padding=1)
    values, places = y.sort(1)
    return values * 2, places + 1, y.sum(0), x


@pytest.fixture(scope="module")
def plan() -> Plan:
    """As a GPU would have it: convolutions are ATen's."""
    found: list[Plan] = []
    target = replace(cuda((9, 0), 132), device="cpu")

    def compiler(module: torch.fx.GraphModule) -> Any:
        found.append(staged(module, target, snapshot({}), (X, W)).plan)
        return module.forward

    with torch.no_grad():
        through_aot(_net, compiler)(X, W)
    return found[0]


def _cut(plan: Plan, *places: int) -> list[PartitionPlan]:
    ends = (0, *places, len(plan.graph.body))
    pairs = enumerate(pairwise(ends))
    parts = tuple(Range(a, b, recorded=k % 2 == 0) for k, (a, b) in pairs)
    return partition_plans(plan, parts)


def test_every_part_is_given_what_it_reads_and_gives_what_is_needed(plan: Plan) -> None:
    count = len(plan.graph.body)
    shown = {o.value.buffer.name for o in plan.graph.outputs if isinstance(o.value, ViewArg)}
    inputs = {b.name for b in plan.graph.inputs if isinstance(b, Buffer)}
    constants = {b.name for b in plan.graph.constants}
    for first in range(1, count):
        for second in range(first + 1, count):
            there = set(inputs)
            for partition_plan in _cut(plan, first, second):
                takes = {b.name for b in partition_plan.takes}
                assert takes <= there
                inside = takes | constants | set(plan.slots)
                for step in partition_plan.plan.graph.body:
                    assert {b.name for b in read(step)} <= inside
                    inside |= {b.name for b in written(step)}
                there |= {b.name for b in partition_plan.gives}
            assert shown - inputs <= there


def test_kernels_are_counted_through_the_whole_graph(plan: Plan) -> None:
    found = _cut(plan, 2, 4)
    kernels = [k for partition_plan in found for k in sorted(partition_plan.kernels)]
    assert kernels == list(range(len(plan.graph.kernels)))


def test_what_a_recorded_part_gives_is_carried_to_the_next(plan: Plan) -> None:
    for place in range(1, len(plan.graph.body) - 1):
        first, middle, last = _cut(plan, place, place + 1)
        given = {b.name for b in first.gives}
        assert {last.takes[k].name for k in last.parent_outputs} == {
            b.name for b in last.takes
        } & given
        assert middle.parent_outputs == ()  # it runs as it is


def test_memory_is_taken_over_inside_a_part_alone(plan: Plan) -> None:
    assert plan.inplace_reuse, "the test wants a kernel that takes over a convolution's memory"
    (name, before), *_ = plan.inplace_reuse.items()
    made = next(k for k, s in enumerate(plan.graph.body) if before in {b.name for b in written(s)})
    heir = next(k for k, s in enumerate(plan.graph.body) if name in {b.name for b in written(s)})
    apart = _cut(plan, made + 1)[1]
    assert (
        made < heir and name not in apart.plan.inplace_reuse and name in apart.plan.call_allocated
    )
    together = _cut(plan, made)[1]
    assert together.plan.inplace_reuse[name] == before and name not in together.plan.call_allocated
