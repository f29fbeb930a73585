"""The table of refused types, `litz/ir/refused.json`, measured: `python -m tests.ops.refused`.

In: torch's op database. Out: for each ATen op, the types that its kernels raise for on a CPU. A
sample that works in one type is run again with that type replaced by each other one, and with one
of its tensors in another type than the others; of an op without tensors, the type that it is asked
for is replaced. A dispatch mode notes the ATen ops that raise. What
some samples refuse and others take is left out: there eager asks for more than the types. So is
what raises in a type that the op supports (`clamp` without bounds): types are not the reason.
`tests/ops/test_refusals.py` measures some of the table again.
"""

from __future__ import annotations

import json
import logging
import os
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from litz.ir.refused import FILE, names_of, types_that_count
from tests.ops.opinfo import _run as run_sample
from tests.ops.opinfo import every_op, name_of, samples
from tests.ops.pool import Died, run_all

ALL = [
    *(torch.float32, torch.float64, torch.float16, torch.bfloat16),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
    *(torch.complex64, torch.complex128, torch.complex32),
    *(torch.uint16, torch.uint32, torch.uint64, torch.float8_e4m3fn, torch.float8_e5m2),
]
# Types that one tensor among others is given.
OTHERS = [torch.float64, torch.bfloat16, torch.int64, torch.int32, torch.bool, torch.complex64]
SAMPLES = 5
MIXED = 2  # samples of which one tensor gets another type
LIMIT = 60.0  # seconds an op
BY_NAME = {name_of(op): op for op in every_op()}
Key = tuple[str, str]  # an op, and the types of its tensors
Seen = tuple[set[Key], set[Key]]  # what raised, and what did not


class Watch(TorchDispatchMode):
    """Notes which ATen ops raise and which do not, with the types of their tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.raised: set[Key] = set()
        self.taken: set[Key] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        asked = (kwargs or {}).get("dtype")
        types_given = types_that_count((str(t.dtype) for t in given), asked)
        counts = types_given is not None  # else it computes in another type
        key = names_of(str(func))[1], types_given or ""
        try:
            result = func(*args, **(kwargs or {}))
        except Exception:
            self.raised |= {key} if counts else set()
            raise
        if counts and all(t.numel() for t in given):  # of nothing kernels are seldom asked
            self.taken.add(key)
        return result


@dataclass
class Sample:
    """What an op is given."""

    input: Any
    args: Any
    kwargs: Any


def _with_leaves(sample: Any, change: Callable[[int, Any], Any]) -> Sample:
    """A sample with each leaf changed, by its number."""
    leaves, tree = pytree.tree_flatten((sample.input, list(sample.args), dict(sample.kwargs)))
    changed = [change(k, leaf) for k, leaf in enumerate(leaves)]
    return Sample(*pytree.tree_unflatten(changed, tree))


def _has(value: Any, dtype: torch.dtype) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype is dtype


def retyped(op: Any, most: int) -> Iterator[tuple[torch.dtype, int, Any]]:
    """The samples of an op's first type in each type that it does not support, with their number
    among them."""
    supported = op.supported_dtypes("cpu")
    first = next((d for d in ALL if d in supported), None)
    if first is None:
        return
    given = _working(op, first, most)
    for dtype in (d for d in ALL if d not in supported):
        for k, sample in enumerate(given):
            try:
                yield dtype, k, _retyped(sample, first, dtype)
            except (RuntimeError, NotImplementedError):  # no such tensor can be made
                break


def _retyped(sample: Any, old: torch.dtype, new: torch.dtype) -> Sample:
    leaves = pytree.tree_leaves((sample.input, list(sample.args), dict(sample.kwargs)))
    if not any(isinstance(v, torch.Tensor) for v in leaves):
        return _with_leaves(sample, lambda _, v: new if v is old else v)
    return _with_leaves(sample, lambda _, v: v.detach().to(new) if _has(v, old) else v)


def mixed(op: Any, most: int) -> Iterator[tuple[str, Any]]:
    """Samples of which one tensor has another type than the others, each with what it is."""
    first = next((d for d in ALL if d in op.supported_dtypes("cpu")), None)
    for k, sample in enumerate(_working(op, first, most)) if first is not None else ():
        leaves = pytree.tree_leaves((sample.input, list(sample.args), dict(sample.kwargs)))
        places = [p for p, v in enumerate(leaves) if isinstance(v, torch.Tensor)]
        for place in places if len(places) > 1 else ():
            for dtype in (d for d in OTHERS if d is not leaves[place].dtype):
                label = f"{k} tensor {place} {str(dtype).removeprefix('torch.')}"
                yield label, _with_one(sample, place, dtype)


def _with_one(sample: Any, place: int, dtype: torch.dtype) -> Sample:
    return _with_leaves(sample, lambda k, v: v.detach().to(dtype) if k == place else v)


def measure(name: str) -> Seen:
    """What the kernels of one op of the database raise for."""
    torch.set_num_threads(1)
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    op = BY_NAME[name]
    supported = [d for d in ALL if d in op.supported_dtypes("cpu")]
    proper = _watched(op, (s for dtype in supported for s in samples(op, dtype, SAMPLES)))
    others = [sample for _, _, sample in retyped(op, SAMPLES)]
    foreign = _watched(op, [*others, *(sample for _, sample in mixed(op, MIXED))])
    return foreign.raised, proper.taken | foreign.taken


def _watched(op: Any, given: Iterable[Any]) -> Watch:
    """What the ATen ops of these samples did."""
    watch = Watch()
    for sample in given:
        try:
            with watch:
                run_sample(op.op, sample)
        except Exception:
            continue
    return watch


def _working(op: Any, dtype: torch.dtype, most: int) -> list[Any]:
    """Samples that eager takes."""
    return [s for s in samples(op, dtype, most) if not _watched(op, [s]).raised]


def _shortest(op: str, types: str, taken: set[Key]) -> str:
    """The name of an op without its overload, if no other overload takes these types."""
    plain = op.partition(".")[0]
    return op if any(o.partition(".")[0] == plain and t == types for o, t in taken) else plain


def version() -> str:
    return torch.__version__.partition("+")[0]


def measured_with() -> str:
    """The version of torch that the table is of."""
    return str(json.loads(FILE.read_text())["torch"])


def main() -> int:
    raised: set[Key] = set()
    taken: set[Key] = set()
    jobs = len(os.sched_getaffinity(0))
    for done, (name, found) in enumerate(run_all(list(BY_NAME), measure, jobs, LIMIT), 1):
        if isinstance(found, Died):
            print(f"{name}: {found.reason}")
            continue
        raised |= found[0]
        taken |= found[1]
        print(f"\r{done} of {len(BY_NAME)}", end="", flush=True)
    always = {(_shortest(op, types, taken), types) for op, types in raised - taken}
    FILE.write_text(_text(always))
    print(f"\n{len(always)} pairs of an op and types")
    for op, types in sorted(raised & taken):
        print(f"depends on more: {op} {types}")
    return 0


def _text(found: set[Key]) -> str:
    """One line an op: all the types that it refuses."""
    ops: dict[str, list[str]] = {}
    for op, types in sorted(found):
        ops.setdefault(op, []).append(types)
    lines = [f" {json.dumps(op)}: {json.dumps(' '.join(types))}" for op, types in ops.items()]
    joined = ",\n".join(lines)
    return f'{{\n"torch": {json.dumps(version())},\n"ops": {{\n{joined}\n}}\n}}\n'


if __name__ == "__main__":
    raise SystemExit(main())
