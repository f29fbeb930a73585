"""A user's own Triton kernel in a compiled function, run by Triton's interpreter on CPU tensors.

Behind a custom op it is a call in the graph, between generated kernels. Called plainly, Dynamo
knows a kernel only where Triton has a driver: without one it traces into Triton's interpreter and
fails in NumPy's uint64, whatever the backend; Litz fails as `aot_eager` does.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="the extra `gpu` brings triton")
ROOT = Path(__file__).parent.parent.parent

PROGRAM = """
import json, os, sys
import torch, triton
import triton.language as tl
import litz
from tests import draws

@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    here = at < n
    total = tl.load(x_ptr + at, mask=here) + tl.load(y_ptr + at, mask=here)
    tl.store(out_ptr + at, total, mask=here)

def plain(x, y):
    out = torch.empty_like(x)
    add_kernel[(triton.cdiv(x.numel(), 16),)](x, y, out, x.numel(), BLOCK=16)
    return out

@torch.library.custom_op("mine::add", mutates_args=())
def behind_an_op(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return plain(x, y)

behind_an_op.register_fake(lambda x, y: torch.empty_like(x))

def result(how, backend):
    add = {"plain": plain, "op": behind_an_op}[how]

    def f(x, y):
        return add(x * 2, y.sin()) - 1

    draws.seed(0)
    x, y = torch.randn(2, 40)
    expected = x * 2 + y.sin() - 1
    try:
        # Near zero, one bit of a sine is much of what is left.
        right = torch.allclose(torch.compile(f, backend=backend)(x, y), expected, atol=1e-6)
        told = litz.explain(f, x, y) if (how, backend) == ("op", "litz") else None
        aten = dict(told.aten_ops) if told else {}
        return {"right": right, "aten": aten, "kernels": told.kernels if told else 0}
    except Exception as error:
        return {"error": type(error).__name__, "cause": type(error.__cause__).__name__}

for backend in ("aot_eager", "litz"):  # each in a process that has compiled nothing
    if os.fork() == 0:
        print(json.dumps(result(sys.argv[1], backend)), flush=True)
        os._exit(0)
    assert os.wait()[1] == 0
"""


def _run(how: str, folder: Path) -> list[dict[str, object]]:
    """What comes of it with `aot_eager`, and with Litz."""
    program = folder / "program.py"  # Triton reads the source of its kernels
    program.write_text(PROGRAM)
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(program), how],
        env={**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def test_a_kernel_behind_a_custom_op_is_called_from_the_graph(tmp_path: Path) -> None:
    by_torch, found = _run("op", tmp_path)
    assert by_torch["right"]
    assert found == {"right": True, "aten": {"mine.add.default": 1}, "kernels": 3}


def test_a_plain_kernel_does_what_it_does_with_aot_eager(tmp_path: Path) -> None:
    by_torch, found = _run("plain", tmp_path)
    assert found == by_torch
