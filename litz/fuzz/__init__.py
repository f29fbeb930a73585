"""Differential fuzzing: random programs in eager, in Litz and in the interpreter.

In: a seed. Out: the differences beyond rounding, each shrunk to a script of a few lines.
Example: `python -m litz fuzz --seconds 60 --seed 1 --store finds`.
"""

from __future__ import annotations

from litz.fuzz.compare import Failure, assert_calls_same, assert_same, check, check_calls
from litz.fuzz.generate import generate
from litz.fuzz.hunt import Find, Tally, hunt, store
from litz.fuzz.page import tables
from litz.fuzz.program import Program, data
from litz.fuzz.shrink import shrink

__all__ = [
    "Failure",
    "Find",
    "Program",
    "Tally",
    "assert_calls_same",
    "assert_same",
    "check",
    "check_calls",
    "data",
    "generate",
    "hunt",
    "shrink",
    "store",
    "tables",
]
