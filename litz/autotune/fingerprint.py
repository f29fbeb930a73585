"""Fingerprints of programs: the same in every process for programs that mean the same code.

In: a small program or a kernel. Out: a text of hexadecimal digits. The text of a program would not
do: sums of indices print in the order in which their parts were first made, which depends on what
else a process has compiled. Names of buffers and axes count, those of kernels and lines do not.
Example: `i0 * 64 + i2` and `i2 + i0 * 64` have one fingerprint.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import Any

from litz.ir.dtypes import I64
from litz.ir.expr import Expr, walk
from litz.ir.program import Buffer, Extern, Kernel, KernelGraph, Loop, LoopProgram, Store
from litz.ir.text import extern_text


def fingerprint(program: LoopProgram | KernelGraph | Kernel) -> str:
    """All that code depends on."""
    return digest(*_lines(program))


def _lines(program: LoopProgram | KernelGraph | Kernel) -> Iterator[str]:
    if isinstance(program, Kernel):
        yield from _step(program)
        return
    for given in program.inputs:
        kind = "parameter" if given in program.static else "input"
        yield f"{kind} {_buffer(given) if isinstance(given, Buffer) else given}"
    yield from (f"constant {_buffer(b)}" for b in program.constants)
    for step in program.body:
        yield from _step(step)
    yield from (f"output {o.value}" for o in program.outputs)


def _step(step: Loop | Kernel | Extern) -> Iterator[str]:
    if isinstance(step, Extern):
        yield extern_text(step).partition("  # ")[0]
    elif isinstance(step, Loop):
        yield f"loop {_axes(step.axes)} reduce {_axes(step.reduced)}"
        yield from _stores(step.stores)
    else:
        yield f"kernel {_axes(step.outer)} scratch {[_buffer(b) for b in step.scratch]}"
        for phase in step.phases:
            yield f"phase {_axes(phase.inner)} {phase.is_reduction} {_axes(phase.summed)}"
            yield from _stores(phase.stores)


def _stores(stores: Iterable[Store]) -> Iterator[str]:
    for store in stores:
        known = _digests(store.value, *store.index)
        index = [known[i] for i in store.index]
        yield f"{_buffer(store.buffer)} {index} {store.mode} {known[store.value]}"


def _digests(*roots: Expr) -> dict[Expr, str]:
    """Of every node below the roots. Sums and products of indices are sets of parts."""
    known: dict[Expr, str] = {}
    parts: dict[Expr, list[str]] = {}
    for node in walk(*roots):
        below = [known[a] for a in node.args]
        if node.op in ("add", "mul") and node.dtype is I64:
            nested = [parts[a] if a.op == node.op and a in parts else [known[a]] for a in node.args]
            below = parts[node] = sorted(part for one in nested for part in one)
        known[node] = digest(node.op, node.dtype.name, _attr(node.attr), *below)
    return known


def _attr(attr: Any) -> str:
    """What a node holds besides operands: a number, a name, a buffer, axes."""
    if isinstance(attr, tuple):
        return str([_attr(part) for part in attr])
    return _buffer(attr) if isinstance(attr, Buffer) else repr(attr)


def _buffer(buffer: Buffer) -> str:
    shape, strides = [str(n) for n in buffer.shape], [str(n) for n in buffer.strides]
    return f"{buffer.name}: {buffer.dtype.name}{shape} {strides} {buffer.device}"


def _axes(axes: Iterable[Expr]) -> str:
    return ", ".join(f"{a.attr} < {a.extent}" for a in axes)


def digest(*parts: str) -> str:
    """Of some texts, in order."""
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]
