"""The inline math functions: accuracy as stated, special values, every width and other machines."""

from __future__ import annotations

import math
import platform
import struct
import warnings

import llvmlite.binding as llvm
import numpy as np
import pytest
import torch

from litz.codegen.llvm.builder import Builder, Type
from litz.codegen.llvm.literals import float_literal, int_literal, splat
from litz.codegen.llvm.math import MATH, definition, definitions, symbol
from litz.codegen.llvm.math.coefficients import POLYNOMIALS
from litz.codegen.llvm.math.minimax import FITS, coefficients
from litz.codegen.llvm.math_accuracy import (
    LANES,
    Compiled,
    Row,
    errors,
    markdown,
    measure,
    optimized,
    samples,
    specials,
    ulp_error,
)

INLINE_F64 = ["exp", "exp2", "expm1", "sigmoid", "log", "log2", "log10", "log1p"]
INLINE_F64 += ["sin", "cos", "sinh", "cosh", "tanh", "erf"]
ODD = ["expm1", "log1p", "sin", "tan", "asin", "atan", "sinh", "tanh", "asinh", "atanh", "erf"]


@pytest.fixture(autouse=True)
def _quiet_nan_casts() -> object:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        yield


def assert_accurate(name: str, dtype: str, operands: list[np.ndarray], got: np.ndarray) -> None:
    error = errors(name, dtype, operands, got)
    worst = int(np.argmax(error))
    at = [float(x[worst]) for x in operands]
    assert error[worst] <= MATH[name].ulp[dtype], f"{name}{at} = {got[worst]}: {error[worst]} ULP"


