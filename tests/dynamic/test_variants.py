"""`multi_kernel_hints`: schedules for several sizes behind one entry, chosen by each call."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from litz import config
from litz.config import FLAGS
from litz.config.values import parse, type_text
from litz.errors import FlagValueError, WrongFlagType
from tests import draws
from tests.dynamic.symbolic import Symbolic, marked

HINTS = [4, 32, 600]
# Between the hints, at them, and outside; around where one schedule takes over from another.
SIZES = (64, 2, 3, 4, 9, 11, 12, 31, 32, 46, 195, 197, 600, 1000)


def test_each_size_runs_the_schedule_that_is_nearest() -> None:
    draws.seed(0)
    layer = torch.nn.Linear(48, 80)

    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        scores = torch.softmax(x[..., :1] * x[..., :1].transpose(1, 2), -1)
        return F.gelu(layer(x)), scores, x.sum(1), x.exp(), x.transpose(1, 2).contiguous()

    symbolic = Symbolic(program, dynamic=None, multi_kernel_hints=HINTS)
    with torch.no_grad():
        for n in SIZES:
            x = marked(torch.randn(2, n, 48), 1)
            symbolic.check(x, interpret=False, rtol=1e-4, atol=1e-4)
    assert symbolic.graphs == 1 and symbolic.frames == 1
    (report,) = symbolic.notes.graphs
    softmax = next(k for k, kernel in enumerate(report.kernels) if "exp_sum" in kernel.name)
    ways = [launch.function for launch in report.kernels[softmax].launches]
    assert len(ways) == 4 and len(set(ways)) > 1
    assert report.scheduled[softmax].variants[0].scheduled.choice.vector is not None  # rows of 4
    assert report.scheduled[softmax].variants[3].scheduled.choice.vector is None  # rows of 600
    assert [v.begins for v in report.scheduled[softmax].variants] == [0, 12, 46, 196]
    assert "(multi_kernel_hints)" in str(report) and ways[0] in str(report)


def test_sizes_that_no_axis_has() -> None:
    """The distance between rows is a size that kernels read, and no loop runs over."""
    symbolic = Symbolic(lambda x: (x[:, 0] * 2, x[:, 1].sum()), multi_kernel_hints=HINTS)
    for shape in ((6, 30), (300, 4), (40, 9)):
        symbolic.check(torch.randn(shape), interpret=False)
    assert symbolic.graphs == 1


def test_without_hints_a_kernel_has_one_way_to_run() -> None:
    symbolic = Symbolic(lambda x: torch.softmax(x, -1))
    symbolic.check(torch.randn(6, 30))
    (report,) = symbolic.notes.graphs
    assert [len(k.launches) for k in report.kernels] == [1] and not report.scheduled[0].variants


def test_kernels_that_differ_in_the_names_of_their_sizes_are_one_function() -> None:
    symbolic = Symbolic(lambda x, y: (torch.softmax(x, -1), torch.softmax(y, -1)), dynamic=None)
    for n, m in ((70, 80), (5, 7)):
        symbolic.check(marked(torch.randn(6, n), 1), marked(torch.randn(6, m), 1))
    (report,) = symbolic.notes.graphs
    assert len(report.kernels) == 2 and len(report.source.functions) == 1


def test_hints_are_a_list_of_sizes() -> None:
    assert config.snapshot({"multi_kernel_hints": [64, 8]}).multi_kernel_hints == (64, 8)
    for wrong, error in (([0], FlagValueError), ([1.5], WrongFlagType), (64, WrongFlagType)):
        with pytest.raises(error):
            config.snapshot({"multi_kernel_hints": wrong})


def test_hints_may_come_from_the_environment() -> None:
    flag = FLAGS["multi_kernel_hints"]
    assert parse(flag, "64, 512") == (64, 512) and type_text(flag) == "list of int"
