"""Code and its constants are reached by 32 bits: wherever the system puts memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent

# Before each object is loaded, all small holes are filled, and one of so many pages is left far
# from the next free place, so that one section fits into it and the next one does not.
CROWDED = """
import ctypes
import llvmlite.binding as llvm
import torch
import litz
import litz.build
from litz.build.llvm import load_object

libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
PRIVATE, FAR, PAGE = 0x4022, 6 << 30, 4096  # anonymous, without a promise of memory

def reserve(size):
    return libc.mmap(None, size, 0, PRIVATE, -1, 0)

objects = []
def remembered(code, names):
    objects.append((code, names))
    return load_object(code, names)
litz.build.load_object = remembered
x = torch.rand(100)
def function(x):
    return torch.lgamma(x.exp()) + torch.digamma(x) + x.cos()
torch.testing.assert_close(torch.compile(function, backend="litz")(x), function(x))

link = llvm.JITLibraryBuilder.link
def crowded(*given):
    for size, count in ((PAGE, 3000), (16 * PAGE, 300)):
        for _ in range(count):
            reserve(size)
    at = reserve(FAR)
    libc.munmap(at + FAR - hole, hole)
    return link(*given)
llvm.JITLibraryBuilder.link = crowded
kept = []
for pages in range(1, 30):
    hole = pages * PAGE
    kept.append(load_object(*objects[0]))
print(len(kept))
"""


def test_sections_lie_close_together() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CROWDED], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0 and done.stdout.strip() == "29", done.stderr[-3000:]
