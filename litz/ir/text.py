"""The text of programs: what traces, errors and goldens show, and what `ir/parse.py` reads back.

In: an `Expr`, `Loop`, `Kernel`, `Extern`, `LoopProgram` or `KernelGraph`. Out: text whose
expressions are Python expressions. Values used twice, and long values, get a name, so that the text
is linear in the nodes of a program and never nests deeply. The statements, one a line:

    size s0 in 2..4096 near 128                           input s0
    size z0 in 1.. = s0 // 2                              made of others
    number f0 in ..                                       a float from a call's result
    input | constant | buffer x: f32[8, s0] strides (1, 8) on cuda
    loop i0 < 8, i1 < s0 reduce r0 < 128:                 # origins are comments
    loop i0 < 8, i1 < 9 reduce r0 < 7 as gemm(rows=[i0], columns=[i1], depth=[r0]):
      let v0 = exp(x[i0, r0]) + f32(0.5)                  guarded(i0 > 0, x[i0 - 1, r0])
      t0[i0, i1] = reduce.sum(v0 * v0, r0)                cast.bf16(v), narrow.bf16(v)
      t1[i0] = x[check_index(n[i0], 8, site("index", "aten.index.Tensor", "model.py:3"))]
    extern (t1, None) = aten.op(t0, view(x, shape, strides, offset), size(s0), alpha=2) mutates x
    kernel name: / outer i0 < 8 / scratch m: f32[] / phase reduce r0 < 128: / phase i1 < 128:
    output t0 | view(...) | size(s0) | None | 3
"""

from __future__ import annotations

import itertools
import keyword
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from litz.ir.dtypes import F32, I64
from litz.ir.expr import HINT, Expr, const, walk
from litz.ir.index import ZERO, size_product
from litz.ir.patterns import Pattern
from litz.ir.program import (
    Buffer,
    Extern,
    Kernel,
    KernelGraph,
    Loop,
    LoopProgram,
    Origin,
    Phase,
    Store,
    ViewArg,
    read,
    written,
)
from litz.ir.scheduled import Choice, ScheduledKernel, Tiling

# Text and how tightly its outermost operator binds, as in Python's grammar.
Spelling = tuple[str, int]
UNARY, ATOM = 8, 9
INFIX: dict[str, Spelling] = {
    "lt": ("<", 1),
    "le": ("<=", 1),
    "gt": (">", 1),
    "ge": (">=", 1),
    "eq": ("==", 1),
    "ne": ("!=", 1),
    "or": ("|", 2),
    "xor": ("^", 3),
    "and": ("&", 4),
    "shl": ("<<", 5),
    "shr": (">>", 5),
    "add": ("+", 6),
    "sub": ("-", 6),
    "mul": ("*", 7),
    "div": ("/", 7),
    "floordiv": ("//", 7),
    "mod": ("%", 7),
}
PREFIX = {"neg": "-", "not": "~"}

# The longest text without a name of its own: of a value used twice, and of any value.
_SHARED_LENGTH, _LINE_LENGTH = 16, 90
# A repr of more nodes than the first (as a tree) elides levels deeper than the second.
_REPR_NODES, _REPR_DEPTH = 120, 6


def expr_text(root: Expr) -> str:
    """One expression on one line; a large one keeps its outer levels and elides the rest."""
    weight: dict[Expr, int] = {}
    for node in walk(root):
        weight[node] = min(1 + sum(weight[a] for a in _operands(node)), _REPR_NODES + 1)

    def spelling(node: Expr, depth: int) -> Spelling:
        if depth == 0 and weight[node] > _REPR_DEPTH:
            return "...", ATOM
        return _spell(node, [spelling(a, depth - 1) for a in _operands(node)])

    return spelling(root, -1 if weight[root] <= _REPR_NODES else _REPR_DEPTH)[0]


def whole_text(root: Expr) -> str:
    """One expression without elision, however large: for sizes, which are seldom large."""
    spelled: dict[Expr, Spelling] = {}
    for node in walk(root):
        spelled[node] = _spell(node, [spelled[a] for a in _operands(node)])
    return spelled[root][0]


def loop_text(loop: Loop) -> str:
    """The statement of one loop."""
    return "\n".join(_step_lines(loop))


def extern_text(step: Extern) -> str:
    """The statement of one extern call."""
    return extern_statement(step) + _comment(step.origins)


