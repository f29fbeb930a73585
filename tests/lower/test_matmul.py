"""Matrix products: generated where the right operand is a parameter, and right everywhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import litz
from litz.report import Explanation
from litz.runtime.prepacked import PrepackCache
from tests import draws


def _compiled(module: nn.Module, *inputs: torch.Tensor, **options: Any) -> tuple[Any, Explanation]:
    torch._dynamo.reset()
    named = {name.replace("__", "."): value for name, value in options.items()}
    settings = {"on_error": "raise", **named}
    with torch.no_grad():
        with litz.config.patch(settings):
            notes = litz.explain(module, *inputs)
        torch._dynamo.reset()
        return torch.compile(module, backend="litz", options=settings), notes


def _agrees(
    module: nn.Module, *inputs: torch.Tensor, other: Callable[..., torch.Tensor] | None = None,
    **options: Any,
) -> Explanation:  # fmt: skip
    """Errors no larger than those of eager, measured against float64. `other` is the same program
    in other words: eager's error there counts as well."""
    run, notes = _compiled(module, *inputs, **options)
    with torch.no_grad():
        found, expected = run(*inputs), module(*inputs)
        eager = [expected] if other is None else [expected, other(*inputs)]
        exact = module.double()(*(x.double() for x in inputs))
    scale = exact.abs().max().item() or 1.0
    mine, *them = ((t.double() - exact).abs().max().item() for t in (found, *eager))
    theirs = max(them)
    assert mine <= 2 * theirs + 2e-7 * scale, (mine, theirs, scale)
    assert found.stride() == expected.stride() and found.dtype == expected.dtype
    return notes


def _is_product(notes: Explanation) -> bool:
    return any(s.choice.gemm is not None for g in notes.graphs for s in g.scheduled)


@pytest.mark.parametrize("rows", [1, 2, 5, 6, 7, 13, 40])
@pytest.mark.parametrize(("depth", "columns"), [(16, 64), (33, 130), (100, 17), (64, 1000)])
def test_linear(rows: int, depth: int, columns: int) -> None:
    """Whole blocks and parts of them, whole panels and parts of them."""
    draws.seed(0)
    notes = _agrees(nn.Linear(depth, columns), torch.randn(rows, depth))
    assert _is_product(notes) == (rows * depth * columns >= 4096)


def test_double() -> None:
    assert _is_product(_agrees(nn.Linear(40, 50).double(), torch.randn(9, 40).double()))


class _Function(nn.Module):
    def __init__(self, function: Callable[..., Any], *shape: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(*shape))
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x, self.weight)


FUNCTIONS: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "as it lies": lambda x, w: x @ w,
    "a view of the weight": lambda x, w: x @ w[:, 8:72],
    "addmm": lambda x, w: torch.addmm(x[:, :1], x, w, beta=0.5, alpha=2),
    "activation": lambda x, w: torch.nn.functional.gelu(x @ w) * 2 + 1,
    "residual": lambda x, w: (x @ w).relu() + x.sum(1, keepdim=True),
    "two results": lambda x, w: torch.stack([(x @ w).sin(), (x @ w).cos()]),
    "heads": lambda x, w: (x @ w).view(3, 8, 5, 16).transpose(1, 2).contiguous() + 1,
    "rows of a transpose": lambda x, w: (x.t().contiguous().t() * 2) @ w,
    "softmax behind it": lambda x, w: (x @ w).softmax(-1),
    "norm behind it": lambda x, w: torch.nn.functional.layer_norm(x @ w, (80,)),
    "same weight twice": lambda x, w: (x @ w) + (x.sin() @ w),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_surrounds_a_product(name: str) -> None:
    draws.seed(1)
    notes = _agrees(_Function(FUNCTIONS[name], 48, 80), torch.randn(24, 48))
    assert _is_product(notes)


