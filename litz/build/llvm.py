"""LLVM in process: IR text to an object, an object into memory.

In: LLVM IR text. Out: an ELF object as bytes, for this machine or another, and addresses of its
functions once loaded here.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache

import llvmlite.binding as llvm
from llvmlite.binding import ffi

from litz.build.linker import linked
from litz.build.openmp import symbols
from litz.errors import InternalError
from litz.ir.source import Binary
from litz.target import CpuTarget
from litz.trace import Trace


@cache
def _start() -> None:
    """Initialise LLVM once. Called by one thread at a time, which compiles a graph; llvmlite itself
    lets in one at a time as well."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()


@cache
def _start_others() -> None:
    """Initialise what compiles for other machines than this one."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()


# A process is forked while no thread is inside LLVM: it would stay as it is in the child.
_INSIDE = ffi.lib._lock
os.register_at_fork(
    before=_INSIDE.__enter__, after_in_parent=_INSIDE.__exit__, after_in_child=_INSIDE.__exit__
)


def _machine(target: CpuTarget, level: int) -> llvm.TargetMachine:
    if target.triple != llvm.get_process_triple():
        _start_others()
    kind = llvm.Target.from_triple(target.triple)
    return kind.create_target_machine(
        cpu=target.name, features=",".join(target.features), opt=level, reloc="pic",
        codemodel="small",
    )  # fmt: skip


def compile_object(text: str, target: CpuTarget, level: int, trace: Trace) -> bytes:
    """Parse, check, optimise, assemble."""
    _start()
    trace.note(6, "LLVM IR", text)
    with trace.span("parse"):
        try:
            module = llvm.parse_assembly(text)
            module.verify()
        except RuntimeError as error:
            raise InternalError(f"LLVM rejects the generated code: {error}") from error
        module.triple = target.triple
    machine = _machine(target, level)
    with trace.span("optimise"):
        _optimise(module, machine, level)
    trace.note(6, "assembly", lambda: machine.emit_assembly(module))
    with trace.span("assemble"):
        return bytes(machine.emit_object(module))


def _optimise(module: llvm.ModuleRef, machine: llvm.TargetMachine, level: int) -> None:
    """A short pipeline: lanes, unrolling and code motion are ours, so little is left to do.

    LLVM's own -O2 takes ten times as long for the same speed of kernels; level 3 runs it (without
    its vectorisers) for whoever wants to see. Level 0 runs nothing but inlining, which is needed.
    """
    options = llvm.create_pipeline_tuning_options(speed_level=min(level, 3))
    options.loop_vectorization = False
    options.slp_vectorization = False
    builder = llvm.create_pass_builder(machine, options)
    if level == 3:
        builder.getModulePassManager().run(module, builder)
        return
    passes = llvm.create_new_module_pass_manager()
    passes.add_always_inliner_pass()
    if level >= 1:
        passes.add_sroa_pass()  # accumulators from stack memory into registers
        passes.add_instruction_combine_pass()
        passes.add_simplify_cfg_pass()
    if level >= 2:
        passes.add_new_gvn_pass()  # the same address is computed once
        passes.add_loop_rotate_pass()
        passes.add_loop_unroll_pass()
        passes.add_instruction_combine_pass()
        passes.add_simplify_cfg_pass()
        passes.add_aggressive_dce_pass()
    passes.add_global_dead_code_eliminate_pass()
    passes.run(module, builder)


def load_object(code: bytes, names: Sequence[str]) -> Binary:
    """Put an object into memory and look its functions up."""
    _start()
    library = llvm.JITLibraryBuilder().add_object_img(code)
    try:
        loaded = linked(library, symbols(), names)
    except RuntimeError as error:
        raise InternalError(f"the compiled object cannot be loaded: {error}") from error
    return Binary({name: loaded[name] for name in names}, code, loaded)