def scheduled_text(scheduled: ScheduledKernel[Choice | Tiling]) -> str:
    """A kernel as it runs: its lanes and tasks, the buffer of each flat name, its loops."""
    names = ", ".join(f"b{k} = {b}" for k, b in enumerate(scheduled.arguments))
    lines = [scheduled.choice.line(scheduled.tasks), names, *scheduled.steps]
    return "\n".join(["# " + line for line in lines] + [kernel_text(scheduled.kernel)])


def kernel_text(kernel: Kernel) -> str:
    """One kernel with the declarations it needs, so that it can be read back alone."""
    head, *rest = _step_lines(kernel)
    buffers = _mentioned([kernel])
    declared = [*size_lines(buffers, [kernel]), *_declarations("buffer", buffers)]
    return "\n".join([head, *indented(declared), *rest])


def program_text(program: LoopProgram) -> str:
    """A whole loop program."""
    return "\n".join(["program:", *indented(_whole(program))])


def graph_text(graph: KernelGraph) -> str:
    """A whole kernel graph, without the decisions that led to it."""
    return "\n".join(["graph:", *indented(_whole(graph))])


# -- expressions -----------------------------------------------------------------------------


def _operands(node: Expr) -> tuple[Expr, ...]:
    """The operands that a node's text shows: none of an axis, whose loop declares its extent."""
    return () if node.op == "axis" else node.args


def _spell(node: Expr, args: Sequence[Spelling]) -> Spelling:
    """A node's text over the text of its operands."""
    op = node.op
    if op in INFIX:
        symbol, level = INFIX[op]
        # Comparisons chain in Python, so they need brackets on both sides; the rest on the right.
        left = _bracketed(args[0], level + (level == 1))
        return f"{left} {symbol} {_bracketed(args[1], level + 1)}", level
    # -5 is a constant, so the negation of the constant 5 is written neg(5).
    if op in PREFIX and not (op == "neg" and _is_plain_integer(node.args[0])):
        return PREFIX[op] + _bracketed(args[0], UNARY), UNARY
    if op == "const":
        return _constant_text(node), UNARY if _is_plain_integer(node) and node.attr < 0 else ATOM
    if op == "axis":
        return node.attr, ATOM
    if op == "size":
        return node.attr[0], ATOM
    if op == "load":
        return _load_text(node, [text for text, _ in args]), ATOM
    operands = ", ".join(text for text, _ in args)
    if op in ("cast", "narrow", "bitcast"):
        return f"{op}.{node.dtype}({operands})", ATOM
    if op == "scan":
        return f"scan.{node.attr}({operands})", ATOM
    if op == "reduce":
        kind, axes = node.attr
        return f"reduce.{kind}({', '.join([operands, *(a.attr for a in axes)])})", ATOM
    if node.attr is not None:  # a check, with its site
        operands = f"{operands}, {node.attr}"
    return f"{op}({operands})", ATOM


def _bracketed(part: Spelling, level: int) -> str:
    return part[0] if part[1] >= level else f"({part[0]})"


def _is_plain_integer(node: Expr) -> bool:
    return node.is_const and node.dtype is I64


def _constant_text(node: Expr) -> str:
    if node.dtype is I64:
        return str(node.attr)
    if not isinstance(node.attr, float):
        return f"{node.dtype}({node.attr})"
    text = repr(node.attr)
    if math.isnan(node.attr):
        text = "-nan" if math.copysign(1, node.attr) < 0 else "nan"
    elif node.dtype is F32:
        # 0.1 rather than 0.10000000149011612, if it reads back as the same number.
        short = str(np.float32(node.attr))
        text = short if const(float(short), F32) is node else text
    return f"{node.dtype}({text})"


def _load_text(node: Expr, args: list[str]) -> str:
    if node.guard is None:
        return _element_text(node.buffer, args)
    return f"guarded({args[-1]}, {_element_text(node.buffer, args[:-1])})"


def _element_text(buffer: Buffer, index: list[str]) -> str:
    return f"{name_text(buffer.name)}[{', '.join(index) or '()'}]"


def name_text(name: str) -> str:
    """A name, quoted if it is not a Python identifier."""
    return name if _is_plain(name) else repr(name)


def _is_plain(name: str) -> bool:
    return name.isidentifier() and not keyword.iskeyword(name) and name not in ("inf", "nan")


def listed(exprs: Iterable[Expr]) -> str:
    return ", ".join(expr_text(e) for e in exprs)


# -- statements ------------------------------------------------------------------------------


def indented(lines: Iterable[str]) -> list[str]:
    return ["  " + line for line in lines]


