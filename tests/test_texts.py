"""A program has one text, behind every stage: in any process, whatever that has compiled before."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.texts import PROGRAMS

NAMES = list(PROGRAMS)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, list[str]]]:
    """The texts of two processes: other seeds of hashes, and the opposite order of compiles."""
    folder = tmp_path_factory.mktemp("texts")
    running = []
    for seed, names in enumerate((NAMES, NAMES[::-1])):
        command = [sys.executable, "-m", "tests.texts", str(folder / f"{seed}.json"), *names]
        given = {**os.environ, "PYTHONHASHSEED": str(seed)}
        root = Path(__file__).parent.parent
        running.append(subprocess.Popen(command, env=given, cwd=root, stderr=subprocess.PIPE))
    for process in running:
        _, told = process.communicate(timeout=600)
        assert process.returncode == 0, told.decode()
    return [json.loads((folder / f"{seed}.json").read_text()) for seed in range(2)]


@pytest.mark.parametrize("name", NAMES)
def test_the_same_text(name: str, written: list[dict[str, list[str]]]) -> None:
    first, second = (found[name] for found in written)
    assert first and len(first) == len(second)
    for one, other in zip(first, second, strict=True):
        assert one == other
