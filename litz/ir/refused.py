"""Which types eager's kernels refuse, op by op: such an op is left to ATen, which raises the error.

In: an op and the types of its tensors. Out: whether eager raises for them on a CPU. The table,
`refused.json`, is measured: `python -m tests.ops.refused` runs torch's own samples in every type
and notes the ATen op that raised. An op without tensors, as `arange`, is listed by the type that it
is asked for. If a later torch accepts a type that it refuses today, ATen computes it: the result is
right, only slower. Example: `refuses("gelu", ["int64"])` is True.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cache
from pathlib import Path

FILE = Path(__file__).parent / "refused.json"


@cache
def _table() -> dict[str, frozenset[str]]:
    ops: dict[str, str] = json.loads(FILE.read_text())["ops"]
    return {op: frozenset(types.split()) for op, types in ops.items()}


def names_of(op: str) -> tuple[str, str]:
    """`relu` and `relu.default` for `aten.relu_.default`: the in-place op has the same kernel."""
    name, _, overload = op.removeprefix("aten.").partition(".")
    plain = name.rstrip("_").removesuffix("_functional").removesuffix("_no_training") or name
    return plain, f"{plain}.{overload}"


def types_key(dtypes: Iterable[str]) -> str:
    """`float16+int64`: the types of the tensors that an op is given, once each, in order."""
    return "+".join(sorted({dtype.removeprefix("torch.") for dtype in dtypes}))


def may_refuse(op: str) -> bool:
    """Whether eager refuses any types for an op."""
    return any(name in _table() for name in names_of(op))


def types_that_count(dtypes: Iterable[str], asked: object = None) -> str | None:
    """The key of the types of an op's tensors; of the type that it is asked for if there are none;
    and nothing where it is asked for a type and its tensors may have another."""
    key = types_key(dtypes)
    if asked is None:
        return key
    return None if key else types_key([str(asked)])


def refuses(op: str, dtypes: Iterable[str], asked: object = None) -> bool:
    """Whether eager raises for tensors of these types, or for the type that an op without tensors
    is asked for."""
    key = types_that_count(dtypes, asked)
    return any(key in _table().get(name, ()) for name in names_of(op))
