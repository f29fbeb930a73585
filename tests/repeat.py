"""`make test-repeat`: the tests that draw numbers, each many times with other ones, by themselves.

In: pytest's list of tests that drew numbers (`tests/conftest.py`), made by a run of all tests.
Out: a line for each seed, and what failed with the seeds it failed with; exit status 1 if anything
did. A test is seeded by its name and the seed, whatever runs beside it, so a find comes again as
`LITZ_TEST_SEED=7 pytest NAME`. Seeds that are done are kept beside that list, and not run again
unless with `--anew`. Example: `python -m tests.repeat --times 10`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
KEPT = ROOT / ".pytest_cache" / "v" / "litz"
DRAWING, DONE = KEPT / "drawing", KEPT / "repeated"
NOTHING_CHOSEN = 5  # pytest's exit status
FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)

Found = dict[str, list[str]]  # what failed, by its seed


def main() -> int:
    asked = argparse.ArgumentParser(description="Run the tests that draw numbers with other ones.")
    asked.add_argument("--times", type=int, default=100, help="seeds from 1 to this")
    asked.add_argument("--workers", type=int, default=2)
    asked.add_argument("--anew", action="store_true", help="forget what was run before")
    asked.add_argument("paths", nargs="*", help="only tests of these files and folders")
    given = asked.parse_args()
    if not DRAWING.exists():
        print("No test is known to draw numbers: run `make test` first.", file=sys.stderr)
        return 2
    done: Found = json.loads(DONE.read_text()) if DONE.exists() and not given.anew else {}
    for seed in map(str, range(1, given.times + 1)):
        if seed in done:
            continue
        done[seed] = _failures(seed, given.workers, given.paths)
        DONE.write_text(json.dumps(done, indent=1))
        print(f"seed {seed} of {given.times}: {len(done[seed]) or 'none'} failed", flush=True)
    return _told(done)


def _failures(seed: str, workers: int, paths: list[str]) -> list[str]:
    """The tests that fail with a seed: side by side, then those that want to be alone."""
    command = [sys.executable, "-m", "pytest", "--drawing", "--tb=short", *paths]
    beside = ["-n", str(workers), "--dist", "worksteal", "-m", "not alone"]
    environment = {**os.environ, "LITZ_TEST_SEED": seed}
    found: list[str] = []
    for more, wait in ((beside, {"OMP_WAIT_POLICY": "passive"}), (["-m", "alone"], {})):
        run = subprocess.run(
            [*command, *more], cwd=ROOT, env=environment | wait, capture_output=True, text=True
        )
        failed = FAILED.findall(run.stdout)
        if run.returncode not in (0, NOTHING_CHOSEN):
            print(run.stdout[-5000:], run.stderr[-2000:])
            failed = failed or [f"pytest ended with {run.returncode}"]
        found += failed
    return found


def _told(done: Found) -> int:
    seeds: dict[str, list[str]] = {}
    for seed, names in done.items():
        for name in names:
            seeds.setdefault(name, []).append(seed)
    for name, failed in seeds.items():
        print(f"{name} fails with LITZ_TEST_SEED={', '.join(failed)}")
    print(f"{len(done)} seeds, {len(seeds) or 'no'} tests failed")
    return 1 if seeds else 0


if __name__ == "__main__":
    sys.exit(main())