def _whole(program: LoopProgram | KernelGraph) -> list[str]:
    given = [b for b in program.inputs if isinstance(b, Buffer)]
    known = {b.name for b in (*given, *program.constants)}
    outputs = [o.value for o in program.outputs]
    buffers = _mentioned(program.body, outputs)
    lines = size_lines(
        [*given, *program.constants, *buffers], program.body, [*program.inputs, *outputs]
    )
    for item in program.inputs:
        word = "parameter" if item in program.static else "input"
        lines.append(f"{word} {declared(item) if isinstance(item, Buffer) else expr_text(item)}")
    lines += _declarations("constant", program.constants)
    lines += _declarations("buffer", (b for b in buffers if b.name not in known))
    for step in program.body:
        lines += _step_lines(step)
    return lines + [f"output {operand_text(value)}" for value in outputs]


def _mentioned(steps: Iterable[Loop | Kernel | Extern], operands: Any = ()) -> list[Buffer]:
    """The buffers that steps and operands name, once each, in order."""
    found: dict[Buffer, None] = {}
    for step in steps:
        found.update(dict.fromkeys((*read(step), *written(step))))
    found.update(dict.fromkeys(v for v in _leaves(operands) if isinstance(v, Buffer)))
    return list(found)


def _leaves(value: Any) -> Iterator[Any]:
    """The buffers, expressions and constants inside an extern's argument tree."""
    if isinstance(value, (tuple, list)):
        for item in value:
            yield from _leaves(item)
    elif isinstance(value, ViewArg):
        yield from (value.buffer, *value.shape, *value.strides, value.offset)
    else:
        yield value


def size_lines(
    buffers: Iterable[Buffer], steps: Iterable[Loop | Kernel | Extern], operands: Any = ()
) -> list[str]:
    """A declaration for every symbolic size that is mentioned."""
    roots: list[Expr] = [v for v in _leaves(operands) if isinstance(v, Expr)]
    for buffer in buffers:
        roots += (*buffer.shape, *buffer.strides)
    for step in steps:
        roots += _step_exprs(step)
    lines = []
    for node in walk(*roots):
        if node.op == "size":
            name, low, high, hint = node.attr
            about = f" near {hint}" if hint != HINT else ""
            made = "".join(f" = {expr_text(a)}" for a in node.args)
            word = "size" if node.dtype is I64 else "number"
            lines.append(f"{word} {name} in {low}..{'' if high is None else high}{about}{made}")
    return lines


def _step_exprs(step: Loop | Kernel | Extern) -> Iterator[Expr]:
    if isinstance(step, Extern):
        yield from (v for v in _leaves((step.args, step.kwargs)) if isinstance(v, Expr))
        yield from (b.symbol for b in step.binds)
        return
    if isinstance(step, Kernel):
        yield from (e for b in step.scratch for e in (*b.shape, *b.strides))
        yield from (a for phase in step.phases for a in (*phase.inner, *phase.summed))
        yield from step.outer
    else:
        yield from (*step.axes, *step.reduced)
    for store in step.stores:
        yield from (*store.index, store.value)


def _declarations(word: str, buffers: Iterable[Buffer]) -> list[str]:
    return [f"{word} {declared(b)}" for b in buffers]


def declared(buffer: Buffer) -> str:
    """`x: f32[8, 128] strides (1, 8) on cuda`; strides only if they are not row-major."""
    text = f"{name_text(buffer.name)}: {buffer.dtype}[{listed(buffer.shape)}]"
    if buffer.strides != tuple(
        size_product(buffer.shape[k + 1 :]) for k in range(len(buffer.shape))
    ):
        text += f" strides {tuple_text([expr_text(s) for s in buffer.strides])}"
    return text if buffer.on_host else f"{text} on {buffer.device}"


def _step_lines(step: Loop | Kernel | Extern) -> list[str]:
    if isinstance(step, Extern):
        return [extern_text(step)]
    if isinstance(step, Loop):
        head = _nest("loop", step.axes, step.reduced, bool(step.reduced), step.pattern)
        return [head + _comment(step.origins), *indented(_group_lines(step.stores))]
    lines = [f"outer {_ranges(step.outer)}"] if step.outer else []
    lines += _declarations("scratch", step.scratch)
    for phase in step.phases:
        lines += _phase_lines(phase)
    return [f"kernel {name_text(step.name)}:{_comment(step.origins)}", *indented(lines)]


