"""Objects into memory, in one piece each.

In: an object or LLVM IR, what it calls and what is wanted of it. Out: addresses, for as long as
what holds them lives. Code refers to its constants within 2 GiB: this linker puts all sections of
an object side by side. (LLVM's older one asks the system for each by itself, and ends the process
where they come out further apart.) Example: `linked(JITLibraryBuilder().add_ir(text), {}, ["f"])`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from itertools import count

import llvmlite.binding as llvm

_NUMBERS = count()


def linked(
    library: llvm.JITLibraryBuilder, symbols: Mapping[str, int], names: Iterable[str]
) -> llvm.ResourceTracker:
    """Load what a library is made of; its names, as functions or data, are then at `[name]`."""
    for name, address in symbols.items():
        library.import_symbol(name, address)
    for name in names:
        library.export_symbol(name)
    return library.add_current_process().link(_linker(), f"litz_{next(_NUMBERS)}")


@cache
def _linker() -> llvm.LLJIT:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm.create_lljit_compiler(use_jit_link=True)
