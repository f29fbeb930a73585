"""Every op has one spelling for Triton, or stands on the list of those that stay with ATen."""

from __future__ import annotations

import itertools
import math
import re
from types import SimpleNamespace
from typing import Any

import pytest

from litz.codegen.triton.ops import OP_TEMPLATES, POINTERS, TYPES, apply_template, converted
from litz.codegen.triton.prelude import PRELUDE, with_prelude
from litz.ir.dtypes import BF16, BOOL, DTYPES, F32, F64, I8, I64
from litz.ir.ops import OPS
from litz.target import NOT_ON_CUDA, cuda


def test_every_op_is_spelled_or_left_to_aten() -> None:
    assert set(OP_TEMPLATES) | NOT_ON_CUDA == set(OPS)
    assert not set(OP_TEMPLATES) & NOT_ON_CUDA
    assert cuda((9, 0), 132).unsupported_ops == NOT_ON_CUDA


def test_every_type_has_its_names() -> None:
    assert set(TYPES) == set(POINTERS) == set(DTYPES)
    assert len(set(TYPES.values())) == len(set(POINTERS.values())) == len(DTYPES)


@pytest.mark.parametrize("op", sorted(set(OP_TEMPLATES) - {"check_index", "check"}))
def test_a_spelling_has_a_hole_for_each_operand(op: str) -> None:
    template = OP_TEMPLATES[op]
    for text in filter(None, (template.floats, template.ints, template.f64, template.bools)):
        assert set(re.findall(r"\{(\d)\}", text)) == {str(k) for k in range(OPS[op].arity)}


def test_the_type_decides_where_it_must() -> None:
    assert apply_template("div", F32, "a", "b") == "tl.div_rn(a, b)"
    assert apply_template("div", F64, "a", "b") == "a / b"
    assert apply_template("max", I64, "a", "b") == "tl.maximum(a, b)"
    assert apply_template("max", BOOL, "a", "b") == "a | b"
    assert apply_template("shl", I8, "a", "b") == "shift_left(a, b, 8)"
    assert converted("a", F32, I8) == "a.to(tl.int32).to(tl.int8)"
    assert converted("a", BF16, BOOL) == "a.to(tl.float32) != 0"


def test_a_text_brings_the_functions_it_names_and_no_others() -> None:
    text = with_prelude("v0 = philox(a, b)\n")
    assert text.count("@triton.jit") == 1 and "def philox(seed, counter):" in text
    used = {name for name in PRELUDE if any(name + "(" in s.floats for s in OP_TEMPLATES.values())}
    folds = {"nan_max", "nan_min", "product", "first_max", "first_min", "last_max", "last_min"}
    casts = {"to_e4m3", "to_e5m2"}
    assert set(PRELUDE) == used | folds | casts | {"int_power", "log_add_exp"}


@pytest.mark.parametrize("name", ["first_max", "first_min", "last_max", "last_min"])
def test_of_equals_one_place_counts_in_whatever_order_they_come(name: str) -> None:
    """Triton joins elements as lanes lie: the sixteenth with the first, before the second."""
    scope: dict[str, Any] = {"tl": SimpleNamespace(where=lambda c, a, b: a if c else b)}
    exec(PRELUDE[name].partition("\n")[2], scope)

    def shown(value: float, place: int) -> tuple[str, int]:
        return str(value), place

    values = (-math.inf, 0.0, 1.0, math.inf, math.nan)
    for chosen in itertools.product(values, repeat=3):
        found = set()
        for (a, i), (b, j), (c, k) in itertools.permutations(zip(chosen, range(3), strict=True)):
            found.add(shown(*scope[name](*scope[name](a, i, b, j), c, k)))
            found.add(shown(*scope[name](a, i, *scope[name](b, j, c, k))))
        (one,) = found
        best = max if "max" in name else min
        places = [k for k, v in enumerate(chosen) if math.isnan(v)] or [
            k for k, v in enumerate(chosen) if v == best(chosen)
        ]
        assert one[1] == (places[0] if "first" in name else places[-1])
