"""The checks of `tests_gpu.run`, by part.

In: `Results`. Out: what they note in it. Everything is held against eager on the same GPU, and
compiled with `on_error="raise"`: a graph that fell back would prove nothing.
"""

from __future__ import annotations

import shutil
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

import litz
from litz.bench.zoo import SMALL, Scale, first_tensor, workload
from tests.codegen.triton.cases import WHOLE
from tests.stages import compiled
from tests_gpu.run import Results

DEVICE = "cuda"
RAISE = {"on_error": "raise"}
# Relative and absolute: eager's halves round after each op, ours where a value is stored.
EXACT = {
    torch.float64: (1e-9, 1e-10),
    torch.float32: (2e-5, 2e-5),
    torch.float16: (1e-2, 1e-2),
    torch.bfloat16: (4e-2, 4e-2),
}
FP8_DTYPES = (torch.float8_e4m3fn, torch.float8_e5m2)
# Sums of halves that eager rounds and ours do not: off by so much of the largest of them.
SUMS = {"one_row_of_bytes"}
OF_LARGEST = 1e-2
# Functions that draw numbers, or whose result is not defined where points meet.
NOT_COMPARED = {"random", "put"}


def tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [t for v in value for t in tensors(v)] if isinstance(value, (tuple, list)) else []


def same(found: Any, wanted: Any, long: bool = False) -> None:
    """Types, shapes and values; `long` sums in other orders differ by more, near zero above all."""
    ours, eager = tensors(found), tensors(wanted)
    assert len(ours) == len(eager)
    for k, (a, b) in enumerate(zip(ours, eager, strict=True)):
        assert a.dtype == b.dtype and a.shape == b.shape, f"result {k}: {a.dtype} {a.shape}"
        assert a.device == b.device, f"result {k} is on {a.device}"
        rtol, atol = EXACT.get(b.dtype, (0, 0))
        if b.dtype in FP8_DTYPES:  # torch compares them as they are on some devices only
            a, b = a.float(), b.float()
        if long and b.dtype is torch.float32:
            rtol, atol = 1e-3, 2e-3
        elif long and b.dtype in (torch.bfloat16, torch.float16):
            atol = OF_LARGEST * float(b.abs().max())
        off = {"rtol": rtol, "atol": atol, "equal_nan": True}
        torch.testing.assert_close(a, b, **off, msg=lambda m, k=k: f"result {k}: {m}")


def moved(value: Any, dtype: torch.dtype | None = None) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    there = value.to(DEVICE)
    return there.to(dtype) if dtype is not None and value.is_floating_point() else there


def agree(
    function: Callable[..., Any], *inputs: Any, long: bool = False, **options: Any
) -> str | None:
    """A function compiled without Dynamo, against eager."""
    ours, eager = ([x.clone() if isinstance(x, torch.Tensor) else x for x in inputs] for _ in "ab")
    with torch.no_grad():
        wanted = function(*eager)
        run = compiled(lambda *args: function(*args), **options)
        found = run(*ours)
        again = run(*[x.clone() if isinstance(x, torch.Tensor) else x for x in inputs])
    torch.cuda.synchronize()
    same(found, wanted, long)
    same(again, wanted, long)
    same(ours, eager)
    return None


def microseconds(run: Callable[[], Any], repeats: int = 30) -> float:
    """GPU time of a call, the median."""
    for _ in range(3):
        run()
    times = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in "ab")
        start.record()
        run()
        end.record()
        end.synchronize()
        times.append(1e3 * start.elapsed_time(end))
    return statistics.median(times)


def host_microseconds(run: Callable[[], Any], repeats: int = 300) -> float:
    """Host time of a call while the GPU keeps up."""
    for _ in range(20):
        run()
    torch.cuda.synchronize()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append(1e6 * (time.perf_counter() - start))
        torch.cuda.synchronize()
    return statistics.median(times)


# -- parts -----------------------------------------------------------------------------------


