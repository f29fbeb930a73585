"""What ptxas makes of a kernel, where it is known to make something else."""

from __future__ import annotations

import base64
import subprocess
from pathlib import Path
from typing import Any

import pytest

from litz.build.triton_worker import compiled, without_packed_16x2

triton = pytest.importorskip("triton")
TOOL = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "nvdisasm"

# Remainders of bytes, 17 of them in 32 places: the last place of a thread but one is empty, and
# that half of a register is known to be 0 (found by the fuzzer on a GPU, seed 54000540).
TEXT = """
import triton
import triton.language as tl

@triton.jit
def floor_mod(x, y):
    y = tl.where(y == 0, y + 1, y)
    rest = x - x // y * y
    return tl.where((rest != 0) & ((rest < 0) != (y < 0)), rest + y, rest)

@triton.jit
def check_index(index, size, inside, error, site: tl.constexpr):
    bad = ((index < 0) | (index >= size)) & inside
    place = error + bad.to(tl.int32) * 0
    tl.store(place + 1, index.to(tl.int64) ^ site, bad)
    tl.store(place + 2, (index * 0 + size).to(tl.int64) ^ site, bad)
    tl.store(place, site, bad)
    return tl.where(bad, index * 0, index)

@triton.jit
def remainders(b0, b1, b2, error):
    x = (tl.program_id(0)) * 16 + tl.arange(0, 16)[:, None]
    x_in = x < 51
    r = tl.arange(0, 32)[None, :]
    r_in = r < 17
    v0 = tl.load(b1 + (r * 2 + x // 3 * 35), x_in & r_in, other=0)
    v1 = v0.to(tl.int64)
    v2 = floor_mod(v1, tl.full((), 3, tl.int64))
    v3 = check_index(v2, tl.full((), 3, tl.int64), x_in & r_in, error, 3186730966344481)
    v4 = v3 * 3
    v5 = (x % 3) + v4
    v6 = tl.load(b2 + v5, x_in & r_in, other=0)
    v7 = tl.where(r_in, v6, 0.0)
    v8 = tl.sum(v7, 1, keep_dims=True)
    tl.store(b0 + x, v8, x_in)
"""
JOB: dict[str, Any] = {
    "text": TEXT, "name": "remainders", "pointers": ["*fp32", "*i8", "*fp32", "*i64"],
    "aligned": 3,
    "warps": 1, "stages": 1, "fp_fusion": False, "capability": 90,
}  # fmt: skip


def test_halves_of_a_register_are_added_one_by_one(tmp_path: Path) -> None:
    cubin = tmp_path / "code.cubin"
    cubin.write_bytes(base64.b64decode(compiled(JOB)["code"]))
    text = subprocess.run([TOOL, "-c", cubin], capture_output=True, text=True, check=True).stdout
    assert "16x2" not in text
    added = [line for line in text.splitlines() if "VIADD" in line and line.endswith(" 0x3 ;")]
    assert len(added) == 9  # one for each place of a thread that holds anything


@pytest.mark.parametrize("operand", ["%r49", "196611"])
def test_the_text_of_halves(operand: str) -> None:
    packed = f"\tmov.b32 %r1, 2;\n\tmin.s16x2 \t%r51, %r47, {operand};\n"
    text = without_packed_16x2(packed)
    assert "16x2" not in text and text.startswith("\tmov.b32 %r1, 2;\n\t{")
    assert f"mov.b32 %whole1, {operand};" in text
    assert "min.s16 %half5, %half1, %half3;" in text
    assert text.endswith("mov.b32 %r51, {%half4, %half5}; }\n")
    assert without_packed_16x2(text) == text
