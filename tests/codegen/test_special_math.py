"""The special functions as kernels inline them: accuracy as stated, every width, their tables."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from litz.codegen.llvm.math import MATH, SPECIAL
from litz.codegen.llvm.math.bessel_coefficients import BESSEL
from litz.codegen.llvm.math.error_coefficients import ERROR
from litz.codegen.llvm.math.gamma_coefficients import GAMMA
from litz.codegen.llvm.math.minimax import coefficients_at_once
from litz.codegen.llvm.math.special_fits import FITS
from litz.codegen.llvm.math_accuracy import LANES, Compiled
from litz.codegen.llvm.special_accuracy import SPANS, errors, markdown, measure, points

PAGE = Path(__file__).parents[2] / "docs" / "math-accuracy.md"
LINE = re.compile(r"^\| (\w+) \| (f32|f64) \| (\S+) \| (\S+) \|", re.MULTILINE)
TABLES = {"gamma": GAMMA, "error": ERROR, "bessel": BESSEL}


@pytest.mark.parametrize("dtype", LANES)
@pytest.mark.parametrize("name", SPECIAL)
def test_error_is_as_stated(name: str, dtype: str) -> None:
    operands = points(name, dtype, 120, seed=7)
    error = errors(name, dtype, operands)
    worst = int(np.argmax(error))
    at = [float(x[worst]) for x in operands]
    assert error[worst] <= SPECIAL[name].ulp[dtype], f"{name}{at}: {error[worst]} ULP"


@pytest.mark.parametrize("dtype", LANES)
@pytest.mark.parametrize("name", SPECIAL)
def test_every_width_gives_the_same_numbers(name: str, dtype: str) -> None:
    operands = points(name, dtype, 300)
    wide = Compiled(name, dtype, LANES[dtype])(*operands)
    for lanes in (1, 4):
        np.testing.assert_array_equal(Compiled(name, dtype, lanes)(*operands), wide)


@pytest.mark.parametrize("name, low, high", [
    ("lgamma", -0.51, -0.49), ("lgamma", 1.49, 1.51), ("lgamma", 3.49, 3.51),
    ("digamma", 1.4616, 1.4617), ("digamma", 3.99, 4.01), ("erfcx", -0.01, 0.01),
    ("digamma", -5418.9, -5418.8), ("digamma", -147947973232916, -147947973232915),
    ("erfinv", 0.7070, 0.7072), ("ndtri", 0.1464, 0.1465), ("i0e", 7.99, 8.01),
    ("k0e", 1.99, 2.01), ("j0", 7.99, 8.01), ("j0", 2.40482, 2.40483), ("y0", 0.8935, 0.8936),
    ("airy_ai", -3.51, -3.49), ("airy_ai", 0.99, 1.01),
])  # fmt: skip
def test_seams_and_zeros(name: str, low: float, high: float) -> None:
    for dtype, kind in (("f32", np.float32), ("f64", np.float64)):
        error = errors(name, dtype, [np.linspace(low, high, 200).astype(kind)])
        assert error.max() <= SPECIAL[name].ulp[dtype]


def test_each_function_has_points_to_be_measured_on() -> None:
    assert set(SPANS) == set(SPECIAL)


def test_a_wrong_result_is_an_infinite_error() -> None:
    """lgamma of a pole is infinite, of -1e300 too; what is NaN counts as wrong."""
    assert errors("lgamma", "f64", [np.array([-3.0, -1e300, 0.0, np.inf])]).max() == 0
    assert errors("ndtri", "f64", [np.array([2.0, -1.0, 0.0, 1.0])]).max() == 0


@pytest.mark.parametrize("family", FITS)
def test_tables_hold_what_the_fits_ask_for(family: str) -> None:
    assert [fit.name for fit in FITS[family]] == list(TABLES[family])
    for fit in FITS[family]:
        assert len(TABLES[family][fit.name]) == fit.degree + 1


def test_coefficients_are_what_the_fit_finds() -> None:
    (fit,) = [f for f in FITS["gamma"] if f.name == "sin_pi"]
    assert tuple(coefficients_at_once(fit)[0]) == GAMMA["sin_pi"]


def test_the_page_has_a_line_a_function() -> None:
    rows = measure(["lgamma"], 20)
    assert [r.dtype for r in rows] == list(LANES)
    assert markdown(rows).count("| lgamma |") == 2


def test_docs_have_every_function_as_stated_and_measured() -> None:
    stated = {(f.name, d): ulp for f in (MATH | SPECIAL).values() for d, ulp in f.ulp.items()}
    shown = {(n, d): (float(s), float(m)) for n, d, s, m in LINE.findall(PAGE.read_text())}
    assert {case: bound for case, (bound, _) in shown.items()} == stated
    assert all(measured <= bound for bound, measured in shown.values())
