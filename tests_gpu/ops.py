"""torch's op database on the GPU: `python -m tests_gpu.ops [--every] [--seconds N] [OP ...]`.

In: a machine with a GPU. Out: failures, each with its op and dtype, a summary, and status 1 if
there are any that `EXCEPTIONS` does not name. The name of an op picks its dtype among float32,
float16, bfloat16, int64 and bool, as in `make test`; `--every` runs all five. Cases run in
processes of their own, since an error on the GPU ends what shares its context. A process that has
touched CUDA cannot be forked, and the database does so when it is imported: only they import it.
"""

from __future__ import annotations

import argparse
import importlib.util
import logging
import os
import sys
import time
import types
import unittest
import zlib
from collections import Counter
from typing import Any

import torch
from torch._dynamo import list_backends, register_backend

from litz.backend import litz
from tests.ops.exceptions import excepted
from tests.ops.pool import Died, run_all

DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.bool)
LIMIT = 90.0  # seconds a case
# Beyond those of the CPU: ops that differ on a GPU, by name, with the reason.
EXCEPTIONS: dict[str, str] = {}

Case = tuple[str, str]


def cases(every: bool, names: list[str]) -> list[Case]:
    """The op and the dtype of each; the order is that of a hash, so that a part is a sample."""
    _without_expecttest()
    from tests.ops.opinfo import every_op, name_of, supported_dtypes

    found: list[Case] = []
    for op in every_op():
        name = name_of(op)
        choices = [d for d in supported_dtypes(op, "cuda") if d in DTYPES]
        if not choices or (names and name not in names):
            continue
        chosen = choices if every else [choices[zlib.crc32(name.encode()) % len(choices)]]
        found += [(name, str(d).removeprefix("torch.")) for d in chosen]
    return sorted(found, key=lambda case: zlib.crc32(" ".join(case).encode()))


def _without_expecttest() -> None:
    """The database's module imports a package of test helpers, for a base class alone."""
    if "expecttest" not in sys.modules and importlib.util.find_spec("expecttest") is None:
        stand_in: Any = types.ModuleType("expecttest")
        stand_in.TestCase = unittest.TestCase
        sys.modules.setdefault("expecttest", stand_in)


def work(case: Case) -> tuple[str, str, list[str]]:
    """One case: its status, who computed it, and what failed."""
    _without_expecttest()
    from tests.ops.opinfo import check, every_op, name_of

    torch.set_num_threads(1)
    logging.disable(logging.CRITICAL)
    name, dtype = case
    op = next(op for op in every_op() if name_of(op) == name)
    outcome = check(op, getattr(torch, dtype), 2, "cuda")
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        os._exit(9)  # whatever comes after an error on the GPU fails as well
    return outcome.status, outcome.how, outcome.failures


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--every", action="store_true")
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--jobs", type=int, default=max((os.cpu_count() or 2) - 2, 1))
    options = parser.parse_args(arguments)
    if "litz" not in list_backends(None):
        register_backend(litz, "litz")
    listed = run_all([0], lambda _: cases(options.every, options.names), 1, LIMIT)
    ((_, wanted),) = listed
    if isinstance(wanted, Died):
        print(f"the op database cannot be read: {wanted.reason}")
        return 1
    end = time.monotonic() + options.seconds
    status: Counter[str] = Counter()
    how: Counter[str] = Counter()
    by_dtype: dict[str, Counter[str]] = {str(d).removeprefix("torch."): Counter() for d in DTYPES}
    for (name, dtype), found in run_all(wanted, work, options.jobs, LIMIT):
        kind, who, failures = _read(found)
        reason = excepted(name, dtype) or EXCEPTIONS.get(name)
        kind = "excepted" if kind == "failed" and reason else kind
        status[kind] += 1
        by_dtype[dtype][kind] += 1
        how[who] += kind == "passed"
        if kind == "failed":
            print(f"FAIL  {name} {dtype}: {' '.join(failures[0].split())[:300]}", flush=True)
        if time.monotonic() > end:
            break
    left = len(wanted) - sum(status.values())
    counts = (f"{d} {c['passed']} of {c.total()}" for d, c in by_dtype.items() if c)
    print(f"passed: {', '.join(counts)}")
    print(f"{dict(status)}, computed by {dict(how)}; {left} of {len(wanted)} not reached")
    return 1 if status["failed"] else 0


def _read(found: Any) -> tuple[str, str, list[str]]:
    return ("failed", "", [found.reason]) if isinstance(found, Died) else found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
