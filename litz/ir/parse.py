"""Reading the text of programs: the inverse of `ir/text.py`.

In: text as `program_text`, `graph_text` or `kernel_text` print it. Out: an equal value, but for
origins, which are comments, and decisions, which are not printed. Every line is one statement and
every expression a Python expression; indentation is for the reader alone.
Example: `parse_expr("i0 * 128 + 1", Scope({"i0": axis("i0", 8)}))` gives the same node object.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from litz.errors import ParseError
from litz.ir.aten import dtype_named
from litz.ir.dtypes import F64, I64, DType
from litz.ir.expr import (
    HINT,
    Expr,
    axis,
    size,
)
from litz.ir.grammar import (
    BUFFER,
    COMBINED,
    EXTERN,
    SIZE,
    WORD,
    Mistake,
    match,
    read_pattern,
    without_comment,
)
from litz.ir.index import size_product
from litz.ir.ops import OPS
from litz.ir.parse_expr import (
    Scope,
    expr_of,
    exprs_of,
    is_none,
    items_of,
    name_of,
    operand,
    tree_of,
)
from litz.ir.patterns import Pattern
from litz.ir.program import (
    HOST,
    Buffer,
    Extern,
    Kernel,
    KernelGraph,
    Loop,
    LoopProgram,
    Output,
    Phase,
    Store,
    UnbackedBinding,
)  # fmt: skip


def parse_program(text: str) -> LoopProgram:
    """The loop program that a text describes."""
    reader = Reader(text)
    body = reader.steps(Loop, Extern)
    given, held, shown = tuple(reader.inputs), tuple(reader.constants), tuple(reader.outputs)
    return LoopProgram(given, held, body, shown, static=frozenset(reader.static))


def parse_graph(text: str) -> KernelGraph:
    """The kernel graph that a text describes."""
    reader = Reader(text)
    body = reader.steps(Kernel, Extern)
    given, held, shown = tuple(reader.inputs), tuple(reader.constants), tuple(reader.outputs)
    return KernelGraph(given, held, body, shown, static=frozenset(reader.static))


def parse_kernel(text: str) -> Kernel:
    """The one kernel that a text describes, with its declarations."""
    body: tuple[Kernel, ...] = Reader(text).steps(Kernel)
    if len(body) != 1:
        raise ParseError(1, text.partition("\n")[0], f"expected one kernel, found {len(body)}")
    return body[0]


def parse_expr(text: str, scope: Scope) -> Expr:
    """The expression that a text describes."""
    try:
        return expr_of(tree_of(text), scope)
    except Mistake as mistake:
        raise ParseError(1, text, str(mistake)) from None


# -- statements ------------------------------------------------------------------------------


@dataclass
class _Nest:
    """A loop or phase whose stores are still being read."""

    axes: tuple[Expr, ...]
    reduced: tuple[Expr, ...]
    reduces: bool
    pattern: Pattern | None = None
    stores: list[Store] = field(default_factory=list)

    def done(self) -> Loop:
        return Loop(self.axes, self.reduced, tuple(self.stores), pattern=self.pattern)

    def phase(self) -> Phase:
        if self.axes:  # each of their points has a reduction of its own
            return Phase(self.axes, False, tuple(self.stores), self.reduced, self.pattern)
        return Phase(self.reduced, self.reduces, tuple(self.stores), pattern=self.pattern)


@dataclass
class _Kernel:
    """A kernel whose phases are still being read."""

    name: str
    outer: tuple[Expr, ...] = ()
    scratch: list[Buffer] = field(default_factory=list)
    phases: list[_Nest] = field(default_factory=list)

    def done(self) -> Kernel:
        phases = tuple(p.phase() for p in self.phases)
        return Kernel(self.name, self.outer, phases, tuple(self.scratch))


class Reader:
    """Reads line by line; `body` and the other fields hold the declarations so far."""

    statements: ClassVar[dict[str, Callable[[Any, str], Any]]]  # by their first word

    def __init__(self, text: str) -> None:
        self.sizes: dict[str, Expr] = {}
        self.scope = Scope(self.sizes)
        self.inputs: list[Buffer | Expr] = []
        self.static: list[Buffer] = []
        self.constants: list[Buffer] = []
        self.outputs: list[Output] = []
        self.body: list[_Nest | _Kernel | Extern] = []
        self.lines: list[tuple[int, str]] = []  # the first line of each step of the body
        self.nest: _Nest | None = None  # the open nest, to which stores are added
        for number, line in enumerate(text.splitlines(), 1):
            try:
                if code := without_comment(line):
                    self._statement(code)
            except Mistake as mistake:
                raise ParseError(number, line, str(mistake)) from None
            self.lines += [(number, line)] * (len(self.body) - len(self.lines))

    def steps(self, *kinds: type) -> tuple[Any, ...]:
        """The steps that were read, all of which must be of the given kinds."""
        done = tuple(s if isinstance(s, Extern) else s.done() for s in self.body)
        for step, line in zip(done, self.lines, strict=True):
            if not isinstance(step, kinds):
                expected = " or ".join(kind.__name__.lower() for kind in kinds)
                raise ParseError(*line, f"expected {expected} here")
        return done

    def _statement(self, code: str) -> None:
        word = WORD.match(code)
        if word is not None and word[1] in self.statements:
            self.statements[word[1]](self, code[word.end() :].strip())
        else:
            self._store(code)

    def _heading(self, rest: str) -> None:
        if rest != ":":
            raise Mistake("expected a colon")

    def _size(self, rest: str, dtype: DType = I64) -> None:
        found = match(SIZE, rest, "name in low..high")
        name, high = found["name"], int(found["high"]) if found["high"] else None
        made = exprs_of(found["made"], Scope(self.sizes))[0] if found["made"] else None
        near = int(found["hint"] or HINT)
        self.sizes[name] = size(name, int(found["low"]), high, near, made, dtype)

    def _buffer(self, rest: str) -> Buffer:
        found = match(BUFFER, rest, "name: type[shape] strides (...) on device")
        dtype = dtype_named(found["dtype"])
        if dtype is None:
            raise Mistake(f"there is no type {found['dtype']!r}")
        shape = exprs_of(found["shape"], Scope(self.sizes))
        strides = tuple(size_product(shape[k + 1 :]) for k in range(len(shape)))
        if found["strides"] is not None:
            strides = exprs_of(found["strides"], Scope(self.sizes))
        name = name_of(tree_of(found["name"]))
        buffer = Buffer(name, dtype, shape, strides, found["device"] or HOST)
        self.scope.buffers[name] = buffer
        return buffer

    def _input(self, rest: str) -> None:
        is_buffer = BUFFER.match(rest)
        self.inputs.append(self._buffer(rest) if is_buffer else expr_of(tree_of(rest), self.scope))

    def _parameter(self, rest: str) -> None:
        self.static.append(self._buffer(rest))
        self.inputs.append(self.static[-1])

    def _constant(self, rest: str) -> None:
        self.constants.append(self._buffer(rest))

    def _loop(self, rest: str) -> None:
        self.nest = self._read_nest(rest, self.sizes)
        self.body.append(self.nest)

    def _kernel(self, rest: str) -> None:
        self.body.append(_Kernel(name_of(tree_of(_header(rest)))))
        self.nest = None

    def _outer(self, rest: str) -> None:
        self._open_kernel().outer = _axes(rest, self.sizes)

    def _scratch(self, rest: str) -> None:
        self._open_kernel().scratch.append(self._buffer(rest))

    def _phase(self, rest: str) -> None:
        kernel = self._open_kernel()
        self.nest = self._read_nest(rest, self.sizes | {a.attr: a for a in kernel.outer})
        kernel.phases.append(self.nest)

    def _open_kernel(self) -> _Kernel:
        if not self.body or not isinstance(self.body[-1], _Kernel):
            raise Mistake("this belongs inside a kernel")
        return self.body[-1]

    def _read_nest(self, rest: str, names: dict[str, Expr]) -> _Nest:
        ranges, *tag = re.split(r"\bas\b", _header(rest), maxsplit=1)
        plain, *reduced = re.split(r"\breduce\b", ranges, maxsplit=1)
        axes, bound = _axes(plain, self.sizes), _axes("".join(reduced), self.sizes)
        self.scope.names = names | {a.attr: a for a in axes + bound}
        pattern = read_pattern(tag[0].strip(), self.scope.names) if tag else None
        return _Nest(axes, bound, bool(reduced), pattern)

    def _let(self, rest: str) -> None:
        target, value = self._assignment(rest)
        if self.nest is None:
            raise Mistake("a let stands inside a loop or phase")
        self.scope.names[name_of(target)] = value

    def _store(self, code: str) -> None:
        found = COMBINED.match(code)
        mode = found["mode"] if found else "set"
        if mode not in OPS and mode not in ("set", "put"):
            raise Mistake(f"{mode} is not an op")
        target, value = self._assignment(f"{found['target']} = {found['value']}" if found else code)
        if self.nest is None or not isinstance(target, ast.Subscript):
            raise Mistake("expected a statement, or a store inside a loop or phase")
        index = items_of(target.slice, self.scope)
        self.nest.stores.append(Store(self.scope.buffer(target.value), index, value, mode))

    def _assignment(self, code: str) -> tuple[ast.expr, Expr]:
        statement = tree_of(code, "exec")
        if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
            raise Mistake("expected `target = value`")
        return statement.targets[0], expr_of(statement.value, self.scope)

    def _extern(self, rest: str) -> None:
        found = match(EXTERN, rest, "results = op(operands)")
        call, results = tree_of(found["call"]), tree_of(found["results"])
        if not isinstance(call, ast.Call):
            raise Mistake("expected a call")
        kwargs = [k for keyword in call.keywords for k in self._keyword(keyword)]
        single = not isinstance(results, ast.Tuple)
        listed = results.elts if isinstance(results, ast.Tuple) else [results]
        mutated = tree_of(f"[{found['mutates'] or ''}]")
        step = Extern(
            target=name_of(call.func),
            args=tuple(operand(a, self.scope) for a in call.args),
            kwargs=tuple(kwargs),
            outputs=tuple(None if is_none(r) else self.scope.buffer(r) for r in listed),
            single=single,
            mutates=tuple(self.scope.buffer(b) for b in mutated.elts),
            binds=tuple(self._binding(b.elts) for b in tree_of(f"[{found['binds'] or ''}]").elts),
        )
        self.body.append(step)
        self.nest = None

    def _binding(self, parts: list[Any]) -> UnbackedBinding:
        divisor, *path = [part.value for part in parts[1:]]
        return UnbackedBinding(expr_of(parts[0], self.scope), tuple(path), divisor)

    def _keyword(self, keyword: ast.keyword) -> list[tuple[str, Any]]:
        if keyword.arg is not None:
            return [(keyword.arg, operand(keyword.value, self.scope))]
        if not isinstance(keyword.value, ast.Dict):
            raise Mistake("expected a named operand")
        names = [name_of(k) for k in keyword.value.keys if k is not None]
        values = [operand(v, self.scope) for v in keyword.value.values]
        return list(zip(names, values, strict=True))

    def _output(self, rest: str) -> None:
        self.outputs.append(Output(operand(tree_of(rest), self.scope)))
        self.nest = None


Reader.statements = {
    "program": Reader._heading,
    "graph": Reader._heading,
    "size": Reader._size,
    "number": lambda reader, rest: reader._size(rest, F64),
    "input": Reader._input,
    "parameter": Reader._parameter,
    "constant": Reader._constant,
    "buffer": Reader._buffer,
    "loop": Reader._loop,
    "kernel": Reader._kernel,
    "outer": Reader._outer,
    "scratch": Reader._scratch,
    "phase": Reader._phase,
    "let": Reader._let,
    "extern": Reader._extern,
    "output": Reader._output,
}


def _header(rest: str) -> str:
    if not rest.endswith(":"):
        raise Mistake("expected a colon at the end")
    return rest[:-1].strip()


def _axes(text: str, sizes: dict[str, Expr]) -> tuple[Expr, ...]:
    """The axes of `i0 < 8, i1 < s0`."""
    axes = []
    for item in tree_of(f"[{text}]").elts:
        if not isinstance(item, ast.Compare) or not isinstance(item.ops[0], ast.Lt):
            raise Mistake("expected `axis < extent`")
        axes.append(axis(name_of(item.left), expr_of(item.comparators[0], Scope(sizes))))
    return tuple(axes)
