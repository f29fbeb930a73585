"""The command `python -m litz ops`.

In: part of a name, and a format. Out: the op table on stdout.
"""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from litz.optable import load
from litz.optable.page import page

_PIPE_WIDTH = 200  # columns of a table that goes to a file or a pipe


def ops(
    op: Annotated[str, typer.Option(help="Only ops whose name contains this.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print a list of objects.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print a page of docs.")] = False,
) -> None:
    """List every op: generated or ATen's, in which dtypes, and why."""
    table = load()
    if markdown:
        print(page(table))
        return
    rows = [row for row in table.rows if op in row.op]
    if as_json:
        print(json.dumps([row.as_dict() for row in rows], indent=2))
        return
    shown = Table("op", "how", "dtypes", "left to ATen", box=None, header_style="bold")
    for row in rows:
        left = f"{', '.join(row.left)} ({row.why})" if row.left else ""
        shown.add_row(row.op, row.how, row.types, left)
    width = None if sys.stdout.isatty() else _PIPE_WIDTH
    Console(width=width, highlight=False, markup=False).print(shown)
    ran, generated = table.promised
    ratio = f"{100 * table.generated_ratio:.1f} %"
    print(f"\n{len(generated)} of the {len(ran)} promised ops ({ratio}) are")
    print("generated in every dtype. docs/ops.md has the whole of it.")