def test_an_activation_is_fused_into_the_product() -> None:
    _, notes = _compiled(_Function(FUNCTIONS["activation"], 48, 80), torch.randn(24, 48))
    (graph,) = notes.graphs
    assert len(graph.kernels) == 2  # packing and the rest
    assert graph.plan.graph.prepack_steps == 1 and graph.plan.arena_bytes == 0


def test_one_weight_is_packed_once() -> None:
    _, notes = _compiled(_Function(FUNCTIONS["same weight twice"], 48, 80), torch.randn(24, 48))
    assert len(notes.graphs[0].plan.graph.prepacked) == 1


def test_the_flags_act() -> None:
    for options in ({"max_autotune_gemm_backends": "ATEN"}, {"cpp__weight_prepack": False}):
        module = nn.Linear(48, 80)
        notes = _agrees(module, torch.randn(24, 48), **options)
        assert not _is_product(notes) and notes.aten_ops


def test_a_product_of_few_rows_stays_with_aten_unless_they_lie_side_by_side() -> None:
    for rows, gemm in ((24, False), (64, True)):
        x, y = torch.randn(rows, 48), torch.randn(48, 64)
        assert _is_product(_agrees(_Both(torch.matmul), x, y))
        assert _is_product(_agrees(_Both(torch.matmul), x, y.t().contiguous().t())) == gemm


def test_nothing_is_read_outside_a_buffer() -> None:
    draws.seed(0)
    for columns in (64, 81, 130):
        _agrees(nn.Linear(33, columns), torch.randn(13, 33), debug_index_asserts=True)


CHANGES: dict[str, Callable[[nn.Linear], Any]] = {
    "in place": lambda m: m.weight.mul_(2),
    "one element": lambda m: m.weight[3].zero_(),
    "through data": lambda m: m.weight.data.mul_(2),
    "filled through data": lambda m: m.weight.data.fill_(0.5),
    "other data": lambda m: setattr(m.weight, "data", torch.randn(64, 48)),
    "a new parameter": lambda m: setattr(m, "weight", nn.Parameter(torch.randn(64, 48))),
    "loaded": lambda m: m.load_state_dict(nn.Linear(48, 64).state_dict()),
    "through numpy": lambda m: m.weight.detach().numpy().__imul__(3),
}


@pytest.mark.parametrize("name", CHANGES)
def test_results_follow_a_changed_parameter(name: str) -> None:
    module = nn.Linear(48, 64)
    x = torch.randn(20, 48)
    run, _ = _compiled(module, x)
    with torch.no_grad():
        torch.testing.assert_close(run(x), module(x))
        CHANGES[name](module)
        torch.testing.assert_close(run(x), module(x))


def test_an_unchanged_parameter_is_packed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[PrepackCache] = []

    class Noted(PrepackCache):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            made.append(self)

    monkeypatch.setattr("litz.runtime.graph.PrepackCache", Noted)
    module, x = nn.Linear(48, 64), torch.randn(20, 48)
    torch._dynamo.reset()
    run = torch.compile(module, backend="litz", options={"on_error": "raise"})
    with torch.no_grad():
        for _ in range(3):
            run(x)
        (prepacked,) = made
        assert prepacked.made == 1 and prepacked.bytes == 48 * 64 * 4
        module.weight.mul_(2)
        run(x)
    assert prepacked.made == 2


def test_inference_tensors_have_no_version() -> None:
    with torch.inference_mode():
        module = nn.Linear(48, 64)
        x = torch.randn(20, 48)
        run, _ = _compiled(module, x)
        torch.testing.assert_close(run(x), module(x))
        module.weight.mul_(2)
        torch.testing.assert_close(run(x), module(x))


