"""What `litz fuzz` has found, shrunk, one test each: wrong once, right since.

Each function is the program as the fuzzer left it; its name says what was wrong with the compiler.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import bfloat16, float16, float32, float64

from litz.fuzz import assert_calls_same, assert_same, data

Tensors = list[Any]


def test_an_op_that_returns_nothing_is_called() -> None:
    """`one_hot` asserts its operand through an op without results; lowering expected some."""

    def program(x: Any) -> Tensors:
        return [F.one_hot(x % 3, 3)]

    assert_same(program, [data(1, (5,), torch.int64)])


def test_points_that_meet_at_a_constant_place_all_count() -> None:
    """Neither the place nor the value depends on the loop, so the update was hoisted out of it."""

    def program(x: Any, y: Any) -> Tensors:
        place = (x.long() % 1).flatten()
        return [y.index_add(0, place, y[place])]

    assert_same(program, [data(1, (2,), float32), data(1, (2,), float32)])


def test_a_scatter_whose_index_is_known_is_still_a_scatter() -> None:
    """`x % 1` is zero, so the index held no load, and the store was taken for a second copy."""

    def program(x: Any) -> Tensors:
        return [torch.zeros_like(x).scatter(1, x.long() % 1, x), x.scatter(1, x.long() % 1, 3)]

    assert_same(program, [data(1, (1, 1), float32)])
    assert_same(program, [data(1, (2, 5), float32)])


def test_elements_met_by_a_known_index_forget_what_was_there() -> None:
    def program(x: Any, y: Any, z: Any) -> Tensors:
        return [z.scatter_reduce(1, x.long() % 1, y, "amin", include_self=False)]

    assert_same(program, [data(1, (1, 1), d) for d in (float32, float16, float16)])


def test_division_by_a_negative_number_is_signed() -> None:
    """A dividend that is never negative was divided unsigned, whatever the divisor."""

    def program(x: Any) -> Tensors:
        numbers = torch.arange(9)
        return [numbers % -4, numbers // -3, numbers % 4, (numbers % -4) // 2, x]

    assert_same(program, [data(1, (2,), float32)])


def test_lanes_may_read_different_places_of_a_row() -> None:
    """Rows in lanes, and an index that differs by lane into scratch: a gather, not a load."""

    def program(x: Any) -> Tensors:
        deviation = x.std(-1, keepdim=True)
        return [F.cross_entropy(deviation, deviation.argmax(1))]

    assert_same(program, [data(1, (2, 2, 2), float32)])


def test_a_loss_of_two_types_has_the_first() -> None:
    """torch's decompositions promote where eager does not."""

    def program(x: Any, y: Any) -> Tensors:
        return [F.huber_loss(y, x, reduction="none"), F.soft_margin_loss(y, x)]

    assert_same(program, [data(1, (3,), float64), data(1, (3,), bfloat16)])


def test_a_row_is_read_by_its_own_digits() -> None:
    """`t[0, i]` is row i of `t` while i is small, so loops were fused; the verifier objected."""

    def program(x: Any, y: Any, z: Any) -> Tensors:
        products = ((z + x) * (z - x)).unbind(0)[0]
        return [torch.cat([products, y.to(torch.int32)], -2), products]

    assert_same(program, [data(1, shape, float32) for shape in ((), (2, 1), (2, 2, 1))])


def test_an_input_reshaped_in_place_keeps_its_place() -> None:
    """AOTAutograd moves the input to the offset of the result, which the interpreter dropped."""

    def program(x: Any, y: Any) -> Tensors:
        y.t_().add_(1)
        return [x + 1]

    base = data(1, (2,), float32)
    assert_same(program, [base, base[1:]])


def test_lanes_behind_the_last_read_nothing() -> None:
    """The guard of a scalar that all lanes share held in a lane behind the end of the row."""

    def program(x: Any) -> Tensors:
        return [torch.diagonal_scatter(x, x.diagonal() * 2)]

    assert_same(program, [data(1, (3, 2), float32)], {"debug_index_asserts": True})


