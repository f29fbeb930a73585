"""Accuracy and speed of the inline math functions: the table of `docs/math-accuracy.md`.

In: nothing. Out: `measure() -> [Row]` and `markdown(rows) -> str`. Each function is compiled for
this machine and compared with float64 (f32) or with 60 digits (f64). Example:
`Compiled("exp", "f32", 16)(array)` is exp of a NumPy array, by the IR that kernels inline.
`python -m litz.codegen.llvm.math_accuracy > docs/math-accuracy.md` writes the page.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import llvmlite.binding as llvm
import mpmath as mp  # type: ignore[import-untyped]
import numpy as np
import torch
from numpy.typing import NDArray

from litz.codegen.llvm.builder import Builder, Type, Value
from litz.codegen.llvm.math import MATH, definitions, symbol
from litz.codegen.llvm.math.formats import FORMATS
from litz.ir.ops import OPS

Array = NDArray[Any]
_NUMPY: dict[str, Any] = {"f32": np.float32, "f64": np.float64}
_WORD: dict[str, Any] = {"f32": np.uint32, "f64": np.uint64}
LANES = {"f32": 16, "f64": 8}
SAMPLES = {"f32": 2**24, "f64": 40_000}


def _loop(name: str, dtype: str, lanes: int) -> str:
    """A function that applies `name` to arrays whose length is a multiple of `lanes`."""
    b = Builder(lanes, dtype)
    pointer, index = Type("ptr", 1), Type("i64", 1)
    arrays = [b.parameter(p, pointer) for p in "xyz"]
    count = b.parameter("count", index)
    following = Value("%following", index)
    b.branch("loop")
    b.label("loop")
    i = b.phi([(b.constant(0, index), "entry"), (following, "loop")])
    places = [b.emit(f"getelementptr {b.type.element}, {a}, {i}", pointer) for a in arrays]
    align = f"align {b.type.bits // 8}"
    loads = [b.emit(f"load {b.type}, {p}, {align}", b.type) for p in places[: OPS[name].arity]]
    result = b.call(symbol(name, dtype, lanes), b.type, *loads)
    b.lines.append(f"  store {result}, {places[2]}, {align}")
    b.assign(following, b.add(i, lanes))
    b.branch_if(b.compare("slt", following, count), "loop", "done")
    b.label("done")
    b.lines.append("  ret void")
    parameters = ", ".join(map(str, [*arrays, count]))
    return "\n".join([f"define void @run({parameters}) {{", "entry:", *b.lines, "}"])


def optimized(name: str, dtype: str, lanes: int, machine: llvm.TargetMachine) -> llvm.ModuleRef:
    """The optimized module of `_loop` with its function inlined, for `machine`."""
    text, declares = definitions([(name, dtype, lanes)])
    module = llvm.parse_assembly("\n".join([text, _loop(name, dtype, lanes), *sorted(declares)]))
    module.verify()
    options = llvm.create_pipeline_tuning_options(speed_level=2)
    options.loop_vectorization = options.slp_vectorization = options.loop_unrolling = False
    passes = llvm.create_pass_builder(machine, options)
    passes.getModulePassManager().run(module, passes)
    return module


class Compiled:
    """One math function at one width, as a function of NumPy arrays."""

    def __init__(
        self, name: str, dtype: str, lanes: int, cpu: str = "", features: str = ""
    ) -> None:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        # The engine owns its machine: each needs its own.
        machine = llvm.Target.from_default_triple().create_target_machine(
            cpu=cpu or llvm.get_host_cpu_name(),
            features=features if cpu else llvm.get_host_cpu_features().flatten(),
            opt=2,
        )
        module = optimized(name, dtype, lanes, machine)
        self.lanes, self.dtype = lanes, _NUMPY[dtype]
        self._engine = llvm.create_mcjit_compiler(module, machine)
        self._engine.finalize_object()
        prototype = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3, ctypes.c_int64)
        self.run = prototype(self._engine.get_function_address("run"))

    def __call__(self, x: Array, y: Array | None = None) -> Array:
        count = -(-x.size // self.lanes) * self.lanes
        operands = [np.resize(a, count).astype(self.dtype) for a in (x, x if y is None else y)]
        out = np.empty(count, self.dtype)
        self.run(*(a.ctypes.data for a in (*operands, out)), count)
        return out[: x.size]


def _sigmoid(x: Array) -> Array:
    e = np.exp(-np.abs(x))
    result: Array = np.where(x < 0, e, 1) / (1 + e)
    return result


def _of_torch(function: Callable[..., torch.Tensor]) -> Callable[..., Array]:
    return lambda x: function(torch.from_numpy(np.ascontiguousarray(x))).numpy()


REFERENCES: dict[str, tuple[Callable[..., Array], Callable[..., Any]]] = {
    "exp": (np.exp, mp.exp),
    "exp2": (np.exp2, lambda x: mp.power(2, x)),
    "expm1": (np.expm1, mp.expm1),
    "sigmoid": (_sigmoid, lambda x: 1 / (1 + mp.exp(-x))),
    "log": (np.log, mp.log),
    "log2": (np.log2, lambda x: mp.log(x) / mp.log(2)),
    "log10": (np.log10, mp.log10),
    "log1p": (np.log1p, mp.log1p),
    "sin": (np.sin, mp.sin),
    "cos": (np.cos, mp.cos),
    "tan": (np.tan, mp.tan),
    "asin": (np.arcsin, mp.asin),
    "acos": (np.arccos, mp.acos),
    "atan": (np.arctan, mp.atan),
    "atan2": (np.arctan2, mp.atan2),
    "sinh": (np.sinh, mp.sinh),
    "cosh": (np.cosh, mp.cosh),
    "tanh": (np.tanh, mp.tanh),
    "asinh": (np.arcsinh, mp.asinh),
    "acosh": (np.arccosh, mp.acosh),
    "atanh": (np.arctanh, mp.atanh),
    "erf": (_of_torch(torch.erf), mp.erf),
    "erfc": (_of_torch(torch.erfc), mp.erfc),
    "pow": (np.power, mp.power),
    "fmod": (np.fmod, lambda x, y: mp.sign(x) * mp.fmod(abs(x), abs(y))),
    "hypot": (np.hypot, mp.hypot),
}
"""What each function means: in float64, and with any number of digits."""

_SPECIALS = (0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 0.5, -0.5, 2.0, -2.0, 3.0, -3.0, 1.5)


def specials(dtype: str) -> Array:
    """Zeros, infinities, NaN, small integers, and both ends of the subnormals and the normals."""
    info = np.finfo(_NUMPY[dtype])
    edges = [info.max, info.tiny, info.tiny * 0.75, info.smallest_subnormal, 1 + info.eps]
    return np.array([*_SPECIALS, *edges, *(-e for e in edges)], _NUMPY[dtype])


def samples(name: str, dtype: str, count: int, seed: int = 0) -> list[Array]:
    """Operands: special values (pairs of them), bit patterns at a stride, ordinary numbers."""
    random = np.random.default_rng(seed)
    bits = 32 if dtype == "f32" else 64
    ordinary = (random.standard_normal(count // 3) * 8).astype(_NUMPY[dtype])
    if MATH[name].arity == 1:
        stride = 2**bits // (count - ordinary.size)
        patterns = np.arange(count - ordinary.size, dtype=np.uint64) * np.uint64(stride | 1)
        every = (patterns + np.uint64(seed)).astype(_WORD[dtype]).view(_NUMPY[dtype])
        return [np.concatenate([specials(dtype), every, ordinary])]
    words = random.integers(0, 2**bits, (2, count - ordinary.size), np.uint64, endpoint=False)
    x, y = words.astype(_WORD[dtype]).view(_NUMPY[dtype])
    base = np.exp(ordinary / 2) * random.choice([1, 1, 1, -1], ordinary.size)
    exponent = np.where(random.random(ordinary.size) < 0.3, np.rint(ordinary), ordinary)
    pairs = np.meshgrid(specials(dtype), specials(dtype))
    return [
        np.concatenate([p.ravel(), every, some.astype(_NUMPY[dtype])])
        for p, every, some in zip(pairs, (x, y), (base, random.permutation(exponent)), strict=True)
    ]


def ulp_error(got: Array, want: Array, rest: Array | float = 0.0) -> Array:
    """|got - (want + rest)| in units of the last place of `want` in the type of `got`.

    Infinite where one is NaN and the other not, or where zeros differ in sign. For f32, an infinity
    counts as 2^128, the number after the largest.
    """
    form = FORMATS["f32" if got.dtype == np.float32 else "f64"]
    values = got.astype(np.float64)
    if form.mantissa == 23:
        want, values = (np.clip(a, -(2.0**128), 2.0**128) for a in (want, values))
    size = np.clip(np.nan_to_num(np.abs(want)), form.least_normal, None)
    exponent = np.minimum(np.frexp(size)[1].astype(np.int64) - 1, form.bias)
    unit = np.ldexp(1.0, exponent - form.mantissa)
    with np.errstate(invalid="ignore"):
        error = np.abs((values - want) - rest) / unit
    same = (values == want) & np.isinf(want) | np.isnan(values) & np.isnan(want)
    error = np.where(same, 0.0, np.where(np.isnan(error), np.inf, error))
    wrong_zero = (want == 0) & (values == 0) & (np.signbit(values) != np.signbit(want))
    return np.where(wrong_zero, np.inf, error)


def _more_digits(name: str, operands: list[Array], want: Array) -> tuple[Array, Array]:
    """`want` from 60 digits, as a sum of two float64.

    Where an operand or result is zero or not finite, `want` stays: mpmath has no signed zero.
    """
    high, low = want.copy(), np.zeros_like(want)
    exact = REFERENCES[name][1]
    with mp.workdps(60):
        plain = [np.isfinite(x) & (x != 0) for x in (want, *operands)]
        for i in np.flatnonzero(np.logical_and.reduce(plain)):
            value = exact(*(mp.mpf(float(x[i])) for x in operands))
            high[i] = float(value)
            low[i] = float(value - mp.mpf(float(high[i])))
    return high, low


def errors(name: str, dtype: str, operands: list[Array], got: Array) -> Array:
    """The error of each result, in ULP."""
    with np.errstate(all="ignore"):
        want = REFERENCES[name][0](*(x.astype(np.float64) for x in operands))
    if dtype == "f32":
        return ulp_error(got, want)
    return ulp_error(got, *_more_digits(name, operands, want))


@dataclass(frozen=True)
class Row:
    """One line of the table: the stated error, the largest measured one, nanoseconds an element."""

    name: str
    dtype: str
    stated: float
    measured: float
    worst: tuple[float, ...]
    ns: float
    torch_ns: float


def nanoseconds(call: Callable[[], object], elements: int, turns: int = 64) -> float:
    """The best of several measurements: other processes only add time."""
    best = float("inf")
    for _ in range(9):
        start = time.perf_counter_ns()
        for _ in range(turns):
            call()
        best = min(best, time.perf_counter_ns() - start)
    return best / turns / elements


def _speed(name: str, dtype: str, compiled: Compiled) -> tuple[float, float]:
    """Ours and torch's on one thread, over 4096 elements that stay in the first cache."""
    low, high = (1.0, 8.0) if name in ("acosh", "pow") else (0.01, 0.99)
    wide = {"f32": torch.float32, "f64": torch.float64}[dtype]
    x, y, out = torch.rand(3, 4096, dtype=wide, device="cpu")
    x = x * (high - low) + low
    operands = (x, y)[: MATH[name].arity]
    pointers = [t.data_ptr() for t in (x, y, out)]
    function = getattr(torch, name)
    return (
        nanoseconds(lambda: compiled.run(*pointers, 4096), 4096),
        nanoseconds(lambda: function(*operands, out=out), 4096),
    )


