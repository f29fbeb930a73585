"""The interpreter against NumPy and torch themselves."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from litz.errors import IntegerDivisionByZero, ValueRefused
from litz.ir.dtypes import BF16, DTYPES
from litz.ir.interpret import convert, run_kernels, run_program
from litz.ir.parse import parse_graph, parse_program
from tests import draws

RNG = draws.numpy_generator(0)


def random(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


SOFTMAX_LOOPS = """
    input x: f32[8, 16]
    buffer m: f32[8, 1]
    buffer e: f32[8, 16]
    buffer s: f32[8, 1]
    buffer y: f32[8, 16]
    loop i0 < 8 reduce r0 < 16:
      m[i0, 0] = reduce.max(x[i0, r0], r0)
    loop i0 < 8, i1 < 16:
      e[i0, i1] = exp(x[i0, i1] - m[i0, 0])
    loop i0 < 8 reduce r0 < 16:
      s[i0, 0] = reduce.sum(e[i0, r0], r0)
    loop i0 < 8, i1 < 16:
      y[i0, i1] = e[i0, i1] / s[i0, 0]
    output y
"""
SOFTMAX_KERNEL = """
    input x: f32[8, 16]
    buffer y: f32[8, 16]
    kernel softmax:
      outer i0 < 8
      scratch m: f32[]
      scratch e: f32[16]
      scratch s: f32[]
      phase reduce r0 < 16:
        m[()] = reduce.max(x[i0, r0], r0)
      phase reduce r0 < 16:
        e[r0] = exp(x[i0, r0] - m[()])
        s[()] = reduce.sum(exp(x[i0, r0] - m[()]), r0)
      phase i1 < 16:
        y[i0, i1] = e[i1] / s[()]
    output y
