"""Fingerprints of kernels: equal in all processes for kernels that give the same code.

In: a kernel. Out: hexadecimal digits. The names and layouts of buffers and the names of axes count;
the names of kernels and the lines of the user's program do not.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator

from litz.ir.expr import Expr
from litz.ir.order import digest as digest_of
from litz.ir.order import layout_of
from litz.ir.program import Kernel


def fingerprint(kernel: Kernel) -> str:
    """A hash of everything that the code depends on."""
    return digest(*_lines(kernel))


def _lines(kernel: Kernel) -> Iterator[str]:
    yield f"kernel {_digests(kernel.outer)} scratch {[layout_of(b) for b in kernel.scratch]}"
    for phase in kernel.phases:
        yield f"phase {_digests(phase.inner)} {phase.is_reduction} {_digests(phase.summed)}"
        for store in phase.stores:
            value = _digests((*store.index, store.value))
            yield f"{layout_of(store.buffer)} {value} {store.mode}"


def _digests(exprs: Iterable[Expr]) -> list[str]:
    return [digest_of(e) for e in exprs]


def digest(*parts: str) -> str:
    """A hash of some texts, in order."""
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]