def test_a_weight_that_the_graph_updates_is_not_kept() -> None:
    class Decay(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("weight", torch.randn(48, 64))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            result = x @ self.weight
            self.weight.mul_(0.5)
            return result

    one, other = Decay(), Decay()
    other.load_state_dict(one.state_dict())
    x = torch.randn(20, 48)
    run, _ = _compiled(one, x)
    one.load_state_dict(other.state_dict())
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(run(x), other(x))


def test_what_depends_on_nothing_is_made_once() -> None:
    class Positions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(48, 64))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            where = torch.arange(48.0).cumsum(0).sort()[0]
            return (x + where) @ self.weight

    module, x = Positions(), torch.randn(20, 48)
    run, _ = _compiled(module, x)
    with torch.no_grad():
        torch.testing.assert_close(run(x), module(x))
        torch.testing.assert_close(run(x + 1), module(x + 1))


def test_threads_do_not_change_the_result() -> None:
    module, x = nn.Linear(200, 300), torch.randn(100, 200)
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            run, _ = _compiled(module, x)
            with torch.no_grad():
                found.append(run(x))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(f, found[0]) for f in found)


@pytest.mark.parametrize("bits", [32, 64, 128, 256, 512])
def test_other_vector_widths(bits: int) -> None:
    draws.seed(0)
    notes = _agrees(nn.Linear(48, 70), torch.randn(20, 48), cpp__simdlen=bits)
    assert _is_product(notes) == (bits > 32)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("rows", "depth", "columns"), [(1, 48, 96), (7, 33, 130), (40, 600, 64)])
def test_halves(dtype: torch.dtype, rows: int, depth: int, columns: int) -> None:
    """Sums in float32, whole groups along the sum and parts of them; rounded once, as eager's."""
    draws.seed(0)
    for bias in (True, False):
        module = nn.Linear(depth, columns, bias=bias).to(dtype)
        assert _is_product(_agrees(module, torch.randn(rows, depth, dtype=dtype)))


@pytest.mark.parametrize("bits", [128, 256, 512])
def test_groups_in_other_vector_widths(bits: int) -> None:
    draws.seed(0)
    module = nn.Linear(49, 70).bfloat16()
    x = torch.randn(20, 49, dtype=torch.bfloat16)
    assert _is_product(_agrees(module, x, cpp__simdlen=bits, debug_index_asserts=True))


BATCHES: dict[str, tuple[Callable[..., Any], tuple[int, ...], tuple[int, ...]]] = {
    "bmm": (torch.bmm, (3, 20, 48), (3, 48, 64)),
    "packed at each call": (torch.matmul, (3, 70, 48), (3, 48, 70)),
    "transposed": (lambda a, b: a @ b.mT, (2, 3, 80, 48), (2, 3, 90, 48)),
    "left transposed": (lambda a, b: a.mT @ b, (3, 48, 20), (3, 48, 64)),
    "heads": (lambda a, b: a.transpose(1, 2) @ b.permute(0, 2, 3, 1), (2, 66, 3, 16),
              (2, 70, 3, 16)),
    "one left matrix": (torch.matmul, (20, 48), (3, 48, 64)),
    "one right matrix": (lambda a, b: torch.bmm(a, b.expand(3, -1, -1)), (3, 20, 48), (1, 48, 64)),
    "baddbmm": (lambda a, b: torch.baddbmm(a[..., :1], a, b, beta=2, alpha=0.5), (3, 20, 48),
                (3, 48, 64)),
    "einsum": (lambda a, b: torch.einsum("bik,bjk->bij", a, b), (3, 70, 48), (3, 64, 48)),
    "softmax behind it": (lambda a, b: (a @ b).softmax(-1), (3, 20, 48), (3, 48, 64)),
    "residual": (lambda a, b: (a @ b).relu() + a[..., :1], (3, 20, 48), (3, 48, 64)),
}  # fmt: skip


