"""The rules of the house, held against the source itself: budgets, the import law, bans.

A rule that makes some code worse has an exception here, by name, with the reason; one that is no
longer needed fails too.
"""

from __future__ import annotations

import ast
import graphlib
import io
import re
import tokenize
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from litz.config import FLAGS

ROOT = Path(__file__).parent.parent
FILE_LINES, FUNCTION_LINES, CLASS_LINES, NESTING, COLUMNS = 500, 60, 300, 4, 100

# (rule, where) -> why. `where` is a file, a file and a function, or a flag.
EXCEPTIONS: dict[tuple[str, str], str] = {
    ("local import", "litz/ir/expr.py:__repr__"): "text prints expressions: a real cycle",
    ("local import", "litz/cli.py:_facts"): "needs llvmlite, whose absence the command reports",
    ("local import", "litz/cli.py:bench"): "needs torch, whose absence the command reports",
    (
        "local import",
        "tests/codegen/triton/cases.py:_interpreter",
    ): "Triton decides at import whether it interprets: the names of cases are read without it",
    ("banned import", "litz/bench/candidates.py"): "a benchmark: what it times must be told",
    ("device test", "litz/passes/verify.py"): "a text that leaves the usual device out",
    ("device test", "litz/runtime/cuda.py"): "the GPU's own file: what it has to move there",
    ("local import", "litz/cli.py:fuzz"): "needs torch, whose absence other commands report",
}

# What a package may import of Litz, itself aside.
STAGES = ["capture", "passes", "lower", "fuse", "plan", "schedule", "codegen", "call", "build"]
STAGES += ["runtime"]
SHARED = {"ir", "rewrite", "target", "isa", "config", "errors", "trace"}
LAW: dict[str, set[str]] = {
    **dict.fromkeys(STAGES, SHARED),
    "errors": {"ir"},  # the type of a fact, for signatures alone
    "ir": {"errors"},
    "config": {"errors"},
    "target": {"errors", "config", "ir", "isa"},
    "isa": set(),
    "toolchain": {"ir", "target", "config", "trace"},
    "rewrite": {"ir", "errors"},
    "trace": {"ir", "errors", "progress"},
    "progress": set(),
    "cyclic_gc": set(),
    "requirements": {"errors"},
    "optable": set(),  # data, read without torch
}
SEE_ALL = {"__init__", "__main__", "compiler", "targets", "backend", "autotune", "cli", "report"}
SEE_ALL |= {"api", "bench", "demo", "fuzz", "registration"}

# The files that may tell one device, or one target, from another; all others ask what it can do.
KNOW_DEVICES = {"litz/target.py", "litz/targets.py", "litz/ir/program.py"}
OF_ONE_TARGET = {"CpuTarget", "GpuTarget", "Source", "DeviceSource", "Binary", "DeviceBinary"}
OF_ONE_TARGET |= {"CompiledGraph", "DeviceGraph"}

OPTIONAL = {"triton", "transformers", "torch._inductor"}  # may be absent; the last only in tests
BANNED_IMPORTS = {"torch._inductor", "pickle", "cloudpickle", "dill", "shelve"}
BANNED_NAMES = re.compile(r"(utils?|common|helpers?|misc|base_\w+)\.py")
UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
SEEDS = re.compile(r"\b(manual_seed|default_rng|random\.Random|random\.seed)\(")

# What makes a tensor of numbers alone; and what is run by itself, in a process as it comes.
_MADE = """arange empty empty_strided eye full linspace logspace ones rand randint randn randperm
scalar_tensor tensor zeros as_tensor asarray frombuffer tril_indices triu_indices"""
FACTORIES = {f"torch.{name}" for name in _MADE.split()}
TOOLS = {"bench", "demo", "fuzz"}

# Who tags the steps that he makes, or asks before he makes one; and the verifier.
RECOGNISERS = {
    "litz/lower/__init__.py", "litz/lower/attention.py", "litz/fuse/__init__.py",
    "litz/fuse/inline.py", "litz/fuse/prologues.py", "litz/ir/verify.py",
}  # fmt: skip
DERIVING = {"parts_by", "depthwise_by"}

