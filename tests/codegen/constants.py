"""Constants whose bits are easily lost on their way through text, with ops that show their loss.

In: nothing. Out: `CASES`: for each dtype, groups of results over a tensor of hard values, each an
op with a constant, or a rewrite that must leave every bit as it is. Every op here is exact: each
result is compared with eager's bit for bit. What is not promised, since eager's own differs from
type to type and from machine to machine: sign and payload of a NaN; which of two zeros an extreme
is (`EITHER_ZERO`). The CPU's tests, Triton's interpreter and a real GPU (`python -m tests_gpu.run
constants`) run the same ones. Example: `x / -0.0`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

Function = Callable[..., Any]
HALF_DTYPES = (torch.float16, torch.bfloat16)
FLOATS = (torch.float64, torch.float32, *HALF_DTYPES)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
FP8_DTYPES = (torch.float8_e4m3fn, torch.float8_e5m2)


def hard_values(dtype: torch.dtype) -> list[Any]:
    """Both zeros, denormals, limits, infinities, NaN, and what is not exact in decimal."""
    if dtype is torch.bool:
        return [True, False]
    if not dtype.is_floating_point:
        low, high = torch.iinfo(dtype).min, torch.iinfo(dtype).max
        found = [0, 1, 2, 3, 7, 100, 127, high - 1, high, low, low + 1, -1, -2, -3, -100, -128]
        found += [128, 200, 2**31 - 1, 2**53 + 1, -(2**53) - 1, 2**62 + 1]
        return [n for n in dict.fromkeys(found) if low <= n <= high]
    kind = torch.finfo(dtype)
    denormal = kind.smallest_normal * kind.eps  # the least
    found = [0.0, 1.0, 0.5, 3.0, 0.1, 1 / 3, kind.max, kind.smallest_normal, denormal]
    found += [kind.smallest_normal - denormal, kind.smallest_normal * 1.5, 2.0**20 + 1, math.inf]
    return [*found, *(-n for n in found), math.nan]


def constants(dtype: torch.dtype) -> list[Any]:
    """The numbers that a program may write beside a tensor of a type."""
    if dtype is torch.bool:
        return [True, False]
    if not dtype.is_floating_point:
        return [*hard_values(dtype), True, 2.5, -0.0]
    # Rounded once or twice to another float: 24 bits, a half of what is left, and one more.
    beyond = [2**24 + 1, 2**54 + 2**30 + 1, 2**63 - 1, -(2**63), True, 7, 1e-40, 1e-310, 1e-7]
    return [*hard_values(dtype), *beyond]


# Ops that are tried with every constant; the others with those that text loses most easily.
WITH_ALL = ("x + c", "x * c", "x / c", "c / x", "where c, x", "full", "x == c", "x < c", "x & c")


def is_telling(c: Any) -> bool:
    """Zeros, what is not exact, limits, what is no number, truths, more bits than a double has."""
    if isinstance(c, bool) or c in (0, 0.1, 2.5) or not math.isfinite(c):
        return True
    return abs(c) < 1e-30 or abs(c) > 2**52 or c in (-128, 200, 255, -1)


ARITHMETIC: dict[str, Function] = {
    "x + c": lambda x, c: x + c,
    "c - x": lambda x, c: c - x,
    "x - c": lambda x, c: x - c,
    "x * c": lambda x, c: x * c,
    "tensor": lambda x, c: x + torch.tensor(c, dtype=x.dtype, device=x.device),
    "x / tensor": lambda x, c: x / torch.tensor(c, dtype=x.dtype, device=x.device),
    "wide number": lambda x, c: x - torch.tensor(c, dtype=torch.float64, device=x.device),
}
DIVISION: dict[str, Function] = {
    "x / c": lambda x, c: x / c,
    "c / x": lambda x, c: c / x,
    "x / -full": lambda x, c: x / -torch.full_like(x, c),
    "remainder": lambda x, c: torch.remainder(x, c),
    "fmod": lambda x, c: torch.fmod(x, c),
}
CHOICE: dict[str, Function] = {
    "where c, x": lambda x, c: torch.where(x > 0, c, x),
    "where x, c": lambda x, c: torch.where(x > 0, x, c),
    "masked_fill": lambda x, c: x.masked_fill(x == x, c),
    "maximum": lambda x, c: torch.maximum(x, torch.full_like(x, c)),
    "minimum": lambda x, c: torch.minimum(x, torch.full_like(x, c)),
    "clamp min": lambda x, c: x.clamp(min=c),
    "clamp max": lambda x, c: x.clamp(max=c),
    "threshold": lambda x, c: F.threshold(x, 0, c),
    "pad": lambda x, c: F.pad(x, (1, 2), value=c),
    "full": lambda x, c: torch.full_like(x, c),
    "cat": lambda x, c: torch.cat([x, torch.full((2,), c, dtype=x.dtype, device=x.device)]),
    "copysign": lambda x, c: torch.copysign(x, c),
    "nan_to_num": lambda x, c: torch.nan_to_num(x, nan=c, posinf=c, neginf=c),
}
COMPARISON: dict[str, Function] = {
    "x == c": lambda x, c: x == c,
    "x != c": lambda x, c: x != c,
    "x < c": lambda x, c: x < c,
    "x >= c": lambda x, c: x >= c,
    "x <= wide number": lambda x, c: x <= torch.tensor(c, dtype=torch.float64, device=x.device),
}
EITHER_ZERO = ("maximum", "minimum", "clamp min", "clamp max", "relu", "max(x, -x)")
# A number that a half type does not hold: eager's kernels for a GPU compute these with a float32.
# So does the interpreter with a tensor of no dimensions, which lies on the CPU there.
IN_FLOAT = ("x + c", "c - x", "x - c", "wide number")
BITS: dict[str, Function] = {
    "x & c": lambda x, c: x & c,
    "x | c": lambda x, c: x | c,
    "x ^ c": lambda x, c: x ^ c,
    "x // c": lambda x, c: x // c if c else x,
}
# What the rules of `litz/rewrite` and the passes make shorter, and must not change.
REWRITES: dict[str, Function] = {
    "-x": lambda x: -x,
    "1 / -x": lambda x: 1 / -x,
    "-(-x)": lambda x: torch.neg(-x),
    "x + 0": lambda x: x + 0.0,
    "x + -0": lambda x: x + -0.0,
    "x - 0": lambda x: x - 0.0,
    "x - -0": lambda x: x - -0.0,
    "0 - x": lambda x: 0.0 - x,
    "-0 - x": lambda x: -0.0 - x,
    "x * 0": lambda x: x * 0.0,
    "x * -0": lambda x: x * -0.0,
    "x * 1": lambda x: x * 1.0,
    "x * -1": lambda x: x * -1.0,
    "x / 1": lambda x: x / 1.0,
    "x / -1": lambda x: x / -1.0,
    "x - x": lambda x: x - x,
    "x + -x": lambda x: x + -x,
    "x - -x": lambda x: x - -x,
    "-x * -x": lambda x: -x * -x,
    "-x / -1": lambda x: -x / -(x.abs() + 1),
    "x / x": lambda x: x / x,
    "abs(-x)": lambda x: (-x).abs(),
    "abs(x * x)": lambda x: (x * x).abs(),
    "max(x, x)": lambda x: torch.maximum(x, x),
    "max(x, -x)": lambda x: torch.maximum(x, -x),
    "x ** 0": lambda x: x**0.0,
    "x ** 1": lambda x: x**1.0,
    "x ** 2": lambda x: x**2.0,
    "x ** 3": lambda x: x**3.0,
    "x ** -1": lambda x: x**-1.0,
    "x ** -2": lambda x: x**-2.0,
    "1 / sqrt(x)": lambda x: 1 / x.sqrt(),
    "x / 8": lambda x: x / 8.0,
    "x / -2 ** -20": lambda x: x / -(2.0**-20),
    "x / 2 ** 127": lambda x: x / 2.0**127,
    "x / 3": lambda x: x / 3.0,
    "floor(floor(x))": lambda x: x.floor().floor(),
    "round(trunc(x))": lambda x: x.trunc().round(),
    "sign": torch.sign,
    "where(x > 0, 1, 0)": lambda x: torch.where(x > 0, 1.0, 0.0),
    "where(x == 0, x, -x)": lambda x: torch.where(x == 0, x, -x),
    "(x > 0) * -0": lambda x: (x > 0) * -0.0,
    "flag / -0": lambda x: (x > 0).to(x.dtype) / -0.0,
    "x / -zeros": lambda x: x / -torch.zeros_like(x),
    "zeros / -x": lambda x: torch.zeros_like(x) / -x,
    "zeros * -1": lambda x: x / (torch.zeros_like(x) * -1),
    "relu": torch.relu,
    "x / relu(-x)": lambda x: x / torch.relu(-x.abs()),
    "x == x": lambda x: x == x,
    "~(x < 0)": lambda x: ~(x < 0),
    "where(x > 0, 0, x)": lambda x: torch.where(x > 0, 0.0, x),
    "where(x > 0, x, 7)": lambda x: torch.where(x > 0, x, 7.0),
    "wide where(x > 0, 0, x)": lambda x: torch.where(x.double() > 0, 0.0, x.double()),
    "wide where(x > 0, x, 7)": lambda x: torch.where(x.double() > 0, x.double(), 7.0),
    "isnan(-x)": lambda x: torch.isnan(-x),
    "to and fro": lambda x: x.double().to(x.dtype),
    "signbit": torch.signbit,
}
INTEGER_REWRITES: dict[str, Function] = {
    "-x": lambda x: -x,
    "-(-x)": lambda x: torch.neg(-x),
    "abs": torch.abs,
    "x - x": lambda x: x - x,
    "x * 0": lambda x: x * 0,
    "x * -1": lambda x: x * -1,
    "x + 3 - 3": lambda x: x + 3 - 3,
    "x * 3 * 5": lambda x: x * 3 * 5,
    "x // 1": lambda x: x // 1,
    "x // 4": lambda x: x // 4,
    "x % 4": lambda x: x % 4,
    "x % 1": lambda x: x % 1,
    "x ** 0": lambda x: x**0,
    "x ** 3": lambda x: x**3,
    "~x": lambda x: ~x,
    "x << 3": lambda x: x << 3,
    "x >> 3": lambda x: x >> 3,
    "x / 3": lambda x: x / 3,
    "x * 0.1": lambda x: x * 0.1,
    "x / -0": lambda x: x / -0.0,
    "where(x > 0, 1, 0)": lambda x: torch.where(x > 0, 1, 0),
    "to float": lambda x: x.float(),
    "to double": lambda x: x.double(),
    "to bool": lambda x: x.bool(),
}
TRUTHS: dict[str, Function] = {
    "~x": lambda x: ~x,
    "x & x": lambda x: x & x,
    "x ^ True": lambda x: x ^ True,
    "x * -0": lambda x: x * -0.0,
    "where": lambda x: torch.where(x, -0.0, 0.0),
    "to uint8": lambda x: x.to(torch.uint8) * 255,
    "full": lambda x: torch.full_like(x, 3.5),
}
MOVED: dict[str, Function] = {
    "full": lambda x, c: torch.full(x.shape, c, dtype=x.dtype, device=x.device),
    "where": lambda x, c: torch.where(x.float() > 0, x, torch.full_like(x, c)),
    "cat": lambda x, c: torch.cat([x, torch.full((2,), c, dtype=x.dtype, device=x.device)]),
    "from float": lambda x, c: torch.full(x.shape, c, device=x.device).to(x.dtype),
    "widened": lambda x, c: x.float() + c,
}


@dataclass(frozen=True)
class Case:
    """Results over one tensor of hard values, by name."""

    dtype: torch.dtype
    results: dict[str, Function]

    def given(self, device: str = "cpu") -> torch.Tensor:
        values = hard_values(torch.float32 if self.dtype in FP8_DTYPES else self.dtype)
        wide = torch.float64 if self.dtype.is_floating_point else self.dtype
        return torch.tensor(values, dtype=wide).to(self.dtype).to(device)

    def program(self, x: torch.Tensor) -> list[torch.Tensor]:
        return [function(x) for function in self.results.values()]

    @property
    def options(self) -> dict[str, Any]:
        """Of half types, eager's rounding between two ops."""
        return {"emulate_precision_casts": True} if self.dtype in HALF_DTYPES else {}

    def compare(self, found: Any, device: str = "cpu") -> None:
        """Every bit, but those that are not promised."""
        x = self.given(device)
        wrong = []
        for name, mine, theirs in zip(self.results, found, self.program(x), strict=True):
            assert mine.dtype is theirs.dtype and mine.shape == theirs.shape, name
            if "sqrt" in name and x.dtype is torch.float64:  # MKL's, not always the nearest
                theirs = 1 / torch.from_numpy(np.sqrt(x.cpu().numpy())).to(device)
            apart = ~same_bits(mine, theirs)
            if name.split(", c =")[0] in EITHER_ZERO:
                apart &= (mine != 0) | (theirs != 0)
            if apart.any():
                (k, *_) = apart.nonzero()[:, 0].tolist()
                told = f"{mine[k].item()!r}, eager gives {theirs[k].item()!r}"
                of = x[k].item() if len(x) == len(mine) else k
                wrong.append(f"{name} of {of!r}: {told}")
        assert not wrong, f"{len(wrong)} of {len(self.results)}: " + "; ".join(wrong[:8])


