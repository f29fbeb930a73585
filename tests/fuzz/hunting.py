"""The command `fuzz` in a process of its own, with a bug planted in it or none.

In: arguments, and code that runs first. Out: what it printed. A hunt forks, so it wants a process
that has started no threads.
"""

from __future__ import annotations

import subprocess
import sys

USES_SINE = 33  # the seed of a program with sin(x) in it
# Generated code computes |x| for sin(x).
WRONG_SINE = """
from litz.codegen.llvm import ops, values
values.INLINE_MATH -= {"sin"}
ops.OP_EMITTERS["sin"] = ops.OP_EMITTERS["abs"]
"""


def command(*arguments: str, planted: str = "") -> subprocess.CompletedProcess[str]:
    code = f"{planted}\nimport sys\nfrom litz.cli import app\napp(sys.argv[1:])"
    line = [sys.executable, "-c", code, "fuzz", *arguments]
    return subprocess.run(line, capture_output=True, text=True, timeout=300, check=False)
