"""LLVM in process: IR text becomes an object, and an object is loaded.

In: LLVM IR text. Out: an ELF object as bytes, for this machine or another, and the addresses of its
functions once it is loaded here.
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
    """Initialise LLVM once. Only the one thread that compiles calls this; llvmlite has a lock of
    its own as well."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()


@cache
def _start_others() -> None:
    """Initialise LLVM's other targets, to compile for other machines."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()


# Hold LLVM's lock across a fork: a lock held by another thread would stay locked in the child.
_LLVM_LOCK = ffi.lib._lock
os.register_at_fork(
    before=_LLVM_LOCK.__enter__,
    after_in_parent=_LLVM_LOCK.__exit__,
    after_in_child=_LLVM_LOCK.__exit__,
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

    LLVM's own -O2 takes ten times as long and gives kernels of the same speed; level 3 runs it
    (without its vectorisers) for comparison. Level 0 runs only inlining, which is required.
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
        passes.add_new_gvn_pass()  # each address is computed once
        passes.add_loop_rotate_pass()
        passes.add_loop_unroll_pass()
        passes.add_instruction_combine_pass()
        passes.add_simplify_cfg_pass()
        passes.add_aggressive_dce_pass()
    passes.add_global_dead_code_eliminate_pass()
    passes.run(module, builder)


def load_object(code: bytes, names: Sequence[str]) -> Binary:
    """Load an object into memory and look up its functions."""
    _start()
    library = llvm.JITLibraryBuilder().add_object_img(code)
    try:
        loaded = linked(library, symbols(), names)
    except RuntimeError as error:
        raise InternalError(f"the compiled object cannot be loaded: {error}") from error
    return Binary({name: loaded[name] for name in names}, code, loaded)