def same_bits(mine: torch.Tensor, theirs: torch.Tensor) -> torch.Tensor:
    """Where two tensors are the same bits, or NaN both."""
    if not theirs.is_floating_point():
        return mine == theirs
    bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[theirs.itemsize]
    both = mine.float().isnan() & theirs.float().isnan()
    return (mine.view(bits) == theirs.view(bits)) | both


def _is_left_out(name: str, c: Any, dtype: torch.dtype) -> bool:
    """Results of which eager, or torch's tracing, is no measure."""
    if name in ("remainder", "fmod") and dtype in (torch.float64, torch.float32):
        return True  # eager's are NaN where the quotient is large
    if name.startswith("clamp") and c != c and torch.__version__ < "2.13":
        return (
            True  # eager drops a bound that is NaN; of two it gives NaN, as 2.13 and we do of one
        )
    # torch makes a double of the number while it traces.
    return name == "masked_fill" and isinstance(c, int) and abs(c) > 2**53


def _with_constants(
    dtype: torch.dtype, table: dict[str, Function], numbers: list[Any]
) -> dict[str, Function]:
    """Each op with each constant, but those that eager refuses."""
    x = Case(dtype, {}).given()
    found: dict[str, Function] = {}
    for name, function in table.items():
        for c in numbers:
            if _is_left_out(name, c, dtype) or not (name in WITH_ALL or is_telling(c)):
                continue
            bound = lambda x, function=function, c=c: function(x, c)  # noqa: E731
            try:
                bound(x)
            except (RuntimeError, ZeroDivisionError, NotImplementedError):
                continue
            found[f"{name}, c = {c!r}"] = bound
    return found