def same_bits(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Equal, zeros by sign; any NaN equals any other."""
    word = np.uint32 if x.dtype == np.float32 else np.uint64
    return (x.view(word) == y.view(word)) | (np.isnan(x) & np.isnan(y))


@pytest.mark.parametrize("name", MATH)
def test_f32_error_is_as_stated_over_all_bit_patterns(name: str) -> None:
    operands = samples(name, "f32", 4_000_000)
    assert_accurate(name, "f32", operands, Compiled(name, "f32", LANES["f32"])(*operands))


@pytest.mark.parametrize("name", MATH)
def test_f64_error_is_as_stated(name: str) -> None:
    operands = samples(name, "f64", 6000)
    assert_accurate(name, "f64", operands, Compiled(name, "f64", LANES["f64"])(*operands))


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("name", MATH)
def test_every_width_gives_the_same_bits(name: str, dtype: str) -> None:
    operands = samples(name, dtype, 20_000)
    wide = Compiled(name, dtype, LANES[dtype])(*operands)
    for lanes in (1, 8) if dtype == "f32" else (1, 4):
        narrow = Compiled(name, dtype, lanes)(*operands)
        assert same_bits(narrow, wide).all()


@pytest.mark.skipif(platform.machine() != "x86_64", reason="runs x86 code")
@pytest.mark.parametrize("name", INLINE_F64)
def test_avx2_gives_the_same_bits_as_this_machine(name: str) -> None:
    for dtype in ("f32", "f64"):
        operands = samples(name, dtype, 20_000)
        here = Compiled(name, dtype, LANES[dtype])(*operands)
        assert same_bits(Compiled(name, dtype, 8, cpu="haswell")(*operands), here).all()


@pytest.mark.parametrize("triple, cpu", [("x86_64-linux", "haswell"), ("aarch64-linux", "generic")])
def test_f32_functions_call_no_library(triple: str, cpu: str) -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    for name in MATH:
        machine = llvm.Target.from_triple(triple).create_target_machine(cpu=cpu, opt=2)
        assembly = machine.emit_assembly(optimized(name, "f32", 8, machine))
        calls = [line for line in assembly.split("\n") if line.strip().startswith(("call", "bl\t"))]
        assert not calls, (name, calls[:3])


# The ends of the formats

EDGES = [
    ("exp", -104.0, -87.0),
    ("exp2", -150.5, -125.5),
    ("sigmoid", -104.0, -87.0),
    ("erfc", 9.1, 10.2),
    ("exp", 88.6, 88.8),
    ("exp2", 127.5, 128.5),
    ("expm1", 88.6, 88.8),
    ("sinh", 89.3, 89.5),
    ("cosh", -89.5, -89.3),
    ("tanh", 8.5, 10.5),
    ("erf", 3.8, 4.1),
    ("log1p", -1.0, -0.9999),
    ("acosh", 1.0, 1.0001),
    ("asin", 0.9999, 1.0),
    ("acos", 0.9999, 1.0),
    ("atanh", 0.9999, 1.0),
]


@pytest.mark.parametrize("name, low, high", EDGES)
def test_results_are_right_at_the_edges(name: str, low: float, high: float) -> None:
    x = np.linspace(low, high, 50_001, dtype=np.float32)
    assert_accurate(name, "f32", [x], Compiled(name, "f32", 16)(x))


@pytest.mark.parametrize("name", [n for n in MATH if MATH[n].arity == 1])
def test_subnormal_arguments_are_not_flushed(name: str) -> None:
    x = np.arange(1, 2**23, 611, dtype=np.uint32).view(np.float32)
    x = np.concatenate([x, -x])
    assert_accurate(name, "f32", [x], Compiled(name, "f32", 16)(x))
    if name in ODD and name != "erf":
        assert same_bits(Compiled(name, "f32", 16)(x), x).all()


@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_odd_functions_keep_the_sign_of_zero(dtype: str) -> None:
    zeros = np.array([0.0, -0.0], np.float32 if dtype == "f32" else np.float64)
    for name in ODD:
        assert same_bits(Compiled(name, dtype, 4)(zeros), zeros).all(), name


def test_sine_of_huge_arguments_keeps_all_bits() -> None:
    """Multiples of pi/2 rounded to f32: what is left after the reduction is tiny."""
    quarter = np.array([k * (math.pi / 2) * 2.0**e for k in range(1, 200) for e in range(120)])
    x = np.concatenate([quarter, -quarter]).astype(np.float32)
    for name in ("sin", "cos", "tan"):
        assert_accurate(name, "f32", [x], Compiled(name, "f32", 16)(x))


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("name", ["pow", "fmod", "atan2"])
def test_special_pairs_match_eager(name: str, dtype: str) -> None:
    x, y = (a.ravel() for a in np.meshgrid(specials(dtype), specials(dtype)))
    got = Compiled(name, dtype, LANES[dtype])(x, y)
    # One element at a time: eager's vectors give fmod(1, 1e-45) = NaN, its scalars 0.
    pairs = zip(torch.from_numpy(x), torch.from_numpy(y), strict=True)
    want = torch.stack([getattr(torch, name)(*pair) for pair in pairs]).numpy()
    plain = np.isfinite(want) & (want != 0)
    assert same_bits(got[~plain], want[~plain]).all()
    np.testing.assert_allclose(got[plain], want[plain], rtol=1e-6)


def test_pow_knows_the_cases_of_c() -> None:
    cases = {
        (math.nan, 0.0): 1.0,
        (1.0, math.nan): 1.0,
        (-1.0, math.inf): 1.0,
        (0.0, 0.0): 1.0,
        (-2.0, 3.0): -8.0,
        (-2.0, 2.0): 4.0,
        (-2.0, 0.5): math.nan,
        (-0.0, -3.0): -math.inf,
        (-0.0, -2.0): math.inf,
        (-0.0, 3.0): -0.0,
        (-math.inf, 0.5): math.inf,
        (-math.inf, 3.0): -math.inf,
        (-math.inf, -3.0): -0.0,
        (0.5, math.inf): 0.0,
        (0.5, -math.inf): math.inf,
        (2.0, -149.0): 2.0**-149,
        (2.0, 128.0): math.inf,
        (-2.0, 16777217.0): math.inf,  # 2^24 + 1 rounds to even
    }
    x, y = np.array(list(cases), np.float32).T
    want = np.array(list(cases.values()), np.float32)
    assert same_bits(Compiled("pow", "f32", 16)(x, y), want).all()


# The measure itself, the text and the tables


def test_ulp_error_sees_what_it_should() -> None:
    one = np.array([1.0], np.float32)
    above = np.nextafter(one, np.float32(2))
    assert ulp_error(above, np.array([1.0])) == 1.0
    assert ulp_error(np.array([2.0**-149], np.float32), np.array([0.0])) == 1.0
    assert ulp_error(np.array([np.inf], np.float32), np.array([float(np.finfo("f4").max)])) == 1.0
    assert ulp_error(np.array([np.nan], np.float32), np.array([1.0])) == math.inf
    assert ulp_error(np.array([0.0], np.float32), np.array([-0.0])) == math.inf
    assert ulp_error(np.array([np.inf]), np.array([np.inf])) == 0.0


def test_literals_round_to_their_type() -> None:
    assert float_literal(1.0, "f32") == "0x3FF0000000000000"
    assert float_literal(0.1, "f64") == "0x" + struct.pack(">d", 0.1).hex().upper()
    assert float_literal(0.1, "f32") == "0x3FB99999A0000000"
    assert float_literal(1e39, "f32") == float_literal(math.inf, "f64") == "0x7FF0000000000000"
    assert int_literal(0x80000000, 32) == "-2147483648"
    assert int_literal(1, 1) == "1"
    assert splat("1", "i32", 4) == "splat (i32 1)"
    assert splat("1", "i32", 1) == "1"


def test_builder_types_numbers_by_their_neighbours() -> None:
    b = Builder(4, "f32")
    x = b.parameter("x")
    wide = b.convert("fpext", x, "double")
    assert b.add(wide, 0.1).type == Type("double", 4)
    assert float_literal(0.1, "f64") in b.lines[-1]
    assert b.compare("eq", b.bits(x), 1).type == Type("i1", 4)
    assert b.fma(x, 2.0, 1.0).type == Type("float", 4)
    fma = "<4 x float>, <4 x float>, <4 x float>"
    assert b.declares == {f"declare <4 x float> @llvm.fma.v4f32({fma})"}


def test_definitions_define_each_function_once() -> None:
    text, declares = definitions([("exp", "f32", 16), ("exp", "f32", 16), ("tan", "f64", 1)])
    assert text.count("define internal") == 2
    assert definition("exp", "f32", 16) in text
    assert f"@{symbol('exp', 'f32', 16)}(<16 x float> %x) alwaysinline nounwind" in text
    assert "declare double @tan(double)" in declares
    llvm.parse_assembly("\n".join([text, *declares])).verify()


def test_coefficients_are_what_minimax_finds() -> None:
    for fit in FITS:
        if fit.name in ("sin", "cosh") and fit.dtype == "f32":
            assert tuple(coefficients(fit)[0]) == POLYNOMIALS[fit.name, fit.dtype]


def test_the_accuracy_page_has_a_line_a_function() -> None:
    threads = torch.get_num_threads()
    (first,) = measure(["exp"], {"f32": 3000})
    assert torch.get_num_threads() == threads
    assert first.name == "exp" and first.measured <= first.stated and first.ns > 0
    page = markdown([first, Row("pow", "f64", 1.0, 0.5, (2.0, 3.0), 1.0, 2.0)])
    assert "| pow | f64 | 1 | 0.500 | 2, 3 | 1.00 | 2.00 |" in page
