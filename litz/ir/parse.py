"""Reading the text of programs: the inverse of `ir/text.py`.

In: text as `program_text`, `graph_text` or `kernel_text` print it. Out: an equal value, but for
origins, which are comments, and decisions, which are not printed. Every line is one statement and
every expression a Python expression; indentation is for the reader alone.
Example: `parse_expr("i0 * 128 + 1", Scope({"i0": axis("i0", 8)}))` gives that very node.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from litz.errors import ParseError
from litz.ir.checks import CHECK_OPS, Site
from litz.ir.dtypes import DTYPES, F64, I64, DType
from litz.ir.expr import (
    HINT,
    Expr,
    apply,
    axis,
    bitcast,
    cast,
    const,
    integer,
    load,
    narrow,
    reduce,
    scan,
    size,
)
from litz.ir.index import ZERO, product
from litz.ir.lines import BUFFER, COMBINED, EXTERN, SIZE, WORD, Mistake, match, without_comment
from litz.ir.ops import OPS, REDUCTIONS, SCANS
from litz.ir.program import (
    HOST,
    Binding,
    Buffer,
    Extern,
    Kernel,
    KernelGraph,
    Loop,
    LoopProgram,
    Output,
    Phase,
    Store,
    ViewArg,
)  # fmt: skip
from litz.ir.text import INFIX, PREFIX


@dataclass
class Scope:
    """What names mean: axes, sizes and `let` names. Buffers have a name space of their own."""

    names: dict[str, Expr] = field(default_factory=dict)
    buffers: dict[str, Buffer] = field(default_factory=dict)

    def buffer(self, node: ast.expr) -> Buffer:
        found: Buffer = _known(self.buffers, _name(node), "buffer")
        return found


def parse_program(text: str) -> LoopProgram:
    """The loop program that a text describes."""
    reader = _Reader(text)
    body = reader.steps(Loop, Extern)
    given, held, shown = tuple(reader.inputs), tuple(reader.constants), tuple(reader.outputs)
    return LoopProgram(given, held, body, shown, static=frozenset(reader.static))


def parse_graph(text: str) -> KernelGraph:
    """The kernel graph that a text describes."""
    reader = _Reader(text)
    body = reader.steps(Kernel, Extern)
    given, held, shown = tuple(reader.inputs), tuple(reader.constants), tuple(reader.outputs)
    return KernelGraph(given, held, body, shown, static=frozenset(reader.static))


def parse_kernel(text: str) -> Kernel:
    """The one kernel that a text describes, with its declarations."""
    body: tuple[Kernel, ...] = _Reader(text).steps(Kernel)
    if len(body) != 1:
        raise ParseError(1, text.partition("\n")[0], f"expected one kernel, found {len(body)}")
    return body[0]


def parse_expr(text: str, scope: Scope) -> Expr:
    """The expression that a text describes."""
    try:
        return _expr(_python(text), scope)
    except Mistake as mistake:
        raise ParseError(1, text, str(mistake)) from None


# -- statements ------------------------------------------------------------------------------


@dataclass
class _Nest:
    """A loop or phase whose stores are still being read."""

    axes: tuple[Expr, ...]
    reduced: tuple[Expr, ...]
    reduces: bool
    stores: list[Store] = field(default_factory=list)

    def done(self) -> Loop:
        return Loop(self.axes, self.reduced, tuple(self.stores))

    def phase(self) -> Phase:
        if self.axes:  # whatever is reduced, each of their points has a sum of its own
            return Phase(self.axes, False, tuple(self.stores), self.reduced)
        return Phase(self.reduced, self.reduces, tuple(self.stores))


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


class _Reader:
    """Reads line by line; `body` and the rest hold what the lines so far declare."""

    def __init__(self, text: str) -> None:
        self.sizes: dict[str, Expr] = {}
        self.scope = Scope(self.sizes)
        self.inputs: list[Buffer | Expr] = []
        self.static: list[Buffer] = []
        self.constants: list[Buffer] = []
        self.outputs: list[Output] = []
        self.body: list[_Nest | _Kernel | Extern] = []
        self.lines: list[tuple[int, str]] = []  # where each step of the body begins
        self.nest: _Nest | None = None  # where a store goes
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
        if word is not None and word[1] in _STATEMENTS:
            _STATEMENTS[word[1]](self, code[word.end() :].strip())
        else:
            self._store(code)

    def _heading(self, rest: str) -> None:
        if rest != ":":
            raise Mistake("expected a colon")

    def _size(self, rest: str, dtype: DType = I64) -> None:
        found = match(SIZE, rest, "name in low..high")
        name, high = found["name"], int(found["high"]) if found["high"] else None
        made = _exprs(found["made"], Scope(self.sizes))[0] if found["made"] else None
        near = int(found["hint"] or HINT)
        self.sizes[name] = size(name, int(found["low"]), high, near, made, dtype)

    def _buffer(self, rest: str) -> Buffer:
        found = match(BUFFER, rest, "name: type[shape] strides (...) on device")
        dtype = _known(DTYPES, found["dtype"], "type")
        shape = _exprs(found["shape"], Scope(self.sizes))
        strides = tuple(product(shape[k + 1 :]) for k in range(len(shape)))
        if found["strides"] is not None:
            strides = _exprs(found["strides"], Scope(self.sizes))
        name = _name(_python(found["name"]))
        buffer = Buffer(name, dtype, shape, strides, found["device"] or HOST)
        self.scope.buffers[name] = buffer
        return buffer

    def _input(self, rest: str) -> None:
        is_buffer = BUFFER.match(rest)
        self.inputs.append(self._buffer(rest) if is_buffer else _expr(_python(rest), self.scope))

    def _parameter(self, rest: str) -> None:
        self.static.append(self._buffer(rest))
        self.inputs.append(self.static[-1])

    def _constant(self, rest: str) -> None:
        self.constants.append(self._buffer(rest))

    def _loop(self, rest: str) -> None:
        self.nest = self._read_nest(rest, self.sizes)
        self.body.append(self.nest)

    def _kernel(self, rest: str) -> None:
        self.body.append(_Kernel(_name(_python(_header(rest)))))
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
        plain, *reduced = re.split(r"\breduce\b", _header(rest), maxsplit=1)
        axes, bound = _axes(plain, self.sizes), _axes("".join(reduced), self.sizes)
        self.scope.names = names | {a.attr: a for a in axes + bound}
        return _Nest(axes, bound, bool(reduced))

    def _let(self, rest: str) -> None:
        target, value = self._assignment(rest)
        if self.nest is None:
            raise Mistake("a let stands inside a loop or phase")
        self.scope.names[_name(target)] = value

    def _store(self, code: str) -> None:
        found = COMBINED.match(code)
        mode = found["mode"] if found else "set"
        if mode not in OPS and mode not in ("set", "put"):
            raise Mistake(f"{mode} is not an op")
        target, value = self._assignment(f"{found['target']} = {found['value']}" if found else code)
        if self.nest is None or not isinstance(target, ast.Subscript):
            raise Mistake("expected a statement, or a store inside a loop or phase")
        index = _items(target.slice, self.scope)
        self.nest.stores.append(Store(self.scope.buffer(target.value), index, value, mode))

    def _assignment(self, code: str) -> tuple[ast.expr, Expr]:
        statement = _python(code, "exec")
        if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
            raise Mistake("expected `target = value`")
        return statement.targets[0], _expr(statement.value, self.scope)

    def _extern(self, rest: str) -> None:
        found = match(EXTERN, rest, "results = op(operands)")
        call, results = _python(found["call"]), _python(found["results"])
        if not isinstance(call, ast.Call):
            raise Mistake("expected a call")
        kwargs = [k for keyword in call.keywords for k in self._keyword(keyword)]
        single = not isinstance(results, ast.Tuple)
        listed = results.elts if isinstance(results, ast.Tuple) else [results]
        mutated = _python(f"[{found['mutates'] or ''}]")
        step = Extern(
            target=_name(call.func),
            args=tuple(_operand(a, self.scope) for a in call.args),
            kwargs=tuple(kwargs),
            outputs=tuple(None if _is_none(r) else self.scope.buffer(r) for r in listed),
            single=single,
            mutates=tuple(self.scope.buffer(b) for b in mutated.elts),
            binds=tuple(self._binding(b.elts) for b in _python(f"[{found['binds'] or ''}]").elts),
        )
        self.body.append(step)
        self.nest = None

    def _binding(self, parts: list[Any]) -> Binding:
        divisor, *path = [part.value for part in parts[1:]]
        return Binding(_expr(parts[0], self.scope), tuple(path), divisor)

    def _keyword(self, keyword: ast.keyword) -> list[tuple[str, Any]]:
        if keyword.arg is not None:
            return [(keyword.arg, _operand(keyword.value, self.scope))]
        if not isinstance(keyword.value, ast.Dict):
            raise Mistake("expected a named operand")
        names = [_name(k) for k in keyword.value.keys if k is not None]
        values = [_operand(v, self.scope) for v in keyword.value.values]
        return list(zip(names, values, strict=True))

    def _output(self, rest: str) -> None:
        self.outputs.append(Output(_operand(_python(rest), self.scope)))
        self.nest = None


_STATEMENTS: dict[str, Callable[[_Reader, str], Any]] = {
    "program": _Reader._heading,
    "graph": _Reader._heading,
    "size": _Reader._size,
    "number": lambda reader, rest: reader._size(rest, F64),
    "input": _Reader._input,
    "parameter": _Reader._parameter,
    "constant": _Reader._constant,
    "buffer": _Reader._buffer,
    "loop": _Reader._loop,
    "kernel": _Reader._kernel,
    "outer": _Reader._outer,
    "scratch": _Reader._scratch,
    "phase": _Reader._phase,
    "let": _Reader._let,
    "extern": _Reader._extern,
    "output": _Reader._output,
}


def _header(rest: str) -> str:
    if not rest.endswith(":"):
        raise Mistake("expected a colon at the end")
    return rest[:-1].strip()


def _axes(text: str, sizes: dict[str, Expr]) -> tuple[Expr, ...]:
    """`i0 < 8, i1 < s0`."""
    axes = []
    for item in _python(f"[{text}]").elts:
        if not isinstance(item, ast.Compare) or not isinstance(item.ops[0], ast.Lt):
            raise Mistake("expected `axis < extent`")
        axes.append(axis(_name(item.left), _expr(item.comparators[0], Scope(sizes))))
    return tuple(axes)


# -- expressions -----------------------------------------------------------------------------


def _python(text: str, mode: str = "eval") -> Any:
    """Python's own tree of an expression, or of one statement."""
    try:
        tree: Any = ast.parse(text, mode=mode)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise Mistake(f"not a Python expression ({error.args[0]})") from None
    return tree.body if mode == "eval" else tree.body[0]


