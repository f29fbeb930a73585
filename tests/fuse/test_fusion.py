"""What fuses, what does not, and the reason that is kept for it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from litz.ir.expr import walk
from litz.ir.program import Kernel
from tests.stages import stages

X = torch.randn(8, 40)
Y = torch.randn(16, 40)
W = torch.randn(40)


def _kernels(function: Callable[..., object], *inputs: object, **options: object) -> list[Kernel]:
    return stages(function, *inputs, **options).kernels.kernels


def _count(kernel: Kernel, op: str) -> int:
    return sum(n.op == op for n in walk(*(s.value for s in kernel.stores)))


@pytest.mark.parametrize(
    ("function", "phases"),
    [
        (lambda x, w: F.softmax(x, -1), 3),
        (lambda x, w: F.log_softmax(x, -1), 3),
        (lambda x, w: F.layer_norm(x, (40,), w, w), 3),
        (lambda x, w: F.rms_norm(x, (40,), w), 2),
        (lambda x, w: F.softmax(F.layer_norm(x * 2, (40,), w), -1) + x, 5),
    ],
    ids=["softmax", "log_softmax", "layer_norm", "rms_norm", "norm_softmax"],
)
def test_rows_become_one_kernel(function: Callable[..., object], phases: int) -> None:
    (kernel,) = _kernels(function, X, W)
    assert len(kernel.phases) == phases
    assert [a.extent.number for a in kernel.outer] == [8]


def test_a_row_is_read_through_a_view() -> None:
    """Rows of a softmax that the reader sees as 2 x 4 are still its rows."""
    (kernel,) = _kernels(lambda x: F.softmax(x, -1).view(2, 4, 40) * 2, X)
    assert [a.extent.number for a in kernel.outer] in ([8], [2, 4])


def test_a_costly_value_with_two_readers_is_computed_once() -> None:
    (kernel,) = _kernels(lambda x: (x.exp() * 2, x.exp().sum(1), x.exp() + 1), X)
    assert _count(kernel, "exp") == 1


def test_siblings_over_one_input_share_a_kernel() -> None:
    (kernel,) = _kernels(lambda x: (x + 1, x * 2, x.relu()), X)
    assert len(kernel.stores) == 3


def test_chains_are_written_into_their_reader() -> None:
    made = stages(lambda x: ((x + 1) * 2).relu().sum(1), X).kernels
    assert len(made.kernels) == 1
    assert sum(d.action == "inlined" for d in made.decisions) == 3


def test_max_fusion_size_limits_a_kernel() -> None:
    def chain(x: torch.Tensor) -> torch.Tensor:
        for _ in range(12):
            x = (x + 1).sin()
        return x

    assert len(_kernels(chain, X)) == 1
    assert len(_kernels(chain, X, max_fusion_size=4)) > 3


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda x: x.relu() @ x.t(), "an output or an ATen call needs it in memory"),
        (lambda x: (x.sum(1), x.sum(0)), "reductions with 16 and 40 rows"),
        (lambda x: x.add_(1), "it updates an input"),
        (lambda x: torch.cat([x.exp()] * 6).sin(), "several loops write parts of it"),
    ],
)
def test_a_refusal_says_why(function: Callable[..., object], reason: str) -> None:
    decisions = stages(function, Y).kernels.decisions
    assert any(d.action == "refused" and reason in d.reason for d in decisions)


def test_a_residual_is_stored_once_not_recomputed_by_every_layer() -> None:
    def layers(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        for _ in range(4):
            x = x + F.layer_norm(x, (40,)) @ w
        return x

    made = stages(layers, X, torch.randn(40, 40))
    reads = [len({n.buffer for s in k.stores for n in walk(s.value) if n.op == "load"})
             for k in made.kernels.kernels]  # fmt: skip
    assert max(reads) <= 6


def test_work_grows_linearly_with_a_tree_of_sums_and_products() -> None:
    """pytorch issue 148073: each level uses the one below it twice."""

    def tree(x: torch.Tensor, depth: int) -> torch.Tensor:
        for _ in range(depth):
            x = x * 0.5 + x * x * 0.1
        return x

    sizes = {}
    for depth in (20, 40):
        made = stages(lambda x, depth=depth: tree(x, depth), X)
        stored = [s.value for k in made.kernels.kernels for s in k.stores]
        sizes[depth] = sum(1 for _ in walk(*stored))
    assert sizes[40] < 2.5 * sizes[20]


def test_emulated_precision_keeps_roundings_that_fusion_would_drop() -> None:
    x = torch.randn(64, 64).bfloat16()

    def function(x: torch.Tensor) -> torch.Tensor:
        return (x * 1.1 + 0.3) * 1.7 - x

    (plain,) = _kernels(function, x)
    (emulated,) = _kernels(function, x, emulate_precision_casts=True)
    assert _count(plain, "narrow") < _count(emulated, "narrow")


def test_a_rounding_that_ends_an_op_is_dropped_and_one_that_the_program_asks_for_is_kept() -> None:
    """gelu of bfloat16 is computed in float32; its result is rounded where it is stored."""
    x = torch.randn(64, 64).bfloat16()
    (own,) = _kernels(lambda x: torch.nn.functional.gelu(x) * 0.5 + x, x)
    assert [s.value.op for s in own.stores] == ["narrow"]
    assert _count(own, "narrow") == 1 and _count(own, "cast") == 1  # of what is loaded
    (asked,) = _kernels(lambda x: (x.float() * 1.1).bfloat16() * 0.5, x)
    assert _count(asked, "cast") == 3
