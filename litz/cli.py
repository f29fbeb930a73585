"""The command line: `python -m litz COMMAND`, or `litz COMMAND`.

In: a command. Out: a table on stdout; a mistake is one line on stderr and exit status 1. The
commands read the same values as the Python interface. Example: `python -m litz options --json`.
"""

from __future__ import annotations

import json
import platform
import shutil
import sys
from importlib import metadata
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from litz import config
from litz.config import FLAGS, Flag, allowed_text, type_text
from litz.errors import MissingDependency, UserError
from litz.optable.command import ops

app = typer.Typer(
    help="Litz, a compiler for PyTorch programs.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(ops)
_NEEDED = ("torch", "llvmlite", "numpy")
_COMPILERS = ("c++", "g++", "clang++", "cl")
_FINDS = Path("litz_fuzz")
_OFTEN = 250  # programs between two progress lines, if stdout is no terminal
_PIPE_WIDTH = 180  # columns of a table that goes to a file or a pipe


@app.command()
def options(
    as_json: Annotated[bool, typer.Option("--json", help="Print a list of objects.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print a page of docs.")] = False,
) -> None:
    """List every flag: its type, default, stage and meaning."""
    now = config.snapshot()
    if markdown:
        print(_page())
        return
    if as_json:
        print(
            json.dumps([_described(flag, flag.value_in(now)) for flag in FLAGS.values()], indent=2)
        )
        return
    table = Table("flag", "type", "default", "stage", "meaning", box=None, header_style="bold")
    for flag in FLAGS.values():
        allowed = allowed_text(flag)
        meaning = f"{flag.sentence} ({allowed})" if allowed else flag.sentence
        value = flag.value_in(now)
        default = str(flag.default) + ("" if value == flag.default else f" (now {value})")
        table.add_row(flag.name, type_text(flag), default, flag.stage, meaning)
    _print(table)
    print("\nAn environment variable sets any of them: LITZ_CPP_THREADS=1 is cpp.threads = 1.")


@app.command()
def modes() -> None:
    """List the modes of torch.compile with the flags each sets."""
    table = Table("mode", "flags", box=None, header_style="bold")
    for mode, flags in config.list_mode_options().items():
        table.add_row(mode, ", ".join(f"{name}={value}" for name, value in flags.items()))
    _print(table)


@app.command()
def env() -> None:
    """Show what Litz finds here: versions, the processor, a C++ compiler."""
    table = Table(box=None, show_header=False)
    for name, value in _facts():
        table.add_row(name, value)
    _print(table)


def _in_a_folder(path: Path | None) -> Path | None:
    """Check early that a file's folder exists: measuring, which comes first, may take hours."""
    if path is not None and not path.absolute().parent.is_dir():
        raise typer.BadParameter(f"there is no folder {path.parent}")
    return path


@app.command()
def bench(
    suite: Annotated[str, typer.Option(help="Suites, separated by commas, or all.")] = "cpu",
    against: Annotated[str, typer.Option(help="Candidates to hold it against.")] = "inductor,eager",
    models: Annotated[str, typer.Option(help="Only the models or cases of these names.")] = "",
    threads: Annotated[int | None, typer.Option(min=1, help="Threads of torch.")] = None,
    seconds: Annotated[float | None, typer.Option(min=0, help="Timing of each case.")] = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="Fresh processes of a kind.")] = None,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds of one fresh process.")] = 600,
    quick: Annotated[bool, typer.Option("--quick", help="Small models, few samples.")] = False,
    html: Annotated[
        Path | None, typer.Option(callback=_in_a_folder, help="Write a page with charts.")
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", callback=_in_a_folder, help="Write all samples.")
    ] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print tables of docs.")] = False,
    saved: Annotated[
        list[Path] | None,
        typer.Option("--from", exists=True, help="Show saved samples; measure nothing."),
    ] = None,
) -> None:
    """Time Litz beside other compilers: interleaved, checked, ratios first."""
    # Imported here because it needs torch and llvmlite, whose absence `main` reports.
    from litz.bench import command

    outputs = command.Outputs(html, json_file, markdown)
    if saved:
        raise typer.Exit(command.show(command.read(saved), outputs))
    settings = command.settings(_words(against), seconds, rounds, timeout, threads, quick)
    raise typer.Exit(command.bench(_words(suite), _words(models), settings, outputs))