def test_the_sign_of_a_double_is_not_rounded_to_half() -> None:
    """LLVM moved the copysign of erf behind two roundings and called a function nobody defines."""

    def program(x: Any) -> Tensors:
        return [x.to(float16).erf(), x.float().half().atan()]

    assert_same(program, [data(1, (), float64)])
    assert_same(program, [data(1, (33,), float64)])


def test_an_axis_of_two_phases_is_named_in_each() -> None:
    """The second phase's axis was split, and one half got the name that the other axis kept."""

    def program(x: Any, y: Any) -> Tensors:
        z = torch.select_scatter(x, x.select(-1, 0), -1, -1)
        twice = x.to(bfloat16).round().repeat_interleave(2, 0)
        sums, numbers = z.transpose(-2, 0)[-1].cumsum(-1), F.one_hot(z.long() % 3, 3)
        return [sums, z.unflatten(0, (-1, 2)), numbers, torch.logaddexp(twice, y)]

    assert_same(program, [data(96, (2, 2), torch.int8), data(1, (1,), torch.int8)])


def test_a_scatter_goes_where_a_value_of_its_own_phase_says() -> None:
    """Values were forwarded into what a phase stores, and not into where."""

    def program(x: Any, y: Any) -> Tensors:
        numbers, flag = torch.cat([x, x]), torch.isnan(y)
        place = (flag.long() % 6).flatten()
        return [flag, numbers.index_add(0, place, numbers[place])]

    assert_same(program, [data(1, (2,), float32), data(1, (), float32)])


def test_a_copy_of_what_lies_elsewhere_is_no_noop() -> None:
    """A copy, or a product with one, was removed; the views of it still had its offset."""

    def program(x: Any) -> Tensors:
        copied, product = x[1:].clone(), x[1:] * 1
        return [copied @ copied.mT, product @ product.mT, F.linear(copied, product[:2])]

    assert_same(program, [data(1, (5, 3), float32)[1:]])


def test_a_result_whose_elements_share_memory_is_left_to_aten() -> None:
    """Eager copies an unfolded tensor with its strides: two places of the result are one."""

    def program(x: Any) -> Tensors:
        v = x.unfold(0, 3, 2)
        return [torch.diagonal_scatter(v, v.diagonal(0, 0, 1) * 2, 0, 0, 1)]

    assert_same(program, [data(1, (5, 5), float32)])


def test_the_last_of_many_rows_lies_at_a_symbolic_place() -> None:
    """The check behind each pass took the places of a node's operands for numbers."""

    def program(x0: torch.Tensor) -> list[torch.Tensor]:
        return [x0[-1].reshape(2, 3).reshape(6).cos()]

    calls = [[data(k, (n, 6), torch.float32)] for k, n in enumerate((9, 4, 9))]
    assert_calls_same(program, calls)


def test_accesses_of_more_than_64_lanes_are_held_against_bounds() -> None:
    """Which lanes failed was kept as the bits of a word, and LLVM refused to shorten 128 to 64."""

    def program(x0: torch.Tensor) -> Tensors:
        return [x0.clamp(0, 100).to(torch.int8).zero_().index_fill(0, torch.tensor([1, 0]), 2)]

    calls = [[data(k, (n, 31, 7), float32)] for k, n in enumerate((130, 33, 130))]
    assert_calls_same(program, calls, {"debug_index_asserts": True})