def _row(name: str, dtype: str, count: int) -> Row:
    compiled = Compiled(name, dtype, LANES[dtype])
    operands = samples(name, dtype, count)
    error = errors(name, dtype, operands, compiled(*operands))
    i = int(np.argmax(error))
    worst = tuple(float(x[i]) for x in operands)
    stated = MATH[name].ulp[dtype]
    return Row(name, dtype, stated, float(error[i]), worst, *_speed(name, dtype, compiled))


def measure(names: Iterable[str] = MATH, counts: dict[str, int] = SAMPLES) -> list[Row]:
    """A row for each function and type; a minute or two with the counts given here."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return [_row(name, dtype, count) for dtype, count in counts.items() for name in names]
    finally:
        torch.set_num_threads(threads)


def markdown(rows: list[Row]) -> str:
    """The page `docs/math-accuracy.md`."""
    head = (
        "# Accuracy and speed of the inline math functions\n\n"
        f"Written by `litz.codegen.llvm.math_accuracy` on {llvm.get_host_cpu_name()}, torch "
        f"{torch.__version__}, one thread, 4096 elements. Errors are in units of the last place, "
        f"over {SAMPLES['f32']:,} arguments of f32 against float64 and {SAMPLES['f64']:,} of f64 "
        "against 60 digits, NaN, infinities, signed zeros and subnormals among them. Tests hold "
        "each function to what is stated.\n\n"
    )
    return head + table(rows)


def table(rows: list[Row]) -> str:
    """A line a row."""
    head = (
        "| function | type | stated | largest seen | at | ns an element | torch |\n"
        "| --- | --- | --- | --- | --- | --- | --- |\n"
    )
    return head + "".join(
        f"| {r.name} | {r.dtype} | {r.stated:g} | {r.measured:.3f} "
        f"| {', '.join(f'{x:.9g}' for x in r.worst)} | {r.ns:.2f} | {r.torch_ns:.2f} |\n"
        for r in rows
    )


if __name__ == "__main__":
    print(markdown(measure()), end="")
