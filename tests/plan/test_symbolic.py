"""The arena of symbolic sizes: buffers never meet, whatever the sizes are."""

from __future__ import annotations

import itertools

import torch

from litz.ir.interpret import Environment
from litz.ir.program import Plan, Slot, read, written
from litz.plan.order import extent_bytes
from tests.dynamic.symbolic import Symbolic


def _program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Intermediates of s0, s0 * s1 and constant size, which ATen calls keep apart."""
    a = torch.sort(x * 2, 0)[0].sin().sum(1)
    b = torch.sort(y + 1, 0)[0].cos()
    c = torch.sort(torch.sort(a, 0)[0] + 1, 0)[0]
    return torch.sort(b.exp() * x.sum(), 0)[0].sum() + c.sum()


def _plan() -> Plan:
    symbolic = Symbolic(_program)
    for n, m in ((5, 7), (30, 3)):
        symbolic.check(torch.randn(n, m), torch.randn(6), interpret=False, rtol=1e-4, atol=1e-4)
    assert symbolic.graphs == 1
    return symbolic.notes.graphs[0].plan


def test_buffers_that_live_at_once_never_meet() -> None:
    plan = _plan()
    units = {slot.unit for slot in plan.slots.values()}
    assert len(units) > 1 and units <= {unit for unit, _ in plan.regions}
    buffers = {b.name: b for step in plan.graph.body for b in (*read(step), *written(step))}
    first: dict[str, int] = {}
    for position, step in enumerate(plan.graph.body):
        for buffer in (*read(step), *written(step)):
            first.setdefault(buffer.name, position)
    for sizes in itertools.product((2, 3, 17), repeat=3):
        env = Environment(sizes=dict(zip(_symbols(plan), sizes, strict=False)))
        starts = _starts(plan, env)
        for one, other in itertools.combinations(plan.slots, 2):
            apart = plan.last_use[one] < first[other] or plan.last_use[other] < first[one]
            a, b = plan.slots[one], plan.slots[other]
            if apart or a == b:  # what took another's place was read only where it is written
                continue
            ends = [
                _end(starts, s, env, extent_bytes(buffers[n])) for s, n in ((a, one), (b, other))
            ]
            assert ends[0] <= _begin(starts, b, env) or ends[1] <= _begin(starts, a, env)


def _symbols(plan: Plan) -> list[str]:
    found = [i for i in plan.graph.inputs if hasattr(i, "op") and i.op == "size"]
    shapes = [n for b in plan.graph.inputs if hasattr(b, "shape") for n in b.shape]
    return list(dict.fromkeys(n.attr[0] for n in (*found, *shapes) if n.op == "size"))


def _starts(plan: Plan, env: Environment) -> dict[object, int]:
    starts, end = {}, 0
    for unit, size in plan.regions:
        starts[unit] = end
        end += env.number(unit) * size
    return starts


def _begin(starts: dict[object, int], slot: Slot, env: Environment) -> int:
    return starts[slot.unit] + slot.offset * env.number(slot.unit)


def _end(starts: dict[object, int], slot: Slot, env: Environment, size: object) -> int:
    needed = env.number(size)  # type: ignore[arg-type]
    assert needed <= slot.bytes * env.number(slot.unit)
    return _begin(starts, slot, env) + needed
