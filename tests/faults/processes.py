"""Scripts in processes of their own: `run("print(1)")` is "1\\n", or an error that shows stderr."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import torch

# torch 2.11 for CUDA, without a GPU, crashes when two threads of a process compile first, with its
# own backend `aot_eager` as well.
THREADS_CRASH_TORCH = (
    torch.__version__ < "2.13" and torch.version.cuda is not None and not torch.cuda.is_available()
)
ROOT = Path(__file__).parent.parent.parent


def run(script: str, *args: str, timeout: int = 300, **environment: str) -> str:
    """What a script prints, if it ends well. `draws.begin()` seeds it by its test."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script, *args],
        cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True,
        timeout=timeout,
    )  # fmt: skip
    assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout}\n{done.stderr[-3000:]}"
    return done.stdout