class _Both(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        return self.function(x, y)


@pytest.mark.parametrize("name", BATCHES)
def test_batches(name: str) -> None:
    draws.seed(2)
    function, left, right = BATCHES[name]
    notes = _agrees(
        _Both(function), torch.randn(left), torch.randn(right), debug_index_asserts=True
    )
    assert _is_product(notes) and not notes.aten_ops


def test_a_batch_of_single_rows_stays_with_aten() -> None:
    notes = _agrees(_Both(torch.bmm), torch.randn(8, 1, 64), torch.randn(8, 64, 64))
    assert not _is_product(notes) and notes.aten_ops


def test_training_packs_at_each_call() -> None:
    """Gradients are products of activations: with rows enough they are kernels too."""
    draws.seed(0)
    module, x = nn.Linear(80, 96), torch.randn(100, 80, requires_grad=True)
    module(x).square().sum().backward()
    expected = [x.grad, *(p.grad for p in module.parameters())]
    x.grad = None
    module.zero_grad()
    torch._dynamo.reset()
    torch.compile(module, backend="litz", options={"on_error": "raise"})(
        x
    ).square().sum().backward()
    for found, grad in zip([x.grad, *(p.grad for p in module.parameters())], expected, strict=True):
        torch.testing.assert_close(found, grad, rtol=1e-5, atol=1e-4)  # sums over 100 of size 10


def test_a_weight_made_of_parameters_is_packed_once() -> None:
    """As under autocast: the weight is cast at each call, the cast is kept."""
    module = _Function(lambda x, w: x @ w.bfloat16(), 48, 80)
    _, notes = _compiled(module, torch.randn(24, 48, dtype=torch.bfloat16))
    assert _is_product(notes) and len(notes.graphs[0].plan.graph.prepacked) == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_long_sum_of_few_blocks_is_cut_into_slices(dtype: torch.dtype) -> None:
    """Slices follow from sizes alone: one thread or two, the result is the same."""
    draws.seed(0)
    module, x = nn.Linear(4096, 60).to(dtype), torch.randn(16, 4096, dtype=dtype)
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            run, notes = _compiled(module, x)
            (gemm,) = [s.choice.gemm for s in notes.graphs[0].scheduled if s.choice.gemm]
            assert (gemm.batches.number, gemm.depth.number) == (2, 2048)
            with torch.no_grad():
                found.append(run(x))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(*found)
    _agrees(module, x)


def test_nothing_is_fused_into_a_product_without_epilogue_fusion() -> None:
    for fused in (True, False):
        module = _Function(FUNCTIONS["activation"], 48, 80)
        notes = _agrees(module, torch.randn(24, 48), epilogue_fusion=fused)
        assert len(notes.graphs[0].kernels) == (2 if fused else 3)


def test_a_product_spelt_by_hand_computes_its_operands_as_it_reads_them() -> None:
    draws.seed(0)

    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """The column's own number is part of the right operand, and the row's of the left one."""
        left = x.tanh() + torch.arange(13, dtype=x.dtype)[:, None]
        right = y * 2 + torch.arange(64, dtype=x.dtype)
        return (left[:, :, None] * right).sum(1)

    notes = _agrees(_Both(function), torch.randn(13, 40), torch.randn(40, 64))
    assert _is_product(notes) and len(notes.graphs[0].kernels) == 1


def test_a_sum_over_two_axes_is_a_product_if_rows_lie_evenly() -> None:
    draws.seed(0)
    places = torch.randint(0, 32, (40,))

    def spelt(x: torch.Tensor, w: torch.Tensor) -> Any:
        return (x[..., None] * w).sum((1, 2))

    def gathered(x: torch.Tensor, w: torch.Tensor) -> Any:
        return spelt(x[:, :, places], w)

    def contracted(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        """Eager's sum is added in pairs; a product is added along its depth, by eager too."""
        return torch.einsum("abc,bcn->an", x, w)

    w = torch.randn(5, 40, 64)
    notes = _agrees(_Both(spelt), torch.randn(20, 5, 40), w, other=contracted)
    assert _is_product(notes)
    assert not _is_product(_agrees(_Both(gathered), torch.randn(20, 5, 32), w))