@pytest.mark.parametrize("offset", [0, 1])
def test_a_window_placed_by_aten_counts_from_its_operand_and_not_from_the_arena(
    offset: int,
) -> None:
    """The gradient of a strided window was written to where the arena begins, and lost."""

    def program(x0: Any, x1: Any, x2: Any, x3: Any) -> list[Any]:
        v0 = F.linear(x0.relu(), x1, x2)
        v1 = x3.clone().as_strided((x3.numel() // 2 - 1,), (2,), offset)
        v2 = x2.topk(1, 0)[0]
        return [v0, v1, v2]

    calls = [[data(1, s, float32) for s in ((1,), (1,), (), (n,))] for n in (6, 9, 14)]
    assert_calls_same(program, calls, {}, gradients=True, dynamo=True)


def test_a_strided_window_is_written_into_what_lies_in_the_arena() -> None:
    """A window that shows an element twice is left to ATen, with an operand in the arena."""

    def program(x0: Any) -> list[Any]:
        made = [x0.exp() * k for k in (2, 3, 4)]
        window = x0[:2, None].expand(2, 2)
        seen = [torch.as_strided_scatter(v, window, (2, 2), (1, 1), storage_offset=1) for v in made]
        return [*seen, torch.cat(made).sort()[0]]

    assert_same(program, [data(1, (9,), float32)])


def test_a_hint_that_sizes_cannot_have_together_is_passed_over() -> None:
    """A window of 130 over a row of 130 with one on each side gave a negative number of rows."""

    def program(x0: Any, x1: Any, x2: Any, x3: Any) -> list[Any]:
        return [x3.fmod(F.conv1d(x2, x0, x1, padding=1).abs() % 5 + 1)]

    given = [data(1, shape, torch.float16) for shape in ((3, 1, 3), (3,), (2, 1, 2))]
    calls = [[*given, data(1, (), float32)]]
    assert_calls_same(program, calls, {"multi_kernel_hints": (16, 130)}, dynamo=True)


def test_the_sums_of_attention_may_lie_a_symbolic_number_of_heads_apart() -> None:
    """The emitter took the step from row to row for a number. With torch 2.11, which foretells
    float32 for the sums of float64, the gradient was compiled for other inputs than it got."""

    def program(x0: Any, x1: Any, x2: Any) -> list[Any]:
        return [torch.cat([x2[1:], x2[:-1]]), F.scaled_dot_product_attention(x0, x1, x1)]

    def masked(x0: Any, x1: Any, x2: Any) -> list[Any]:
        causal = F.scaled_dot_product_attention(x0, x1, x1, is_causal=True)
        return [causal, F.scaled_dot_product_attention(x0, x1, x0, attn_mask=x2.to(x0.dtype))]

    for dtype in (torch.float64, float32):
        heads = [data(k, (2, 3, 3, 2), dtype) for k in range(2)]
        calls = [[*heads, data(1, (2, 3, 1), float32)]]
        assert_calls_same(program, calls, {}, gradients=True, dynamo=True)
        calls = [[*heads, data(1, (3, 3), float32)]]
        assert_calls_same(masked, calls, {}, gradients=True, dynamo=True)


def test_the_norm_of_one_number_has_no_dimension() -> None:
    """torch 2.11's decomposition keeps it, and what it is divided by then takes its type."""

    def program(x0: Any, x1: Any) -> list[Any]:
        return [x1.norm(dim=-1) / (x0.abs() + 1), x1.norm(), x1.norm(dim=0, keepdim=True)]

    assert_same(program, [data(1, (1,), float32), data(1, (1,), torch.float64)])


def test_ramps_of_integers_are_eagers() -> None:
    """Eager cuts off numbers that round as its vectors have it: of these, two that should be 1 and
    -1 are 0."""
    run = torch.compile(lambda: torch.linspace(5, -5, 1001, dtype=torch.int64), backend="litz")
    assert torch.equal(run(), torch.linspace(5, -5, 1001, dtype=torch.int64))


def test_what_is_filled_to_a_symbolic_size_is_not_held_with_the_parameters() -> None:
    """A loop of ones reads no input, and so depends on parameters alone; how long it is was known,
    but not to the buffer that the call wanted to make once and for all."""

    def program(x0: Any, x1: Any, x2: Any, x3: Any) -> list[Any]:
        x0[..., 0] = 1
        return [F.linear(x1, x2), F.layer_norm(x2, x2.shape[-1:]), torch.atan2(x0, x3.abs() + 1)]

    shapes = ((33, 2), (3, 33), (5, 33), (33, 2))
    calls = [[data(k, shape, float32) for k, shape in enumerate(shapes)]]
    assert_calls_same(program, calls, {"max_fusion_size": 1}, dynamo=True, parameters=(2,))


def test_an_empty_window_replaces_nothing() -> None:
    """Its side of no elements was taken for one of one, whose element is not there."""

    def program(x0: Any) -> list[Any]:
        v0 = x0.clone()
        v0.as_strided((x0.numel() // 2,), (2,)).add_(1)
        return [v0, torch.as_strided_scatter(x0, x0.new_ones(0, 3), (0, 3), (3, 1))]

    assert_same(program, [data(1, (), float32)])
    assert_same(program, [data(1, (5,), float32)])


def test_a_view_of_equal_numbers_that_becomes_a_fill_begins_where_that_does() -> None:
    def program(x0: Any) -> list[Any]:
        return [x0.new_ones((1, 1, 3)).tensor_split(3, 2)[1] % 3]

    assert_same(program, [data(1, (), float32)])


def test_one_number_is_an_index_into_a_row() -> None:
    """It has no dimension, and the row has one."""

    def program(x: Any, at: Any, one: Any) -> list[Any]:
        most = x.scatter_reduce(0, at, one, "amax")
        means = x.scatter_reduce(0, at, one, "mean", include_self=False)
        put = [x.scatter(0, at, one), x.scatter(0, at, 2.5), x.scatter(0, at, one[None])]
        return [x.gather(0, at), x.take_along_dim(at), x.scatter_add(0, at, one), most, means, *put]

    x, one = data(1, (3,), float32), data(2, (), float32)
    assert_same(program, [x, torch.tensor(1), one])
    assert_calls_same(program, [[x, torch.tensor(1), one], [x[:1], torch.tensor(0), one]])


def test_a_part_of_nothing_that_is_expanded_may_be_replaced() -> None:
    """Its clone is expanded, too, and was cloned again, and again."""
    x = data(1, (1, 0, 1), float32).expand((2, 0, 1))
    assert_same(lambda x: [torch.slice_scatter(x, x[1:], 0, 0, -1)], [x])
    assert_same(lambda x: [torch.select_scatter(x, x[1], 0, 0)], [x])


def test_attention_of_heads_without_numbers() -> None:
    """Eager divides by the root of 0, and multiplies nothing with that."""
    x, v = data(1, (1, 2, 3, 0), float32), data(2, (1, 2, 3, 4), float32)
    assert_same(lambda x: [F.scaled_dot_product_attention(x, x, x)], [x])
    assert_same(lambda x, v: [F.scaled_dot_product_attention(x, x, v)], [x, v])


@pytest.mark.parametrize("options", [{}, {"max_fusion_size": 1}, {"aggressive_fusion": True}])
def test_what_is_made_of_parameters_and_returned_is_made_apart_from_what_is_held(
    options: dict[str, Any],
) -> None:
    """In one kernel with the folded weights it had to run at each call, and the packing of them
    behind it, which has no strides to look at."""

    class Layers(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = torch.nn.Conv2d(16, 4, 3, padding=1), torch.nn.BatchNorm2d(4)

        def forward(self, x: torch.Tensor) -> Any:
            return self.norm(self.conv(x)), torch.stack([self.norm.weight, self.norm.bias])

    module = Layers().eval()
    run = torch.compile(module, backend="litz", options={**options, "on_error": "raise"})
    with torch.no_grad():
        for seed in range(3):
            x = data(seed, (1, 16, 31, 4), float32)
            for got, meant in zip(run(x), module(x), strict=True):
                torch.testing.assert_close(got, meant)
            module.norm.bias.add_(1)


def test_numbers_that_a_call_computes_keep_their_type_in_kernels_for_other_sizes() -> None:
    """The factor of a variance, 2 / (n - 1), became an integer there."""
    options = {"multi_kernel_hints": (16, 130)}
    given = [data(1, shape, float64) for shape in ((1,), (1,), (), (), (2, 1))]

    def norm(x0: Any, x1: Any, x2: Any, x3: Any, x4: Any) -> list[Any]:
        return [F.batch_norm(x4.nan_to_num(0, 0, 0), x0, x1, x2, x3, training=True)]

    assert_calls_same(norm, [given], options, dynamo=True)
    calls = [[data(1, (1, 2), float32)]]
    assert_calls_same(
        lambda x: [torch.var_mean(x, 1)[0]], calls, options, gradients=True, dynamo=True
    )
