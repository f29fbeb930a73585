"""Single kernels on a GPU: `python -m tests_gpu.singles [--eager] [CASE ...]`.

In: a machine with a GPU; for TorchInductor's column a C compiler, which `--eager` does without.
Out: a table of microseconds of the GPU a call: eager, TorchInductor, Litz by its rules, with shared
rows, with block pointers, and the quickest of the candidate tilings, with that tiling. Calls are
queued behind a kernel that keeps the GPU busy, so that the time of the host is not measured. Every
result is held against eager first.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F

from litz.build import build_launcher, load_launcher
from litz.build.triton import _cubin, _job, worker_count
from litz.build.workers import WORKERS
from litz.call import plan_call
from litz.config import snapshot
from litz.ir.scheduled import ScheduledKernel, Tiling
from litz.ir.source import Cubin, DeviceObject, DeviceSource
from litz.schedule.tile import candidates, neighbours
from litz.target import Target, target_for
from litz.trace import Trace
from tests.stages import Stages, staged, through_aot
from tests.toolchain import drive, emit, link

BUDGET = 110.0  # seconds
MOST_CANDIDATES = 14
BUSY = 4_000_000  # cycles: about two milliseconds, while the host queues calls
FLAGS = ("triton.cooperative_reductions", "triton.use_block_ptr")
EXACT = {torch.float32: (1e-3, 2e-2), torch.bfloat16: (2e-2, 2e-2)}
START = time.monotonic()

Function = Callable[..., Any]


def half(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


def full(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device="cuda")


def places(*shape: int) -> torch.Tensor:
    return torch.randint(0, 50000, shape, device="cuda")


# The function, and what makes its inputs.
CASES: dict[str, tuple[Function, Callable[[], list[torch.Tensor]]]] = {
    "add": (lambda x: x + 1, lambda: [full(1 << 26)]),
    "silu mul": (lambda a, b: F.silu(a) * b, lambda: [half(4096, 11008), half(4096, 11008)]),
    "gelu": (lambda x: F.gelu(x), lambda: [half(4096, 12288)]),
    "transpose": (lambda x: x.t().contiguous() + 1, lambda: [full(8192, 8192)]),
    "layer norm 768": (
        lambda x, w: F.layer_norm(x, (768,), w, w), lambda: [half(32768, 768), half(768)]),
    "rms norm 4096": (
        lambda x, w: F.rms_norm(x, (4096,), w), lambda: [half(8192, 4096), half(4096)]),
    "softmax 4096": (lambda x: x.softmax(-1), lambda: [half(16384, 4096)]),
    "softmax 1013": (lambda x: x.softmax(-1), lambda: [half(65536, 1013)]),
    "softmax 50304": (lambda x: x.softmax(-1), lambda: [half(4096, 50304)]),
    "softmax 50257": (lambda x: x.softmax(-1), lambda: [half(4096, 50257)]),
    "log softmax 50304": (lambda x: x.float().log_softmax(-1), lambda: [half(4096, 50304)]),
    "cross entropy": (
        lambda x, t: F.cross_entropy(x.float(), t), lambda: [half(4096, 50304), places(4096)]),
    "row sum": (lambda x: x.sum(1), lambda: [full(8192, 8192)]),
    "row amax odd": (lambda x: x.amax(1), lambda: [full(40028, 1013)]),
    "row sum odd half": (lambda x: x.sum(1), lambda: [half(20014, 3001)]),
    "row amax 30000": (lambda x: x.amax(1), lambda: [full(4096, 30000)]),
    "short rows": (lambda x: x.sum(1), lambda: [full(1 << 20, 50)]),
    "few rows": (lambda x: x.sum(1), lambda: [full(100, 600001)]),
    "sixteen rows": (lambda x: x.sum(1), lambda: [half(16, 1 << 22)]),
    "full sum": (lambda x: x.sum(), lambda: [full(1 << 26)]),
    "small sum": (lambda x: x.sum(), lambda: [full(1 << 21)]),
    "argmax all": (lambda x: x.argmax(), lambda: [full(1 << 26)]),
    "argmax rows": (lambda x: x.argmax(1), lambda: [full(8192, 8192)]),
    "column sum": (lambda x: x.sum(0), lambda: [full(8192, 8192)]),
    "column mean odd": (lambda x: x.mean(0), lambda: [full(40028, 1013)]),
    "bias gradient": (lambda x: x.float().sum(0), lambda: [half(32768, 768)]),
    "column softmax": (lambda x: x.softmax(0), lambda: [full(512, 65536)]),
    "cumsum": (lambda x: x.abs().cumsum(1), lambda: [full(8192, 4096)]),
    "long cumsum": (lambda x: x.cumsum(1), lambda: [torch.ones(64, 1 << 18, device="cuda")]),
    "embedding": (lambda t, i: F.embedding(i, t), lambda: [half(50304, 768), places(65536)]),
    "max pool": (lambda x: F.max_pool2d(x, 3, 2, 1), lambda: [half(32, 64, 112, 112)]),
}  # fmt: skip


@dataclass
class Variant:
    """A function compiled with one choice of flags and tilings."""

    label: str
    made: Stages
    scheduled: list[ScheduledKernel[Tiling]]
    source: DeviceSource
    call: Callable[..., Any] | None = None
    time: float = 0.0

    @property
    def tiling(self) -> str:
        return short(self.scheduled[0].choice)


@dataclass
class Row:
    """A case: its variants, and what others take."""

    name: str
    function: Function
    inputs: list[torch.Tensor]
    variants: list[Variant] = field(default_factory=list)
    eager: float = 0.0
    inductor: float = 0.0


def short(tiling: Tiling) -> str:
    """What differs from kernel to kernel."""
    parts = [str(tiling.blocks), f"row {tiling.row}", f"warps {tiling.warps}"]
    parts += [f"stages {tiling.stages}"] if tiling.stages > 1 else []
    parts += [f"share {tiling.rsplit}"] if tiling.rsplit > 1 else []
    return " ".join(parts)


def stages_of(function: Function, inputs: list[Any], target: Target, config: Any) -> Stages:
    found: list[Stages] = []

    def compiler(module: torch.fx.GraphModule) -> Function:
        found.append(staged(module, target, config, inputs))
        return module.forward  # type: ignore[no-any-return]

    with torch.no_grad():
        through_aot(lambda *args: function(*args), compiler)(*inputs)
    return found[0]


def variants_of(row: Row, devices: Callable[[Any], Target]) -> list[Variant]:
    """By the rules; with each flag that changes something; in other tilings."""
    plain = snapshot({})
    target = devices(plain)
    made = stages_of(row.function, row.inputs, target, plain)
    found = [_variant("rule", made, made.scheduled, target)]
    for name in FLAGS:
        config = snapshot({name: True})
        other = stages_of(row.function, row.inputs, devices(config), config)
        one = _variant(name.rpartition(".")[2], other, other.scheduled, devices(config))
        if {k.text for k in one.source.kernels} != {k.text for k in found[0].source.kernels}:
            found.append(one)
    first, *rest = made.scheduled
    tilings = [*candidates(first), *neighbours(first, first.choice), *candidates(first, wide=True)]
    for tiling in list(dict.fromkeys(tilings))[1:MOST_CANDIDATES]:
        chosen = [replace(first, choice=tiling), *rest]
        found.append(_variant("tiles", made, chosen, target))
    return found


def _variant(label: str, made: Stages, scheduled: list[Any], target: Target) -> Variant:
    source = emit(made.plan, scheduled, target)
    assert isinstance(source, DeviceSource)
    return Variant(label, made, scheduled, source)


def build_all(rows: list[Row], target: Target) -> None:
    """All kernels of all variants, as many at a time as there are processors."""
    capability = int(target.name.removeprefix("sm_"))
    every = [(v, k) for row in rows for v in row.variants for k in v.source.kernels]
    jobs = {(k.text, k.warps, k.stages): k for _, k in every}
    with ThreadPoolExecutor(2 * worker_count(0)) as pool:
        results = pool.map(WORKERS.run, [_job(k, capability) for k in jobs.values()])
        cubins = {key: _cubin(k, r) for (key, k), r in zip(jobs.items(), results, strict=True)}
    for row in rows:
        for v in row.variants:
            made = {k.name: cubins[k.text, k.warps, k.stages] for k in v.source.kernels}
            v.call = _linked(v, made, target)


def _linked(variant: Variant, cubins: dict[str, Cubin], target: Target) -> Callable[..., Any]:
    plan, constants, config = variant.made.plan, variant.made.graph.constants, snapshot({})
    call = plan_call(plan, variant.source, constants, config, target)
    source = drive(variant.source, call, target)
    code = DeviceObject(cubins, build_launcher(source, config, Trace()))
    graph = link(call, load_launcher(source, code), constants, config, target)
    return lambda *inputs: graph.call(list(inputs))


def microseconds(run: Callable[[], Any]) -> float:
    """GPU time of a call: the best of several queues of calls."""
    for _ in range(3):
        run()
    torch.cuda.synchronize()
    times = []
    for _ in range(4):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in "ab")
        torch.cuda._sleep(BUSY)
        begin.record()
        for _ in range(10):
            run()
        end.record()
        end.synchronize()
        times.append(100 * begin.elapsed_time(end))
    return min(times)


def check(row: Row, variant: Variant, wanted: torch.Tensor) -> None:
    """Sums in another order differ by more where they come out near zero."""
    assert variant.call is not None
    for _ in range(2):
        (found,) = variant.call(*row.inputs)
        rtol, atol = EXACT.get(wanted.dtype, (0.0, 0.0))
        off = {"rtol": rtol, "atol": atol}
        torch.testing.assert_close(found, wanted, **off, msg=lambda m: f"{variant.tiling}: {m}")


def measure(row: Row, inductor: bool) -> None:
    with torch.no_grad():
        wanted = row.function(*row.inputs)
        row.eager = microseconds(lambda: row.function(*row.inputs))
        for v in row.variants:
            try:
                check(row, v, wanted)
                v.time = microseconds(lambda v=v: v.call(*row.inputs))
            except Exception as error:
                v.time = float("inf")
                text = str(error).strip().replace("\n", " ")
                print(f"WRONG {row.name} {v.label} {v.tiling}: {text[:300]}", flush=True)
        if inductor and time.monotonic() - START < BUDGET * 0.85:
            row.inductor = microseconds(_inductor(row))


def _inductor(row: Row) -> Callable[[], Any]:
    fast = torch.compile(row.function, backend="inductor")
    return lambda: fast(*row.inputs)


def line(row: Row) -> str:
    rule = row.variants[0]
    named = {v.label: f"{v.time:.1f}" for v in row.variants}
    best = min((v for v in row.variants if v.label in ("rule", "tiles")), key=lambda v: v.time)
    moved = sum(t.nbytes for t in row.inputs) + sum(
        t.nbytes for t in [row.function(*row.inputs)] if isinstance(t, torch.Tensor)
    )
    cells = [row.name, f"{row.eager:.1f}", f"{row.inductor:.1f}" if row.inductor else ""]
    cells += [f"{rule.time:.1f}", f"{moved / rule.time / 1e3:.0f}", rule.tiling]
    cells += [named.get(name.rpartition(".")[2], "") for name in FLAGS]
    cells += [f"{best.time:.1f}", best.tiling if best is not rule else "the rule's"]
    return f"| {' | '.join(cells)} |"


def main(arguments: list[str]) -> int:
    wanted = [a for a in arguments if not a.startswith("-")]
    rows = [Row(name, function, inputs()) for name, (function, inputs) in CASES.items()
            if name in (wanted or CASES)]  # fmt: skip
    devices = lambda config: target_for([torch.device("cuda:0")], config)  # noqa: E731
    for row in rows:
        row.variants = variants_of(row, devices)
    print(f"{sum(len(r.variants) for r in rows)} variants at {time.monotonic() - START:.0f} s")
    build_all(rows, devices(snapshot({})))
    print(f"built at {time.monotonic() - START:.0f} s\n", flush=True)
    flags = [name.rpartition(".")[2] for name in FLAGS]
    heads = ["case", "eager", "Inductor", "Litz", "GB/s", "tiling", *flags, "best", "its tiling"]
    print(f"| {' | '.join(heads)} |\n|{' --- |' * len(heads)}")
    for row in rows:
        measure(row, "--eager" not in arguments)
        print(line(row), flush=True)
    for row in rows:
        others = sorted((v for v in row.variants if v.label == "tiles"), key=lambda v: v.time)[:4]
        print(f"{row.name}: " + "; ".join(f"{v.time:.1f} {v.tiling}" for v in others))
    ratios = [r.eager / r.variants[0].time for r in rows]
    print(f"\neager / Litz: geometric mean {statistics.geometric_mean(ratios):.2f}, "
          f"least {min(ratios):.2f}")  # fmt: skip
    print(f"{time.monotonic() - START:.0f} s")
    return int(any(v.time == float("inf") for r in rows for v in r.variants))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
