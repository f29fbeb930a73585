"""The measured op table, `litz/optable/measured.json`, written from a whole sweep.

In: results. Out: for each op how it is computed in which dtypes, what its kernels are made of, and
what it leaves to ATen; for each core ATen op what this version does with it. One line an op, in
order, so that equal results make equal files and a change is a line of a diff.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

import litz.lower  # noqa: F401  (registers the rules)
from litz.capture import decompositions
from litz.lower.registry import RULES
from litz.optable import DTYPES, HOWS, MEASURED
from tests.ops.exceptions import EXCEPTIONS, UNDEFINED, excepted
from tests.ops.listed import LISTED
from tests.ops.results import Result

WRITTEN_BACK = "copy_"  # `lower` stores it itself: an update of an input, no op of a rule


def write_table(results: list[Result], samples: int, file: Path = MEASURED) -> None:
    """The whole file; a line for each entry two levels deep."""
    found = {
        "torch": torch.__version__.partition("+")[0],
        "samples": samples,
        "counts": counts(results),
        "exceptions": exceptions(),
        "core": core(),
        "ops": ops(results),
    }
    parts = [f"{json.dumps(key)}: {_lines(value)}" for key, value in found.items()]
    file.write_text("{\n" + ",\n".join(parts) + "\n}\n")


def _lines(value: Any) -> str:
    if not isinstance(value, dict):
        return json.dumps(value)
    return (
        "{\n" + ",\n".join(f" {json.dumps(k)}: {json.dumps(v)}" for k, v in value.items()) + "\n}"
    )


def counts(results: list[Result]) -> dict[str, dict[str, int]]:
    """Of each dtype: what came of its cases."""
    table = {d: dict.fromkeys(("passed", "failed", "excepted", "unsupported"), 0) for d in DTYPES}
    for r in results:
        table[r.dtype][outcome(r)] += 1
    return table


def outcome(r: Result) -> str:
    return "excepted" if r.status == "failed" and excepted(r.op, r.dtype) else r.status


def exceptions() -> dict[str, str]:
    differing = {f"{op} {dtype}".strip(): why for (op, dtype), why in EXCEPTIONS.items()}
    return {**differing, **UNDEFINED}


def ops(results: list[Result]) -> dict[str, dict[str, Any]]:
    """An entry an op; dtypes in the order of the table."""
    by_op: dict[str, list[Result]] = {}
    for r in sorted(results, key=lambda r: (r.op, DTYPES.index(r.dtype))):
        by_op.setdefault(r.op, []).append(r)
    return {op: _entry(op, rows) for op, rows in by_op.items()}


def _entry(op: str, rows: list[Result]) -> dict[str, Any]:
    ran = [r for r in rows if r.status != "failed"]
    hows = {r.dtype: "unsupported" if r.status == "unsupported" else r.how for r in ran}
    dtypes = {how: " ".join(d for d, h in hows.items() if h == how) for how in HOWS}
    entry: dict[str, Any] = {"dtypes": {how: named for how, named in dtypes.items() if named}}
    made = {short(target) for r in rows for target in r.made}
    left = {short(target) for r in rows for target in r.aten}
    if made:
        entry["made_of"] = " ".join(sorted(made))
    if left:
        entry["left"] = " ".join(sorted(left))
    if op in LISTED:
        entry["promised"] = True
    return entry


def short(target: str) -> str:
    """`aten.abs.default` is `abs`, `aten.add.Tensor` `add.Tensor`; other libraries are named."""
    return target.removeprefix("aten.").removesuffix(".default")


def ruled() -> set[str]:
    """What kernels can be made of in this version."""
    return {short(str(overload)) for overload in RULES} | {WRITTEN_BACK}


def core() -> dict[str, str]:
    """The core ATen ops, by what the tables of this version say."""
    rules = {_packet(o) for o in RULES if isinstance(o, torch._ops.OpOverload)}
    apart = {_packet(o) for o in decompositions() if isinstance(o, torch._ops.OpOverload)}
    return {
        name: "rule" if name in rules else "decomposed" if name in apart else "ATen"
        for name in sorted(_core_packets())
    }


def _packet(overload: Any) -> str:
    return str(overload.overloadpacket._qualified_op_name).split("::")[1]


def _core_packets() -> set[str]:
    found = set()
    for qualified in torch._C._dispatch_get_all_op_names():
        namespace, _, rest = qualified.partition("::")
        name, _, overload = rest.partition(".")
        packet = getattr(torch.ops.aten, name, None) if namespace == "aten" else None
        if packet is not None and torch.Tag.core in getattr(packet, overload or "default").tags:
            found.add(name)
    return found
