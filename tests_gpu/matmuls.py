"""Matrix products of ours on a GPU: `python -m tests_gpu.gemms [PART ...]`.

In: a machine with a GPU; a PATH without a compiler, made here. Out, by part: `forms`, a line for a
check of every form in every type, held against float64; `prologues`, the same with operands that
are computed, and for a weight of bytes the time of each way; `shapes`, for the products of known
models a table of every choice that was timed, over the library's time; and `models` in max-autotune
beside reduce-overhead. It goes on after failures and stops by itself after `BUDGET` seconds.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch._dynamo import list_backends, register_backend

import litz
from litz import compiler
from litz.autotune import Tuning
from litz.backend import litz as backend
from litz.bench.zoo import Scale, first_tensor, workload
from litz.ir.choices import ANY, Choices, GemmChoice
from tests.stages import compiled
from tests_gpu.run import hide_compilers

BUDGET = 95.0  # seconds
SHOWN = 9  # rows of a table
START = time.monotonic()
DEVICE = "cuda"
SMALL = {"height": 64, "width": 64, "step": 64, "warps": 4, "stages": 3}
WIDE = {"height": 128, "width": 256, "step": 64, "warps": 8, "stages": 3}


def left() -> float:
    return BUDGET - (time.monotonic() - START)


@contextmanager
def forced(choice: GemmChoice) -> Iterator[None]:
    """All products as chosen."""
    before = compiler.tune
    compiler.tune = lambda *args: Tuning(Choices(gemms={ANY: choice}))
    try:
        yield
    finally:
        compiler.tune = before


def attempt(name: str, run: Callable[[], str]) -> None:
    if left() < 0:
        print(f"skip  {name}", flush=True)
        return
    begin = time.monotonic()
    try:
        print(f"ok    {name:46} {run()} ({time.monotonic() - begin:.1f} s)", flush=True)
    except Exception as error:
        print(f"FAIL  {name:46} {type(error).__name__}: {str(error).splitlines()[:1]}")
        print("".join(traceback.format_exception(error))[-1800:], flush=True)


# -- every form in every type ----------------------------------------------------------------------


def matrices(dtype: torch.dtype, *shape: int, turned: bool) -> tuple[torch.Tensor, torch.Tensor]:
    *batch, m, k, n = shape
    if dtype is torch.int8:
        make: Any = lambda *s: torch.randint(-90, 90, s, device=DEVICE).to(dtype)  # noqa: E731
    else:
        make = lambda *s: torch.randn(*s, device=DEVICE).to(dtype)  # noqa: E731
    right = make(*batch, n, k).transpose(-1, -2) if turned else make(*batch, k, n)
    return make(*batch, m, k), right


def right_result(dtype: torch.dtype, shape: tuple[int, ...], turned: bool, **given: Any) -> str:
    a, b = matrices(dtype, *shape, turned=turned)
    product = torch._int_mm if dtype is torch.int8 else torch.matmul
    whole = dtype is torch.int8

    def function(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return product(a, b) if whole else product(a, b).relu() * 2

    with forced(GemmChoice(**given)), torch.no_grad():
        run = compiled(function, on_error="raise")
        found = run(a, b)
        torch.cuda.synchronize()
    assert not run.aten_ops, run.aten_ops
    wanted = torch.matmul(a.double(), b.double())
    if not whole:
        wanted = wanted.relu() * 2
    off = ((found.double() - wanted).abs().max() / wanted.abs().max()).item()
    tf32 = torch.backends.cuda.matmul.allow_tf32
    most = {torch.float32: 2e-3 if tf32 else 2e-6, torch.int8: 0.0, torch.float16: 1e-3}
    assert off <= most.get(dtype, 8e-3), f"off by {off:.2e}"
    tilings = [k.choice for r in run.reports for k in r.scheduled]
    used = [(t.descriptors, t.programs, t.precision) for t in tilings if t.depth]
    return f"off {off:.1e} {used}"


def by_rule(m: int, k: int, n: int, what: str) -> str:
    """Short sums: ours without a choice, and right."""
    function, inputs = linear(m, k, n, what)
    with torch.no_grad():
        run = compiled(function, on_error="raise")
        found = run(*inputs)
        wanted = function(*(t.double() for t in inputs))
    assert not run.aten_ops, run.aten_ops
    off = ((found.double() - wanted).abs().max() / wanted.abs().max()).item()
    assert off < 8e-3, f"off by {off:.2e}"
    return f"off {off:.1e}"


def forms() -> None:
    shapes = {"even": (512, 256, 384), "odd": (300, 200, 260), "batch": (6, 96, 128, 160)}
    names = {torch.bfloat16: list(shapes), torch.float16: ["odd"], torch.float32: ["even"]}
    names[torch.int8] = ["even"]  # torch's own product of int8 takes nothing else
    for dtype in names:
        for form in ("TILES", "DESCRIPTORS", "PERSISTENT"):
            for name, shape in shapes.items():
                if name not in names[dtype]:
                    continue
                turned = name != "batch"
                tile = {**SMALL, "step": 16} if dtype is torch.float32 else SMALL
                label = f"{str(dtype)[6:]} {form} {name}"
                attempt(label, lambda d=dtype, s=shape, t=turned, f=form, g=tile: right_result(
                    d, s, t, form=f, **g))  # fmt: skip
    args = (torch.bfloat16, (512, 2048, 384))
    attempt("bf16 in slices", lambda: right_result(*args, True, form="TILES", split_k=4, **SMALL))
    more = {"form": "DESCRIPTORS", "split_k": 4}
    attempt("bf16 in slices, copied", lambda: right_result(*args, True, **more, **SMALL))
    attempt("bf16 wide", lambda: right_result(*args, True, form="PERSISTENT", **WIDE))
    attempt("bf16 right", lambda: right_result(*args, False, form="PERSISTENT", **WIDE))
    attempt("linear by rule", lambda: by_rule(100352, 64, 256, "relu"))
    torch.backends.cuda.matmul.allow_tf32 = True
    single = (torch.float32, (512, 256, 384), True)
    for form in ("TILES", "DESCRIPTORS"):
        attempt(f"tf32 {form}", lambda f=form: right_result(*single, form=f, **SMALL))
    torch.backends.cuda.matmul.allow_tf32 = False


# -- operands that are computed --------------------------------------------------------------------


def int8(x: torch.Tensor, w: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    return x @ (w.to(x.dtype) * s[:, None]).t()


def int4(x: torch.Tensor, w: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    """Two numbers in a byte, a scale for each 32."""
    numbers = torch.stack([w & 15, w >> 4], -1).reshape(len(w), -1, 32)
    return x @ ((numbers.to(x.dtype) - 8) * s[:, None, None]).reshape(len(w), -1).t()


def narrow(m: int, k: int, n: int, bits: int) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    w = torch.randint(-128, 128, (n, k * bits // 8), device=DEVICE).to(torch.int8)
    x, s = half(m, k), half(n) / 8
    return (int8, (x, w, s)) if bits == 8 else (int4, (x, w.view(torch.uint8), s))


COMPUTED: dict[str, tuple[Callable[..., Any], Callable[[], tuple[Any, ...]]]] = {
    "cast": (lambda x, w: x.to(w.dtype) @ w.t(), lambda: (half(300, 256).float(), half(200, 256))),
    "int8": (int8, lambda: narrow(300, 256, 200, 8)[1]),
    "int8, odd": (int8, lambda: narrow(70, 200, 90, 8)[1]),
    "int4": (int4, lambda: narrow(300, 256, 200, 4)[1]),
    "gate": (lambda g, x, w: (F.silu(g) * x) @ w.t(),
             lambda: (half(300, 256) * 8, half(300, 256), half(200, 256))),
    "norm": (lambda x, w: F.rms_norm(x, x.shape[-1:]) @ w.t(),
             lambda: (half(300, 256), half(200, 256))),
    "rows": (lambda x, r, w: x[r] @ w.t(),
             lambda: (half(90, 256), torch.randint(90, (300,), device=DEVICE), half(200, 256))),
}  # fmt: skip


def computed(name: str, form: str) -> str:
    """The operand is part of the product's kernel, and the result is eager's."""
    function, made = COMPUTED[name]
    inputs = made()
    with forced(GemmChoice(form=form, prologue=True, **SMALL)), torch.no_grad():
        run = compiled(function, on_error="raise")
        found = run(*inputs)
        torch.cuda.synchronize()
        wanted = function(*(t.double() if t.dtype.is_floating_point else t for t in inputs))
    assert not run.aten_ops, run.aten_ops
    kernels = [k for r in run.reports for k in r.scheduled]
    assert len(kernels) == (2 if name == "norm" else 1), kernels
    off = ((found.double() - wanted).abs().max() / wanted.abs().max()).item()
    assert off < 1.6e-2, f"off by {off:.2e}"
    return f"off {off:.1e} {[k.choice.descriptors for k in kernels]}"


def ways(m: int, k: int, n: int, bits: int) -> str:
    """Microseconds of a weight of few bits: the quickest of ours with the weight widened inside and
    apart, and the library behind a kernel that widens it."""
    function, inputs = narrow(m, k, n, bits)
    options = {"max_autotune_gemm": True, "max_autotune_report_choices_stats": False,
               "autotune_local_cache": False, "compile_threads": 16, "on_error": "raise",
               "max_autotune_budget_seconds": min(12.0, max(left(), 1.0))}  # fmt: skip
    with torch.no_grad():
        run = compiled(function, **options)
        run(*inputs)
    (report,) = run.reports
    (finding,) = report.tuning.findings
    kinds: dict[str, list[float]] = {"rule": [finding.seconds * 1e6]}
    for trial in finding.trials:
        choice, ratio = trial.choice, trial.ratio
        kind = "library" if choice.backend == "ATEN" else f"prologue={choice.prologue}"
        if ratio is not None and choice.fused:
            kinds.setdefault(kind, []).append(ratio.median * ratio.seconds * 1e6)
    return f"{ {kind: round(min(us), 1) for kind, us in kinds.items()} } -> {finding.choice!r}"


def prologues() -> None:
    for name in COMPUTED:
        for form in ("TILES", "PERSISTENT"):
            attempt(f"{name} {form}", lambda n=name, f=form: computed(n, f))
    for rows in (1, 16, 256):
        attempt(f"int8, {rows} rows", lambda m=rows: ways(m, 4096, 4096, 8))
    attempt("int4, 1 row", lambda: ways(1, 4096, 4096, 4))
    attempt("int4, 16 rows", lambda: ways(16, 4096, 4096, 4))


# -- the products of known models ------------------------------------------------------------------


def half(*shape: int) -> torch.Tensor:
    return (torch.randn(*shape, device=DEVICE) / 8).bfloat16()


def linear(m: int, k: int, n: int, what: str) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """A linear layer and what follows it in a model."""
    x, w, b, r = half(m, k), half(n, k), half(n), half(m, n)
    if what == "gelu":
        return (lambda x, w, b: F.gelu(F.linear(x, w, b))), (x, w, b)
    if what == "norm":
        return (lambda x, w, b, r: F.layer_norm(F.linear(x, w, b) + r, (n,))), (x, w, b, r)
    if what == "add":
        return (lambda x, w, r: F.linear(x, w) + r), (x, w, r)
    if what == "conv":  # single pixels, as ResNet has them; m images of 56 x 56
        x = half(m, k, 56, 56).to(memory_format=torch.channels_last)
        return (lambda x, w, b: F.conv2d(x, w, b).relu()), (x, half(n, k, 1, 1), b)
    if what == "relu":  # a convolution of single pixels, folded norm
        return (lambda x, w, b: F.linear(x, w, b).relu()), (x, w, b)
    return (lambda x, w, b: F.linear(x, w, b)), (x, w, b)


# Rows, sum, columns, what follows; whether every choice is timed.
SHAPES = {
    "BERT up": (4096, 768, 3072, "gelu", True),
    "BERT down": (4096, 3072, 768, "norm", False),
    "BERT out": (4096, 768, 768, "norm", False),
    "BERT qkv": (4096, 768, 2304, "", False),
    "Llama up": (2048, 2048, 11264, "", False),
    "Llama down": (2048, 5632, 2048, "add", False),
    "Llama out": (2048, 2048, 2048, "add", False),
    "ViT up": (6304, 768, 3072, "gelu", False),
    "ResNet 1x1": (100352, 64, 256, "relu", False),
    "ResNet late": (1568, 2048, 512, "relu", False),
    "ResNet 2": (25088, 128, 512, "relu", False),
    "ResNet 3": (6272, 256, 1024, "relu", False),
    "ResNet down": (100352, 256, 64, "relu", False),
    "short, GELU": (100352, 256, 256, "gelu", False),
    "convolution up": (32, 64, 256, "conv", False),
    "convolution down": (32, 256, 64, "conv", False),
    "sixteen rows": (16, 2048, 6144, "", False),
}


def timed(m: int, k: int, n: int, what: str, every: bool) -> str:
    return tried(*linear(m, k, n, what), seconds=20.0 if every else 8.0, every=every)


def tried(
    function: Callable[..., Any], inputs: tuple[Any, ...], seconds: float, every: bool = False
) -> str:
    """What the tuner tried, and how long each way took."""
    options = {
        "max_autotune_gemm": True, "max_autotune_report_choices_stats": False,
        "autotune_local_cache": False, "compile_threads": 16, "on_error": "raise",
        "max_autotune_budget_seconds": min(seconds, max(left(), 1.0)),
        "max_autotune_gemm_search_space": "EXHAUSTIVE" if every else "DEFAULT",
    }  # fmt: skip
    with torch.no_grad():
        run = compiled(function, **options)
        run(*inputs)
    (report,) = run.reports
    lines = []
    for finding in report.tuning.findings:
        rows = finding.table().splitlines()
        lines += [f"{finding.title}, {report.tuning.timed} trials", *rows[: SHOWN + 1]]
        lines += [row for row in rows[SHOWN + 1 :] if "->" in row or "failed" in row][:4]
    lines += [str(d) for d in report.tuning.decisions]
    return "\n        ".join(["", *lines])


def shapes() -> None:
    for name, given in SHAPES.items():
        attempt(name, lambda g=given: timed(*g))


# -- models ----------------------------------------------------------------------------------------


MODELS = {"bert": Scale(768, 12, 4, 32, 128, 224), "resnet50": Scale(768, 12, 12, 32, 128, 224)}
LIBRARY = {"max_autotune_gemm_backends": "ATEN", "max_autotune_conv_backends": "ATEN"}
MODES: dict[str, tuple[str, dict[str, Any]]] = {
    "reduce-overhead": ("reduce-overhead", {}),
    "the library alone": ("reduce-overhead", LIBRARY),
    "max-autotune": ("max-autotune", {}),
}


def tuned(name: str) -> str:
    made = workload(name, MODELS[name], torch.bfloat16)
    model = made.model.to(DEVICE)
    inputs = {k: v.to(DEVICE) if isinstance(v, torch.Tensor) else v for k, v in made.inputs.items()}

    def call(run: Any) -> torch.Tensor:
        with torch.no_grad():
            return first_tensor(run(**inputs))

    wanted, runs, texts = call(model).float(), {}, []
    folder = tempfile.mkdtemp()
    for mode, (known, more) in MODES.items():
        torch._dynamo.reset()
        given = {**litz.list_mode_options(known), **more}
        options = {"on_error": "raise", **given, "cache_dir": folder}
        runs[mode] = torch.compile(model, backend="litz", options=options)
        begin = time.monotonic()
        off = ((call(runs[mode]).float() - wanted).abs().max() / wanted.abs().max()).item()
        texts.append(f"{mode} first call {time.monotonic() - begin:.1f} s, off {off:.4f}")
    taken: dict[str, list[float]] = {mode: [] for mode in MODES}
    for _ in range(7):
        for mode, run in runs.items():
            taken[mode].append(milliseconds(lambda r=run: call(r)))
    texts += [f"{mode} {statistics.median(t):.3f} ms" for mode, t in taken.items()]
    return "\n        ".join(["", *texts])


def milliseconds(run: Callable[[], Any]) -> float:
    for _ in range(3):
        run()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(20):
        run()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / 20


def models() -> None:
    for name in MODELS:
        attempt(f"{name} tuned", lambda n=name: tuned(n))


PARTS: dict[str, Callable[[], None]] = {
    "forms": forms, "prologues": prologues, "models": models, "shapes": shapes
}  # fmt: skip


def main(arguments: list[str]) -> None:
    if "litz" not in list_backends(None):  # the package lies here but is not installed
        register_backend(backend, "litz")
    for name in arguments or PARTS:
        print(f"-- {name} at {time.monotonic() - START:.0f} s", flush=True)
        PARTS[name]()
    print(f"{time.monotonic() - START:.0f} s")


if __name__ == "__main__":
    hide_compilers()
    main(sys.argv[1:])