def facts(results: Results) -> None:
    """The machine, no compiler on its path, a first call, a number of the CPU."""

    def no_compiler() -> str:
        found = [c for c in ("gcc", "cc", "clang", "nvcc", "ptxas") if shutil.which(c)]
        assert not found, found
        import triton

        properties = torch.cuda.get_device_properties(0)
        return f"{properties.name}, torch {torch.__version__}, Triton {triton.__version__}"

    results.check("no compiler", no_compiler)

    def through_torch() -> str:
        x = torch.randn(1000, device=DEVICE)
        start = time.monotonic()
        fast = torch.compile(lambda x: torch.sin(x) + 1, backend="litz", options=RAISE)
        same(fast(x), torch.sin(x) + 1)
        return f"first call {time.monotonic() - start:.2f} s"

    results.check("torch.compile", through_torch)
    x, number = torch.randn(1000, device=DEVICE), torch.tensor(2.5)  # the number is the CPU's
    results.check("a number of the CPU", lambda: agree(lambda x, s: x * s + s, x, number))


def ops(results: Results) -> None:
    """The cases that the interpreter runs, on the GPU."""
    with torch.device(DEVICE):
        for name, (function, inputs) in WHOLE.items():
            if name not in NOT_COMPARED:
                given = [moved(i) for i in inputs]
                run = partial(agree, function, *given, long=name in SUMS)
                results.check(f"op {name}", run)


def dtypes(results: Results) -> None:
    """The floating cases again in the other types."""
    names = ["softmax", "layer_norm", "gelu_linear", "attention", "reduce", "unary", "norms"]
    names += ["cat", "gather", "scatter", "log_softmax", "masked", "scans", "columns", "where"]
    with torch.device(DEVICE):
        for dtype in (torch.bfloat16, torch.float16, torch.float64):
            for name in names:
                function, inputs = WHOLE[name]
                given = [moved(i, dtype) for i in inputs]
                label = f"{str(dtype)[6:]} {name}"
                results.check(label, lambda f=function, g=given: agree(f, *g))


def _timed(function: Callable[..., Any], inputs: list[Any], moved_bytes: int) -> str:
    run = compiled(lambda *args: function(*args))
    with torch.no_grad():
        found, wanted = run(*inputs), function(*inputs)
        same(found, wanted, long=True)
        ours = microseconds(lambda: run(*inputs))
        eager = microseconds(lambda: function(*inputs))
    rate, count = moved_bytes / ours / 1e3, len(run.reports[0].kernels)
    return f"{ours:8.1f} us, eager {eager:8.1f} us, {rate:6.0f} GB/s, {count} kernels"


