"""The demo: `make demo`, or `python -m litz.demo`.

In: nothing; the model is written here and its weights are random. Out: one table on stdout (eager,
Litz and, where a C++ compiler is present, TorchInductor, all in this process) and progress on
stderr. The exit status is 1 if Litz is further than `TOLERANCE` from eager.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from litz.backend import litz
from litz.bench.timing import interleave
from litz.report import Explanation
from litz.target import host

TOLERANCE = 1e-4
COMPILERS = ("c++", "g++", "clang++")
MISSING = "-"

# -- the model -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scale:
    """How large the model and its input are."""

    layers: int = 4
    width: int = 512
    heads: int = 8
    vocabulary: int = 1000
    batch: int = 2
    tokens: int = 128


QUICK = Scale(layers=1, width=64, heads=4, vocabulary=100, tokens=16)


class RMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * weight, over the last axis."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * self.weight


class Attention(nn.Module):
    """Causal self-attention with rotary positions."""

    def __init__(self, scale: Scale) -> None:
        super().__init__()
        self.heads, self.head_width = scale.heads, scale.width // scale.heads
        self.inputs = nn.Linear(scale.width, 3 * scale.width, bias=False)
        self.output = nn.Linear(scale.width, scale.width, bias=False)
        half = torch.arange(self.head_width // 2) / (self.head_width // 2)
        angle = torch.outer(torch.arange(scale.tokens), 10000.0**-half)
        self.register_buffer("cos", angle.cos())
        self.register_buffer("sin", angle.sin())

    def rotated(self, x: Tensor) -> Tensor:
        """Each pair (x[k], x[k + half]) turned by an angle that grows with the position."""
        a, b = x.chunk(2, dim=-1)
        return torch.cat([a * self.cos - b * self.sin, a * self.sin + b * self.cos], dim=-1)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        parts = self.inputs(x).view(batch, tokens, 3, self.heads, self.head_width)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(self.rotated(q), self.rotated(k), v, is_causal=True)
        return self.output(mixed.transpose(1, 2).reshape(batch, tokens, width))


class Block(nn.Module):
    """Attention and a SwiGLU MLP, each behind a norm and beside a residual."""

    def __init__(self, scale: Scale) -> None:
        super().__init__()
        self.norm_attention, self.norm_mlp = RMSNorm(scale.width), RMSNorm(scale.width)
        self.attention = Attention(scale)
        self.gate = nn.Linear(scale.width, 3 * scale.width, bias=False)
        self.up = nn.Linear(scale.width, 3 * scale.width, bias=False)
        self.down = nn.Linear(3 * scale.width, scale.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm_attention(x))
        h = self.norm_mlp(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class LanguageModel(nn.Module):
    """Tokens to the log-probabilities of the token after each."""

    def __init__(self, scale: Scale) -> None:
        super().__init__()
        self.embedding = nn.Embedding(scale.vocabulary, scale.width)
        self.blocks = nn.ModuleList(Block(scale) for _ in range(scale.layers))
        self.norm = RMSNorm(scale.width)
        self.head = nn.Linear(scale.width, scale.vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return F.log_softmax(self.head(self.norm(x)), dim=-1)


# -- the rows --------------------------------------------------------------------------------

Call = Callable[[], Tensor]


@dataclass(frozen=True)
class Row:
    """One way to run the model; None where a number is unknown or does not apply."""

    name: str
    call: Call
    first_call: float | None = None
    kernels: int | None = None
    aten_ops: int | None = None
    difference: float | None = None


class AtenCounter(TorchDispatchMode):
    """Counts the ATen ops that compute something: views are free."""

    count = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.count += not func.is_view
        return func(*args, **(kwargs or {}))


def eager_row(model: nn.Module, tokens: Tensor) -> Row:
    with AtenCounter() as ops:
        model(tokens)
    return Row("eager", partial(model, tokens), aten_ops=ops.count)


def litz_row(model: nn.Module, tokens: Tensor) -> Row:
    notes = Explanation()
    backend = partial(litz, options={"on_error": "raise"}, explanation=notes)
    call, seconds, difference = _first_call(torch.compile(model, backend=backend), model, tokens)
    return Row("Litz", call, seconds, notes.kernels, notes.aten_ops.total(), difference)


def inductor_row(model: nn.Module, tokens: Tensor, folder: str) -> Row:
    """A cold compile: an empty cache folder, and nothing looked up in it."""
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
    compiled = torch.compile(model, backend="inductor", options={"fx_graph_cache": False})
    call, seconds, difference = _first_call(compiled, model, tokens)
    # TorchInductor counts loop nests, of which a C++ function has several. We count calls, so both
    # columns are read off the Python program that it wrote.
    written = "".join(path.read_text() for path in Path(folder).rglob("*.py"))
    kernels = len(re.findall(r"^\s+cpp_fused\w*\(", written, re.MULTILINE))
    aten_ops = len(re.findall(r"\b(?:extern_kernels\.\w+|torch\.ops(?:\.\w+){3})\(", written))
    return Row("TorchInductor", call, seconds, kernels or None, aten_ops or None, difference)


def _first_call(compiled: Any, model: nn.Module, tokens: Tensor) -> tuple[Call, float, float]:
    """The compiled model, the seconds of its first call, its largest difference from eager."""
    expected = model(tokens)
    start = time.perf_counter()
    result = compiled(tokens)
    seconds = time.perf_counter() - start
    return partial(compiled, tokens), seconds, (result - expected).abs().max().item()


# -- the run ---------------------------------------------------------------------------------


@contextmanager
def progress(what: str) -> Iterator[None]:
    """A line on stderr while something is done: a spinner on a terminal, plain text elsewhere."""
    console = Console(stderr=True)
    if console.is_terminal:
        with console.status(what):
            yield
    else:
        print(what, file=sys.stderr, flush=True)
        yield


def table_of(rows: Sequence[Row], seconds: float) -> Table:
    """Time the rows against each other; the finished table."""
    with progress(f"timing {', '.join(row.name for row in rows)} in turns for {seconds:g} s"):
        timings = interleave({row.name: row.call for row in rows}, seconds)
    table = Table(header_style="bold")
    table.add_column("")
    for title in ("ms a call", "first call s", "kernels", "ATen ops", "largest difference"):
        table.add_column(title, justify="right")
    for row in rows:
        table.add_row(
            row.name, f"{timings[row.name].median_ms:.2f}", _known(row.first_call, ".2f"),
            _known(row.kernels), _known(row.aten_ops), _known(row.difference, ".1e"),
        )  # fmt: skip
    return table


def _known(value: float | None, form: str = "") -> str:
    return MISSING if value is None else format(value, form)


def run(scale: Scale, seconds: float, left_out: str) -> bool:
    """Compile, time, print; whether Litz agrees with eager. `left_out` says why there is no row of
    TorchInductor."""
    torch.manual_seed(0)
    model = LanguageModel(scale).eval()
    tokens = torch.randint(0, scale.vocabulary, (scale.batch, scale.tokens))
    rows = [eager_row(model, tokens)]
    with progress("compiling with Litz"):
        rows.append(litz_row(model, tokens))
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        if not left_out:
            with progress("compiling with TorchInductor (its C++ takes a while)"):
                try:
                    rows.append(inductor_row(model, tokens, folder))
                except Exception as error:  # whatever it is, the other rows still stand
                    left_out = str(error).partition("\n")[0]
        table = table_of(rows, seconds)
    _print(scale, table, left_out)
    difference = rows[1].difference
    return difference is not None and difference <= TOLERANCE


def _print(scale: Scale, table: Table, left_out: str) -> None:
    machine = host()
    out = Console(width=None if sys.stdout.isatty() else 100, highlight=False, markup=False)
    out.print(
        f"A language model of {scale.layers} layers, width {scale.width}, {scale.batch} x "
        f"{scale.tokens} tokens, float32.\n"
        f"{machine.threads} threads of {machine.name}, torch {torch.__version__}; medians of "
        "interleaved calls."
    )
    out.print(table)
    if left_out:
        out.print(f"TorchInductor is left out: {left_out}")
    out.print("Try next:")
    out.print("  LITZ_DEBUG=3 make demo            what fused, what did not, and why")
    out.print("  .venv/bin/python -m litz options  every flag, its default and its meaning")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m litz.demo", description="Litz beside eager.")
    parser.add_argument("--quick", action="store_true", help="a tiny model, eager and Litz alone")
    quick = parser.parse_args(arguments).quick
    left_out = "" if any(map(shutil.which, COMPILERS)) else "it needs a C++ compiler"
    with torch.no_grad():
        agrees = run(QUICK, 0.2, "--quick") if quick else run(Scale(), 10, left_out)
    if not agrees:
        print(f"Litz differs from eager by more than {TOLERANCE}", file=sys.stderr)
    return 0 if agrees else 1


if __name__ == "__main__":
    sys.exit(main())
