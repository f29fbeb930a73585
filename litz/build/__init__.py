"""Stage 8: source text becomes machine code, in process.

In: `Source`. Out: `Binary`. LLVM parses, optimises and assembles; the object is loaded at once.
No compiler, linker or temporary file is involved.
"""

from __future__ import annotations

from litz.build.llvm import compile_object, load_object
from litz.config import Config
from litz.ir.source import Binary, Source
from litz.target import Target
from litz.trace import Trace, stage


@stage("build", "machine code, by LLVM in process")
def build(source: Source, target: Target, config: Config, trace: Trace) -> Binary:
    """Compile the module and find its functions."""
    code = compile_object(source.text, target, config.cpp.opt_level, trace)
    with trace.span("load"):
        names = [s.name for s in source.segments]
        names += [f"litz_step_{k}" for k in range(len(source.names))]
        if source.preparation is not None:
            names += [source.preparation.name, "litz_changed"]
        return load_object(code, names)
