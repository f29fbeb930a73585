"""Suite `gemm`: linear layers of known models at 1 to 1024 rows, float32.

In: nothing. Out: a case for each layer and number of rows, some with their epilogue in the model
(GELU, a residual), and `fma peak`. Litz is compared with eager, which is MKL, with oneDNN with
packed weights, and with Inductor. The facts: `GFLOP/s` of Litz, and `% of peak`, relative to a
loop of multiply-adds in the same run. Example: `bert up 256 rows`.
"""

from __future__ import annotations

import statistics
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from litz.autotune.peak import Peak
from litz.bench.calls import measure_calls, running_on
from litz.bench.case import Case, Program, Say, Settings, Suite
from litz.bench.results import OURS, Row
from litz.bench.timing import interleave

PEAK, ONEDNN = "fma peak", "onednn"
# Inputs and outputs of layers; a convolution as its GEMM, with channels times window.
LAYERS = {
    "bert attention": (768, 768),
    "bert up": (768, 3072),
    "bert down": (3072, 768),
    "gpt2 qkv": (768, 2304),
    "llama attention": (2048, 2048),
    "llama gate": (2048, 5632),
    "llama down": (5632, 2048),
    "t5 up": (512, 2048),
    "t5 down": (2048, 512),
    "vit head": (768, 1000),
    "resnet 3x3": (576, 64),
    "resnet 1x1": (256, 1024),
}
ROWS = (1, 4, 16, 64, 256, 1024)
QUICK_ROWS = (4, 64)
# The epilogue of a layer, and the layers and rows at which it is measured.
EPILOGUES = {"gelu": "bert up", "residual": "bert down"}
BEHIND_ROWS = (16, 256, 1024)


class Layer(nn.Module):
    """A linear layer and its epilogue, if any."""

    def __init__(self, inputs: int, outputs: int, behind: str = "") -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)
        self.behind = behind

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        y: Tensor = self.linear(x)
        if self.behind == "gelu":
            return F.gelu(y)
        return y if residual is None else y + residual


def layer(name: str, rows: int, behind: str = "") -> Program:
    """A layer with random weights on random rows."""
    torch.manual_seed(0)
    inputs, outputs = LAYERS[name]
    model = Layer(inputs, outputs, behind).eval()
    extra = (torch.randn(rows, outputs),) if behind == "residual" else ()
    return Program(model, (torch.randn(rows, inputs), *extra))


def cases(quick: bool) -> list[Case]:
    plain = [(name, rows, "") for name in LAYERS for rows in (QUICK_ROWS if quick else ROWS)]
    followed = [
        (name, rows, behind)
        for behind, name in EPILOGUES.items()
        for rows in (QUICK_ROWS if quick else BEHIND_ROWS)
    ]
    found = [Case("gemm", PEAK, "", _nothing, measure_peak)]
    for name, rows, behind in plain + followed:
        title = f"{name} {behind}".strip()
        build = partial(layer, name, rows, behind)
        found.append(Case("gemm", title, f"{rows} rows", build, measure, beside=(ONEDNN,)))
    return found


# -- how they are measured ---------------------------------------------------------------------


def _nothing() -> Program:
    return Program(tuple)


def measure(case: Case, settings: Settings, say: Say) -> list[Row]:
    return measure_calls(case, settings, say, metric="short call", facts=work)


def work(program: Program) -> dict[str, float]:
    """Multiplications and additions of the GEMM."""
    inputs, outputs = program.function.linear.weight.shape  # type: ignore[attr-defined]
    return {"MFLOP": 2e-6 * inputs * outputs * len(program.args[0])}


def measure_peak(case: Case, settings: Settings, say: Say) -> list[Row]:
    say("timing")
    with running_on(settings.threads):
        peak = Peak(torch.get_num_threads())
        samples = interleave({OURS: peak}, settings.seconds)[OURS].samples
    row = Row(case.suite, case.name, case.variant, "short call", {OURS: samples})
    return [row.with_facts({"MFLOP": 1e-6 * peak.flops})]


def finish(rows: list[Row]) -> list[Row]:
    """Add Litz's rate, and its fraction of the peak."""
    peaks = [rate(row) for row in rows if row.case == PEAK and OURS in row.samples]
    return [_with_rates(row, peaks[0] if peaks else None) for row in rows]


def rate(row: Row) -> float:
    """GFLOP/s of Litz."""
    return row.facts["MFLOP"] / 1e3 / statistics.median(row.samples[OURS])


def _with_rates(row: Row, peak: float | None) -> Row:
    if OURS not in row.samples:
        return row
    share = {"% of peak": 100 * rate(row) / peak} if peak else {}
    return row.with_facts({"GFLOP/s": rate(row), **share})


SUITE = Suite("Linear layers of known models, 1 to 1024 rows: the time of a call.", cases, finish)