"""


def test_softmax_as_loops_and_as_one_kernel() -> None:
    x = random(8, 16)
    (loops,) = run_program(parse_program(SOFTMAX_LOOPS), [x])
    (kernel,) = run_kernels(parse_graph(SOFTMAX_KERNEL), [x])
    np.testing.assert_allclose(loops, softmax(x), rtol=1e-6)
    np.testing.assert_array_equal(kernel, loops)


def run(text: str, *inputs: Any, **options: Any) -> Any:
    return run_program(parse_program(text), list(inputs), **options)


# -- storage ---------------------------------------------------------------------------------


def test_strides_are_honoured() -> None:
    """A column-major buffer, seen through its storage order, is the transpose."""
    x = random(3, 4)
    ours, seen = run(
        """
        input x: f32[3, 4] strides (1, 3)
        buffer y: f32[3, 4] strides (1, 3)
        loop i0 < 3, i1 < 4:
          y[i0, i1] = x[i0, i1]
        output y
        output view(y, (4, 3), (3, 1), 0)
        """,
        x,
    )
    np.testing.assert_array_equal(ours, x)
    np.testing.assert_array_equal(seen, x.T)


def test_windows_have_an_offset() -> None:
    x = random(6)
    (odd,) = run("input x: f32[6]\noutput view(x, (3,), (2,), 1)", x)
    np.testing.assert_array_equal(odd, x[1::2])
    with pytest.raises(ValueError, match="does not lie inside"):
        run("input x: f32[6]\noutput view(x, (3,), (2,), 2)", x)


def test_a_store_into_an_input_updates_it() -> None:
    x = random(4)
    expected = x * 2
    y = x.copy()
    (before,) = run(
        """
        input x: f32[4]
        buffer t: f32[4]
        loop i0 < 4:
          t[i0] = x[i0]
          x[i0] = x[i0] + x[i0]
        output t
        """,
        y,
    )
    np.testing.assert_array_equal(y, expected)
    np.testing.assert_array_equal(before, x)  # values are computed before any is stored


def test_symbolic_sizes_come_from_inputs_and_shapes() -> None:
    text = """
        size s0 in 1..
        size s1 in 1..
        input x: f32[s0, s1]
        input s0
        buffer y: f32[s1 * s0]
        loop i0 < s1 * s0:
          y[i0] = x[i0 // s1, i0 % s1]
        output y
        output size(s0 * s1)
    """
    x = random(3, 5)
    flat, count = run(text, x, 3)
    np.testing.assert_array_equal(flat, x.ravel())
    assert count == 15
    with pytest.raises(ValueError, match="s0 is 3 in one input and 4 in another"):
        run(text, x, 4)


def test_constants_and_plain_outputs() -> None:
    text = "constant c: f32[2]\noutput c\noutput None\noutput 3"
    c, nothing, three = run(text, constants={"c": np.ones(2, np.float32)})
    assert c.tolist() == [1, 1] and nothing is None and three == 3


def test_extern_calls_see_windows_and_may_mutate() -> None:
    x = random(2, 3)

    def call(step: Any, args: list[Any], kwargs: dict[str, Any]) -> list[Any]:
        assert step.target == "aten.mm.default" and kwargs == {"alpha": 2}
        result = 2 * args[0] @ args[1]
        args[0][...] = 0
        return [result]

    given = x.copy()
    (product,) = run(
        """
        input x: f32[2, 3]
        buffer y: f32[2, 2]
        extern y = aten.mm.default(x, view(x, (3, 2), (1, 3), 0), alpha=2) mutates x
        output y
        """,
        given,
        extern=call,
    )
    np.testing.assert_array_equal(product, 2 * x @ x.T)
    assert not given.any()
    with pytest.raises(ValueError, match="pass extern="):
        run("buffer y: f32[2]\nextern y = aten.rand((2,))")


# -- loads -----------------------------------------------------------------------------------


def test_guarded_loads_read_nothing_outside() -> None:
    x = random(4)
    text = """
        input x: f32[4]
        buffer y: f32[8]
        loop i0 < 8:
          y[i0] = guarded((i0 >= 2) & (i0 < 6), x[i0 - 2])
        output y
    """
    (padded,) = run(text, x)
    np.testing.assert_array_equal(padded, np.pad(x, 2))
    with pytest.raises(IndexError):
        run(text.replace("i0 < 6", "i0 < 7"), x)


def test_unguarded_indices_must_be_inside() -> None:
    text = "input x: f32[4]\nbuffer y: f32[4]\nloop i0 < 4:\n  y[i0] = x[i0 - 1]\noutput y"
    with pytest.raises(IndexError, match="index -1 is out of bounds for a dimension with size 4"):
        run(text, random(4))
    with pytest.raises(IndexError, match="index 4 is out of bounds"):
        run(text.replace("y[i0] = x[i0 - 1]", "y[i0 + 1] = x[i0]"), random(4))


def test_check_index_raises_where_eager_does() -> None:
    text = """
        input table: f32[5]
        input ids: i64[3]
        buffer y: f32[3]
        loop i0 < 3:
          y[i0] = table[check_index(ids[i0], 5)]
        output y
    """
    table = random(5)
    (rows,) = run(text, table, np.array([4, 0, 4]))
    np.testing.assert_array_equal(rows, table[[4, 0, 4]])
    with pytest.raises(IndexError, match="index 5 is out of bounds for a dimension with size 5"):
        run(text, table, np.array([4, 0, 5]))


def test_a_check_raises_what_its_site_says() -> None:
    text = """
        input x: f32[3]
        input d: i64[3]
        buffer y: f32[3]
        buffer z: i64[3]
        loop i0 < 3:
          let c = (x[i0] >= f32(0)) & (x[i0] <= f32(1))
          let b = bitcast.i64(cast.f64(x[i0]))
          y[i0] = check(c, b, 0, x[i0], site("value", "aten.op", "a.py:3", -1, False, "between"))
        loop i0 < 3:
          z[i0] = 7 // check_divisor(d[i0], site("divisor", "aten.div", "a.py:4"))
        output y
        output z
    """.replace("f32(0)", "f32(0.0)").replace("f32(1)", "f32(1.0)")  # fmt: skip
    good, ones = np.array([0, 0.5, 1], np.float32), np.array([1, 2, -3])
    (kept, divided) = run(text, good, ones)
    np.testing.assert_array_equal(kept, good)
    np.testing.assert_array_equal(divided, 7 // ones)
    with pytest.raises(ValueRefused, match=re.escape("between (one is 1.5) at a.py:3, in aten.op")):
        run(text, np.array([0, 1.5, np.nan], np.float32), ones)
    with pytest.raises(IntegerDivisionByZero, match=re.escape("at a.py:4, in aten.div.")):
        run(text, good, np.array([1, 0, 2]))


# -- reductions ------------------------------------------------------------------------------


def reduced(kind: str, x: np.ndarray, result: str = "f32") -> np.ndarray:
    (found,) = run(
        f"""
        input x: f32[{x.shape[0]}, {x.shape[1]}]
        buffer y: {result}[{x.shape[0]}]
        loop i0 < {x.shape[0]} reduce r0 < {x.shape[1]}:
          y[i0] = reduce.{kind}(x[i0, r0], r0)
        output y
        """,
        x,
    )
    return np.asarray(found)


@pytest.mark.parametrize("kind", ["argmax", "argmin"])
def test_nan_wins_an_argmax_and_then_the_first(kind: str) -> None:
    x = np.array([[1, np.nan, 5, np.nan], [3, 7, 7, 3], [-np.inf] * 4], np.float32)
    expected = getattr(torch.from_numpy(x), kind)(1).numpy()
    np.testing.assert_array_equal(reduced(kind, x, "i64"), expected)


@pytest.mark.parametrize("kind", ["sum", "prod", "max", "min"])
def test_reductions_propagate_nan(kind: str) -> None:
    x = random(3, 7)
    x[1, 3] = np.nan
    expected = getattr(np, kind)(x, axis=1)
    np.testing.assert_allclose(reduced(kind, x), expected, rtol=1e-6)


def test_argmax_over_two_axes_counts_row_major() -> None:
    x = random(2, 3, 4)
    (found,) = run(
        """
        input x: f32[2, 3, 4]
        buffer y: i64[2]
        loop i0 < 2 reduce r0 < 3, r1 < 4:
          y[i0] = reduce.argmax(x[i0, r0, r1], r0, r1)
        output y
        """,
        x,
    )
    np.testing.assert_array_equal(found, x.reshape(2, 12).argmax(1))


def test_what_does_not_vary_is_still_summed() -> None:
    text = "buffer y: f32[]\nloop reduce r0 < 5:\n  y[()] = reduce.sum(f32(2.0), r0)\noutput y"
    assert run(text)[0] == 10
    assert run(text.replace("5", "0"))[0] == 0


def test_scan_runs_along_its_axis() -> None:
    x = random(3, 5)
    text = """
        input x: f32[3, 5]
        buffer y: f32[3, 5]
        loop i0 < 3, i1 < 5:
          y[i0, i1] = scan.sum(x[i0, i1], i0)
        output y
    """
    np.testing.assert_allclose(run(text, x)[0], np.cumsum(x, 0), rtol=1e-6)


# -- types -----------------------------------------------------------------------------------

NUMPY_TO_TORCH = {
    "f64": torch.float64,
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "e4m3": torch.float8_e4m3fn,
    "e5m2": torch.float8_e5m2,
    "i64": torch.int64,
    "i32": torch.int32,
    "i16": torch.int16,
    "i8": torch.int8,
    "u8": torch.uint8,
    "bool": torch.bool,
}


@given(st.lists(st.integers(0, 2**32 - 1), min_size=1))
def test_bf16_rounds_as_torch_does(bits: list[int]) -> None:
    x = np.array(bits, np.uint32).view(np.float32)
    expected = torch.from_numpy(x.copy()).bfloat16().float().numpy()
    np.testing.assert_array_equal(convert(x, BF16), expected)


def test_bf16_ties_go_to_even() -> None:
    x = np.array([0x3F808000, 0x3F818000, 0x3F808001, 0x7F7FFFFF], np.uint32).view(np.float32)
    assert [hex(b) for b in convert(x, BF16).view(np.uint32)] == [
        "0x3f800000",
        "0x3f820000",
        "0x3f810000",
        "0x7f800000",
    ]


SAMPLES = {
    "f64": [-3.7, -1.0, -0.0, 0.3, 2.5, 100.49999999999999, 1.0000000001],
    "f32": [-3.7, -1.0, -0.0, 0.3, 2.5, 100.5],
    "i64": [-300, -1, 0, 1, 2**40 + 3],
    "i32": [-300, -1, 0, 1, 70000],
    "u8": [0, 1, 200],
    "bool": [False, True],
}


@pytest.mark.parametrize("source", SAMPLES)
@pytest.mark.parametrize("target", DTYPES)
def test_casts_follow_torch(source: str, target: str) -> None:
    values = [v for v in SAMPLES[source] if v >= 0 or target != "u8" or source[0] != "f"]
    given = torch.tensor(values, dtype=NUMPY_TO_TORCH[source])
    expected = given.to(NUMPY_TO_TORCH[target])
    expected = expected.float() if target in ("bf16", "e4m3", "e5m2") else expected
    found = convert(given.numpy(), DTYPES[target])
    assert found.dtype == DTYPES[target].numpy
    np.testing.assert_array_equal(found, expected.numpy())
