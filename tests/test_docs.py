"""The documents are true: their programs run, their output is what is printed, their names exist.

In: README.md and docs/*.md. A python block runs in the namespace of its document; the text block
behind it is what it prints. A console block is commands with their output, shortened by `...`.
What is generated (output, the lists in layout.md, options.md, errors.md and ops.md) is rewritten by

    python tests/test_docs.py            # or, one document: python tests/test_docs.py ops.md
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import inspect
import io
import itertools
import linecache
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from litz import config, errors
from litz.codegen.llvm.ops import OP_EMITTERS
from litz.config import FLAGS
from litz.ir.ops import OPS
from litz.lower.registry import RULES
from litz.optable import load
from litz.optable.page import page
from litz.passes import PASSES
from litz.target import DEVICES
from litz.targets import TOOLCHAINS

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
DOCUMENTS = [README, *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
# What differs from run to run: times, and the widths that columns of times give to lines.
VARIES = re.compile(r"\d+(\.\d+)? (ms|s)\b|\s+")


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text, the line its text begins on, its place."""

    language: str
    text: str
    line: int
    start: int
    end: int


def blocks(text: str) -> list[Block]:
    return [
        Block(m["language"], m["text"], text[: m.start("text")].count("\n") + 1,
              m.start("text"), m.end("text"))
        for m in FENCE.finditer(text)
    ]  # fmt: skip


@dataclass(frozen=True)
class Printed:
    """What a python block printed, and the text block that should say so."""

    block: Block
    shown: Block | None
    output: str


def executed(path: Path) -> list[Printed]:
    """Run the python blocks of a document, line numbers as in the document."""
    text = path.read_text()
    found = blocks(text)
    namespace: dict[str, object] = {"__name__": "__main__"}
    linecache.cache[path.name] = (len(text), None, text.splitlines(keepends=True), path.name)
    results = []
    for block, after in itertools.pairwise([*found, None]):
        if block is not None and block.language == "python":
            placed = "\n" * (block.line - 1) + block.text
            code = compile(placed, path.name, "exec", dont_inherit=True)
            with contextlib.redirect_stdout(io.StringIO()) as out:
                exec(code, namespace)
            shown = after if after is not None and after.language == "text" else None
            results.append(Printed(block, shown, out.getvalue()))
    return results


@contextlib.contextmanager
def kept_tables() -> Iterator[None]:
    """The documents add an op, a pass and a target; nothing of that outlives them."""
    tables: list[dict[Any, Any]] = [OPS, OP_EMITTERS, RULES, DEVICES, TOOLCHAINS]
    before, passes = [dict(table) for table in tables], list(PASSES)
    torch._dynamo.reset()
    try:
        with config.patch(debug_poison_memory=False):  # which the suite sets, and no reader
            yield
    finally:
        for table, kept in zip(tables, before, strict=True):
            table.clear()
            table.update(kept)
        PASSES[:] = passes
        torch._dynamo.reset()


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_programs_print_what_the_document_says(path: Path) -> None:
    with kept_tables():
        results = executed(path)
    for printed in results:
        where = f"{path.name}:{printed.block.line}"
        expected = printed.shown.text if printed.shown else ""
        assert printed.output == expected, f"{where}; python tests/test_docs.py rewrites the output"


# Commands


def commands(path: Path) -> list[tuple[str, str]]:
    """(command, its output as shown) of the console blocks."""
    found = []
    for block in blocks(path.read_text()):
        if block.language == "console":
            for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
                command, _, shown = part.partition("\n")
                found.append((command, shown))
    return found


CONSOLE = [(path, *pair) for path in DOCUMENTS for pair in commands(path)]


