"""The command line, run as a user runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from litz.config import FLAGS, MODES

ROOT = Path(__file__).parent.parent


def run(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "litz", *command],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_help_names_the_commands() -> None:
    done = run("--help")
    assert done.returncode == 0
    assert all(command in done.stdout for command in ("options", "modes", "env", "ops"))


def test_options_lists_every_flag_with_its_sentence() -> None:
    done = run("options", LITZ_MAX_FUSION_SIZE="3")
    assert done.returncode == 0, done.stderr
    assert all(f" {name} " in done.stdout for name in FLAGS)
    assert "64 (now 3)" in done.stdout
    assert FLAGS["max_fusion_size"].sentence in done.stdout


def test_options_as_json() -> None:
    done = run("options", "--json", LITZ_MAX_FUSION_SIZE="3")
    listed = {entry["name"]: entry for entry in json.loads(done.stdout)}
    assert set(listed) == set(FLAGS)
    assert listed["max_fusion_size"] == {
        "name": "max_fusion_size",
        "type": "int",
        "default": 64,
        "value": 3,
        "allowed": "1 or more",
        "env": "LITZ_MAX_FUSION_SIZE",
        "stage": "fuse",
        "affects_code": True,
        "sentence": FLAGS["max_fusion_size"].sentence,
    }


def test_modes_lists_what_each_sets() -> None:
    done = run("modes")
    assert all(mode in done.stdout for mode in MODES)
    assert "triton.cudagraphs=True" in done.stdout


def test_env_names_the_machine() -> None:
    done = run("env")
    assert done.returncode == 0, done.stderr
    for name in ("litz", "python", "torch", "llvmlite", "numpy", "processor", "threads"):
        assert f" {name} " in done.stdout
    assert "bits" in done.stdout
    assert "(not needed)" in done.stdout


@pytest.mark.parametrize("package", ["torch", "llvmlite"])
def test_a_missing_dependency_is_a_line_and_no_traceback(package: str) -> None:
    hide = f"""
import importlib.abc, importlib.metadata, runpy, sys
class Absent(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] == {package!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
real = importlib.metadata.version
def version(name):
    if name == {package!r}:
        raise importlib.metadata.PackageNotFoundError(name)
    return real(name)
importlib.metadata.version = version
sys.meta_path.insert(0, Absent())
sys.argv = ["litz", "env"]
runpy.run_module("litz", run_name="__main__")
"""
    done = subprocess.run(
        [sys.executable, "-c", hide], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    expected = f"litz: {package} is not installed. Install it with `pip install {package}`."
    assert done.stderr.strip() == expected
