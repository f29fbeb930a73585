"""The prelude: functions that generated kernels call, copied into the text of those that use them.

In: the text of a kernel. Out: the definitions it needs, in order. A kernel's text is then
self-contained: it can be read, run and compiled alone. Example: a kernel that calls `philox(...)`
gets that function only.
"""

from __future__ import annotations

import re

from litz.ir.philox import MULTIPLIERS, ROUNDS, WEYL

_TEXTS = f'''
def floor_div(x, y):
    """Towards minus infinity; Triton's // goes towards zero. By zero is by one."""
    y = tl.where(y == 0, y + 1, y)
    quotient = x // y
    rest = x - quotient * y
    return tl.where((rest != 0) & ((rest < 0) != (y < 0)), quotient - 1, quotient)


def floor_mod(x, y):
    """The sign follows the divisor."""
    y = tl.where(y == 0, y + 1, y)
    rest = x - x // y * y
    return tl.where((rest != 0) & ((rest < 0) != (y < 0)), rest + y, rest)


def trunc_div(x, y):
    """Towards zero."""
    return x // tl.where(y == 0, y + 1, y)


def float_remainder(x, y):
    """The sign follows the divisor."""
    rest = libdevice.fmod(x, y)
    return tl.where((rest != 0) & ((rest < 0) != (y < 0)), rest + y, rest)


def shift_left(x, y, width: tl.constexpr):
    """Bits that are moved by more than there are, or by less than none, are gone."""
    outside = (y < 0) | (y >= width)
    return tl.where(outside, x - x, x << tl.where(outside, y - y, y))


def shift_right(x, y, width: tl.constexpr):
    """Past the width only the sign is left."""
    outside = (y < 0) | (y >= width)
    amount = tl.where(outside, y - y + (width - 1), y)
    return tl.where(outside & (x >= 0), x - x, x >> amount)


def int_power(x, y):
    """Wraps; of a negative exponent only 1 and -1 leave something."""
    result, base, left = (x - x) + (y - y) + 1, x, tl.where(y < 0, y - y, y)
    for _ in range(63):
        result = tl.where((left & 1) != 0, result * base, result)
        base = base * base
        left = left >> 1
    odd = tl.where((y & 1) != 0, x, x - x + 1)
    small = tl.where(x == 1, x, tl.where(x + 1 == 0, odd, x - x))
    return tl.where(y < 0, small, result)


def sigmoid(x):
    return 1.0 / (1.0 + libdevice.exp(-x))


def to_e4m3(x):
    """What is too large is NaN, of a type without infinities; hardware makes it 448."""
    return tl.where(tl.abs(x) > 464.0, float("nan"), x).to(tl.float8e4nv)


def to_e5m2(x):
    """What is too large is infinite; hardware makes it 57344."""
    bits = x.to(tl.float8e5).to(tl.uint8, bitcast=True)
    infinite = tl.where(x < 0, 0xFC, 0x7C).to(tl.uint8)
    return tl.where(tl.abs(x) >= 61440.0, infinite, bits).to(tl.float8e5, bitcast=True)


def log_add_exp(a, b):
    """Equal infinities have no distance."""
    top = tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)
    return top + libdevice.log1p(libdevice.exp(tl.where(a == b, 0.0, -tl.abs(a - b))))


def nan_max(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


def nan_min(a, b):
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)


def product(a, b):
    return a * b


def first_max(a, i, b, j):
    """The larger with its place: NaN beats all, of equals the first counts."""
    same = (b == a) | ((b != b) & (a != a))
    takes = (b > a) | ((b != b) & (a == a)) | (same & (j < i))
    return tl.where(takes, b, a), tl.where(takes, j, i)


def first_min(a, i, b, j):
    """The smaller with its place: NaN beats all, of equals the first counts."""
    same = (b == a) | ((b != b) & (a != a))
    takes = (b < a) | ((b != b) & (a == a)) | (same & (j < i))
    return tl.where(takes, b, a), tl.where(takes, j, i)


def last_max(a, i, b, j):
    """The larger so far with its place: of equals, and of NaNs, the last counts, in whatever order
    they come: `tl.reduce` keeps none."""
    same = (b == a) | ((b != b) & (a != a))
    takes = (b > a) | ((b != b) & (a == a)) | (same & (j > i))
    return tl.where(takes, b, a), tl.where(takes, j, i)


def last_min(a, i, b, j):
    """The smaller so far with its place: of equals, and of NaNs, the last counts, in whatever order
    they come: `tl.reduce` keeps none."""
    same = (b == a) | ((b != b) & (a != a))
    takes = (b < a) | ((b != b) & (a == a)) | (same & (j > i))
    return tl.where(takes, b, a), tl.where(takes, j, i)


def check_index(index, size, inside, error, site: tl.constexpr):
    """An index outside is noted in the record (litz/ir/checks.py), and zero is used instead."""
    bad = ((index < 0) | (index >= size)) & inside
    place = error + bad.to(tl.int32) * 0
    tl.store(place + 1, index.to(tl.int64) ^ site, bad)
    tl.store(place + 2, (index * 0 + size).to(tl.int64) ^ site, bad)
    tl.store(place, site, bad)
    return tl.where(bad, index * 0, index)


def check(holds, first, second, value, inside, error, site: tl.constexpr):
    """A value whose condition does not hold is noted in the record."""
    bad = (holds == 0) & inside
    place = error + bad.to(tl.int32) * 0
    tl.store(place + 1, first.to(tl.int64) ^ site, bad)
    tl.store(place + 2, (first * 0 + second).to(tl.int64) ^ site, bad)
    tl.store(place, site, bad)
    return value


def philox(seed, counter):
    """64 random bits: see litz/ir/philox.py."""
    k0, k1 = seed.to(tl.uint32), (seed >> 32).to(tl.uint32)
    c0, c1 = counter.to(tl.uint32), (counter >> 32).to(tl.uint32)
    c2, c3 = c0 ^ c0, c0 ^ c0
    for _ in tl.static_range({ROUNDS}):
        high0, low0 = tl.umulhi(c0, {MULTIPLIERS[0]:#x}), c0 * {MULTIPLIERS[0]:#x}
        high1, low1 = tl.umulhi(c2, {MULTIPLIERS[1]:#x}), c2 * {MULTIPLIERS[1]:#x}
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = k0 + {WEYL[0]:#x}, k1 + {WEYL[1]:#x}
    return (c0.to(tl.uint64) | (c1.to(tl.uint64) << 32)).to(tl.int64)
'''

PRELUDE: dict[str, str] = {
    text[4 : text.index("(")]: f"@triton.jit\n{text}" for text in _TEXTS.strip().split("\n\n\n")
}
HEAD = """import triton
import triton.language as tl
from triton.language.extra import libdevice"""


def with_prelude(text: str) -> str:
    """The whole text of a kernel: imports, the functions it uses, and the kernel."""
    words = set(re.findall(r"\w+", text))
    return "\n\n\n".join([HEAD, *(PRELUDE[name] for name in PRELUDE if name in words), text])