@pytest.mark.parametrize(
    ("path", "command", "shown"), CONSOLE, ids=[command for _, command, _ in CONSOLE]
)
def test_commands_print_what_the_document_says(
    path: Path, command: str, shown: str, tmp_path: Path
) -> None:
    """`program.py` is the document's first program. Lines that are not `...` come in that order."""
    programs = [b.text for b in blocks(path.read_text()) if b.language == "python"]
    (tmp_path / "program.py").write_text(programs[0] if programs else "")
    search = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=tmp_path,
        env={**os.environ, "PATH": search, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout
    actual = iter(VARIES.sub(" ", line).strip() for line in done.stdout.splitlines())
    for line in shown.splitlines():
        wanted = VARIES.sub(" ", line).strip()
        assert wanted == "..." or wanted in actual, f"{line!r} is not in\n{done.stdout}"


def test_make_targets_exist() -> None:
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for path in DOCUMENTS:
        shell = [b.text for b in blocks(path.read_text()) if b.language in ("sh", "console")]
        for name in re.findall(r"\bmake (\w+)", "\n".join([*shell, *quoted(path)])):
            assert name in targets, f"{path.name}: make {name}"


# Names


def quoted(path: Path) -> list[str]:
    """What a document puts in backticks, outside its blocks."""
    return re.findall(r"`([^`\n]+)`", FENCE.sub("", path.read_text()))


def resolves(name: str) -> bool:
    """Whether a dotted name is a module or an attribute of one."""
    module, _, attribute = name.rpartition(".")
    with contextlib.suppress(ImportError):
        importlib.import_module(name)
        return True
    return bool(module) and resolves(module) and hasattr(_found(module), attribute)


def _found(name: str) -> object:
    if name in sys.modules:
        return sys.modules[name]
    module, _, attribute = name.rpartition(".")
    return getattr(_found(module), attribute)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_names_exist(path: Path) -> None:
    variables = {flag.env for flag in FLAGS.values()}
    for name in quoted(path):
        if re.fullmatch(r"litz(\.\w+)+", name) and not name.endswith(".py"):
            assert resolves(name), name
        if re.fullmatch(r"(litz|tests|docs)/[\w./-]*", name):
            assert (ROOT / name).exists(), name
        for variable in re.findall(r"\bLITZ_[A-Z_]+[A-Z]", name):
            assert variable in variables, variable


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", path.read_text()):
        assert (path.parent / target).exists(), target


# What is generated


def layout() -> str:
    """One line for each file of the package: its docstring's first."""
    lines: list[str] = []
    folder = None
    for source in sorted((ROOT / "litz").rglob("*.py"), key=_reading_order):
        if source.parent != folder:
            folder = source.parent
            lines += ["", f"## {folder.relative_to(ROOT).as_posix()}/", ""]
        first = (ast.get_docstring(ast.parse(source.read_text())) or "").partition("\n")[0]
        if first:
            lines.append(f"- `{source.relative_to(ROOT).as_posix()}`: {first}")
    return "\n".join(lines) + "\n"


STAGES = ["capture", "passes", "lower", "fuse", "plan", "schedule", "codegen", "build", "runtime"]


def _reading_order(source: Path) -> tuple[int, str, bool, str]:
    """The package, what all stages share, the stages as data flows; a package before its files."""
    parts = source.relative_to(ROOT / "litz").parts[:-1]
    shared = ["ir", "rewrite", "config"]
    order = ["", *shared, *STAGES]
    room = parts[0] if parts else ""
    rank = order.index(room) if room in order else len(order)
    return rank, "/".join(parts), source.name != "__init__.py", source.name


def options() -> str:
    done = subprocess.run(
        [sys.executable, "-m", "litz", "options", "--markdown"],
        cwd=ROOT,
        env={k: v for k, v in os.environ.items() if not k.startswith("LITZ_")},
        capture_output=True,
        text=True,
        check=True,
    )
    return f"\n{done.stdout}"


def error_pages() -> str:
    """The docstring of each error, under its name, in order of declaration."""
    declared = [c for c in vars(errors).values() if isinstance(c, type)]
    classes = [c for c in declared if issubclass(c, errors.LitzError)]
    parts = []
    for each in classes:
        bases = ", ".join(f"`{base.__name__}`" for base in each.__bases__)
        parts.append(f"\n## {each.__name__}\n\nBases: {bases}.\n\n{inspect.getdoc(each)}\n")
    return "".join(parts)


def op_table() -> str:
    return f"{page(load())}\n"


MARK = "<!-- generated by tests/test_docs.py from here on -->\n"
GENERATED = {
    "layout.md": layout,
    "options.md": options,
    "errors.md": error_pages,
    "ops.md": op_table,
}


@pytest.mark.parametrize("name", GENERATED)
def test_generated_documents_are_up_to_date(name: str) -> None:
    _, mark, tail = (ROOT / "docs" / name).read_text().partition(MARK)
    assert mark and tail == GENERATED[name](), "python tests/test_docs.py rewrites it"


def rewrite(only: list[str]) -> None:
    """Put what is printed and generated now into the documents, or into those named."""
    for name, generate in GENERATED.items():
        if only and name not in only:
            continue
        path = ROOT / "docs" / name
        head, mark, _ = path.read_text().partition(MARK)
        path.write_text(head + mark + generate())
    for path in DOCUMENTS:
        if only and path.name not in only:
            continue
        text = path.read_text()
        with kept_tables():
            results = executed(path)
        for printed in reversed(results):
            if printed.shown is not None:
                text = text[: printed.shown.start] + printed.output + text[printed.shown.end :]
        path.write_text(text)


if __name__ == "__main__":
    rewrite(sys.argv[1:])