def _name(node: ast.expr) -> str:
    """A plain, dotted or quoted name."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, (ast.Name, ast.Attribute)):
        return ast.unparse(node)
    raise Mistake(f"expected a name, not {ast.unparse(node)}")


def _known(table: dict[str, Any], name: str, what: str) -> Any:
    if name not in table:
        raise Mistake(f"there is no {what} {name!r}")
    return table[name]


def _operator(symbol: str) -> type[ast.AST]:
    tree: Any = _python(f"a {symbol} b")
    return type(tree.ops[0] if isinstance(tree, ast.Compare) else tree.op)


_BINARY = {_operator(symbol): op for op, (symbol, _) in INFIX.items()}
_UNARY = {type(_python(f"{symbol}a").op): op for op, symbol in PREFIX.items()}


def _exprs(text: str, scope: Scope) -> tuple[Expr, ...]:
    return tuple(_expr(e, scope) for e in _python(f"[{text}]").elts)


def _items(node: ast.expr, scope: Scope) -> tuple[Expr, ...]:
    parts = node.elts if isinstance(node, ast.Tuple) else [node]
    return tuple(_expr(p, scope) for p in parts)


def _expr(node: Any, scope: Scope) -> Expr:
    match node:
        case ast.Constant(value=int()) if type(node.value) is int:
            return integer(node.value)
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() as number)):
            return integer(-number)
        case ast.UnaryOp() if type(node.op) in _UNARY:
            return apply(_UNARY[type(node.op)], _expr(node.operand, scope))
        case ast.BinOp() if type(node.op) in _BINARY:
            op = _BINARY[type(node.op)]
            return apply(op, _expr(node.left, scope), _expr(node.right, scope))
        case ast.Compare(ops=[compare], comparators=[right]) if type(compare) in _BINARY:
            return apply(_BINARY[type(compare)], _expr(node.left, scope), _expr(right, scope))
        case ast.Name():
            found: Expr = _known(scope.names, node.id, "axis, size or value")
            return found
        case ast.Subscript():
            return load(scope.buffer(node.value), _items(node.slice, scope))
        case ast.Call(func=ast.Name(id=name), keywords=[]):
            return _call(name, node.args, scope)
        case ast.Call(func=ast.Attribute(value=ast.Name(id=form), attr=kind), args=[first, *rest]):
            return _qualified(form, kind, _expr(first, scope), [_expr(r, scope) for r in rest])
    raise Mistake(f"not an expression of the IR: {ast.unparse(node)}")


def _call(name: str, args: list[ast.expr], scope: Scope) -> Expr:
    """`f32(1.5)`, `guarded(test, x[i0])`, `exp(x)`."""
    if name in DTYPES and len(args) == 1:
        return const(_number(args[0]), DTYPES[name])
    site = _site(args[-1]) if name in CHECK_OPS and args else None
    args = args if site is None else args[:-1]
    operands = [_expr(a, scope) for a in args]
    if name == "guarded" and len(args) == 2 and operands[1].op == "load":
        return load(operands[1].buffer, operands[1].index, operands[0])
    spec = _known(OPS, name, "op")
    if len(args) != spec.arity:
        raise Mistake(f"{name} takes {spec.arity} operands, not {len(args)}")
    return apply(name, *operands, site=site)


def _site(node: ast.expr) -> Site | None:
    """Who asked for a check: `site("index", "aten.index.Tensor", "model.py:3", 0)`."""
    match node:
        case ast.Call(func=ast.Name(id="site"), args=args, keywords=[]):
            return Site(*(ast.literal_eval(a) for a in args))
    return None


_CONVERSIONS = {"cast": cast, "narrow": narrow, "bitcast": bitcast}


def _qualified(form: str, kind: str, value: Expr, rest: list[Expr]) -> Expr:
    """`cast.bf16(x)`, `bitcast.i32(x)`, `reduce.sum(x, r0, r1)`, `scan.sum(x, i0)`."""
    if form in _CONVERSIONS and not rest:
        return _CONVERSIONS[form](value, _known(DTYPES, kind, "type"))
    if form in ("reduce", "scan") and all(r.op == "axis" for r in rest):
        _known(REDUCTIONS if form == "reduce" else SCANS, kind, "reduction")
        if form == "reduce":
            return reduce(kind, tuple(rest), value)
        if len(rest) == 1:
            return scan(kind, rest[0], value)
    raise Mistake(f"not a form of the IR: {form}.{kind} with {1 + len(rest)} operands")


def _number(node: ast.expr) -> Any:
    """A Python number, True or False; `inf` and `nan` are numbers here."""
    match node:
        case ast.Constant(value=bool() | int() | float()):
            return node.value
        case ast.Name(id="inf" | "nan"):
            return float(node.id)
        case ast.UnaryOp(op=ast.USub()):
            return -_number(node.operand)
    raise Mistake(f"expected a number, not {ast.unparse(node)}")


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


# -- operands of extern calls ----------------------------------------------------------------


def _operand(node: Any, scope: Scope) -> Any:
    match node:
        case ast.Constant():
            return node.value
        case ast.Name(id="inf" | "nan") | ast.UnaryOp(op=ast.USub()):
            return _number(node)
        case ast.Name():
            whole = scope.buffer(node)
            return ViewArg(whole, whole.shape, whole.strides, ZERO)
        case ast.Call(func=ast.Name(id="view"), args=[base, shape, strides, offset]):
            parts = _items(shape, scope), _items(strides, scope), _expr(offset, scope)
            return ViewArg(scope.buffer(base), *parts)
        case ast.Call(func=ast.Name(id="size"), args=[number]):
            return _expr(number, scope)
        case ast.Call(func=ast.Name(id="device"), args=[], keywords=keywords):
            return torch.device(**{k.arg: _operand(k.value, scope) for k in keywords if k.arg})
        case ast.Attribute(value=ast.Name(id="torch"), attr=name) if hasattr(torch, name):
            return getattr(torch, name)
        case ast.List():
            return [_operand(e, scope) for e in node.elts]
        case ast.Tuple():
            return tuple(_operand(e, scope) for e in node.elts)
    raise Mistake(f"not an operand: {ast.unparse(node)}")
