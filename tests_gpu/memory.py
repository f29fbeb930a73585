"""Whether kernels stay inside their memory: `python -m tests_gpu.memory [CASE ...]`.

In: a machine with a GPU. Out: status 1 if a kernel of the sample touched what it must not. With
CUDA's compute-sanitizer, which is looked for on the path, in CUDA_HOME and among NVIDIA's packages,
every access is held against the allocation it belongs to, reads too. Where the tool is missing,
every tensor that a call allocates or is given lies between two zones of a pattern, which must
survive: that shows stray writes, and a stray read only if it changes a result.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from litz.runtime import cuda
from tests.codegen.triton.cases import WHOLE
from tests.stages import compiled
from tests_gpu.checks import DEVICE, moved, same
from tests_gpu.run import hide_compilers

SAMPLE = (
    "softmax", "layer_norm", "reduce", "columns", "scans", "transposes", "cat", "gather",
    "scatter", "embedding_grad", "places", "masked", "pads", "windows", "few_rows", "one_row",
    "bytes", "half", "double", "casts", "gelu_linear", "attention",
)  # fmt: skip
TOOL = "compute-sanitizer"
ZONE = 1024  # bytes on either side
PATTERN = 0xA5
LIMIT = 150.0  # seconds


def tool(path: str | None = None) -> str | None:
    """Where compute-sanitizer is, if it is anywhere; `path` is searched instead of PATH."""
    found = shutil.which(TOOL, path=path)
    if found is not None:
        return found
    return next((str(p) for p in _places() if p.is_file() and os.access(p, os.X_OK)), None)


def _places() -> Iterator[Path]:
    homes = [os.environ.get(name) for name in ("CUDA_HOME", "CUDA_PATH")]
    roots = [Path(home) for home in homes if home]
    roots += sorted(Path("/usr/local").glob("cuda*"))
    for root in roots:
        yield from (root / "bin" / TOOL, root / "compute-sanitizer" / TOOL)
        yield root / "extras" / "compute-sanitizer" / TOOL
    for folder in map(Path, sys.path):
        if (folder / "nvidia").is_dir():
            yield from (folder / "nvidia").rglob(TOOL)


def sanitized(
    command: str, path: str | None = None, names: tuple[str, ...] = SAMPLE, limit: float = LIMIT
) -> str:
    """Run the sample under the tool; its summary. Memory comes from the driver, tensor by tensor:
    torch's own allocator would hide what lies between two of them. The tool may be a shell script,
    which needs the path; the sample hides it again."""
    environment = os.environ | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    environment |= {"PATH": path} if path else {}
    ran = subprocess.run(
        [command, "--tool", "memcheck", "--error-exitcode", "9", "--print-limit", "5",
         sys.executable, "-m", "tests_gpu.memory", "--plain", *names],
        capture_output=True, text=True, env=environment, timeout=limit,
    )  # fmt: skip
    lines = (ran.stdout + ran.stderr).splitlines()
    summary = next((line for line in reversed(lines) if "ERROR SUMMARY" in line), "no summary")
    assert ran.returncode == 0, "\n".join(lines[-40:])
    return f"{TOOL}: {summary.strip('= ')} over {len(names)} cases"


class Zones:
    """Allocates tensors between two zones, and knows which were written to."""

    def __init__(self, empty: Callable[..., Any]) -> None:
        self.empty = empty
        self.held: list[tuple[Any, int]] = []  # the bytes, and how many are a tensor's

    def allocate(self, sizes: Any, strides: Any, dtype: Any) -> Any:
        """A tensor like `empty_strided`."""
        pairs = zip(sizes, strides, strict=True)
        span = 1 + sum((n - 1) * s for n, s in pairs) if 0 not in sizes else 0
        size = -(-span * dtype.itemsize // 16) * 16
        memory = self.empty((size + 2 * ZONE,), (1,), torch.uint8).fill_(PATTERN)
        self.held.append((memory, span * dtype.itemsize))
        return memory[ZONE : ZONE + size].view(dtype).as_strided(sizes, strides)

    def moved(self, tensor: Any) -> Any:
        """A tensor's values between zones."""
        return self.allocate(tensor.shape, tensor.stride(), tensor.dtype).copy_(tensor)

    def broken(self) -> int:
        """How many bytes outside of tensors have changed; then all is forgotten."""
        count = 0
        for memory, size in self.held:
            outside = (memory[:ZONE], memory[ZONE + size :])
            count += sum(int((zone != PATTERN).sum()) for zone in outside)
        self.held.clear()
        return count


def guarded(names: tuple[str, ...] = SAMPLE) -> str:
    """Run the sample between zones."""
    unguarded = cuda._empty_strided_cuda
    zones = Zones(unguarded)
    cuda._empty_strided_cuda = zones.allocate
    try:
        for name in names:
            function, inputs = WHOLE[name]
            given = [moved(i) for i in inputs]
            placed = [zones.moved(i) if isinstance(i, torch.Tensor) else i for i in given]
            with torch.no_grad(), torch.device(DEVICE):
                found = compiled(lambda *args, f=function: f(*args))(*placed)
                torch.cuda.synchronize()
                same(found, function(*given))
            broken = zones.broken()
            assert not broken, f"{name}: {broken} bytes outside of its tensors were written"
    finally:
        cuda._empty_strided_cuda = unguarded
    return f"{len(names)} cases between zones of {ZONE} bytes; there is no {TOOL} here"


def plain(names: tuple[str, ...]) -> None:
    """The sample, for the tool to watch."""
    for name in names:
        function, inputs = WHOLE[name]
        with torch.no_grad(), torch.device(DEVICE):
            compiled(lambda *args, f=function: f(*args))(*[moved(i) for i in inputs])
            torch.cuda.synchronize()


def checked(path: str | None = None) -> str:
    """The tool if it is there, else zones."""
    command = tool(path)
    return sanitized(command, path) if command is not None else guarded()


def memory(path: str) -> Callable[[Any], None]:
    """The part of `tests_gpu.run`; `path` is where tools are."""

    def part(results: Any) -> None:
        """Kernels of a sample of cases stay inside their memory."""
        results.check("stays inside its memory", lambda: checked(path))

    return part


if __name__ == "__main__":
    words = sys.argv[1:]
    if "--plain" in words:
        hide_compilers()
        plain(tuple(w for w in words if w != "--plain"))
    else:
        print(checked())