Function = ast.FunctionDef | ast.AsyncFunctionDef
BLOCKS = (ast.If, ast.For, ast.While, ast.With, ast.Try, ast.Match, ast.AsyncFor, ast.AsyncWith)


@dataclass(frozen=True)
class Source:
    """One file, read and parsed once."""

    path: Path
    text: str
    tree: ast.Module

    @property
    def name(self) -> str:
        return self.path.relative_to(ROOT).as_posix()

    @property
    def module(self) -> str:
        parts = self.path.relative_to(ROOT).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    @property
    def room(self) -> str:
        """The package or module directly below `litz`."""
        return self.path.relative_to(ROOT).with_suffix("").parts[1]


@dataclass(frozen=True)
class Breach:
    """A rule broken at a place; an exception names the place without its line."""

    rule: str
    where: str
    line: int
    what: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.where} line {self.line}: {self.what}"


@cache
def sources(*folders: str) -> tuple[Source, ...]:
    paths = sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))
    read = ((path, path.read_text()) for path in paths)
    return tuple(Source(path, text, ast.parse(text)) for path, text in read)


@cache
def nodes_of(source: Source) -> tuple[ast.AST, ...]:
    """Walked once for all rules."""
    return tuple(ast.walk(source.tree))


@cache
def functions(source: Source) -> tuple[Function, ...]:
    return tuple(node for node in nodes_of(source) if isinstance(node, Function))


def package() -> tuple[Source, ...]:
    return sources("litz")


def everything() -> tuple[Source, ...]:
    return sources("litz", "tests")


def length(node: Function | ast.ClassDef) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def depth(node: ast.AST) -> int:
    """How deep blocks nest inside a function. An `elif` is no deeper than its `if`."""
    deepest = 0
    for field, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, Function | ast.ClassDef) or not isinstance(child, ast.AST):
                continue
            is_elif = isinstance(node, ast.If) and field == "orelse" and isinstance(child, ast.If)
            own = 1 if isinstance(child, BLOCKS) and not is_elif else 0
            deepest = max(deepest, own + depth(child))
    return deepest


