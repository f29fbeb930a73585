"""What only a GPU can show: `make test-gpu`, or `python -m tests_gpu.run [PART ...]`.

In: a machine with a GPU, torch with CUDA and Triton; a PATH without a compiler, which is made here.
Out: a line a check that has something to say, the first failures of each kind in full, what each
part covered, a summary, and status 1 if anything failed. It goes on after failures and stops by
itself after `BUDGET` seconds. Parts: graphs, edges, unbacked, constants, facts, launch, sizes,
ops, models, training, dtypes, memory.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field

BUDGET = 460.0  # seconds
SHOWN = 6  # failures shown in full, one of each kind
START = time.monotonic()


def hide_compilers() -> str:
    """No gcc, no clang, no nvcc: whatever runs here runs without them. The path as it was."""
    path = os.environ.get("PATH", "")
    os.environ["PATH"] = tempfile.mkdtemp()
    for name in ("CC", "CXX"):
        os.environ.pop(name, None)
    return path


@dataclass
class Results:
    """What was checked, and what failed and why."""

    passed: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)
    kinds: set[str] = field(default_factory=set)

    @property
    def left(self) -> float:
        return BUDGET - (time.monotonic() - START)

    def check(self, name: str, run: Callable[[], str | None]) -> None:
        """Run one check; it returns a remark or raises."""
        if self.left < 0:
            self.skipped.append(name)
            return
        begin = time.monotonic()
        try:
            remark = run() or ""
        except Exception as error:
            self._fail(name, error)
            return
        self.passed += 1
        took = time.monotonic() - begin
        if remark or took > 5:
            print(f"ok    {name:34} {took:6.1f} s  {remark}", flush=True)

    def _fail(self, name: str, error: Exception) -> None:
        text = f"{type(error).__name__}: {error}"
        self.failed[name] = text
        print(f"FAIL  {name:34} {text.splitlines()[0][:150]}", flush=True)
        frames = traceback.extract_tb(error.__traceback__)
        kind = f"{type(error).__name__} {frames[-1].filename}:{frames[-1].lineno}"
        if kind not in self.kinds and len(self.kinds) < SHOWN:
            self.kinds.add(kind)
            print("".join(traceback.format_exception(error))[-3500:], flush=True)

    def part(self, name: str, run: Callable[[Results], None]) -> None:
        """Run one part, and say what it covered."""
        print(f"-- {name}", flush=True)
        start, before = time.monotonic(), (self.passed, len(self.failed), len(self.skipped))
        run(self)
        now = self.passed, len(self.failed), len(self.skipped)
        passed, failed, skipped = (a - b for a, b in zip(now, before, strict=True))
        took = time.monotonic() - start
        covered = " ".join((run.__doc__ or "").split("\n\n")[0].split())
        counts = f"{passed} passed, {failed} failed, {skipped} not reached, {took:.0f} s"
        print(f"-- {name}: {counts}. {covered}", flush=True)

    def summary(self) -> int:
        print(f"\n{self.passed} passed, {len(self.failed)} failed, {len(self.skipped)} not reached")
        for name, text in self.failed.items():
            print(f"  {name}: {text.splitlines()[0][:140]}")
        print(f"{time.monotonic() - START:.0f} s")
        return 1 if self.failed or self.skipped else 0


def main(parts: list[str]) -> int:
    """Each part in turn, the telling ones first."""
    path = hide_compilers()
    from torch._dynamo import list_backends, register_backend

    from litz.backend import litz
    from tests_gpu.checks import PARTS
    from tests_gpu.constants import constants
    from tests_gpu.edges import edges
    from tests_gpu.graphs import graphs
    from tests_gpu.memory import memory
    from tests_gpu.unbacked import unbacked

    if "litz" not in list_backends(None):  # the package lies here but is not installed
        register_backend(litz, "litz")
    results = Results()
    known = {"graphs": graphs, "edges": edges, "unbacked": unbacked, "constants": constants}
    known |= {**PARTS, "memory": memory(path)}
    unknown = set(parts) - set(known)
    if unknown:
        print(f"no part {', '.join(sorted(unknown))}; there are {', '.join(known)}")
        return 2
    for name in parts or known:
        results.part(name, known[name])
    return results.summary()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
