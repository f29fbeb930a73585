"""Random programs that place tensors beside, into and across each other, with several outputs.

In: a seed. Out: a function of a few tensors, and the tensors. Steps are cat, stack, slices,
transposes, pads, flips, copies, elementwise ops and short reductions, applied to a pool of values
of a few sizes, so that many of them fit together; some programs update their inputs at the end.
All numbers are small integers, so that every way to compute them gives the same bits.
Example: `(torch.cat([x[:, 1:-3], x[:, 2:-2]], 2), x[:, 2:-2].transpose(-1, -2).contiguous())`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

from tests import draws

Values = list[torch.Tensor]
Step = Callable[[Values], torch.Tensor]
SIZES = (1, 2, 3, 4, 8, 16, 17, 20, 32)
MOST_ELEMENTS = 1 << 15
LARGEST = 1 << 18  # sums of a row of them are exact


class _Drawing:
    """Draws one step at a time; each is executed as it is drawn, and kept if torch takes it."""

    def __init__(self, seed: int) -> None:
        self.draw = draws.python_generator(seed)
        numbers = draws.generator(seed)
        rank = self.draw.choice((2, 3, 3, 4, 4))
        shape = [self.draw.choice(SIZES) for _ in range(rank)]
        shapes = [shape, self.draw.sample(shape, rank), shape]
        self.inputs = [
            torch.randint(-9, 9, s, generator=numbers).float()
            for s in shapes[: self.draw.choice((1, 2, 3))]
        ]
        self.steps: list[Step] = []
        self.values: Values = list(self.inputs)

    def add(self) -> None:
        step = self.draw.choice(STEPS)(self)
        try:
            made = step(self.values)
        except (RuntimeError, IndexError, ValueError):
            return
        if 0 < made.numel() <= MOST_ELEMENTS and made.dim() <= 5 and made.abs().max() < LARGEST:
            self.steps.append(step)
            self.values.append(made)

    def one(self) -> int:
        return self.draw.randrange(len(self.values))

    def like(self, k: int) -> int:
        """A value of the same shape, if there is another."""
        same = [n for n, v in enumerate(self.values) if v.shape == self.values[k].shape]
        return self.draw.choice(same)

    def axis(self, k: int) -> int:
        return self.draw.randrange(max(self.values[k].dim(), 1))


def _cat(d: _Drawing) -> Step:
    k = d.one()
    axis, several = d.axis(k), [k, *(d.like(k) for _ in range(d.draw.choice((1, 1, 2))))]
    return lambda v: torch.cat([v[n] for n in several], axis)


def _cat_slices(d: _Drawing) -> Step:
    """Windows of one value beside each other, at other places of another axis."""
    k = d.one()
    cut, axis, size = d.axis(k), d.axis(k), d.draw.choice((1, 2, 4, 8))
    starts = [d.draw.randrange(4) for _ in range(d.draw.choice((2, 2, 3)))]
    length = max(d.values[k].shape[cut] - 4, size) if d.values[k].dim() else 1
    return lambda v: torch.cat([v[k].narrow(cut, s, length) for s in starts], axis)


def _stack(d: _Drawing) -> Step:
    k = d.one()
    axis, other = d.draw.randrange(d.values[k].dim() + 1), d.like(k)
    return lambda v: torch.stack([v[k], v[other] * 2], axis)


def _slice(d: _Drawing) -> Step:
    k = d.one()
    axis, start, step = d.axis(k), d.draw.randrange(4), d.draw.choice((1, 1, 1, 2, 3))
    end = d.draw.choice((None, -1, -2, 8))
    return lambda v: v[k][(slice(None),) * axis + (slice(start, end, step),)]


def _transpose(d: _Drawing) -> Step:
    k = d.one()
    a, b, copy = d.axis(k), d.axis(k), d.draw.random() < 0.6
    return lambda v: v[k].transpose(a, b).contiguous() if copy else v[k].transpose(a, b)


def _permute(d: _Drawing) -> Step:
    k = d.one()
    order = d.draw.sample(range(d.values[k].dim()), d.values[k].dim())
    return lambda v: v[k].permute(order).contiguous()


def _reshape(d: _Drawing) -> Step:
    k = d.one()
    a = d.draw.randrange(max(d.values[k].dim() - 1, 1))
    return lambda v: v[k].flatten(a, a + 1)


def _pad(d: _Drawing) -> Step:
    k = d.one()
    sizes = [d.draw.randrange(-2, 17) for _ in range(d.draw.choice((2, 4)))]
    return lambda v: F.pad(v[k], sizes, value=3.0)


def _flip(d: _Drawing) -> Step:
    k = d.one()
    axis, by = d.axis(k), d.draw.randrange(1, 5)
    if d.draw.random() < 0.5:
        return lambda v: v[k].flip(axis)
    return lambda v: v[k].roll(by, axis)


def _place(d: _Drawing) -> Step:
    k = d.one()
    axis, start = d.axis(k), d.draw.randrange(3)
    return lambda v: torch.slice_scatter(v[k], v[k].narrow(axis, 0, 2) * 3, axis, start, start + 2)


def _elementwise(d: _Drawing) -> Step:
    k = d.one()
    other, op = d.like(k), d.draw.choice((torch.add, torch.maximum, torch.sub))
    if d.draw.random() < 0.5:
        return lambda v: op(v[k], v[other])
    return lambda v: v[k].relu() * 2 - v[k].abs() + 1


def _reduce(d: _Drawing) -> Step:
    k = d.one()
    axis, keep = d.axis(k), d.draw.random() < 0.5
    kind = d.draw.choice((torch.sum, torch.amax, torch.argmin))
    if d.draw.random() < 0.4:
        return lambda v: v[k] - v[k].amax(axis, keepdim=True)
    return lambda v: kind(v[k], axis, keepdim=keep).float()


STEPS: tuple[Callable[[_Drawing], Step], ...] = (
    _cat, _cat_slices, _cat_slices, _stack, _slice, _slice, _transpose, _transpose, _permute,
    _reshape, _pad, _flip, _place, _elementwise, _elementwise, _reduce,
)  # fmt: skip


def mixture(seed: int) -> tuple[Callable[..., tuple[torch.Tensor, ...]], list[torch.Tensor]]:
    """The program of a seed, and its inputs."""
    drawing = _Drawing(seed)
    draw = drawing.draw
    while len(drawing.steps) < 3 + seed % 6:
        drawing.add()
    first = len(drawing.inputs)
    made = range(first, len(drawing.values))
    shown = sorted({made[-1], *draw.sample(made, min(len(made), draw.choice((1, 2, 3))))})
    updated = draw.randrange(first) if draw.random() < 0.3 else None
    source = None if updated is None else drawing.like(updated)
    steps = list(drawing.steps)

    def program(*inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        values = list(inputs)
        for step in steps:
            values.append(step(values))
        results = tuple(
            values[k] + 0 if draws_input(values[k], inputs) else values[k] for k in shown
        )
        if updated is not None and source is not None:
            inputs[updated].copy_(values[source] + inputs[updated] * 2)
        return results

    return program, drawing.inputs


def draws_input(value: torch.Tensor, inputs: tuple[torch.Tensor, ...]) -> bool:
    """Whether a value is a view of an input, which an update would change behind our back."""
    return any(value is i or value._base is i for i in inputs)
