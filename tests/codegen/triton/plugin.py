"""A pytest plugin: whatever a test compiles, it compiles for the GPU and runs on the interpreter.

In: `TRITON_INTERPRET=1 pytest -p tests.codegen.triton.plugin tests/lower`. Out: the same tests with
another target behind them, so that every rule of lowering is held against eager by the kernels that
a GPU would run.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.codegen.triton.interpreted import interpreting

KEPT = pytest.StashKey[Any]()


def pytest_configure(config: pytest.Config) -> None:
    patched = interpreting()
    patched.__enter__()  # until the process ends
    config.stash[KEPT] = patched
