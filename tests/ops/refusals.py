"""What eager refuses, compiled: the same error for every op of `op_db`. `make test-refusals`.

In: torch's op database. Out: `build/ops/refusals.jsonl`, a line an op; a summary on the screen, and
in `tests/ops/refusals.json` if every op was run; exit status 1 if a refusal is missing. Four kinds
of calls that eager refuses:

    error_inputs   what the database itself holds for an error of each op
    type           a sample in a type that the op does not support
    mixed          a sample of which one tensor has another type than the others
    value          indices, targets and probabilities out of range: `tests/ops/refused_values.py`

A compiled call must raise an error of eager's class, unless `exceptions.REFUSALS` says why not.
Where the backend `aot_eager`, which compiles nothing, does otherwise too, the difference is torch's
and listed: Dynamo raises `TorchRuntimeError` for what fails while it traces, and some of torch's
own decompositions take what eager's kernels refuse. A sweep that is stopped goes on where it was.
Examples, one op, then one kind of calls:

    python -m tests.ops.refusals --op index_add
    python -m tests.ops.refusals --family error_inputs
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from litz.backend import litz
from litz.errors import InternalError
from tests.ops.exceptions import computed_though_refused
from tests.ops.opinfo import _compiled, _run, _seed, every_op, name_of
from tests.ops.pool import Died, run_all
from tests.ops.refused import mixed, retyped
from tests.ops.refused_values import VALUES
from tests.ops.results import ROOT, sources_key

FOLDER = ROOT / "build" / "ops"
SUMMARY = ROOT / "tests" / "ops" / "refusals.json"
SAMPLES = 2  # of each op, in each type
LIMIT = 600.0  # seconds an op
FAMILIES = ("error_inputs", "type", "mixed", "value")
# Where a call that eager takes must be taken as well; other sweeps see to the rest.
ACCEPTED_TOO = ("type", "value")
BY_NAME = {name_of(op): op for op in every_op()}


@dataclass(frozen=True)
class Case:
    """A call that eager may refuse."""

    family: str
    label: str
    call: Callable[[Callable[..., Any]], Any]  # given the function, or what it was compiled to
    function: Callable[..., Any]


@dataclass
class Verdict:
    """What came of the cases of one op."""

    key: str
    op: str
    same: Counter[str] = field(default_factory=Counter)  # by family: raised as eager
    accepted: Counter[str] = field(default_factory=Counter)  # by family: eager takes it
    excepted: Counter[str] = field(default_factory=Counter)  # by family: `exceptions.REFUSALS`
    torchs: dict[str, str] = field(default_factory=dict)  # aot_eager differs as well
    failures: dict[str, str] = field(default_factory=dict)


# -- cases -----------------------------------------------------------------------------------


def cases_of(name: str) -> Iterator[Case]:
    """The cases of one op, or of one entry of the table of values."""
    if name in VALUES:
        function, inputs = VALUES[name]
        copies = [t.clone() if isinstance(t, torch.Tensor) else t for t in inputs]
        yield Case("value", name, lambda f: f(*copies), function)
        return
    op = BY_NAME[name]
    _seed()
    for k, error in enumerate(_error_inputs(op)):
        yield _of_sample(op, "error_inputs", str(k), error.sample_input)
    for dtype, k, sample in retyped(op, SAMPLES):
        yield _of_sample(op, "type", f"{_short(dtype)} {k}", sample)
    for label, sample in mixed(op, SAMPLES):
        yield _of_sample(op, "mixed", label, sample)


def _error_inputs(op: Any) -> list[Any]:
    try:
        return list(op.error_inputs("cpu"))
    except (NotImplementedError, TypeError):  # an op of another device alone
        return []


def _of_sample(op: Any, family: str, label: str, sample: Any) -> Case:
    return Case(family, label, lambda f: _run(f, sample), op.op)


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


# -- what is compared ------------------------------------------------------------------------


def check(name: str, cases: Iterator[Case], key: str = "") -> Verdict:
    """Eager, compiled, and where they differ, `aot_eager`."""
    verdict = Verdict(key, name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for case in cases:
            _judge(case, verdict)
    return verdict


def _judge(case: Case, verdict: Verdict) -> None:
    eager = _raised(case, None)
    if eager is None:
        verdict.accepted[case.family] += 1
        ours = _raised(case, litz) if case.family in ACCEPTED_TOO else None
        if ours is not None and _raised(case, "aot_eager") is None:
            verdict.failures[f"{case.family} {case.label}"] = f"eager computes; {_told(ours)}"
        return
    ours = _raised(case, litz)
    if isinstance(ours, type(eager)) and not isinstance(ours, InternalError):
        verdict.same[case.family] += 1
        return
    torchs = _raised(case, "aot_eager")
    told = f"eager {_told(eager)}; compiled {_told(ours)}"
    alike = ours is None if torchs is None else isinstance(ours, type(torchs))
    if alike and not isinstance(ours, InternalError):
        verdict.torchs[f"{case.family} {case.label}"] = told
    elif computed_though_refused(verdict.op, f"{case.family} {case.label}"):
        verdict.excepted[case.family] += 1
    else:
        verdict.failures[f"{case.family} {case.label}"] = f"{told}; aot_eager {_told(torchs)}"


def _raised(case: Case, backend: Any) -> Exception | None:
    function = case.function
    if backend is not None:
        function = _compiled(_Op(function), backend)
    try:
        case.call(function)
    except Exception as error:
        return error
    return None


@dataclass(frozen=True)
class _Op:
    op: Callable[..., Any]


def _told(error: Exception | None) -> str:
    if error is None:
        return "computes"
    first = str(error).strip().partition("\n")[0][:120]
    return f"{type(error).__name__}: {first}"


# -- the sweep -------------------------------------------------------------------------------


def file_of(family: str | None) -> Path:
    """Where the verdicts of a sweep are."""
    return FOLDER / (f"refusals-{family}.jsonl" if family else "refusals.jsonl")


def latest(file: Path) -> dict[str, Verdict]:
    """The last verdict of each op; a line cut short by a kill is none."""
    found: dict[str, Verdict] = {}
    for line in file.read_text().splitlines() if file.exists() else []:
        try:
            verdict = Verdict(**json.loads(line))
        except (ValueError, TypeError):
            continue
        for counts in ("same", "accepted", "excepted"):
            setattr(verdict, counts, Counter(getattr(verdict, counts)))
        found[verdict.op] = verdict
    return found


def every_name() -> list[str]:
    return [*BY_NAME, *VALUES]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="What eager refuses, compiled.")
    parser.add_argument("--op", action="append", default=[], help="only this one; repeatable")
    parser.add_argument("--family", choices=FAMILIES, help="only this kind of calls")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--keep-old", action="store_true", help="believe results of older sources")
    parser.add_argument("--failed", action="store_true", help="only what failed last time")
    parser.add_argument("--summary", action="store_true", help="run nothing")
    return parser.parse_args()


def main() -> int:
    options, key = arguments(), sources_key(SAMPLES)
    file = file_of(options.family)
    names, known = options.op or every_name(), latest(file)
    if options.failed:
        names = [n for n in names if n in known and known[n].failures]
    done = {n for n, v in known.items() if options.keep_old or v.key == key}
    wanted = [n for n in names if options.op or options.failed or n not in done]
    sweep([] if options.summary else wanted, key, options, file)
    found = latest(file)
    rows = [found[n] for n in names if n in found]
    print(text_of(rows, len(names)))
    part = options.op or options.failed or options.family
    if not part and len(rows) == len(names):
        SUMMARY.write_text(json.dumps(summary(rows), indent=1) + "\n")
    return 1 if any(row.failures for row in rows) else 0


def sweep(names: list[str], key: str, options: argparse.Namespace, file: Path) -> None:
    def work(name: str) -> Verdict:
        torch.set_num_threads(1)
        logging.disable(logging.CRITICAL)  # torch tells of each graph break
        cases = (c for c in cases_of(name) if options.family in (None, c.family))
        return check(name, cases, key)

    file.parent.mkdir(parents=True, exist_ok=True)
    failed = 0
    for done, (name, found) in enumerate(run_all(names, work, options.jobs, LIMIT), 1):
        if isinstance(found, Died):
            found = Verdict(key, name, failures={"all": found.reason})
        failed += bool(found.failures)
        with file.open("a") as out:
            out.write(json.dumps(vars(found)) + "\n")
        print(f"\r{done} of {len(names)}, {failed} failed: {name:40}", end="", file=sys.stderr)


def summary(rows: list[Verdict]) -> dict[str, Any]:
    """Counts by family, and what is torch's own difference, op by op."""
    counts = {}
    for family in FAMILIES:
        mine = [k for row in rows for k in row.torchs if k.startswith(family)]
        missing = [k for row in rows for k in row.failures if k.startswith(family)]
        same, excepted = (sum(getattr(r, n)[family] for r in rows) for n in ("same", "excepted"))
        counts[family] = {
            "refused": same + len(mine) + excepted + len(missing), "as eager": same,
            "torch differs": len(mine), "excepted": excepted, "failed": len(missing),
            "taken by eager": sum(row.accepted[family] for row in rows),
        }  # fmt: skip
    version = torch.__version__.partition("+")[0]
    differs = {row.op: _joined(row.torchs) for row in rows if row.torchs}
    return {"torch": version, "counts": counts, "torch differs": differs}


def _joined(torchs: dict[str, str]) -> str:
    """Which classes differ, each pair once, with how many cases."""
    kinds = Counter(
        " ".join(part.partition(":")[0] for part in told.split("; ")) for told in torchs.values()
    )
    return ", ".join(f"{kind} ({n})" for kind, n in sorted(kinds.items()))


def text_of(rows: list[Verdict], total: int) -> str:
    lines = [f"{len(rows)} of {total} done"]
    lines += [f"{k}: {v}" for k, v in summary(rows)["counts"].items()]
    for row in rows:
        lines += [f"FAILED {row.op}: {label}: {told}" for label, told in row.failures.items()]
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(main())
