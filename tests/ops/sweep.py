"""Every op of torch's `op_db` in every supported dtype: `make test-ops`.

In: options, and what `build/ops/results.jsonl` already holds. Out: the file, complete; a summary;
exit status 1 if an op fails that has no exception. A case that kills its process is a failure of
that case alone, and a sweep that is stopped goes on where it was. Example, two dtypes:

    python -m tests.ops.sweep --dtype float32 --dtype int8 --samples 2
"""

from __future__ import annotations

import argparse
import logging
import os
import time
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

Case = tuple[str, str]
BY_NAME = {name_of(op): op for op in every_op()}
LIMIT = 180.0  # seconds a case


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
    return parser.parse_args()


def main() -> int:
    options = arguments()
    key = results.sources_key(options.samples)
    known = results.latest()
    cases = every_case(options.dtype, options.op)
    wanted = [] if options.summary else [c for c in cases if is_open(known.get(c), key, options)]
    sweep(wanted, key, options)
    found = results.latest()
    text, failed = summary([found[c] for c in cases if c in found], len(cases), key)
    Console(highlight=False, markup=False, soft_wrap=True).print(text)
    if options.table:
        write_table(whole(found, "" if options.keep_old else key), options.samples)
    return 1 if failed else 0


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


def sweep(cases: list[Case], key: str, options: argparse.Namespace) -> None:
    def work(case: Case) -> Result:
        torch.set_num_threads(1)
        logging.disable(logging.CRITICAL)  # torch tells of each graph break
        return one(case, key, options.samples)

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    # A thread that draws would be forked with the workers: the bar is drawn at each result.
    with Progress(*columns, TimeRemainingColumn(), auto_refresh=False) as bar:
        task = bar.add_task("ops", total=len(cases))
        failed = 0
        for case, found in run_all(cases, work, options.jobs, LIMIT):
            result = found if isinstance(found, Result) else died(case, key, found)
            results.append(result)
            failed += result.status == "failed"
            said = f"{case[0]} {case[1]}, {failed} failed"
            bar.update(task, advance=1, description=said, refresh=True)


def one(case: Case, key: str, samples: int) -> Result:
    name, dtype = case
    start = time.perf_counter()
    outcome = check(BY_NAME[name], getattr(torch, dtype), samples)
    return Result(
        key=key,
        op=name,
        dtype=dtype,
        status=outcome.status,
        passed=outcome.passed,
        unsupported=outcome.unsupported,
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
