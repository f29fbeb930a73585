"""Generated code on its way to the machine: text, then binary.

In: constructors. Out: frozen values that `codegen` hands to `build` and `build` to `runtime`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from litz.ir.call_plan import ARENA, LAUNCH, KernelCall
from litz.ir.checks import Site
from litz.ir.program import Buffer

# The workspace of kernels whose programs need memory of their own.
SCRATCH = "scratch of programs"
# How a range of a parameter's memory is watched for writes that torch does not count.
COPIED, TRACKED, HASHED = 0, 1, 2


@dataclass(frozen=True)
class Source:
    """Text of one module, and how each kernel is called. `functions` holds each function once;
    `exports` are the functions of the driver, once it is part of the text."""

    text: str
    calls: tuple[KernelCall, ...]
    functions: tuple[str, ...]
    sites: tuple[Site, ...] = ()  # of the checks in all of them
    exports: tuple[str, ...] = ()
    workspaces: tuple[Buffer, ...] = ()  # that kernels use and nobody reads
    counters: frozenset[str] = frozenset()  # those that are zero before and after each launch
    declares: frozenset[str] = frozenset()  # what the text declares already
    reserved: ClassVar[int] = ARENA + 1  # the table's entries that are the driver's own
    has_handles: ClassVar[bool] = False  # whether functions have entries behind all others

    @property
    def names(self) -> tuple[str, ...]:
        """The function of each kernel, the first of several."""
        return tuple(call.launches[0].function for call in self.calls)


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
    """The kernels of a graph, each once, how each is called, and the text of the native functions
    that launch them, once the driver is written. One of the `workspaces`, SCRATCH, is what kernels
    with scratch share: they run one after the other."""

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
        """The kernel of each step."""
        return tuple(call.launches[0].function for call in self.calls)


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
