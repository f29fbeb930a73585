"""Ops in one way each with the kernels of a GPU, as the interpreter runs them.

In: nothing. Out: an error if an op gives anything but what eager gives. The name of an op picks its
way and its dtype. Example:
`TRITON_INTERPRET=1 python -m tests.ops.way_cases "softmax, sizes"`.
"""

from __future__ import annotations

import importlib
import logging
import sys
import zlib
from dataclasses import replace
from typing import Any

from tests.codegen.triton.apart import told
from tests.ops.exceptions import excepted
from tests.ops.opinfo import check, every_op, name_of, supported_dtypes
from tests.ops.ways import Way, drawn

SAMPLES = 1  # some take the interpreter a minute
AMONG = 20  # one op in so many
# Times that operands are repeated where a way calls an op at several sizes: the interpreter runs
# scans element by element, and a GPU (`make test-gpu`) has the sizes of the way.
LONGEST = 3


def _cases() -> dict[str, tuple[Any, Way]]:
    pairs = ((op, drawn(name_of(op), "interpreter", AMONG)) for op in every_op())
    found = ((op, _shorter(w)) for op, w in pairs if w is not None and supported_dtypes(op))
    return {f"{name_of(op)}, {way.name}": (op, way) for op, way in found}


def _shorter(way: Way) -> Way:
    return replace(way, sizes=tuple(min(n, LONGEST) for n in way.sizes))


CASES = _cases()


def run(name: str) -> list[dict[str, Any]]:
    """One op in its way."""
    there = importlib.import_module("tests.codegen.triton.interpreted")
    logging.disable(logging.CRITICAL)
    op, way = CASES[name]
    choices = supported_dtypes(op)
    dtype = choices[zlib.crc32(name.encode()) // 3 % len(choices)]
    with there.interpreting():
        outcome = check(op, dtype, SAMPLES, way=way)
    if excepted(outcome.op, str(dtype).removeprefix("torch.")) is None:
        assert not outcome.failures, f"{dtype}: {outcome.failures[0]}"
    return []


if __name__ == "__main__":
    told(sys.argv[1:], CASES, run)
