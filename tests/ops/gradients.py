"""Gradients of torch's own op database through the compiler, against eager's.

In: an op of `op_db`, float32 or float64, a number of samples. Out: `Outcome`, as `opinfo` gives it.
Every result that has a gradient is weighed with fixed numbers, and all inputs that want a gradient
get theirs. Random numbers are eager's (`fallback_random`). The full sweep, 0 if nothing fails:

    python -m tests.ops.gradients --jobs 2
"""

from __future__ import annotations

import argparse
import logging
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.utils import _pytree as pytree

from litz.backend import litz
from litz.report import Explanation
from tests import draws
from tests.ops.exceptions import GRADIENTS
from tests.ops.opinfo import Outcome, _seed, count_sample, every_op, name_of
from tests.ops.pool import run_all

DTYPES = (torch.float32, torch.float64)
LIMIT = 180.0  # seconds a case
# A float32 gradient may be as far from the one in float64 as this many times eager's is.
FURTHER = 4
Call = Callable[..., Any]


def has_gradient(op: Any, dtype: torch.dtype) -> bool:
    return bool(op.supports_autograd) and dtype in op.supported_backward_dtypes("cpu")


def cases() -> list[tuple[str, str]]:
    return [
        (name_of(op), str(dtype).removeprefix("torch."))
        for dtype in DTYPES
        for op in every_op()
        if has_gradient(op, dtype)
    ]


def check_gradients(op: Any, dtype: torch.dtype, most: int = 2) -> Outcome:
    """Run the samples of one op forward and backward, in eager and compiled, and compare."""
    outcome = Outcome(name_of(op), dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _seed()
        made = op.sample_inputs("cpu", dtype, requires_grad=True)
        for _, sample in zip(range(most), made, strict=False):
            _check_sample(op, sample, outcome)
    return outcome


def _check_sample(op: Any, sample: Any, outcome: Outcome) -> None:
    try:
        expected = gradients(op.op, op, sample)
    except Exception:
        outcome.unsupported += 1
        return

    def check(notes: Explanation) -> None:
        found = gradients(_compiled(op, notes), op, sample)
        wide = partial(gradients, op.op, op, sample, torch.float64)
        assert_near(found, expected, None if outcome.dtype is torch.float64 else wide)

    count_sample(outcome, check, partial(_aot_eager_passes, op, sample, expected))


def _compiled(op: Any, notes: Explanation) -> Call:
    torch._dynamo.reset()
    backend = partial(litz, options={"fallback_random": True}, explanation=notes)
    return torch.compile(lambda *args, **kwargs: op.op(*args, **kwargs), backend=backend)


def _aot_eager_passes(op: Any, sample: Any, expected: list[Any]) -> bool:
    torch._dynamo.reset()
    call = torch.compile(lambda *args, **kwargs: op.op(*args, **kwargs), backend="aot_eager")
    try:
        assert_near(gradients(call, op, sample), expected, None)
    except Exception:
        return False
    return True


def gradients(
    call: Call, op: Any, sample: Any, dtype: torch.dtype | None = None
) -> list[torch.Tensor | None]:
    """What each input that wants a gradient gets, in order."""
    tree = [sample.input, list(sample.args), dict(sample.kwargs)]
    copied = pytree.tree_map_only(torch.Tensor, partial(_fresh, dtype), tree)
    inputs = [t for t in pytree.tree_leaves(copied) if _wants(t)]
    _seed()
    result = call(copied[0], *copied[1], **copied[2])
    if sample.output_process_fn_grad is not None:
        result = sample.output_process_fn_grad(result)
    outputs = [t for t in pytree.tree_leaves(result) if _wants(t)]
    draw = draws.generator(1)
    weights = [torch.randn(t.shape, generator=draw, dtype=torch.float64).to(t.dtype)
               for t in outputs]  # fmt: skip
    return list(torch.autograd.grad(outputs, inputs, weights, allow_unused=True))


def _fresh(dtype: torch.dtype | None, value: torch.Tensor) -> torch.Tensor:
    moved = value.detach().clone()
    if dtype is not None and value.is_floating_point():
        moved = moved.to(dtype)
    return moved.requires_grad_(value.requires_grad)


def _wants(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad


def assert_near(found: list[Any], expected: list[Any], wide: Call | None) -> None:
    """Within torch's own tolerance of eager's or, in float32, about as near to the truth."""
    try:
        torch.testing.assert_close(found, expected, equal_nan=True)
    except AssertionError:
        if wide is None:
            raise
        truth = wide()
        for mine, theirs, right in zip(found, expected, truth, strict=True):
            scale = 1e-5 + 1.3e-6 * right.abs().max()
            allowed = FURTHER * (theirs - right).abs().max() + scale
            if not (mine - right).abs().max() <= allowed:
                raise


def main() -> int:
    parser = argparse.ArgumentParser(description="Gradients of every op, against eager.")
    parser.add_argument("--samples", type=int, default=2)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--dtype", action="append", default=[], help="only this one; repeatable")
    parser.add_argument("--op", action="append", default=[], help="only this one; repeatable")
    options = parser.parse_args()
    by_name = {name_of(op): op for op in every_op()}

    def work(case: tuple[str, str]) -> Outcome:
        torch.set_num_threads(1)
        logging.disable(logging.CRITICAL)
        return check_gradients(by_name[case[0]], getattr(torch, case[1]), options.samples)

    wanted = [
        (name, dtype)
        for name, dtype in cases()
        if (not options.op or name in options.op) and (not options.dtype or dtype in options.dtype)
    ]
    counts, bad = {"passed": 0, "unsupported": 0, "failed": 0}, 0
    for case, found in run_all(wanted, work, options.jobs, LIMIT):
        status = found.status if isinstance(found, Outcome) else "failed"
        counts[status] += 1
        if status == "failed":
            why = found.failures[0] if isinstance(found, Outcome) else found
            bad += case[0] not in GRADIENTS
            print(f"{case[0]} {case[1]}: {GRADIENTS.get(case[0]) or why}", flush=True)
    print(", ".join(f"{count} {status}" for status, count in counts.items()))
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main())
