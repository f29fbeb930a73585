"""Every architecture of the zoo, compiled: `make test-zoo`, or `python -m tests.zoo [names]`.

In: names of entries or families, and what `build/zoo/results.jsonl` already holds. Out: the file,
complete; a table; exit status 1 if an entry fails. Each entry has a process of its own: one that
crashes or hangs is a failure of that entry alone, and a run that is stopped goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import warnings
from dataclasses import asdict

os.environ.setdefault("LITZ_DEBUG_POISON_MEMORY", "1")
os.environ.setdefault("LITZ_DISABLE_PROGRESS", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import torch

from tests.ops.pool import run_all
from tests.ops.results import ROOT, sources_key
from tests.zoo.check import Result, check
from tests.zoo.entries import ENTRIES

FILE = ROOT / "build" / "zoo" / "results.jsonl"
LIMIT = 900.0  # seconds an entry: BigBird takes 200 on a busy machine


def main() -> int:
    parser = argparse.ArgumentParser(description="Every architecture of the zoo, against float64.")
    parser.add_argument("names", nargs="*", help="only these entries or families")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--failed", action="store_true", help="only what did not pass last time")
    parser.add_argument("--keep-old", action="store_true", help="believe results of older sources")
    parser.add_argument("--summary", action="store_true", help="run nothing")
    options = parser.parse_args()
    key, known = sources_key(0, sorted((ROOT / "tests" / "zoo").glob("*.py"))), latest()
    chosen = [
        name
        for name, entry in ENTRIES.items()
        if not options.names or {name, entry.family} & set(options.names)
    ]

    def is_open(name: str) -> bool:
        if options.failed:
            return name in known and known[name].status != "passed"
        return name not in known or not (known[name].key == key or options.keep_old)

    def work(name: str) -> Result:
        torch.set_num_threads(1)
        warnings.simplefilter("ignore")
        logging.disable(logging.CRITICAL)  # torch tells of each graph break
        return check(ENTRIES[name], key)

    wanted = [] if options.summary else list(filter(is_open, chosen))
    for done, (name, found) in enumerate(run_all(wanted, work, options.jobs, LIMIT, each=1), 1):
        if not isinstance(found, Result):
            found = Result(key, name, ENTRIES[name].family, "failed", [found.reason])
        FILE.parent.mkdir(parents=True, exist_ok=True)
        with FILE.open("a") as out:
            out.write(json.dumps(asdict(found)) + "\n")
        said = f"{found.status} {'; '.join(found.failures)}"
        print(f"{done}/{len(wanted)} {name} {found.seconds} s: {said}", flush=True)
    results = [r for name, r in latest().items() if name in chosen]
    print(table(results))
    return 1 if len(results) < len(chosen) or any(r.status == "failed" for r in results) else 0


def latest() -> dict[str, Result]:
    """The last result of each entry. A line cut short by a kill is no result."""
    found: dict[str, Result] = {}
    for line in FILE.read_text().splitlines() if FILE.exists() else []:
        try:
            result = Result(**json.loads(line))
        except (ValueError, TypeError):
            continue
        found[result.name] = result
    return found


def table(results: list[Result]) -> str:
    """Errors are relative to float64, the worst result or gradient: ours / eager's."""
    kinds = ("inference", "training", "bfloat16", "generate")
    head = "".join(f"{kind:>18}" for kind in kinds)
    lines = [f"{'architecture':24}{head}  kernels ATen graphs breaks eager  s"]
    for r in sorted(results, key=lambda r: (r.family, r.name)):
        errors = dict(r.errors)
        beside = errors.get("sized training", errors.get("optimizer", []))
        errors.setdefault("training", beside)
        cells = "".join(f"{_cell(kind, errors.get(kind, []), r):>18}" for kind in kinds)
        aten = sum(r.aten.values())
        counts = f"{r.kernels:>9}{aten:>5}{r.graphs:>7}{r.breaks:>7}{len(r.fallbacks):>6}"
        lines.append(f"{r.name:24}{cells}{counts}{r.seconds:>6.0f}")
        lines += [f"    {r.status}: {failure}" for failure in r.failures]
    count = sum(r.status == "passed" for r in results)
    return "\n".join([*lines, f"{count} of {len(results)} passed"])


def _cell(kind: str, errors: list[float], result: Result) -> str:
    if not errors:
        return ""
    if kind == "generate":
        return "differs" if any("(generate)" in f for f in result.failures) else "equal"
    return f"{errors[0]:.1e} / {errors[1]:.1e}"


if __name__ == "__main__":
    raise SystemExit(main())
