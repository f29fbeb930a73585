"""An emitter that leaves out a store of its kernel is found out, whatever the target."""

from __future__ import annotations

import pytest
import torch

from litz.codegen.llvm.emit import KernelEmitter
from litz.codegen.triton.emit import KernelEmitter as TritonEmitter
from litz.codegen.triton.module import emit_kernel
from litz.config import Config
from litz.errors import VerifyError
from litz.target import cuda
from tests.stages import compiled, stages
from tests.toolchain import schedule

K = torch.arange(8.0 * 16 * 4 * 8).reshape(8, 16, 4, 8)


def _joined(k: torch.Tensor) -> tuple[torch.Tensor, ...]:
    joined = torch.cat([k[:, 1:-3], k[:, 2:-2]], 2)
    return joined, k[:, 2:-2].transpose(-1, -2).contiguous()


def test_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    (scheduled,) = stages(_joined, K).scheduled
    assert scheduled.choice.transpose_axis is not None and len(scheduled.kernel.phases) == 2
    emit = KernelEmitter._stores
    last = scheduled.kernel.phases[-1].stores
    monkeypatch.setattr(
        KernelEmitter, "_stores", lambda self, s: None if tuple(s) == last else emit(self, s)
    )
    with pytest.raises(VerifyError, match="no code was written that stores"):
        compiled(_joined)(K)


def test_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    (kernel,) = stages(_joined, K).kernels.kernels
    made = schedule(kernel, cuda((9, 0), 132), Config())
    emit_kernel(made, "whole")
    emit = TritonEmitter._stores
    monkeypatch.setattr(TritonEmitter, "_stores", lambda self, s: emit(self, s[1:]))
    with pytest.raises(VerifyError, match="no code was written that stores"):
        emit_kernel(made, "short")
