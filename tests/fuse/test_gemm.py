"""What surrounds a product shares its kernel: what makes its left operand, what finishes rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import litz
from litz.autotune.trial import Variant, callable_of
from litz.config import snapshot
from litz.fuse import fuse
from litz.ir.choices import ANY, NO_CHOICES, Choices, GemmChoice
from litz.ir.interpret import run_kernels
from litz.ir.parse import parse_kernel
from litz.ir.program import KernelGraph, LoopProgram
from litz.ir.text import kernel_text
from litz.ir.verify import verify
from litz.lower import lower
from litz.target import Target, host
from litz.targets import toolchain_of
from tests import draws
from tests.stages import as_array, stages
from tests.toolchain import schedule

Function = Callable[..., Any]
Draw = Callable[[], list[torch.Tensor]]
JOINED = Choices(gemms={ANY: GemmChoice(rows=True, prologue=True)})
DRAWS = 8  # of the inputs of a function whose errors are held against eager's


def _rms(x: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)


# Of x[rows, depth], the weight w[depth, columns], r[rows, columns], g[depth], h[columns].
BEHIND: dict[str, Function] = {
    "layer norm": lambda x, w, r, g, h: F.layer_norm(x @ w + r, h.shape, h, h * 2),
    "rms norm, residual": lambda x, w, r, g, h: (lambda t: (_rms(t) * h, t))(x @ w + r),
    "softmax": lambda x, w, r, g, h: (x @ w).softmax(-1),
    "log-softmax": lambda x, w, r, g, h: (x @ w + h).log_softmax(-1),
    "sum": lambda x, w, r, g, h: (x @ w).sum(-1),
    "maximum": lambda x, w, r, g, h: (lambda t: (t.amax(-1), t.relu()))(x @ w * 2 + r),
    "heads": lambda x, w, r, g, h: F.layer_norm(x @ w + r, h.shape).view(len(x), 2, -1) + 1,
}
BEFORE: dict[str, Function] = {
    "chain": lambda x, w, r, g, h: (x.tanh() * 2 + g) @ w,
    "layer norm": lambda x, w, r, g, h: F.layer_norm(x, g.shape, g, g + 1) @ w + r,
    "rms norm": lambda x, w, r, g, h: F.gelu((_rms(x) * g) @ w),
    "both": lambda x, w, r, g, h: F.layer_norm(F.layer_norm(x, g.shape, g) @ w + r, h.shape, h),
    "other columns": lambda x, w, r, g, h: ((x * g) @ w).flip(-1) + r,
    "three dimensions": lambda x, w, r, g, h: (x.view(1, *x.shape).sin() @ w + r).softmax(-1),
}
SIZES = [(1, 64, 80), (5, 48, 130), (7, 300, 64), (13, 16, 1000), (131, 100, 18)]


def _program(
    function: Function, *inputs: torch.Tensor, weights: tuple[int, ...] = (1,)
) -> LoopProgram:
    """With some inputs parameters, which are packed."""
    made = stages(function, *inputs)
    made.graph.static = frozenset(made.graph.nodes[k].name for k in weights)
    return lower(made.graph, host(), snapshot({}))


def _inputs(rows: int, depth: int, columns: int, dtype: torch.dtype) -> list[torch.Tensor]:
    """The weight is small, as that of a layer is. A softmax of numbers about 30 turns a unit in the
    last place of them into 30 of its own, in the one or two elements that are not zero or one."""
    shapes = (rows, depth), (depth, columns), (rows, columns), (depth,), (columns,)
    made = [torch.randn(shape, dtype=torch.float64) for shape in shapes]
    made[1] /= depth**0.5
    return [t.to(dtype) for t in made]


def _callable(program: LoopProgram, inputs: list[torch.Tensor], **flags: Any) -> Draw:
    """Gives the results of what is in the list by then."""
    config = snapshot({"cpp.threads": 2, "debug_index_asserts": True, **flags})
    return callable_of(Variant(program, JOINED), host(2), toolchain_of(host(2)), config, inputs)


def _called(program: LoopProgram, inputs: list[torch.Tensor], **flags: Any) -> list[torch.Tensor]:
    with torch.no_grad():
        return _callable(program, inputs, **flags)()


def _joined(program: LoopProgram, target: Target | None = None) -> KernelGraph:
    graph = fuse(program, target or host(), snapshot({}), JOINED)
    verify(graph)
    return graph


def _furthest(found: torch.Tensor, right: torch.Tensor | float) -> float:
    return (found.double() - right).abs().max().item()


def _agrees(function: Function, draw: Draw, weights: tuple[int, ...] = (1,)) -> None:
    """Errors no larger than eager's against float64; and what the interpreter makes of kernels.

    What is compared is the greatest error of a draw, as the root of the mean square over several:
    with one row a sum is one number, whose error in one draw is luck, eager's as well as ours."""
    inputs = draw()
    program = _program(function, *inputs, weights=weights)
    graph = _joined(program)
    assert len(graph.kernels) == 2  # packing and the rest
    call = _callable(program, inputs)
    seen = []  # by draw and result: the error, eager's, the largest number, from the interpreter's
    for _ in range(DRAWS):
        with torch.no_grad():
            found = call()
        meant = map(torch.from_numpy, run_kernels(graph, [as_array(t) for t in inputs]))
        wide = [t.double() if t.is_floating_point() else t for t in inputs]
        expected, exact = function(*inputs), function(*wide)
        several = isinstance(expected, tuple)
        expected, exact = (expected, exact) if several else ((expected,), (exact,))
        pairs = zip(found, expected, exact, meant, strict=True)
        seen.append(
            [
                (_furthest(m, x), _furthest(e, x), _furthest(x, 0), _furthest(m, o))
                for m, e, x, o in pairs
            ]
        )
        for mine, theirs in zip(found, expected, strict=True):
            assert mine.dtype is theirs.dtype and mine.stride() == theirs.stride()
        inputs[:] = draw()
    over_draws = torch.tensor(seen, dtype=torch.float64).square().mean(0).sqrt().tolist()
    for (error, own, scale, apart), theirs in zip(over_draws, expected, strict=True):
        bound = 2 * own + 2e-7 * scale
        assert error <= bound, (error, bound)
        assert apart <= 2 * bound + (1e-2 * scale if theirs.dtype is torch.bfloat16 else 0)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", BEHIND)