def imported(node: ast.AST) -> list[str]:
    """The dotted names an import statement asks for; `from a import b` may be module a.b."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return [f"{node.module}.{alias.name}" for alias in node.names]
    return []


def named_by(banned: set[str], name: str) -> bool:
    return any(name == b or name.startswith(f"{b}.") for b in banned)


# The rules: each gives what breaks it.


def too_long() -> Iterator[Breach]:
    for source in everything():
        lines = source.text.count("\n")
        if lines > FILE_LINES:
            yield Breach("long file", source.name, 1, f"{lines} lines")
        for function in functions(source):
            if length(function) > FUNCTION_LINES:
                where = f"{source.name}:{function.name}"
                yield Breach("long function", where, function.lineno, f"{length(function)} lines")
        for node in nodes_of(source):
            if isinstance(node, ast.ClassDef) and length(node) > CLASS_LINES:
                where = f"{source.name}:{node.name}"
                yield Breach("long class", where, node.lineno, f"{length(node)} lines")


def too_wide() -> Iterator[Breach]:
    for source in everything():
        for number, line in enumerate(source.text.splitlines(), 1):
            if len(line) > COLUMNS:
                yield Breach("wide line", source.name, number, f"{len(line)} columns")


def too_deep() -> Iterator[Breach]:
    for source in everything():
        for function in functions(source):
            if depth(function) > NESTING:
                where = f"{source.name}:{function.name}"
                yield Breach("nesting", where, function.lineno, f"{depth(function)} blocks deep")


def local_imports() -> Iterator[Breach]:
    for source in everything():
        for function in functions(source):
            for node in ast.walk(function):
                names = imported(node)
                if names and not all(named_by(OPTIONAL, name) for name in names):
                    where = f"{source.name}:{function.name}"
                    yield Breach("local import", where, node.lineno, ", ".join(names))


def import_law() -> Iterator[Breach]:
    for source in package():
        if source.room not in LAW and source.room not in SEE_ALL:
            yield Breach("import law", source.name, 1, f"give {source.room!r} a row in LAW")
        for node in nodes_of(source):
            if isinstance(node, ast.ImportFrom) and node.level:
                yield Breach("import law", source.name, node.lineno, "a relative import")
                continue
            for name in imported(node):
                root, room = f"{name}.".split(".")[:2]
                allowed = LAW.get(source.room, set()) | {source.room}
                if root == "litz" and room not in allowed and source.room not in SEE_ALL:
                    yield Breach("import law", source.name, node.lineno, f"imports {name}")


def banned_imports() -> Iterator[Breach]:
    for source in package():
        for node in nodes_of(source):
            for name in imported(node):
                if named_by(BANNED_IMPORTS, name):
                    yield Breach("banned import", source.name, node.lineno, name)
            if isinstance(node, ast.Attribute) and node.attr == "_inductor":
                yield Breach("banned import", source.name, node.lineno, ast.unparse(node))


def banned_names() -> Iterator[Breach]:
    for source in everything():
        if BANNED_NAMES.fullmatch(source.path.name):
            yield Breach("banned name", source.name, 1, "name it after what it holds")


def missing_docstrings() -> Iterator[Breach]:
    for source in everything():
        if source.tree.body and not ast.get_docstring(source.tree):
            yield Breach("docstring", source.name, 1, "say what goes in and what comes out")


def unfinished() -> Iterator[Breach]:
    for source in everything():
        for token in tokenize.generate_tokens(io.StringIO(source.text).readline):
            if token.type == tokenize.COMMENT and UNFINISHED.search(token.string):
                yield Breach("unfinished", source.name, token.start[0], token.string)


def unread_flags() -> Iterator[Breach]:
    """A flag exists because some stage reads `config.name`, or names it in a table."""
    nodes = [n for s in package() if s.room != "config" for n in nodes_of(s)]
    read = {ast.unparse(n).rpartition("config.")[2] for n in nodes if isinstance(n, ast.Attribute)}
    read |= {str(n.value) for n in nodes if isinstance(n, ast.Constant)}
    for name in sorted(set(FLAGS) - read):
        yield Breach("unread flag", name, 1, "no stage reads it")


def unplaced_tensors() -> Iterator[Breach]:
    """A tensor without a device lies wherever the program says: `torch.set_default_device`."""
    for source in package():
        for node in nodes_of(source):
            if source.room in TOOLS or not isinstance(node, ast.Call):
                continue
            name, named = ast.unparse(node.func), {keyword.arg for keyword in node.keywords}
            if name in FACTORIES and not {"device", None} & named:  # None is a **
                yield Breach("no device", source.name, node.lineno, name)


def own_seeds() -> Iterator[Breach]:
    """Numbers of tests follow from `LITZ_TEST_SEED`, those of programs in their strings too."""
    for source in sources("tests"):
        if source.name == "tests/draws.py":
            continue
        for found in SEEDS.finditer(source.text):
            number = source.text.count("\n", 0, found.start()) + 1
            yield Breach("own seed", source.name, number, "draw by tests/draws.py")


def recognised_again() -> Iterator[Breach]:
    """Patterns are derived where steps are made; whoever comes later reads their tags."""
    for source in package():
        for node in nodes_of(source):
            for name in imported(node):
                module, _, function = name.rpartition(".")
                asks = module == "litz.ir.recognise" and source.name not in RECOGNISERS
                derives = function in DERIVING and source.room != "ir"
                if asks or derives:
                    yield Breach("recognised again", source.name, node.lineno, name)


def device_tests() -> Iterator[Breach]:
    """Whoever asks which target it is would have to be changed for the next one."""
    for source in package():
        if source.room in TOOLS or source.name in KNOW_DEVICES:
            continue
        for node in nodes_of(source):
            if isinstance(node, ast.expr) and _tells_devices(node):
                yield Breach("device test", source.name, node.lineno, ast.unparse(node))


def _tells_devices(node: ast.expr) -> bool:
    if isinstance(node, ast.Compare):
        return any(_names_device(side) for side in (node.left, *node.comparators))
    if isinstance(node, ast.Attribute):
        return node.attr in ("is_cuda", "is_cpu") or ast.unparse(node).endswith("target.kind")
    if not isinstance(node, ast.Call):
        return False
    called, args = ast.unparse(node.func), node.args
    if called == "isinstance":
        return bool({n.id for n in ast.walk(args[1]) if isinstance(n, ast.Name)} & OF_ONE_TARGET)
    return called.endswith(".startswith") and _names_device(args[0])


def _names_device(side: ast.expr) -> bool:
    if isinstance(side, ast.Constant) and isinstance(side.value, str):
        return side.value.partition(":")[0] in ("cpu", "cuda")
    return isinstance(side, ast.Name) and side.id == "HOST"


RULES: list[Callable[[], Iterator[Breach]]] = [
    too_long,
    too_wide,
    too_deep,
    local_imports,
    import_law,
    banned_imports,
    banned_names,
    missing_docstrings,
    unfinished,
    unread_flags,
    unplaced_tensors,
    own_seeds,
    recognised_again,
    device_tests,
]


@cache
def breaches(rule: Callable[[], Iterator[Breach]]) -> tuple[Breach, ...]:
    """What breaks a rule, looked for once."""
    return tuple(rule())


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_rule(rule: Callable[[], Iterator[Breach]]) -> None:
    broken = [str(b) for b in breaches(rule) if (b.rule, b.where) not in EXCEPTIONS]
    assert not broken, "\n" + "\n".join(broken)


def test_every_exception_is_needed_and_says_why() -> None:
    needed = {(breach.rule, breach.where) for rule in RULES for breach in breaches(rule)}
    assert set(EXCEPTIONS) <= needed
    assert all(EXCEPTIONS.values())


def test_no_module_imports_itself_through_others() -> None:
    """Imports that run when a module loads form no cycle; those for types alone do not run."""
    modules = {source.module for source in package()}
    graph: dict[str, set[str]] = {}
    for source in package():
        running = [node for node in source.tree.body if not isinstance(node, ast.If)]
        names = [name for node in running for name in imported(node)]
        targets = {n if n in modules else n.rpartition(".")[0] for n in names}
        graph[source.module] = targets & modules - {source.module}
    graphlib.TopologicalSorter(graph).prepare()


SINS = """
torch.zeros(3, dtype=torch.uint8)
x.device.type != "cpu" or x.is_cuda or target.kind
name.startswith("cuda") or isinstance(made, DeviceSource)
import pickle
from litz.lower import lower
from litz.ir.recognise import recognised
from . import near
def f(torch):
    import os
    return torch._inductor.config  # TODO: mend
