"""What the sweep has found so far, kept in a file of JSON lines.

In: outcomes as they come. Out: `build/ops/results.jsonl`, one line a case, each with the hash of
the sources it was found with, so that a rerun skips what is done and nothing stale is believed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch

ROOT = Path(__file__).parent.parent.parent
FILE = ROOT / "build" / "ops" / "results.jsonl"
RUNNERS = [ROOT / "tests" / "ops" / name for name in ("opinfo.py", "ways.py")]
BESIDE = ("bench", "optable", "cli.py", "demo.py")  # parts of `litz/` that compile nothing


@dataclass(frozen=True)
class Result:
    """One op in one dtype."""

    key: str
    op: str
    dtype: str
    status: str  # passed, failed, unsupported, unapplied
    passed: int = 0
    unsupported: int = 0
    unapplied: int = 0  # samples that the way does not apply to
    failures: list[str] = field(default_factory=list)
    how: str = ""  # generated, view, partly, ATen, eager
    made: list[str] = field(default_factory=list)  # the ATen ops that kernels compute
    aten: dict[str, int] = field(default_factory=dict)
    fallbacks: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def case(self) -> tuple[str, str]:
        return self.op, self.dtype

    @property
    def generated(self) -> bool:
        """Nothing was left to ATen; a pure view has no kernel either."""
        return self.status == "passed" and self.how in ("generated", "view")


def file_of(way: str, where: str = "") -> Path:
    """What is known of a way: the plain one's results are the op table's. `where` names another
    machine than this CPU."""
    name = f"{where}-{way}" if where else way
    return FILE if name == "plain" else FILE.parent / f"{name}.jsonl"


def sources_key(samples: int, runners: Sequence[Path] = tuple(RUNNERS)) -> str:
    """The hash of all that decides a result: the compiler, and the files that run it."""
    digest = hashlib.sha256(f"{torch.__version__} {samples}".encode())
    compiler = [
        path
        for path in sorted((ROOT / "litz").rglob("*.py"))
        if path.relative_to(ROOT / "litz").parts[0] not in BESIDE
    ]
    for path in [*compiler, *runners]:
        digest.update(path.relative_to(ROOT).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def append(result: Result, file: Path = FILE) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a") as out:
        out.write(json.dumps(asdict(result)) + "\n")


def latest(file: Path = FILE) -> dict[tuple[str, str], Result]:
    """The last result of each case. A line cut short by a kill is no result."""
    found: dict[tuple[str, str], Result] = {}
    for line in file.read_text().splitlines() if file.exists() else []:
        try:
            result = Result(**json.loads(line))
        except (ValueError, TypeError):
            continue
        found[result.case] = result
    return found
