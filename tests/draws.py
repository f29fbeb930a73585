"""Random numbers of the tests: all of them follow from a test's name and from `LITZ_TEST_SEED`.

In: the name of a test, or a small number. Out: torch, NumPy and `random` seeded, or a generator.
`LITZ_TEST_SEED` is 0 unless the environment says otherwise; another number gives every test other
numbers, in subprocesses too, which inherit it together with `LITZ_TEST_NAME`. No test calls
`manual_seed` itself: what it draws would be the same under every seed. Example:

    x = torch.randn(3, generator=generator(7))   # generator 7 of this run
    seed(7)                                      # the same draws once more, from the default one
    begin()                                      # in a subprocess: as the test that started it
"""

from __future__ import annotations

import hashlib
import os
import random
import sys
from typing import Any

import numpy as np
import torch

RUN = int(os.environ.get("LITZ_TEST_SEED", "0"))
NAME = "LITZ_TEST_NAME"

_made = 0  # generators so far
_drew_at_import: set[str] = set()  # modules that made a generator as they were loaded


def begin(name: str | None = None) -> None:
    """Seed everything by the name of a test; in a subprocess, of the test that started it."""
    if name is not None:
        os.environ[NAME] = name
    _seed_all(_number(os.environ.get(NAME, ""), RUN))


def seed(number: int = 0) -> None:
    """Seed everything by a number: equal numbers give equal draws in one run."""
    _note()
    _seed_all(_of_run(number))


def generator(number: int = 0) -> torch.Generator:
    """A generator of torch's of its own."""
    _note()
    return torch.Generator("cpu").manual_seed(_of_run(number))


def numpy_generator(number: int = 0) -> np.random.Generator:
    _note()
    return np.random.default_rng(_of_run(number))


def python_generator(number: int = 0) -> random.Random:
    _note()
    return random.Random(_of_run(number))


def state() -> Any:
    """Equal before and after something exactly if it drew nothing."""
    words = np.random.get_state(legacy=False)["state"]
    numpy_state = (words["key"].tobytes(), words["pos"])
    return _made, torch.get_rng_state().numpy().tobytes(), random.getstate(), numpy_state


def drew_at_import(module: Any) -> bool:
    """Whether a test module, or one that it has names of, drew numbers as it was loaded."""
    origins = {getattr(value, "__module__", None) for value in vars(module).values()}
    return not _drew_at_import.isdisjoint({module.__name__, *origins})


def note_import(name: str) -> None:
    """A test module drew from the default generators as it was loaded."""
    _drew_at_import.add(name)


def _number(*parts: str | int) -> int:
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1  # torch takes numbers below 2**63


def _of_run(number: int) -> int:
    return _number(number, RUN) if RUN else number


def _seed_all(number: int) -> None:
    torch.manual_seed(number)
    np.random.seed(number % 2**32)
    random.seed(number)


def _note() -> None:
    global _made
    _made += 1
    caller = sys._getframe(2)
    if caller.f_code.co_name in ("<module>", "<genexpr>", "<listcomp>"):
        _drew_at_import.add(caller.f_globals["__name__"])
