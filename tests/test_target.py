"""Which target a graph gets, and what a target says of itself."""

from __future__ import annotations

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
from litz.target import cuda, target_for

ROOT = Path(__file__).parent.parent


@dataclass(frozen=True)
class Properties:
    major: int = 9
    minor: int = 0
    multi_processor_count: int = 132


CPU, GPU, META = torch.device("cpu"), torch.device("cuda", 1), torch.device("meta")


def test_a_graph_on_the_cpu_gets_this_machine() -> None:
    assert target_for([CPU], Config()).kind == "cpu"
    assert target_for([], Config()).kind == "cpu"
    assert target_for([CPU, META], Config()).kind == "cpu"  # `lower` names the line of the other


def test_a_graph_on_a_gpu_gets_that_gpu(monkeypatch: Any) -> None:
    asked: list[torch.device] = []

    def properties(device: torch.device) -> Properties:
        asked.append(device)
        return Properties()

    monkeypatch.setattr(torch.cuda, "get_device_properties", properties)
    target = target_for([CPU, GPU], Config())
    assert target == cuda((9, 0), 132, "cuda:1") and asked == [GPU]
    more = Config(triton=Triton(product_rows=16))
    assert target_for([GPU], more) == replace(target, product_rows=16)
    assert (target.name, target.kind, target.device) == ("sm_90", "cuda", "cuda:1")
    assert not target.panels and not target.attends and not target.holds


def test_without_triton_there_is_a_reason(monkeypatch: Any) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingDependency, match=r"litz\[gpu\]"):
        target_for([GPU], Config())


def test_litz_is_imported_without_triton() -> None:
    code = "import sys; sys.modules['triton'] = None; import litz.compiler, litz.backend"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert ran.returncode == 0, ran.stderr
