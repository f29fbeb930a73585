"""Which types eager's kernels refuse, op by op: such an op is left to ATen, which says so itself.

In: an op and the types of its tensors. Out: whether eager raises for them on a CPU. The table,
`refused.json`, is measured: `python -m tests.ops.refused` runs torch's own samples in every type
and notes the ATen op that raised. Where a later torch takes a type that it refuses today, ATen
computes it: nothing is wrong, only slower. Example: `refuses("gelu", ["int64"])` is True.
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
    """`relu` and `relu.default` of `aten.relu_.default`: one kernel serves it in place, too."""
    name, _, overload = op.removeprefix("aten.").partition(".")
    plain = name.rstrip("_").removesuffix("_functional").removesuffix("_no_training") or name
    return plain, f"{plain}.{overload}"


def types_key(dtypes: Iterable[str]) -> str:
    """`float16+int64`: the types of the tensors that an op is given, once each, in order."""
    return "+".join(sorted({dtype.removeprefix("torch.") for dtype in dtypes}))


def may_refuse(op: str) -> bool:
    """Whether there are types that eager refuses."""
    return any(name in _table() for name in names_of(op))


def refuses(op: str, dtypes: Iterable[str]) -> bool:
    """Whether eager raises for these types, unless the op is asked for a type of its own."""
    key = types_key(dtypes)
    return any(key in _table().get(name, ()) for name in names_of(op))
