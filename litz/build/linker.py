"""The linker: loads an object into memory in one piece.

In: object code or LLVM IR, the symbols that it calls and the names that it exports. Out: their
addresses, valid as long as the result lives. Code refers to its constants within 2 GiB, so JITLink
puts all sections of an object side by side. (LLVM's older RuntimeDyld allocates each section by
itself, and ends the process if they are further apart.) Example:
`linked(JITLibraryBuilder().add_ir(text), {}, ["f"])`.
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
    """Load a library; the address of each of its names, functions or data, is then `[name]`."""
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
