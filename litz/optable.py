"""The op table: what Litz does with each op of torch, in which dtypes.

In: `optable.json`, which `make test-ops` measures over torch's own op database (an op is run and
compared with eager in every dtype; what was left to ATen is counted), and the rules and
decompositions of this version. Out: rows. Example: `python -m litz ops --op cumsum`.

The first table has the ops of the database, by the names people call them. The second has the core
ATen ops, which is what graphs are made of, by their overload packets.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

import litz.lower  # noqa: F401  (registers the rules)
from litz.capture import decompositions
from litz.lower.registry import RULES

MEASURED = Path(__file__).with_name("optable.json")

# What a row can say, and what it means.
HOWS = {
    "generated": "kernels of ours, nothing else",
    "decomposed": "taken apart; every piece is generated",
    "view": "no code at all: an index map, or a number",
    "partly": "generated kernels around calls of ATen",
    "ATen": "calls of ATen",
    "eager": "torch cannot capture it, or its graph is run as eager",
}

# What stays with ATen by design: a pattern over the packet's name, and the reason.
BY_DESIGN: tuple[tuple[str, str], ...] = (
    (r"mm|addmm|bmm|baddbmm|addbmm|mv|addmv|dot|vdot|_trilinear|_int_mm|_scaled_mm.*",
     "matrix product: MKL and oneDNN"),
    (r"convolution.*|conv_.*|_convolution.*", "convolution: oneDNN"),
    (r"_scaled_dot_product.*", "attention: ATen's flash kernel"),
    (r"_cdist_forward|_pdist_forward|cdist|pdist", "distances: a matrix product inside"),
    (r"sort|topk|kthvalue|median|nanmedian|mode|randperm", "an order: sorting is ATen's"),
    (r"nonzero.*|unique.*|_unique.*|masked_select|bincount|repeat_interleave",
     "the result's shape depends on data"),
    (r"hist.*|_histogramdd.*", "counts into bins that data choose"),
    (r"_?linalg_.*|cholesky.*|lu_.*|_lu_.*|geqrf|ormqr|triangular_solve|svd|qr|logdet|det",
     "linear algebra: LAPACK"),
    (r"_fft.*|stft|istft", "Fourier transform: MKL or pocketfft"),
    (r"complex|polar|view_as_complex|view_as_real|_conj.*|_neg_view|angle|imag|real",
     "complex numbers"),
    (r".*sparse.*|_coalesce.*", "sparse tensors"),
    (r".*quantize.*|q_.*|.*qparams.*", "quantised tensors"),
    (r"_embedding_bag.*|segment_reduce|_ctc_loss|_linear_cross_entropy.*",
     "segments whose lengths are data"),
    (r"_local_scalar_dense|item|sym_.*", "a number for Python, not a tensor"),
)  # fmt: skip
NO_RULE = "no rule yet"


@dataclass(frozen=True)
class Row:
    """One op; `dtypes` are those in which this holds, `left` the ATen ops that are called."""

    op: str
    how: str
    dtypes: tuple[str, ...] = ()
    left: tuple[str, ...] = ()

    @property
    def why(self) -> str:
        """Why what is left to ATen is left to it."""
        return "; ".join(dict.fromkeys(reason(op) for op in self.left))

    def as_dict(self) -> dict[str, Any]:
        shown = {"op": self.op, "how": self.how, "dtypes": list(self.dtypes)}
        return {**shown, "left": list(self.left), "why": self.why}


def reason(target: str) -> str:
    """Why an op stays with ATen: `aten.mm.default` or `mm`."""
    name = target.split(".")[1] if "." in target else target
    found = (why for pattern, why in BY_DESIGN if re.fullmatch(pattern, name))
    return next(found, NO_RULE)


@cache
def packets_with_rules() -> frozenset[str]:
    return frozenset(_packet(overload) for overload in RULES)


@cache
def packets_taken_apart() -> frozenset[str]:
    return frozenset(
        _packet(overload)
        for overload in decompositions()
        if isinstance(overload, torch._ops.OpOverload)
    )


def _packet(overload: Any) -> str:
    return str(overload.overloadpacket._qualified_op_name).split("::")[1]


def measured_rows() -> list[Row]:
    """The ops of torch's database: a row for each way in which an op is computed."""
    rows = []
    for op, facts in json.loads(MEASURED.read_text())["ops"].items():
        for how, dtypes in facts["dtypes"].items():
            own = facts["packet"] in packets_with_rules()
            shown = "decomposed" if how == "generated" and not own else how
            left = facts["left"] if how in ("ATen", "partly") else ()
            rows.append(Row(op, shown, tuple(dtypes.split()), tuple(left)))
    return rows


def core_rows() -> list[Row]:
    """The core ATen ops, by what the tables of this version say."""
    rows = []
    for name in sorted(_core_packets()):
        if name in packets_with_rules():
            rows.append(Row(name, "generated"))
        elif name in packets_taken_apart():
            rows.append(Row(name, "decomposed"))
        else:
            rows.append(Row(name, "ATen", left=(name,)))
    return rows


def _core_packets() -> set[str]:
    found = set()
    for qualified in torch._C._dispatch_get_all_op_names():
        namespace, _, rest = qualified.partition("::")
        name, _, overload = rest.partition(".")
        packet = getattr(torch.ops.aten, name, None) if namespace == "aten" else None
        if packet is not None and torch.Tag.core in getattr(packet, overload or "default").tags:
            found.add(name)
    return found


def page() -> str:
    """The table as docs/ops.md."""
    lines = [_HEAD, "", "## Ops of torch", "", "| op | how | dtypes | left to ATen | why |"]
    lines.append("| --- | --- | --- | --- | --- |")
    for row in measured_rows():
        left = ", ".join(f"`{op}`" for op in row.left)
        lines.append(f"| `{row.op}` | {row.how} | {dtypes_text(row)} | {left} | {row.why} |")
    lines += ["", "## Core ATen ops", "", "| op | how | why |", "| --- | --- | --- |"]
    lines += [f"| `{row.op}` | {row.how} | {row.why} |" for row in core_rows()]
    return "\n".join(lines)


def dtypes_text(row: Row) -> str:
    return "all ten" if len(row.dtypes) == 10 else " ".join(row.dtypes)


_MEANINGS = "\n".join(f"- **{how}**: {meaning}." for how, meaning in HOWS.items())
_HEAD = f"""# What Litz does with each op

Generated by `python -m litz ops --markdown` from `litz/optable.json`, which `make test-ops`
measures: each op of torch's own op database runs in each of ten dtypes (float64, float32, float16,
bfloat16, int64, int32, int16, int8, uint8, bool) that eager supports, is compared with eager, and
what was left to ATen is counted. An op may have several rows.

{_MEANINGS}

An op that is in neither table is called through ATen, with eager's strides, types and aliasing."""
