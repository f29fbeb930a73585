"""Stage 4: loops become kernels, and every pair that did not fuse has its reason.

In: `LoopProgram`. Out: `KernelGraph`. First, pointwise producers are written into their readers
(`inline`). Loops that compare their position with constants are cut (`index_set_splitting`), values
that a few neighbours share are copied for each (`broadcasts`), long softmax rows take one pass
(`online_softmax`), and so do a few long rows of a variance (`welford`). The remaining loops are
grouped by rows (`group`, `anchor`), and each group is written as phases (`kernels`). Last, long
reductions of few rows are split (`split_reductions`). Example: softmax's five loops become one
kernel of three phases.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from litz.config import Config
from litz.fuse.anchor import Group
from litz.fuse.broadcasts import materialize_broadcasts
from litz.fuse.group import group_loops
from litz.fuse.index_set_splitting import split_index_sets
from litz.fuse.inline import inline_producers
from litz.fuse.kernels import attention_kernel, make_kernel
from litz.fuse.online_softmax import rewrite_online_softmax
from litz.fuse.rounding import keep_roundings
from litz.fuse.split_reductions import split_reduction
from litz.fuse.welford import split_welford
from litz.ir.choices import NO_CHOICES, Choices
from litz.ir.expr import extent_of
from litz.ir.patterns import Attention
from litz.ir.program import (
    AnyStep,
    Buffer,
    Decision,
    Extern,
    Kernel,
    KernelGraph,
    Loop,
    LoopProgram,
    ViewArg,
    read,
    steps_to_prepack,
    written,
)
from litz.ir.recognise import recognised
from litz.rewrite import Simplifier
from litz.target import Target
from litz.trace import stage


@stage("fuse", "kernels of loops that share rows, with a reason for each refusal")
def fuse(
    program: LoopProgram, target: Target, config: Config, choices: Choices = NO_CHOICES
) -> KernelGraph:
    """Inline, group, and write each group as a kernel."""
    inputs = {b for b in (*program.inputs, *program.constants) if isinstance(b, Buffer)}
    shown = _shown(program)
    # Before values move into their readers, and again once the remaining readers are known.
    settled = replace(program, body=keep_roundings(program.body, shown))
    inlined = inline_producers(settled, target, config, choices)
    simplifier = Simplifier(config.emulate_precision_casts)
    loops, cut = split_index_sets(keep_roundings(inlined.body, shown), simplifier)
    loops, spread = materialize_broadcasts(loops, target)
    decisions = [*program.decisions, *inlined.decisions, *cut, *spread]
    if config.online_softmax:
        loops, streamed = rewrite_online_softmax(loops, shown, target, config)
        decisions += streamed
    loops, joined = split_welford(loops, target, config)
    decisions += joined
    loops = _prepack_first(loops, program.static, shown | inputs)
    groups, grouped = group_loops(loops, inputs, shown, program.static, target, config, choices)
    decisions += grouped
    needed = _needed_outside(program, groups, inputs)
    body, split = _kernels(groups, needed, simplifier, target, config)
    decisions += split
    ordered = _prepack_first(body, program.static, shown | inputs)
    given = (program.inputs, program.constants, ordered, program.outputs)
    return KernelGraph(*given, decisions=tuple(decisions), static=program.static)


def _kernels(
    groups: list[Group], needed: list[set[Buffer]], simplifier: Simplifier, target: Target,
    config: Config,
) -> tuple[list[Kernel | Extern], list[Decision]]:  # fmt: skip
    """Each group as a kernel, or as two kernels if its reduction is split."""
    body: list[Kernel | Extern] = []
    decisions: list[Decision] = []
    for group in groups:
        if group.extern is not None:
            body.append(group.extern)
            continue
        name = _name(group, len(body))
        if isinstance(group.loops[0].pattern, Attention):
            body.append(_attention(group.loops, simplifier, name))
            continue
        kernel = make_kernel(group.members, needed[group.position], simplifier, name)
        if kernel.phases:
            kernel = recognised(kernel)
            made = split_reduction(kernel, target) if config.split_reductions else [kernel]
            decisions += _split(kernel, made)
            body += made if len(made) == 1 else map(recognised, made)
    return body, decisions


def _attention(loops: list[Loop], simplifier: Simplifier, name: str) -> Kernel:
    """A mask that hides every score leaves no dot product: then it is not simplified."""
    kernel = recognised(attention_kernel(loops, simplifier, name))
    if kernel.phases[0].pattern is None:
        kernel = recognised(attention_kernel(loops, None, name))
    return kernel


def _prepack_first(
    body: Sequence[AnyStep], static: frozenset[Buffer], seen: set[Buffer]
) -> tuple[AnyStep, ...]:
    """Steps that depend on parameters alone, and are read nowhere else, come before the rest."""
    first = steps_to_prepack(body, static, seen)
    front = {id(step) for step in first}
    return (*first, *(step for step in body if id(step) not in front))


def _split(kernel: Kernel, made: list[Kernel]) -> Iterator[Decision]:
    if len(made) == 2:
        rows, pieces = (extent_of(k.outer) for k in (kernel, made[0]))
        name = kernel.writes[0].name
        reason = f"{rows} rows are reduced in {pieces} pieces (split_reductions)"
        yield Decision("rewritten", name, name, reason)


def _shown(program: LoopProgram) -> set[Buffer]:
    """The buffers that the caller sees."""
    return {o.value.buffer for o in program.outputs if isinstance(o.value, ViewArg)}


def _needed_outside(
    program: LoopProgram, groups: list[Group], inputs: set[Buffer]
) -> list[set[Buffer]]:
    """For each group, the buffers it writes that another group reads or writes, or that the caller
    sees."""
    shown = _shown(program) | inputs
    users: dict[Buffer, set[int]] = {}
    for group in groups:
        for step in group.steps:
            for buffer in (*read(step), *written(step)):
                users.setdefault(buffer, set()).add(group.position)
    return [{b for b in g.writes if b in shown or users[b] - {g.position}} for g in groups]


def _name(group: Group, number: int) -> str:
    """k3_add_rsqrt_mul: a number and the last few of its ops."""
    ops = [o.op.split(".")[-2] if "." in o.op else o.op for lp in group.loops for o in lp.origins]
    words = [w for w in dict.fromkeys(ops) if w.isidentifier()]
    return "_".join([f"k{number}", *words[-4:]])