def test_whole_rows_behind_a_product(name: str, size: tuple[int, int, int]) -> None:
    _agrees(BEHIND[name], lambda: _inputs(*size, torch.float32))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", BEFORE)
def test_what_makes_the_left_operand(name: str, size: tuple[int, int, int]) -> None:
    _agrees(BEFORE[name], lambda: _inputs(*size, torch.float32))


def test_narrow_types() -> None:
    """Rows of scratch lie as the instructions want them: bytes and halves stay what they are."""

    def x() -> torch.Tensor:
        return torch.randn(13, 130)

    def small() -> torch.Tensor:
        return torch.randint(-128, 127, (130, 70), dtype=torch.int8)

    def scale() -> torch.Tensor:  # so that products are about one, see `_inputs`
        return torch.rand(70) / 500

    for function, draw in (
        (lambda x, w: F.layer_norm(x, x.shape[1:]) @ w,
         lambda: [x().half(), torch.randn(130, 70).half()]),
        (lambda x, w: torch._int_mm((x * 9).round().to(torch.int8), w), lambda: [x(), small()]),
        (lambda x, w: (torch._int_mm(x, w) * 1e-3).softmax(-1),
         lambda: [(x() * 9).to(torch.int8), small()]),
        (lambda x, w, s: F.layer_norm(x, x.shape[1:]) @ (w.float() * s),
         lambda: [x(), small(), scale()]),
        (lambda x, w, s: (x @ (w.float() * s)).softmax(-1), lambda: [x(), small(), scale()]),
    ):  # fmt: skip
        _agrees(function, draw, weights=tuple(range(1, len(draw()))))


def test_rows_from_a_table_and_numbers_from_bytes() -> None:

    def looked_up(*places: int) -> list[torch.Tensor]:
        return [torch.randn(50, 48), torch.randn(48, 70), torch.randint(0, 50, places)]

    def small() -> list[torch.Tensor]:
        bytes_ = torch.randint(-100, 100, (13, 48), dtype=torch.int8)
        return [bytes_, torch.randn(48, 70), torch.rand(13, 1)]

    def halves() -> list[torch.Tensor]:
        return [torch.randn(13, 48).bfloat16(), torch.randn(48, 70)]

    _agrees(lambda t, w, i: F.embedding(i, t) @ w, lambda: looked_up(2, 9))
    _agrees(lambda t, w, i: t[i] @ w + 1, lambda: looked_up(9))
    _agrees(lambda x, w, s: (x.to(w.dtype) * s) @ w, small)
    _agrees(lambda x, w: x.to(w.dtype) @ w, halves)