def sizes(results: Results) -> None:
    """Kernels at the sizes they are for: right, and how fast."""

    def half(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device=DEVICE, dtype=torch.bfloat16)

    def full(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device=DEVICE)

    big, rows, wide = full(1 << 26), half(32768, 768), half(4096, 50304)
    square, index = full(8192, 8192), torch.randint(0, 50000, (16384,), device=DEVICE)
    table, grads = half(50304, 768), half(16384, 768)
    w = half(768)
    odd = full(10007, 1013)
    cases: dict[str, tuple[Callable[..., Any], list[Any], int]] = {
        "add": (lambda x: x + 1, [big], 2 * big.nbytes),
        "silu mul": (lambda a, b: F.silu(a) * b, [wide, wide], 3 * wide.nbytes),
        "layer norm": (lambda x, w: F.layer_norm(x, (768,), w, w), [rows, w], 2 * rows.nbytes),
        "rms norm": (lambda x, w: F.rms_norm(x, (768,), w), [rows, w], 2 * rows.nbytes),
        "softmax rows": (lambda x: x.softmax(-1), [half(16384, 4096)], 2 * 16384 * 4096 * 2),
        "softmax wide": (lambda x: x.softmax(-1), [wide], 2 * wide.nbytes),
        "log softmax wide": (lambda x: x.float().log_softmax(-1), [wide], 3 * wide.nbytes),
        "row sum": (lambda x: x.sum(1), [square], square.nbytes),
        "column sum": (lambda x: x.sum(0), [square], square.nbytes),
        "odd columns": (lambda x: x.mean(0), [odd], odd.nbytes),
        "odd rows": (lambda x: x.amax(1), [odd], odd.nbytes),
        "full mean": (lambda x: x.mean(), [big.abs()], big.nbytes),
        "argmax": (lambda x: x.argmax(1), [square], square.nbytes),
        "transpose": (lambda x: x.t().contiguous() + 1, [square], 2 * square.nbytes),
        "cumsum": (lambda x: x.abs().cumsum(1), [full(8192, 4096)], 2 * 8192 * 4096 * 4),
        "long cumsum": (lambda x: x.cumsum(1), [torch.ones(64, 1 << 18, device=DEVICE)], 1 << 27),
        "embedding": (lambda t, i: F.embedding(i, t), [table, index], 2 * grads.nbytes),
        "embedding grad": (
            lambda g, i: torch.zeros(50304, 768, device=DEVICE).index_put((i,), g.float(), True),
            [grads, index], 50304 * 768 * 4 + grads.nbytes,
        ),
        "dropout like": (lambda x: (x > 0) * x * 1.25, [wide], 2 * wide.nbytes),
        "cross entropy": (
            lambda x, t: F.cross_entropy(x.float(), t), [wide, index[:4096]], wide.nbytes
        ),
    }  # fmt: skip
    for name, (function, inputs, count) in cases.items():
        results.check(f"size {name}", lambda f=function, i=inputs, c=count: _timed(f, i, c))
    results.check("size over 2**31", _far)


def _far() -> str:
    """Places that 32 bits do not hold."""
    x = torch.zeros((1 << 31) + 4096, device=DEVICE, dtype=torch.int8)
    x[-1] = 7
    found = compiled(lambda x: x + 1)(x)
    assert found[-1] == 8 and found[0] == 1 and found.sum(dtype=torch.int64) == x.numel() + 7
    return ""


def launch(results: Results) -> None:
    """What a call and a kernel cost the host."""

    def small() -> str:
        x = torch.ones(8, device=DEVICE)
        texts = []
        for label, options in (("default", RAISE), ("graph", {**RAISE, "triton.cudagraphs": True})):
            fast = torch.compile(lambda x: x + 1, backend="litz", options=options)
            with torch.no_grad():
                texts.append(f"{label} {host_microseconds(lambda f=fast: f(x)):.1f} us")
        texts.append(f"eager {host_microseconds(lambda: x + 1):.1f} us")
        return ", ".join(texts)

    def chain() -> str:
        """Kernels that cannot fuse: each reads all of the one before it."""

        def rounds(x: torch.Tensor, count: int) -> torch.Tensor:
            for _ in range(count):
                x = x - x.sum(0).sum(0) * 1e-3
            return x

        x = torch.randn(64, 64, device=DEVICE)
        costs = {}
        for count in (1, 33):
            run = compiled(lambda x, c=count: rounds(x, c))
            run(x)
            (graph,) = run.graphs
            kernels = len(run.reports[0].kernels)
            costs[kernels] = host_microseconds(lambda g=graph: g([x]))
        (few, cheap), (many, dear) = sorted(costs.items())
        return f"{(dear - cheap) / (many - few):.2f} us a kernel over {many} kernels"

    results.check("launch x + 1", small)
    results.check("launch chain", chain)


SCALES = {
    "bert": Scale(768, 12, 4, 32, 128, 224),
    "gpt2": Scale(768, 12, 4, 8, 512, 224),
    "llama": Scale(2048, 16, 4, 4, 512, 224),
    "vit": Scale(768, 12, 4, 32, 197, 224),
    "resnet": Scale(768, 12, 4, 32, 128, 224),
}
ONE_TOKEN = Scale(2048, 16, 8, 1, 1, 224)


