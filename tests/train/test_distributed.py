"""Two processes on one machine train as eager does, wrapped by DDP and by FSDP2."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.train.distributed import KINDS, PROCESSES

ROOT = Path(__file__).parent.parent.parent
# FSDP's hooks break the graph, and each sharded module is compiled on its own.
GRAPHS = {"ddp": ["backward", "forward"], "fsdp2": ["backward"] * 2 + ["forward"] * 2}


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """What each process says."""
    store = str(tmp_path_factory.mktemp("meeting") / "store")
    running = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.train.distributed", str(rank), store],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(PROCESSES)
    ]
    try:
        streams = [process.communicate(timeout=240) for process in running]
    finally:
        for process in running:
            process.kill()
    for process, (_, errors) in zip(running, streams, strict=True):
        assert process.returncode == 0, errors[-4000:]
    return [json.loads(out.splitlines()[-1]) for out, _ in streams]


@pytest.mark.parametrize("kind", KINDS)
def test_two_processes_follow_eager(kind: str, told: list[Any]) -> None:
    for process in told:
        found = process[kind]
        eager, compiled = (torch.tensor(found[name]) for name in ("eager", "compiled"))
        torch.testing.assert_close(compiled, eager, rtol=1e-4, atol=1e-6)
        assert len(set(found["eager"])) == len(found["eager"])
        assert found["graphs"] == GRAPHS[kind]