def test_a_place_outside_of_the_table_is_an_error() -> None:
    inputs = [torch.randn(50, 48), torch.randn(48, 70), torch.tensor([0, 49, 3, 4, 5])]
    program = _program(lambda t, w, i: t[i] @ w, *inputs)
    _called(program, inputs)
    with pytest.raises(IndexError):
        _called(program, [*inputs[:2], inputs[2] + 1])


def test_a_batch_has_rows_of_its_own() -> None:
    draws.seed(0)
    x, y = torch.randn(3, 70, 40), torch.randn(3, 40, 64)
    for function in (
        lambda x, y: (torch.bmm(x, y) + 1).softmax(-1),
        lambda x, y: torch.bmm(x.tanh(), y),
    ):
        program = _program(function, x, y, weights=())  # nothing is packed
        assert len(_joined(program).kernels) == 1
        torch.testing.assert_close(_called(program, [x, y])[0], function(x, y))


def test_rows_that_only_a_call_knows() -> None:
    """What makes the operand joins the product; whole rows are finished apart."""
    layer, norm = torch.nn.Linear(64, 96), torch.nn.LayerNorm(64)
    table = torch.nn.Embedding(20, 64)

    def function(i: torch.Tensor) -> torch.Tensor:
        return layer(norm(table(i))).softmax(-1)

    torch._dynamo.reset()
    options = {"on_error": "raise", "cpp.threads": 2}
    run = torch.compile(function, backend="litz", dynamic=True, options=options)
    with torch.no_grad():
        for rows in (64, 5, 200, 13):
            places = torch.randint(0, 20, (rows,))
            torch.testing.assert_close(run(places), function(places))
        with litz.config.patch(options):
            torch._dynamo.reset()
            torch._dynamo.mark_dynamic(places, 0)
            notes = litz.explain(function, places)
    (graph,) = notes.graphs
    scheduled = [s for s in graph.scheduled if s.choice.gemm is not None]
    assert len(scheduled) == 1 and len(scheduled[0].kernel.phases) > 2
    assert "only a call knows" in str([d.reason for d in graph.decisions])


# -- the rule, and who may overrule it ---------------------------------------------------------


def _kernels(function: Function, inputs: list[torch.Tensor], threads: int, **flags: Any) -> int:
    """How many there are besides packing."""
    program = _program(function, *inputs)
    target = replace(host(), threads=threads, l2_bytes=1 << 20)
    return len(fuse(program, target, snapshot(flags), NO_CHOICES).kernels) - 1


def test_the_flags_act() -> None:
    many, few = (_inputs(rows, 64, 64, torch.float32) for rows in (192, 24))
    behind, before = BEHIND["layer norm"], BEFORE["layer norm"]
    assert _kernels(behind, many, 2) == _kernels(before, few, 2) == 1
    assert _kernels(before, few, 2, prologue_fusion=False) == 2
    assert _kernels(behind, many, 2, prologue_fusion=False) == 1
    assert _kernels(behind, many, 2, epilogue_fusion=False) == 2


def test_few_rows_are_finished_apart() -> None:
    """A block of rows is all that a thread could take: others would have nothing to do."""
    behind = BEHIND["layer norm"]
    assert _kernels(behind, _inputs(16, 64, 64, torch.float32), 2) == 2
    many = _inputs(192, 64, 64, torch.float32)
    assert _kernels(behind, many, 2) == 1
    assert _kernels(behind, many, 64) == 2


def test_one_thread_joins_what_the_cache_does_not_hold() -> None:
    for rows, kernels in ((192, 2), (1920, 1)):
        inputs = _inputs(rows, 256, 256, torch.float32)
        assert _kernels(BEHIND["layer norm"], inputs, 1) == kernels
        assert _kernels(BEFORE["layer norm"], inputs, 1) == kernels


def test_rows_that_every_thread_would_make_are_made_apart() -> None:
    for rows, kernels in ((16, 1), (192, 2)):  # a few take less time than one more launch
        inputs = _inputs(rows, 64, 64, torch.float32)
        assert _kernels(BEFORE["layer norm"], inputs, 64) == kernels


