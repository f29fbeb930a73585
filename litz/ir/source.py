"""Generated code on its way to the machine: text, then binary.

In: constructors. Out: frozen values that `codegen` hands to `build` and `build` to `runtime`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

# The first entries of the table of pointers that every driver function takes.
ERROR_FLAG, ARENA = 0, 1
# Elements of each parameter that are remembered, to see a change that torch does not count.
SAMPLES = 32


@dataclass(frozen=True)
class Segment:
    """A native function that runs these kernels in order."""

    name: str
    kernels: tuple[int, ...]


@dataclass(frozen=True)
class Source:
    """Text of one module. `names[k]` is the function of kernel k, `functions` holds each once;
    `layout` is the table entry of each buffer outside the arena; `preparation` makes what is held
    of parameters, and its samples have the table's last entry."""

    text: str
    names: tuple[str, ...]
    functions: tuple[str, ...]
    segments: tuple[Segment, ...]
    layout: dict[str, int]
    preparation: Segment | None = None


@dataclass(frozen=True)
class Binary:
    """Loaded machine code: `address[function]`; `owner` keeps it in memory."""

    address: dict[str, int]
    object_code: bytes
    owner: Any
