"""Cases that run in a process of their own, where Triton interprets: a line of JSON for each.

In: the name of a module that ends with `told`. Out: what was wrong with each case, and its kernels.
A case that kills the process costs only itself and those behind it.
Example: `outcomes("tests.codegen.triton.cases")`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
Outcomes = dict[str, tuple[str, list[dict[str, Any]]]]


def outcomes(module: str) -> Outcomes:
    """What was wrong with each case of a module, and its kernels."""
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(
        [sys.executable, "-m", module],
        capture_output=True, text=True, cwd=ROOT, env=environment, timeout=900,
    )  # fmt: skip
    lines = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("[")]
    assert lines, ran.stderr
    return {name: (wrong, kernels) for name, wrong, kernels in lines}


def told(names: Iterable[str], check: Callable[[str], list[dict[str, Any]]]) -> None:
    """Check cases and print what `outcomes` reads."""
    for name in names:
        kernels, wrong = [], ""
        try:
            kernels = check(name)
        except Exception:
            wrong = traceback.format_exc(limit=-4)
        print(json.dumps([name, wrong, kernels]), flush=True)
