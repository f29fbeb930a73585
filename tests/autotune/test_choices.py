"""Choices: they print as Python that makes them, and each gives the product that eager gives."""

from __future__ import annotations

import pytest
import torch

from litz.autotune.cost import Machine, estimate
from litz.autotune.cpu_gemm_space import candidates, gemm_neighbours, register_tiles
from litz.autotune.descent import neighbours
from litz.autotune.gemm_regions import GemmSize
from litz.autotune.trial import InProcessRunner, Variant, callable_of
from litz.config import snapshot
from litz.fuse import fuse
from litz.ir.choices import ANY, NO_CHOICES, Choices, GemmChoice, LoopChoice
from litz.lower import lower
from litz.target import host
from litz.targets import toolchain_of
from tests import draws
from tests.stages import stages

MACHINE = Machine(2e11, 2e10)
SIZE = GemmSize(1, 16, 768, 3072, "float32", 4, True, True)


@pytest.mark.parametrize(
    "choice",
    [GemmChoice(), GemmChoice("ATEN"), GemmChoice(mr=8, nr_vectors=3, fused=False),
     LoopChoice(), LoopChoice(lanes=32, grain=4)],
)  # fmt: skip
def test_a_choice_prints_as_python(choice: GemmChoice | LoopChoice) -> None:
    assert eval(repr(choice)) == choice
    assert type(choice)(**choice.facts()) == choice
    assert hash(choice) == hash(eval(repr(choice)))


def test_only_what_differs_is_printed() -> None:
    assert repr(GemmChoice(mr=8)) == "GemmChoice(mr=8)"


def test_blocks_fit_the_registers() -> None:
    target = host()
    found = register_tiles(SIZE, target)
    for choice in found:
        if choice.mr is not None and choice.nr_vectors is not None:
            used = choice.mr * choice.nr_vectors + choice.nr_vectors + 1
            assert used <= target.registers and choice.mr <= SIZE.rows
    assert len(set(found)) == len(found) > 10


def test_the_model_orders_and_prunes() -> None:
    target = host()
    listed = candidates(SIZE, target, snapshot({}), MACHINE)
    every = candidates(
        SIZE, target, snapshot({"max_autotune_gemm_search_space": "EXHAUSTIVE"}), MACHINE
    )
    assert len(listed) <= 9 < len(every) and set(listed) <= set(every)
    ours = [c for c in every if c.backend == "LITZ" and c.fused]
    times = [estimate(SIZE, c, target, MACHINE) for c in ours]
    assert times == sorted(times)
    lonely = GemmChoice(mr=1, nr_vectors=1)
    assert estimate(SIZE, lonely, target, MACHINE) > 2 * times[0]


def test_backends_say_who_is_a_candidate() -> None:
    def listed(backends: str) -> set[str]:
        config = snapshot({"max_autotune_gemm_backends": backends})
        return {c.backend for c in candidates(SIZE, host(), config, MACHINE)}

    assert listed("ATEN,LITZ") == listed("ATEN,CPP") == listed("ATEN,TRITON") == {"ATEN", "LITZ"}
    assert listed("LITZ") == listed("CPP") == {"LITZ"}
    tiny = GemmSize(1, 4, 8, 16, "float32", 4, False, False)
    assert GemmChoice("LOOP") in candidates(tiny, host(), snapshot({}), MACHINE)


def test_epilogues_are_timed_apart_if_asked() -> None:
    apart = GemmChoice(fused=False)
    assert apart in candidates(SIZE, host(), snapshot({}), MACHINE)
    config = snapshot({"benchmark_epilogue_fusion": False})
    assert apart not in candidates(SIZE, host(), config, MACHINE)


def test_what_lies_beside_a_choice() -> None:
    found = gemm_neighbours(SIZE, GemmChoice(mr=4, nr_vectors=4), host())
    assert GemmChoice(mr=5, nr_vectors=4) in found and GemmChoice(mr=4, nr_vectors=3) in found
    assert gemm_neighbours(SIZE, GemmChoice("ATEN"), host()) == []


def _product(rows: int, depth: int, columns: int, dtype: torch.dtype):
    x, w = torch.randn(rows, depth, dtype=dtype), torch.randn(depth, columns, dtype=dtype)

    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.gelu(x @ w) + 1

    made = stages(function, x, w)
    made.graph.static = frozenset({made.graph.nodes[1].name})
    exact = function(x.double(), w.double())
    return made.graph, [x, w], function(x, w).double(), exact


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_choice_gives_the_product(dtype: torch.dtype) -> None:
    draws.seed(0)
    graph, inputs, eager, exact = _product(13, 256, 70, dtype)
    target, config = host(), snapshot({})
    size = GemmSize(1, 13, 256, 70, str(dtype), dtype.itemsize, True, True)
    shapes = [c for c in register_tiles(size, target) if c.mr in (None, 4, 7, 13)]
    others = GemmChoice("ATEN"), GemmChoice("LOOP"), GemmChoice(fused=False)
    odd = GemmChoice(split_k=2), GemmChoice(mc=5), GemmChoice(mr=8, nr_vectors=5)
    tried = [*shapes[::3], *others, *odd]
    allowed = 2 * (eager - exact).abs().max().item() + 1e-5
    for choice in tried:
        choices = Choices(gemms={ANY: choice})
        variant = Variant(lower(graph, target, config, choices), choices)
        [found] = callable_of(variant, target, toolchain_of(target), config, inputs)()
        assert (found.double() - exact).abs().max().item() <= allowed, choice


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_stretches_change_no_bit(dtype: torch.dtype) -> None:
    """What is added to what does not depend on them; with edges of all three axes."""
    draws.seed(0)
    target, config = host(), snapshot({})
    for rows, depth, columns in ((13, 1030, 70), (300, 700, 33), (7, 2049, 64)):
        graph, inputs, eager, exact = _product(rows, depth, columns, dtype)
        results = []
        for choice in (GemmChoice(k_block=n) for n in (0, 256, 512, 10_000)):
            choices = Choices(gemms={ANY: choice})
            variant = Variant(lower(graph, target, config, choices), choices)
            results += callable_of(variant, target, toolchain_of(target), config, inputs)()
        allowed = 2 * (eager - exact).abs().max().item() + 1e-5
        assert (results[0].double() - exact).abs().max().item() <= allowed
        assert all(torch.equal(results[0], other) for other in results)


def test_neighbours_compute_the_same() -> None:
    """Schedules that differ in one field, of a row reduction, a column reduction and a copy."""
    target, config = host(), snapshot({})
    for function in (lambda x: x.softmax(-1), lambda x: x.sum(0), lambda x: x.sin() * 2):
        made = stages(function, torch.randn(67, 300))
        graph = fuse(made.program, target, config)
        count = 0
        for kernel, scheduled in zip(graph.kernels, made.scheduled, strict=True):
            for choice in neighbours(scheduled, LoopChoice()):
                other = Variant(graph, Choices(kernels={kernel.name: choice}))
                here = InProcessRunner(target, toolchain_of(target), config)
                found = here.tried(Variant(graph, NO_CHOICES), other, 0.0)
                assert not isinstance(found, str), choice
                count += 1
        assert count