def _phase_lines(phase: Phase) -> list[str]:
    plain, reduced = ((), phase.inner) if phase.is_reduction else (phase.inner, phase.summed)
    head = _nest("phase", plain, reduced, phase.is_reduction or bool(phase.summed), phase.pattern)
    return [head, *indented(_group_lines(phase.stores))]


def _nest(
    word: str, axes: tuple[Expr, ...], reduced: tuple[Expr, ...], reduces: bool,
    pattern: Pattern | None,
) -> str:  # fmt: skip
    parts = [word, _ranges(axes), "reduce" if reduces else "", _ranges(reduced)]
    parts += [f"as {pattern}"] if pattern is not None else []
    return " ".join(p for p in parts if p) + ":"


def _ranges(axes: Iterable[Expr]) -> str:
    return ", ".join(f"{a.attr} < {expr_text(a.extent)}" for a in axes)


def _comment(origins: tuple[Origin, ...]) -> str:
    return f"  # {', '.join(dict.fromkeys(map(str, origins)))}" if origins else ""


def _group_lines(stores: tuple[Store, ...]) -> list[str]:
    """`let` lines for shared and long values, then the stores."""
    roots = [e for s in stores for e in (*s.index, s.value)]
    nodes = list(walk(*roots))
    uses = Counter(roots)
    for node in reversed(nodes):
        if uses[node]:
            uses.update(_operands(node))
    taken = {n.attr if n.op == "axis" else n.attr[0] for n in nodes if n.op in ("axis", "size")}
    names = (name for k in itertools.count() if (name := f"v{k}") not in taken)
    ends = set(roots)
    spelled: dict[Expr, Spelling] = {}
    lines = []
    for node in nodes:
        if not uses[node]:
            continue
        text, level = _spell(node, [spelled[a] for a in _operands(node)])
        longest = _LINE_LENGTH if uses[node] == 1 else _SHARED_LENGTH
        if _operands(node) and len(text) > longest and not (node in ends and uses[node] == 1):
            name = next(names)
            lines.append(f"let {name} = {text}")
            text, level = name, ATOM
        spelled[node] = text, level
    for store in stores:
        element = _element_text(store.buffer, [spelled[i][0] for i in store.index])
        sign = "=" if store.mode == "set" else f"{store.mode}="
        lines.append(f"{element} {sign} {spelled[store.value][0]}")
    return lines


# -- extern calls ----------------------------------------------------------------------------


def extern_statement(step: Extern) -> str:
    """`extern t0 = aten.mm.default(x, view(y, (4, 8), (1, 4), 0), alpha=2) mutates z`."""
    names = ["None" if b is None else name_text(b.name) for b in step.outputs]
    results = names[0] if step.single else tuple_text(names)
    arguments = [operand_text(a) for a in step.args]
    for key, value in step.kwargs:
        text = operand_text(value)
        # Some ops have an argument called `from`.
        arguments.append(f"{key}={text}" if _is_plain(key) else f"**{{{key!r}: {text}}}")
    target = step.target if all(map(_is_plain, step.target.split("."))) else repr(step.target)
    text = f"extern {results} = {target}({', '.join(arguments)})"
    if step.mutates:
        text += f" mutates {', '.join(name_text(b.name) for b in step.mutates)}"
    if step.binds:
        told = [(b, "".join(f", {part!r}" for part in b.path)) for b in step.binds]
        text += f" binds {', '.join(f'({b.symbol}, {b.divisor}{path})' for b, path in told)}"
    return text


def operand_text(value: Any) -> str:
    """A tensor operand is a buffer's name or a `view`; a symbolic number stands in `size(...)`."""
    if isinstance(value, ViewArg):
        buffer = value.buffer
        name = name_text(buffer.name)
        whole = (value.shape, value.strides, value.offset) == (buffer.shape, buffer.strides, ZERO)
        if whole and _is_plain(buffer.name):  # a quoted name alone would read as a string
            return name
        shape = tuple_text([expr_text(e) for e in value.shape])
        strides = tuple_text([expr_text(e) for e in value.strides])
        return f"view({name}, {shape}, {strides}, {expr_text(value.offset)})"
    if isinstance(value, Expr):
        return f"size({expr_text(value)})"
    if isinstance(value, list):
        return f"[{', '.join(operand_text(v) for v in value)}]"
    if isinstance(value, tuple):
        return tuple_text([operand_text(v) for v in value])
    return repr(value)


def tuple_text(parts: list[str]) -> str:
    return f"({parts[0]},)" if len(parts) == 1 else f"({', '.join(parts)})"
