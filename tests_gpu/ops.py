"""torch's op database on the GPU: `python -m tests_gpu.ops [--every] [--seconds N] [OP ...]`.

In: a machine with a GPU. Out: failures, each with its op and dtype, a table of counts by way and
dtype, and status 1 if there are any that `EXCEPTIONS` does not name. The name of an op picks its
dtype among float32, float16, bfloat16, int64 and bool, as in `make test`; `--every` runs all five.
`--ways sizes,offset` (or `all`) takes each op in the ways of `tests/ops/ways.py`. What is done is
kept in `build/ops/cuda-WAY.jsonl`, and a run that is stopped goes on from there. Cases run in
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
from functools import partial
from typing import Any

import torch
from torch._dynamo import list_backends, register_backend

from litz.backend import litz
from tests.ops import results
from tests.ops.exceptions import excepted
from tests.ops.pool import Died, run_all
from tests.ops.results import Result
from tests.ops.ways import PLAIN, WAYS, Way, chosen

DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.bool)
LIMIT = 90.0  # seconds a case
SAMPLES = 2  # of an op and dtype
# Beyond those of the CPU: ops that differ on a GPU, by name, with the reason.
_UNALIGNED = "eager's kernel ends the process where an operand is not aligned"
_OVERFLOW = "eager overflows in float16, where float64 does not"
_ONE_ROW = "rows that are all equal have no such factors but arbitrary ones"
_SLOW = "eager's time for it grows with the square of its size"
_UNSORTED = "eager's kernel ends the process where offsets that were repeated do not ascend"
_LAYOUT = "torch 2.11 foretells another layout of the result than its kernel for a GPU gives"
EXCEPTIONS: dict[str, str] = {
    "torch.ops.aten._flash_attention_forward": _UNALIGNED,
    "torch.ops.aten._efficient_attention_forward": _UNALIGNED,
    "nn.functional.soft_margin_loss": _OVERFLOW,
    "nn.functional.multilabel_soft_margin_loss": _OVERFLOW,
    "pca_lowrank": _ONE_ROW,
    "nn.functional.embedding_bag": _UNSORTED,
    "nn.functional.multilabel_margin_loss": _SLOW,
    "linalg.lstsq.grad_oriented": _SLOW,
    **dict.fromkeys(("fft.fft2", "fft.ifft2", "fft.fftn", "fft.ifftn", "fft.rfftn"), _LAYOUT),
    **dict.fromkeys(("nn.functional.max_unpool2d", "nn.functional.max_unpool2d.grad"), _LAYOUT),
    "nn.functional.pixel_shuffle": _LAYOUT,
}

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


def work(case: Case, way: Way, key: str) -> Result:
    """One case: its status, who computed it, and what failed."""
    _without_expecttest()
    from tests.ops.opinfo import check, every_op, name_of

    torch.set_num_threads(1)
    logging.disable(logging.CRITICAL)
    name, dtype = case
    op = next(op for op in every_op() if name_of(op) == name)
    start = time.perf_counter()
    found = check(op, getattr(torch, dtype), SAMPLES, "cuda", way)
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        os._exit(9)  # whatever comes after an error on the GPU fails as well
    return Result(
        key, name, dtype, found.status, found.passed, found.unsupported, found.unapplied,
        found.failures, found.how, seconds=round(time.perf_counter() - start, 2),
    )  # fmt: skip


def swept(way: Way, wanted: list[Case], options: argparse.Namespace, end: float) -> list[Result]:
    """Every case of a way that is done when time is up, those of earlier runs among them."""
    key, file = results.sources_key(SAMPLES), results.file_of(way.name, "cuda")
    known = {} if options.fresh else results.latest(file)
    known = {case: r for case, r in known.items() if r.key == key and case in wanted}
    left = [case for case in wanted if case not in known]
    for case, found in run_all(left, partial(work, way=way, key=key), options.jobs, LIMIT):
        died = Result(key, *case, status="failed", failures=[getattr(found, "reason", "")])
        known[case] = found if isinstance(found, Result) else died
        results.append(known[case], file)
        _say(way, known[case])
        if time.monotonic() > end:
            break
    return list(known.values())


def _say(way: Way, found: Result) -> None:
    if status(found) == "failed":
        why = " ".join(found.failures[0].split())[:300]
        print(f"FAIL  {way.name}: {found.op} {found.dtype}: {why}", flush=True)


def status(found: Result) -> str:
    reason = excepted(found.op, found.dtype) or EXCEPTIONS.get(found.op)
    return "excepted" if found.status == "failed" and reason else found.status


def table(rows: dict[str, list[Result]], total: int) -> str:
    """Counts by way, and of those that passed by dtype."""
    kinds = ("passed", "failed", "excepted", "unsupported", "unapplied")
    dtypes = [str(d).removeprefix("torch.") for d in DTYPES]
    lines = [f"{'way':14}" + "".join(f"{c:>12}" for c in (*kinds, "not reached", *dtypes))]
    for name, found in rows.items():
        counts = Counter(map(status, found))
        passed = Counter(r.dtype for r in found if r.status == "passed")
        cells = [counts[k] for k in kinds] + [total - len(found)] + [passed[d] for d in dtypes]
        lines.append(f"{name:14}" + "".join(f"{n:>12}" for n in cells) + f"  {WAYS[name].says}")
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--every", action="store_true")
    parser.add_argument("--ways", default=PLAIN.name, help="with commas, or: all")
    parser.add_argument("--fresh", action="store_true", help="believe no earlier results")
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
    rows: dict[str, list[Result]] = {}
    for way in chosen(options.ways, "cuda"):
        rows[way.name] = swept(way, wanted, options, end)
        if time.monotonic() > end:
            break
    passed = [r for found in rows.values() for r in found if r.status == "passed"]
    print(f"computed by {dict(Counter(r.how for r in passed))}")
    print(table(rows, len(wanted)))
    return 1 if any(status(r) == "failed" for found in rows.values() for r in found) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