def _cases() -> Iterator[tuple[str, Case]]:
    tables = {"arithmetic": ARITHMETIC, "division": DIVISION, "choice": CHOICE}
    tables["comparison"] = COMPARISON
    for dtype in (*FLOATS, *INTEGERS):
        kind = str(dtype).removeprefix("torch.")
        for name, table in {**tables, **({} if dtype in FLOATS else {"bits": BITS})}.items():
            yield f"{name} of {kind}", Case(dtype, _with_constants(dtype, table, constants(dtype)))
        rewrites = REWRITES if dtype in FLOATS else INTEGER_REWRITES
        if dtype in HALF_DTYPES:  # eager rounds between the products of a power
            rewrites = {n: f for n, f in rewrites.items() if n not in ("x ** 3", "x ** -2")}
        yield f"rewrites of {kind}", Case(dtype, rewrites)
    yield "rewrites of bool", Case(torch.bool, TRUTHS)
    for dtype in FP8_DTYPES:
        numbers = [0.0, -0.0, 1.0, 0.1, 2.0**-9, 2.0**-16, 3 * 2.0**-17, 448.0, 460.0, 57344.0]
        numbers += [-1e-9, math.inf, -math.inf, math.nan]
        kind = str(dtype).removeprefix("torch.")
        yield f"constants of {kind}", Case(dtype, _with_constants(dtype, MOVED, numbers))


CASES: dict[str, Case] = dict(_cases())


def on_a_gpu(case: Case) -> Case:
    """The results that eager's kernels for the CPU have in common with those for a GPU."""
    if case.dtype not in HALF_DTYPES:
        return case

    def is_exact(name: str) -> bool:
        op, _, number = name.partition(", c = ")
        if op not in IN_FLOAT:
            return True
        c = float({"True": 1, "nan": math.nan, "inf": math.inf, "-inf": -math.inf}.get(number, 0)
                  or number)  # fmt: skip
        return c != c or torch.tensor(c, dtype=torch.float64).to(case.dtype).item() == c

    return Case(case.dtype, {n: f for n, f in case.results.items() if is_exact(n)})
