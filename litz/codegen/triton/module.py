"""All kernels of a graph as Triton source, and how each is called.

In: a plan and its scheduled kernels. Out: `DeviceSource`. Kernels of equal structure (identical
layers) are written once.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace

from litz.codegen.triton.emit import KernelEmitter
from litz.codegen.triton.ops import POINTERS
from litz.codegen.triton.prelude import with_prelude
from litz.ir.call_plan import KernelCall, Launch
from litz.ir.checks import sites_of
from litz.ir.dtypes import F64, U8
from litz.ir.expr import Expr, integer, walk
from litz.ir.gemm import is_gemm
from litz.ir.index import ONE, to_poly
from litz.ir.program import Buffer, Kernel, Plan, exprs_of, read, written
from litz.ir.scheduled import ScheduledKernel, Tiling
from litz.ir.sizes import greatest
from litz.ir.source import SCRATCH, DeviceKernel, DeviceSource
from litz.ir.summary import summary
from litz.ir.verify import verify_emitted

PLAIN = "litz_kernel"
NODES = 4  # most nodes in a name
MOST_32 = 2**31 - 1


def emit_kernels(
    plan: Plan, scheduled: list[ScheduledKernel[Tiling]], unique: bool = True, nodes: bool = False
) -> DeviceSource:
    """One function for each kernel that differs from all before it. Its name is unique in the graph
    and names the nodes it serves; or it is a hash of its text, so that graphs share cubins."""
    made: dict[object, DeviceKernel] = {}
    calls: list[KernelCall] = []
    for step, kernel in zip(plan.graph.kernels, scheduled, strict=True):
        key = kernel.structure
        if key not in made:
            words = _nodes(kernel.kernel) if nodes else _identifier(kernel.kernel.name)
            named = emit_kernel(kernel, f"litz_{len(made)}_{words}" if unique else PLAIN)
            made[key] = named if unique else _by_content(named)
        calls.append(_called(step, kernel, made[key]))
    kernels = {k.name: k for k in made.values()}
    placed = {b.name: b for k in scheduled for b in k.arguments if b.name not in plan.slots}
    known = {b.name for b in plan.outside}
    workspaces = tuple(b for name, b in placed.items() if name not in known)
    workspaces += _scratch(list(made.values()), plan)
    counters = frozenset(k.arguments[-1].name for k in scheduled if k.choice.rsplit > 1)
    sites = tuple(sites_of(e for k in scheduled for e in exprs_of(k.kernel)))
    return DeviceSource(tuple(kernels.values()), tuple(calls), sites, workspaces, counters)


def _called(step: Kernel, scheduled: ScheduledKernel[Tiling], kernel: DeviceKernel) -> KernelCall:
    arguments = tuple(b.name for b in scheduled.arguments)
    launch = Launch(
        kernel.name, arguments, scheduled.sizes, scheduled.task_count, warps=kernel.warps,
        scratch=bool(kernel.scratch),
    )  # fmt: skip
    touched = tuple(read(step)), tuple(written(step))
    return KernelCall(
        step.name, (launch,), *touched, kernel.checks, step.origins, summary(scheduled)
    )


def emit_kernel(scheduled: ScheduledKernel[Tiling], name: str) -> DeviceKernel:
    """One kernel, with its signature and options."""
    emitter = KernelEmitter(scheduled, name)
    text = with_prelude(emitter.emit())
    verify_emitted(scheduled.kernel, emitter.emitted)
    pointers = [POINTERS[b.dtype.name] for b in scheduled.arguments]
    checks = emitter.values.checks
    return DeviceKernel(
        name,
        text,
        tuple([*pointers, "*i64"] if checks else pointers),
        scheduled.tasks,
        scheduled.choice.warps,
        scheduled.choice.stages,
        checks,
        emitter.scratch,
        _rounds(scheduled.kernel),
        tuple(_size_type(symbol, scheduled.choice.wide) for symbol in scheduled.sizes),
    )


def _size_type(symbol: Expr, wide: bool) -> str:
    """The type of a size argument. An unbacked number may be a float, and an integer that is not a
    size (`x * n.item()`) needs all its bits, however short the kernel's rows are."""
    if symbol.dtype is F64:
        return "fp64"
    most = greatest(to_poly(symbol))
    return "i64" if wide or most is None or most > MOST_32 else "i32"


def _rounds(kernel: Kernel) -> bool:
    """Whether each op is to round on its own, as in eager. An fma does not round its product:
    `x * y - x * y` is then the rounding error, not zero. A GEMM consists of fmas anyway; but if it
    computes with values that were rounded to few bits, LLVM would compute in halves and leave out
    that rounding."""
    if not is_gemm(kernel):
        return True
    nodes = (a for n in walk(*exprs_of(kernel)) if n.op != "load" for a in n.args)
    return any(
        a.op in ("cast", "narrow") and a.dtype.is_narrow and a.args[0].dtype.is_float for a in nodes
    )


def _scratch(kernels: list[DeviceKernel], plan: Plan) -> tuple[Buffer, ...]:
    """Scratch memory for the kernel that needs most of it."""
    most = max((k.scratch * k.programs for k in kernels), default=0)
    if not most:
        return ()
    device = next(b.device for k in plan.graph.kernels for b in k.writes)
    return (Buffer(SCRATCH, U8, (integer(most),), (ONE,), device),)


def _by_content(kernel: DeviceKernel) -> DeviceKernel:
    """A kernel named by its text without comments, which say which graph it was written for."""
    lines = [line for line in kernel.text.splitlines() if not line.startswith("#")]
    said = repr(replace(kernel, text="\n".join(lines)))
    name = f"litz_{hashlib.sha256(said.encode()).hexdigest()[:16]}"
    return replace(kernel, name=name, text="\n".join([*lines, ""]).replace(PLAIN, name))


def _nodes(kernel: Kernel) -> str:
    """The last few FX nodes that a kernel serves."""
    names = list(dict.fromkeys(o.node for o in kernel.origins if o.node))[-NODES:]
    return "_".join(names) or "kernel"


def _identifier(name: str) -> str:
    """A kernel's name without its number, since equal kernels share the text."""
    words = name.partition("_")[2] or "kernel"
    return "".join(c if c.isalnum() else "_" for c in words)
