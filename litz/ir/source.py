"""Generated code on its way to the machine: text, then binary.

In: constructors. Out: frozen values that `codegen` hands to `build` and `build` to `runtime`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from litz.ir.checks import Site
from litz.ir.expr import Expr
from litz.ir.program import Buffer

# The first entries of the table of pointers that every driver function takes: where the record of a
# failed check is (`ir/checks.py`), and the arena.
ERROR_RECORD, ARENA = 0, 1
# A GPU's table goes on with the stream and the address of the driver's launch function.
STREAM, LAUNCH = 2, 3
# The workspace of kernels whose programs need memory of their own.
SCRATCH = "scratch of programs"
# How a range of a parameter's memory is watched for writes that torch does not count.
COPIED, TRACKED, HASHED = 0, 1, 2


@dataclass(frozen=True)
class Segment:
    """A native function that runs these kernels in order."""

    name: str
    kernels: tuple[int, ...]


@dataclass(frozen=True)
class Source:
    """Text of one module. `names[k]` is the function of kernel k, `functions` holds each once;
    `layout` is the table entry of each buffer outside the arena; `preparation` makes what is held
    of parameters; a record of what these were has the table's last entry."""

    text: str
    names: tuple[str, ...]
    functions: tuple[str, ...]
    segments: tuple[Segment, ...]
    layout: dict[str, int]
    preparation: Segment | None = None
    computed: dict[str, Expr] = field(default_factory=dict)  # table entries that follow from sizes
    ways: tuple[tuple[str, ...], ...] = ()  # the functions of each kernel: calls choose by size
    sites: tuple[Site, ...] = ()  # of the checks in all of them
    may_fail: frozenset[int] = frozenset()  # kernels with checks


@dataclass(frozen=True)
class Binary:
    """Loaded machine code: `address[function]`; `owner` keeps it in memory."""

    address: dict[str, int]
    object_code: bytes
    owner: Any


@dataclass(frozen=True)
class DeviceKernel:
    """One GPU kernel: Triton source that stands alone. `pointers` are the types of its parameters;
    the last one is the error record if `checks`; `programs` is about how many there are. If it
    `rounds` after every operation, no two of them are joined to one that rounds once."""

    name: str
    text: str
    pointers: tuple[str, ...]
    programs: int
    warps: int
    stages: int
    checks: bool = False
    scratch: int = 0  # bytes of memory for each program
    rounds: bool = False
    sizes: tuple[str, ...] = ()  # types of the sizes it takes behind its pointers


@dataclass(frozen=True)
class DeviceSource:
    """The kernels of a graph, each once, and the text of the native functions that launch them.
    `names[k]` is the kernel of step k; `handles` is the table entry of each kernel's handle, behind
    which its shared memory stands; `workspaces` are buffers that kernels use and nobody reads; one
    of them, SCRATCH, is what kernels with scratch share: they run one after the other;
    `arguments[k]` are the names of the buffers that step k is given; `counters` names those that
    hold zeros before and after each launch."""

    kernels: tuple[DeviceKernel, ...]
    text: str
    names: tuple[str, ...]
    segments: tuple[Segment, ...]
    layout: dict[str, int]
    handles: dict[str, int]
    workspaces: tuple[Buffer, ...] = ()
    arguments: tuple[tuple[str, ...], ...] = ()
    counters: frozenset[str] = frozenset()
    computed: dict[str, Expr] = field(default_factory=dict)  # table entries that follow from sizes
    sites: tuple[Site, ...] = ()  # of the checks in all of them
    # Nothing is made of parameters and held; what a check found is raised by a later call.
    preparation: ClassVar[None] = None
    may_fail: ClassVar[frozenset[int]] = frozenset()

    @property
    def functions(self) -> tuple[str, ...]:
        return tuple(k.name for k in self.kernels)


@dataclass(frozen=True)
class Cubin:
    """Machine code of one GPU kernel and what a launch has to know of it."""

    name: str
    code: bytes
    shared: int
    warps: int


@dataclass(frozen=True)
class DeviceObject:
    """The kernels by name, and an object of the native functions that launch them."""

    cubins: dict[str, Cubin]
    launcher: bytes


@dataclass(frozen=True)
class DeviceBinary:
    """The kernels by name, and the native functions that launch them."""

    cubins: dict[str, Cubin]
    launcher: Binary

    @property
    def object_code(self) -> bytes:
        return self.launcher.object_code
