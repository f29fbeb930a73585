"""What neighbours share is written out once, and what a channel needs is computed once."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

from litz.ir.expr import walk
from litz.ir.program import Kernel
from tests.stages import compiled, stages

CHANNELS_LAST = torch.randn(2, 48, 20, 20).to(memory_format=torch.channels_last)


def _kernels(function: Callable[..., object], *inputs: torch.Tensor) -> list[Kernel]:
    return stages(function, *inputs).kernels.kernels


def _ops(kernel: Kernel) -> set[str]:
    return {n.op for n in walk(*(s.value for s in kernel.stores))}


def _group_norm(x: torch.Tensor) -> torch.Tensor:
    return F.group_norm(x, 8, torch.linspace(1, 2, 48, dtype=x.dtype))


def test_a_group_norm_of_six_channels_keeps_its_channels_whole() -> None:
    x = torch.randn(1, 48, 160, 160).to(memory_format=torch.channels_last)
    *_, last = _kernels(_group_norm, x)
    assert not _ops(last) & {"floordiv", "mod", "rsqrt"}
    assert any("broadcast" in b.name for b in last.reads)
    torch.testing.assert_close(compiled(_group_norm)(x), _group_norm(x.contiguous()))


def test_groups_that_fill_vectors_are_read_where_they_lie() -> None:
    x = torch.randn(2, 64, 20, 20).to(memory_format=torch.channels_last)
    kernels = _kernels(lambda x: F.group_norm(x, 2), x)
    assert not any("broadcast" in b.name for k in kernels for b in k.writes)


def test_what_is_not_small_beside_the_loop_is_not_copied() -> None:
    x, y = torch.randn(4, 48), torch.randn(4, 8)
    kernels = _kernels(lambda x, y: x + y.repeat_interleave(6, 1), x, y)
    assert not any("broadcast" in b.name for k in kernels for b in k.writes)


def test_a_root_for_each_channel_is_taken_once() -> None:
    x, v = CHANNELS_LAST, torch.rand(48)
    first, second = _kernels(lambda x, v: x / (v + 1e-5).sqrt()[:, None, None], x, v)
    assert "sqrt" in _ops(first) and "sqrt" not in _ops(second)
    assert [a.extent.number for a in first.outer] == [48]


def test_a_value_of_a_channel_stands_free_of_the_guards_of_a_window() -> None:
    """What is in range anyway is read without a test, and so once for a window."""
    x, m = CHANNELS_LAST, torch.rand(48)
    (kernel,) = _kernels(lambda x, m: F.max_pool2d(x - m[:, None, None], 3, 2, 1), x, m)
    guards = {n.buffer: n.guard for s in kernel.stores for n in walk(s.value) if n.op == "load"}
    assert sorted(guard is None for guard in guards.values()) == [False, True]


def test_a_sum_over_short_runs_loses_no_more_than_eager() -> None:
    """Sums go aside by the turns of all loops, not of the innermost alone."""
    x = (torch.rand(4, 48, 96, 96) * 0.1 + 3).to(memory_format=torch.channels_last)

    def off(result: object) -> float:
        assert isinstance(result, torch.Tensor)
        return float((result.double() - _group_norm(x.double())).abs().max())

    assert off(compiled(_group_norm)(x)) <= 4 * off(_group_norm(x.contiguous()))
