"""Processes that talk inside compiled graphs get what eager gives them, in eager's order."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.runtime.collectives import PATIENCE, PROCESSES, PROGRAMS

ROOT = Path(__file__).parent.parent.parent
ROUNDING = 1e-6  # of float32, where eager's own error is smaller by luck


def test_two_processes_of_different_sizes(tmp_path: Path) -> None:
    """A process that waits in vain ends by itself; here it is not waited for much longer."""
    command = [sys.executable, "-m", "tests.runtime.collectives"]
    running = [
        subprocess.Popen(
            [*command, str(rank), str(tmp_path / "store")],
            cwd=ROOT, env=os.environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(PROCESSES)
    ]  # fmt: skip
    try:
        ended = [process.communicate(timeout=2 * PATIENCE.seconds) for process in running]
    finally:
        for process in running:
            process.kill()
    for out, error in ended:
        found = dict(json.loads(line) for line in out.splitlines() if line.startswith("["))
        assert list(found) == list(PROGRAMS), error[-3000:]
        for name, (ours, eager) in found.items():
            assert ours <= max(2 * eager, ROUNDING), (name, ours, eager)
