"""Which target a graph gets, and what a target says of itself."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from litz.config import Config
from litz.config.flags import Triton
from litz.errors import MissingDependency
from litz.target import cuda, host, target_for

ROOT = Path(__file__).parent.parent


@dataclass(frozen=True)
class Properties:
    major: int = 9
    minor: int = 0
    multi_processor_count: int = 132


CPU, GPU, META = torch.device("cpu"), torch.device("cuda", 1), torch.device("meta")


def test_a_graph_on_the_cpu_gets_this_machine() -> None:
    assert target_for([CPU], Config()) == target_for([], Config()) == host()
    assert target_for([CPU, META], Config()) == host()  # `lower` names the line of the other


def test_a_graph_on_a_gpu_gets_that_gpu(monkeypatch: Any) -> None:
    asked: list[torch.device] = []

    def properties(device: torch.device) -> Properties:
        asked.append(device)
        return Properties()

    monkeypatch.setattr(torch.cuda, "get_device_properties", properties)
    target = target_for([CPU, GPU], Config())
    assert target == cuda((9, 0), 132, "cuda:1") and asked == [GPU]
    more = Config(triton=Triton(gemm_max_rows=16))
    assert target_for([GPU], more) == replace(target, gemm_max_rows=16)
    assert (target.name, target.device) == ("sm_90", "cuda:1")
    assert not target.panels and not target.generates_attention and not target.prepacks


def test_without_triton_there_is_a_reason(monkeypatch: Any) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingDependency, match=r"litz\[gpu\]"):
        target_for([GPU], Config())


def test_litz_is_imported_without_triton() -> None:
    code = "import sys; sys.modules['triton'] = None; import litz.compiler, litz.backend"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert ran.returncode == 0, ran.stderr


# -- the page about targets --------------------------------------------------------------------

NAMES = {"CpuTarget", "GpuTarget", "host", "cpu", "cuda", "aarch64", "configured"}
OF_TARGETS = ("llvmlite", "triton", "litz.isa")
# What is run by itself and looks at the machine that it is on.
TOOLS = ("litz/bench", "litz/fuzz", "litz/cli.py", "litz/demo.py")
FOLDERS = ("litz/codegen/llvm/", "litz/codegen/triton/")


def _knows_a_target(path: Path) -> bool:
    """Whether a file imports or names what is one target's alone."""
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.ImportFrom(module="litz.target", names=names):
                if NAMES & {alias.name for alias in names}:
                    return True
            case ast.ImportFrom(module=str(module)) if module.startswith(OF_TARGETS):
                return True
            case ast.Import(names=names) if any(a.name.startswith(OF_TARGETS) for a in names):
                return True
            case ast.Constant(value=str(text)) if text.startswith("cuda"):
                return True
            case ast.Attribute() if ast.unparse(node).startswith("torch.cuda"):
                return True
    return bool(re.search("llvm|triton|cuda", path.name))


def test_the_page_about_targets_names_every_file_that_knows_one() -> None:
    page = (ROOT / "docs" / "add-a-target.md").read_text()
    table = page[page.index("## Every place that knows a target") :]
    named = set(re.findall(r"`(litz/[\w/.]+)`", table))
    paths = {p.relative_to(ROOT).as_posix(): p for p in (ROOT / "litz").rglob("*.py")}
    found = {name for name, p in paths.items() if _knows_a_target(p) and not name.startswith(TOOLS)}
    found = {name for name in found if not name.startswith(FOLDERS)}
    assert named == found | {*FOLDERS, "litz/isa.py"}