def test_an_operand_that_others_need_is_made_apart() -> None:
    inputs = _inputs(64, 48, 96, torch.float32)
    for function, kernels in (
        (lambda x, w, r, g, h: (lambda t: (t @ w, t))(x.tanh()), 2),
        (lambda x, w, r, g, h: (lambda t: (t @ w[:, :48]) + (t @ w[:, 48:]))(x.tanh()), 3),
    ):
        program = _program(function, *inputs)
        made = fuse(program, host(), snapshot({}), JOINED)
        assert len(made.kernels[made.prepack_steps :]) == kernels
        assert any("others read" in d.reason for d in made.decisions)


def test_what_does_not_wait_for_the_product_is_done_once() -> None:
    """Several threads make the rows of the operand, but an input is updated once."""
    inputs = _inputs(60, 100, 640, torch.float32)
    table = torch.randn(60, 100)
    for function in (
        lambda x, w, z: (((x * 2) @ w), z.add_(x))[0],
        lambda x, w, z: z.add_(x) @ w,
    ):
        x, w = inputs[:2]
        program = _program(function, x, w, table)
        expected, after = table.clone(), table.clone()
        result = function(x, w, expected)
        torch.testing.assert_close(_called(program, [x, w, after])[-1], result)
        torch.testing.assert_close(after, expected)


def test_a_copy_across_rows_stays_a_copy() -> None:
    inputs = [torch.randn(48, 2048), torch.randn(48, 1024)]  # fewer columns: it is read as it lies
    made = fuse(_program(lambda x, w: x.t() @ w, *inputs), host(), snapshot({}), JOINED)
    assert any("across its rows" in d.reason for d in made.decisions)
    assert len(made.kernels) == 3


def test_a_choice_overrules_the_rule() -> None:
    inputs = _inputs(192, 64, 64, torch.float32)
    for name, choice in (
        ("layer norm", GemmChoice(rows=False)),
        ("softmax", GemmChoice(fused=False)),
    ):
        program = _program(BEHIND[name], *inputs)
        choices = Choices(gemms={ANY: choice})
        assert len(fuse(program, replace(host(), threads=2), snapshot({}), choices).kernels) > 2
    program = _program(BEFORE["chain"], *inputs)
    choices = Choices(gemms={ANY: GemmChoice(prologue=False)})
    assert len(fuse(program, replace(host(), threads=2), snapshot({}), choices).kernels) == 3


def test_the_text_of_such_a_kernel_is_read_back() -> None:
    program = _program(BEFORE["both"], *_inputs(13, 48, 70, torch.float32))
    kernel = _joined(program).kernels[-1]
    text = kernel_text(replace(kernel, origins=()))
    assert "phase j0 < 70 reduce j1 < 48 as gemm(rows=[o0], columns=[j0], depth=[j1]):" in text
    assert parse_kernel(text) == replace(kernel, origins=())
    verify(kernel)


def test_a_task_is_a_chunk_with_all_its_panels_where_rows_are_finished() -> None:
    inputs = _inputs(131, 100, 192, torch.float32)
    behind = _joined(_program(BEHIND["softmax"], *inputs)).kernels[-1]
    before = _joined(_program(BEFORE["chain"], *inputs)).kernels[-1]
    whole, panels = (schedule(k, host(2), snapshot({})) for k in (behind, before))
    assert whole.choice.gemm.full_rows and not panels.choice.gemm.full_rows
    assert whole.tasks == whole.choice.gemm.m_blocks.number
    assert panels.tasks == panels.choice.gemm.m_blocks.number * panels.choice.gemm.panels


def test_training_is_right_with_all_that_joins() -> None:
    draws.seed(0)
    layers = torch.nn.Linear(32, 64), torch.nn.LayerNorm(64), torch.nn.Linear(64, 40)
    model = torch.nn.Sequential(*layers, torch.nn.Softmax(-1))
    x = torch.randn(96, 32, requires_grad=True)

    def gradients(run: Function) -> list[torch.Tensor]:
        model.zero_grad()
        x.grad = None
        run(x).square().sum().backward()
        return [x.grad, *(p.grad for p in model.parameters())]

    torch._dynamo.reset()
    options = {"on_error": "raise", "cpp.threads": 2}
    found = gradients(torch.compile(model, backend="litz", options=options))
    found = [g.clone() for g in found]
    for mine, theirs in zip(found, gradients(model), strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", ["softmax", "layer norm", "rms norm", "both"])
def test_other_types(name: str, dtype: torch.dtype) -> None:
    for size in SIZES[1:4]:
        _agrees((BEFORE.get(name) or BEHIND[name]), lambda size=size: _inputs(*size, dtype))