def _words(text: str) -> tuple[str, ...]:
    """The parts of a list with commas."""
    return tuple(word.strip() for word in text.split(",") if word.strip())


@app.command()
def fuzz(
    seconds: Annotated[float, typer.Option(help="How long to look.")] = 60.0,
    seed: Annotated[int, typer.Option(help="Program k has this seed plus k.")] = 0,
    programs: Annotated[int | None, typer.Option(help="Stop after so many.")] = None,
    bounds: Annotated[bool, typer.Option(help="Check every access of generated code.")] = False,
    store: Annotated[Path, typer.Option(help="Folder for the scripts of failures.")] = _FINDS,
    device: Annotated[str, typer.Option(help="What the code is for: cpu or cuda.")] = "cpu",
    jobs: Annotated[int, typer.Option(help="Processes side by side.", min=1)] = 1,
    coverage: Annotated[
        bool, typer.Option("--coverage", help="Show what was reached, and what was not.")
    ] = False,
) -> None:
    """Look for wrong code with random programs; shrink and store what fails."""
    # Imported here because it needs the whole compiler, which the other commands do not.
    from litz import fuzz as fuzzing

    console = Console(highlight=False, markup=False, soft_wrap=True)
    with console.status("starting") as status:

        def said(tally: fuzzing.Tally, find: fuzzing.Find | None) -> None:
            status.update(str(tally))
            if find is not None:
                where = fuzzing.store(find, store)
                console.print(f"{find.failure}\n  {where or 'like others before it'}")
            elif not console.is_terminal and tally.programs % _OFTEN == 0:
                console.print(str(tally))

        options = {"debug_index_asserts": True} if bounds else {}
        tally = fuzzing.hunt(seed, seconds, programs, said, options, device, jobs, coverage)
    for table in fuzzing.tables(tally.coverage) if coverage else ():
        _print(table)
    console.print(str(tally))
    if tally.is_void:
        console.print("most programs were excluded: this hunt says nothing")
    if tally.finds or tally.is_void:
        raise typer.Exit(1)


def _facts() -> list[tuple[str, str]]:
    """What `env` prints, in order."""
    versions = [(name, _version(name)) for name in _NEEDED]
    # Imported here because it needs llvmlite, whose absence `_version` reports first.
    from litz.target import host

    target = host()
    compiler = next(filter(None, map(shutil.which, _COMPILERS)), "none")
    return [
        ("litz", _version("litz")),
        ("python", platform.python_version()),
        *versions,
        ("processor", target.name),
        ("vector width", f"{8 * target.vector_bytes} bits"),
        ("threads", str(target.threads)),
        ("C++ compiler", f"{compiler} (not needed)"),
    ]


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        raise MissingDependency(package) from None


def _described(flag: Flag, value: object) -> dict[str, object]:
    """A flag as JSON; a value that is a function, which has no JSON, becomes its text."""
    return {
        "name": flag.name,
        "type": type_text(flag),
        "default": flag.default,
        "value": str(value) if callable(value) else value,
        "allowed": allowed_text(flag),
        "env": flag.env,
        "stage": flag.stage,
        "affects_code": flag.affects_code,
        "sentence": flag.sentence,
    }


def _page() -> str:
    """The flags as the Markdown table of docs/options.md: defaults, not the values now set."""
    rows = ["| flag | type | default | stage | meaning |", "| --- | --- | --- | --- | --- |"]
    for flag in FLAGS.values():
        allowed = allowed_text(flag)
        meaning = flag.sentence + (f" Allowed: {allowed}." if allowed else "")
        kind = type_text(flag).replace("|", "\\|")
        rows.append(f"| `{flag.name}` | {kind} | `{flag.default!r}` | {flag.stage} | {meaning} |")
    return "\n".join(rows)


def _print(table: Table) -> None:
    width = None if sys.stdout.isatty() else _PIPE_WIDTH
    Console(width=width, highlight=False, markup=False).print(table)


def main() -> None:
    """Run one command. A user's mistake prints one line, not a traceback."""
    try:
        app()
    except UserError as error:
        raise SystemExit(f"litz: {error}") from None
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _NEEDED:
            raise
        raise SystemExit(f"litz: {MissingDependency(package)}") from None