def g():
    for a in b:
        for c in d:
            while e:
                with h:
                    if i:
                        return """


def test_every_rule_finds_what_breaks_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "litz" / "fuse"
    folder.mkdir(parents=True)
    (folder / "utils.py").write_text(SINS + "1 + " * 30 + "1\n" + "\n" * 500)
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_it.py").write_text("torch.manual_seed" + "(0)\n")
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    sources.cache_clear()
    try:
        found = {rule.__name__: [breach.what for breach in rule()] for rule in RULES}
    finally:
        sources.cache_clear()
    assert all(found.values()), found
    assert found["import_law"] == ["imports litz.lower.lower", "a relative import"]
    assert found["banned_imports"] == ["pickle", "torch._inductor"]
    assert found["local_imports"] == ["os"]
    assert len(found["device_tests"]) == 5
    assert found["too_deep"] == ["5 blocks deep"]


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("def f():\n if a:\n  pass\n elif b:\n  pass\n else:\n  pass", 1),
        ("def f():\n for x in y:\n  with z:\n   if a:\n    pass", 3),
        ("def f():\n if a:\n  pass\n else:\n  for b in c:\n   pass", 2),
        ("def f():\n if a:\n  def g():\n   while b:\n    pass", 1),
        ("def f():\n try:\n  pass\n except E:\n  if a:\n   pass", 2),
    ],
)
def test_nesting_is_counted_by_block(code: str, expected: int) -> None:
    assert depth(ast.parse(code).body[0]) == expected
