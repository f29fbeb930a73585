"""Every op of torch's `op_db` in every supported dtype: `make test-ops`.

In: options, and what `build/ops/results.jsonl` already holds. Out: the file, complete; a summary;
exit status 1 if an op fails that has no exception. A case that kills its process is a failure of
that case alone, and a sweep that is stopped goes on where it was. Other ways to take each op
(`ways`) have a file each. Where TRITON_INTERPRET is 1, Triton's interpreter runs the kernels that a
GPU would. Example, two dtypes, then two ways of one, on the CPU and for a GPU:

    python -m tests.ops.sweep --dtype float32 --dtype int8 --samples 2
    python -m tests.ops.sweep --dtype float32 --ways sizes,offset
    TRITON_INTERPRET=1 python -m tests.ops.sweep --dtype float32 --ways sizes,offset
"""

from __future__ import annotations

import argparse
import importlib
import logging
import os
import time
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from tests.ops import results
from tests.ops.opinfo import DTYPES, check, every_op, name_of, supported_dtypes
from tests.ops.pool import Died, run_all
from tests.ops.results import Result
from tests.ops.summary import summary
from tests.ops.table import write_table
from tests.ops.ways import PLAIN, Way, chosen

Case = tuple[str, str]
BY_NAME = {name_of(op): op for op in every_op()}
LIMIT = 180.0  # seconds a case
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # Triton looks when it is imported


def short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def every_case(dtypes: list[str], names: list[str]) -> list[Case]:
    """One dtype after the other: a sweep that is stopped has whole columns."""
    return [
        (name, short(dtype))
        for dtype in DTYPES
        for name, op in BY_NAME.items()
        if dtype in supported_dtypes(op)
        and (not dtypes or short(dtype) in dtypes)
        and (not names or name in names)
    ]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Every op in every dtype, against eager.")
    parser.add_argument("--samples", type=int, default=2, help="samples an op and dtype")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--dtype", action="append", default=[], help="only this one; repeatable")
    parser.add_argument("--op", action="append", default=[], help="only this one; repeatable")
    parser.add_argument("--failed", action="store_true", help="only what failed last time")
    parser.add_argument("--keep-old", action="store_true", help="believe results of older sources")
    parser.add_argument("--summary", action="store_true", help="run nothing")
    parser.add_argument("--table", action="store_true", help="write the op table from a whole run")
    parser.add_argument("--ways", default=PLAIN.name, help="with commas, or: all")
    return parser.parse_args()


def main() -> int:
    options = arguments()
    key = results.sources_key(options.samples)
    cases = every_case(options.dtype, options.op)
    console = Console(highlight=False, markup=False, soft_wrap=True)
    rows, bad = [], False
    for way in chosen(options.ways, "interpreter" if INTERPRETED else "cpu"):
        file = results.file_of(way.name, "interpreted" if INTERPRETED else "")
        known = results.latest(file)
        is_wanted = [not options.summary and is_open(known.get(c), key, options) for c in cases]
        wanted = [c for c, open_ in zip(cases, is_wanted, strict=True) if open_]
        sweep(wanted, key, options, way, file)
        found = results.latest(file)
        done = [found[c] for c in cases if c in found]
        text, failed = summary(done, len(cases), key)
        bad |= failed
        rows.append((way, Counter(r.status for r in done)))
        if way is PLAIN or failed:
            console.print(f"-- {way.name}: {way.says}\n{text}")
        if options.table and way is PLAIN:
            write_table(whole(found, "" if options.keep_old else key), options.samples)
    console.print(by_way(rows))
    return 1 if bad else 0


def by_way(rows: list[tuple[Way, Counter[str]]]) -> str:
    """What came of each way."""
    kinds = ("passed", "failed", "unsupported", "unapplied")
    lines = [f"{'way':15}" + "".join(f"{kind:>13}" for kind in kinds)]
    for way, counts in rows:
        numbers = "".join(f"{counts[kind]:>13}" for kind in kinds)
        lines.append(f"{way.name:15}{numbers}  {way.says}")
    return "\n".join(lines)


def is_open(known: Result | None, key: str, options: argparse.Namespace) -> bool:
    if options.failed:
        return known is not None and known.status == "failed"
    return known is None or (known.key != key and not options.keep_old)


def whole(found: dict[Case, Result], key: str) -> list[Result]:
    """Every op in every dtype, of one version if a key names it: no table from less."""
    cases = every_case([], [])
    missing = [c for c in cases if c not in found or found[c].key != (key or found[c].key)]
    if missing:
        raise SystemExit(
            f"{len(missing)} cases of the op table have not been run: {missing[0]} ..."
        )
    return [found[c] for c in cases]


def sweep(
    cases: list[Case], key: str, options: argparse.Namespace, way: Way, file: Path
) -> None:  # fmt: skip
    def work(case: Case) -> Result:
        torch.set_num_threads(1)
        logging.disable(logging.CRITICAL)  # torch tells of each graph break
        with _interpreting() if INTERPRETED else nullcontext():
            return one(case, key, options.samples, way)

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    # A thread that draws would be forked with the workers: the bar is drawn at each result.
    with Progress(*columns, TimeRemainingColumn(), auto_refresh=False) as bar:
        task = bar.add_task(way.name, total=len(cases))
        failed = 0
        for case, found in run_all(cases, work, options.jobs, LIMIT):
            result = found if isinstance(found, Result) else died(case, key, found)
            results.append(result, file)
            failed += result.status == "failed"
            said = f"{way.name}: {case[0]} {case[1]}, {failed} failed"
            bar.update(task, advance=1, description=said, refresh=True)


def _interpreting() -> Any:
    return importlib.import_module("tests.codegen.triton.interpreted").interpreting()


def one(case: Case, key: str, samples: int, way: Way = PLAIN) -> Result:
    name, dtype = case
    start = time.perf_counter()
    outcome = check(BY_NAME[name], getattr(torch, dtype), samples, way=way)
    return Result(
        key=key,
        op=name,
        dtype=dtype,
        status=outcome.status,
        passed=outcome.passed,
        unsupported=outcome.unsupported,
        unapplied=outcome.unapplied,
        failures=outcome.failures,
        how=outcome.how,
        made=sorted(outcome.made),
        aten=dict(outcome.aten),
        fallbacks=sorted(outcome.fallbacks),
        seconds=round(time.perf_counter() - start, 2),
    )


def died(case: Case, key: str, found: Any) -> Result:
    reason = found.reason if isinstance(found, Died) else repr(found)
    return Result(key, *case, status="failed", failures=[reason])


if __name__ == "__main__":
    raise SystemExit(main())
