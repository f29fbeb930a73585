"""Cases that run in processes of their own, where Triton interprets: a line of JSON for each.

In: the name of a module that ends with `told`. Out: what was wrong with each case, and its kernels.
A case that kills the process costs only itself and those behind it.
Example: `outcomes("tests.codegen.triton.cases")`.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

PROCESSES = 2
ROOT = Path(__file__).parents[3]
Outcomes = dict[str, tuple[str, list[dict[str, Any]]]]


def outcomes(module: str) -> Outcomes:
    """What was wrong with each case of a module, and its kernels."""
    shares = [f"{k}/{PROCESSES}" for k in range(PROCESSES)]
    with ThreadPoolExecutor(PROCESSES) as pool:
        found = list(pool.map(lambda share: _share(module, share), shares))
    return {name: (wrong, kernels) for lines in found for name, wrong, kernels in lines}


def _share(module: str, share: str) -> list[Any]:
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(
        [sys.executable, "-m", module, share],
        capture_output=True, text=True, cwd=ROOT, env=environment, timeout=900,
    )  # fmt: skip
    lines = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("[")]
    assert lines, ran.stderr
    return lines


def told(
    arguments: list[str], names: Iterable[str], check: Callable[[str], list[dict[str, Any]]]
) -> None:
    """Check the cases that are named, or a share of all (`0/2`); print what `outcomes` reads."""
    chosen = arguments or list(names)
    if arguments and re.fullmatch(r"\d+/\d+", arguments[0]):
        first, step = map(int, arguments[0].split("/"))
        chosen = list(names)[first::step]
    for name in chosen:
        kernels, wrong = [], ""
        try:
            kernels = check(name)
        except Exception:
            wrong = traceback.format_exc(limit=-4)
        print(json.dumps([name, wrong, kernels]), flush=True)
