"""Generated code on its way to the machine: text, then binary.

In: constructors. Out: frozen values that `codegen` hands to `build` and `build` to `runtime`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from litz.ir.call_plan import ARENA, LAUNCH, KernelCall
from litz.ir.checks import Site
from litz.ir.program import Buffer

# The workspace of GPU kernels whose programs need memory of their own.
SCRATCH = "scratch of programs"
# Functions of the CPU's driver that take a number and the table: kernel k alone, and segment j,
# where segments are too many to be functions of their own.
NUMBERED_STEP, NUMBERED_SEGMENT = "litz_step", "litz_segment"
# How writes to a parameter's memory that torch does not count are detected: by a copy to compare
# with, by the system's page tracking, or by a hash.
COPIED, TRACKED, HASHED = 0, 1, 2


@dataclass(frozen=True)
class Source:
    """The LLVM IR of one module, and the call of each kernel. `functions` has each function once;
    `exports` are the functions of the driver, once it is part of the text."""

    text: str
    calls: tuple[KernelCall, ...]
    functions: tuple[str, ...]
    sites: tuple[Site, ...] = ()  # of all checks in the functions
    exports: tuple[str, ...] = ()
    workspaces: tuple[Buffer, ...] = ()  # scratch memory that only kernels use
    counters: frozenset[str] = frozenset()  # workspaces that are zero before and after each launch
    declares: frozenset[str] = frozenset()  # symbols that the text already declares
    reserved: ClassVar[int] = ARENA + 1  # the table's entries that are the driver's own
    has_handles: ClassVar[bool] = False  # whether functions have entries at the end of the table

    @property
    def names(self) -> tuple[str, ...]:
        """The function of each kernel; of several, the first."""
        return tuple(call.launches[0].function for call in self.calls)


@dataclass(frozen=True)
class Binary:
    """Loaded machine code: `address[function]`; `owner` keeps it in memory."""

    address: dict[str, int]
    object_code: bytes
    owner: Any


@dataclass(frozen=True)
class DeviceKernel:
    """One GPU kernel: Triton source that stands alone. `pointers` are the types of its parameters,
    of which the last one is the error record if it `checks`. `programs` is their number, an
    estimate if sizes are symbolic. If it `rounds`, every operation is rounded: the compiler may not
    fuse a multiplication and an addition into an fma."""

    name: str
    text: str
    pointers: tuple[str, ...]
    programs: int
    warps: int
    stages: int
    checks: bool = False
    scratch: int = 0  # bytes of workspace for each program
    rounds: bool = False
    sizes: tuple[str, ...] = ()  # types of the sizes it takes behind its pointers


@dataclass(frozen=True)
class DeviceSource:
    """The kernels of a graph, each once, their calls, and the LLVM IR of the driver that launches
    them, once it is written. Kernels with scratch share one of the `workspaces`, SCRATCH, since
    they run one after the other."""

    kernels: tuple[DeviceKernel, ...]
    calls: tuple[KernelCall, ...]
    sites: tuple[Site, ...] = ()
    workspaces: tuple[Buffer, ...] = ()
    counters: frozenset[str] = frozenset()
    text: str = ""
    exports: tuple[str, ...] = ()
    reserved: ClassVar[int] = LAUNCH + 1
    has_handles: ClassVar[bool] = True

    @property
    def functions(self) -> tuple[str, ...]:
        return tuple(k.name for k in self.kernels)

    @property
    def names(self) -> tuple[str, ...]:
        """The function of each kernel call."""
        return tuple(call.launches[0].function for call in self.calls)


@dataclass(frozen=True)
class Cubin:
    """Machine code of one GPU kernel, and the facts that a launch needs."""

    name: str
    code: bytes
    shared: int
    warps: int


@dataclass(frozen=True)
class DeviceObject:
    """The kernels by name, and object code of the native functions that launch them."""

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