def _model(name: str, scale: Scale, dtype: torch.dtype, modes: tuple[str, ...]) -> str:
    made = workload(name, scale, dtype)
    model = made.model.to(DEVICE)
    inputs = {k: moved(v) for k, v in made.inputs.items()}

    def call(run: Any) -> torch.Tensor:
        with torch.no_grad():
            return first_tensor(run(**inputs))

    wanted = call(model).float()
    texts = [f"eager {microseconds(lambda: call(model)) / 1e3:.2f} ms"] if len(modes) > 1 else []
    for mode in modes:
        torch._dynamo.reset()
        options = {**RAISE, **litz.list_mode_options(mode)}
        fast = torch.compile(model, backend="litz", options=options)
        start = time.monotonic()
        found = call(fast)
        first = time.monotonic() - start
        off = (found.float() - wanted).abs().max() / wanted.abs().max()
        assert off < (0.05 if dtype is torch.bfloat16 else 2e-3), f"{mode}: off by {off:.4f}"
        texts.append(f"{mode} {microseconds(lambda f=fast: call(f)) / 1e3:.2f} ms ({first:.0f} s)")
        again = (call(fast).float() - wanted).abs().max() / wanted.abs().max()
        assert again < (0.05 if dtype is torch.bfloat16 else 2e-3), f"{mode} again: {again:.4f}"
        del fast
    return ", ".join(texts)


def models(results: Results) -> None:
    """Models in bfloat16, by default and with CUDA graphs, and small ones in float32."""
    both = ("default", "reduce-overhead")
    for name, scale in SCALES.items():
        run = partial(_model, name, scale, torch.bfloat16, both)
        results.check(f"model {name} bf16", run)
    results.check("model llama one token", lambda: _model("llama", ONE_TOKEN, torch.bfloat16, both))
    for name in ("bert", "gpt2", "llama", "vit", "resnet", "t5", "mixer", "unet", "lstm", "opt"):
        run = partial(_model, name, SMALL, torch.float32, ("default",))
        results.check(f"small {name} f32", run)


def training(results: Results) -> None:
    """Losses and gradients of six steps, by default and with CUDA graphs."""
    for name in ("gpt2", "vit", "unet"):
        for mode in ("default", "reduce-overhead"):
            results.check(f"train {name} {mode}", lambda n=name, m=mode: _trained(n, m))


def _trained(name: str, mode: str) -> str:
    """The loss and the size of the gradients over a few steps, as eager has them."""

    def losses(wrap: Callable[[Any], Any]) -> list[float]:
        made = workload(name, SMALL)
        model = made.model.to(DEVICE)
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        inputs = {k: moved(v) for k, v in made.inputs.items()}
        optimizer, run, found = torch.optim.SGD(model.parameters(), 0.05), wrap(model), []
        for _ in range(6):
            loss = first_tensor(run(**inputs)).float().square().mean()
            loss.backward()
            grads = [p.grad.norm() for p in model.parameters() if p.grad is not None]
            found += [loss.item(), torch.stack(grads).norm().item()]
            optimizer.step()
            optimizer.zero_grad()
        return found

    torch._dynamo.reset()
    options = {**RAISE, **litz.list_mode_options(mode)}
    ours = losses(lambda m: torch.compile(m, backend="litz", options=options))
    eager = losses(lambda m: m)
    pairs = zip(ours, eager, strict=True)
    assert all(abs(a - b) <= 5e-3 * abs(b) + 1e-6 for a, b in pairs), (ours, eager)
    return f"loss {eager[0]:.4f} -> {eager[-2]:.4f}, ours {ours[-2]:.4f}"


PARTS: dict[str, Callable[[Results], None]] = {
    "facts": facts,
    "launch": launch,
    "sizes": sizes,
    "ops": ops,
    "models": models,
    "training": training,
    "dtypes": dtypes,
}
