"""Every kernel of the cases runs under Triton's interpreter, and is compiled for a real GPU.

Triton decides at import whether it interprets, so all cases run in one process of their own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from litz.build.triton import compile_kernels
from litz.errors import InternalError
from litz.ir.source import DeviceKernel
from tests.codegen.triton.cases import NAMES

pytest.importorskip("triton")
ROOT = Path(__file__).parents[3]
ELF = b"\x7fELF"


@pytest.fixture(scope="module")
def outcome() -> dict[str, tuple[str, list[dict[str, Any]]]]:
    """What was wrong with each case, and its kernels."""
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(
        [sys.executable, "-m", "tests.codegen.triton.cases"],
        capture_output=True, text=True, cwd=ROOT, env=environment, timeout=900,
    )  # fmt: skip
    lines = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("[")]
    assert lines, ran.stderr
    return {name: (wrong, kernels) for name, wrong, kernels in lines}


@pytest.mark.parametrize("name", NAMES)
def test_a_kernel_means_what_the_loop_ir_says(name: str, outcome: Any) -> None:
    assert name in outcome, f"the process ended in {list(outcome)[-1]!r}, or the case after it"
    assert not outcome[name][0], outcome[name][0]


def test_every_kernel_becomes_a_cubin(outcome: Any, tmp_path: Path, monkeypatch: Any) -> None:
    """No GPU, no C compiler: the path has none."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    texts: dict[str, DeviceKernel] = {}
    for _, kernels in outcome.values():
        for k in kernels:
            plain = k["text"].replace(k["name"], "litz_kernel")
            kernel = DeviceKernel(**{**k, "name": "litz_kernel", "text": plain})
            texts[plain] = kernel
    named = []
    for number, kernel in enumerate(texts.values()):
        name = f"litz_{number}"
        text = kernel.text.replace("litz_kernel", name)
        named.append(DeviceKernel(**{**vars(kernel), "name": name, "text": text}))
    assert len(named) > 100
    cubins = compile_kernels(tuple(named), 90, threads=2)
    assert all(cubins[k.name].code.startswith(ELF) for k in named)
    assert {c.warps for c in cubins.values()} == {k.warps for k in named}


def test_what_triton_rejects_is_shown_with_its_text() -> None:
    text = "import triton\n\n\n@triton.jit\ndef broken(b0):\n    b0.nothing()\n"
    with pytest.raises(InternalError, match=r"Triton rejects broken(?s:.*)b0.nothing"):
        compile_kernels((DeviceKernel("broken", text, ("*fp32",), 1, 1, 1),), 90, 1)
