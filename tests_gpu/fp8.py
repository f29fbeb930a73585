"""Floats of eight bits on a GPU: `python -m tests_gpu.fp8 [casts] [products] [times]`.

In: a machine with a GPU of sm_90 or later; a PATH without a compiler, made here. Out: a line for
each check: conversions of every value against eager on that GPU, bit for bit; scaled products of
ours in every form against cuBLAS and float64; and a table of every choice that was timed. It goes
on after failures and stops by itself after the budget of `tests_gpu.matmuls`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch._dynamo import list_backends, register_backend

from litz.backend import litz as backend
from litz.ir import fp8
from litz.ir.choices import GemmChoice
from tests.codegen.test_fp8 import BYTES, check, floats
from tests.stages import compiled
from tests_gpu.matmuls import DEVICE, attempt, forced, tried
from tests_gpu.run import hide_compilers

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
WIDER = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
TILE = {"height": 64, "width": 64, "step": 128, "warps": 4, "stages": 3}
WIDE = {"height": 128, "width": 128, "step": 128, "warps": 8, "stages": 4}


# -- conversions -----------------------------------------------------------------------------------


def ours(function: Callable[..., Any], *inputs: torch.Tensor) -> Any:
    with torch.no_grad():
        run = compiled(function, on_error="raise")
        found = run(*inputs)
    torch.cuda.synchronize()
    assert not run.aten_ops, run.aten_ops
    return found


def widened(dtype: torch.dtype, to: torch.dtype) -> str:
    x = BYTES.to(DEVICE).view(dtype)
    exact = {"rtol": 0, "atol": 0, "equal_nan": True}
    torch.testing.assert_close(ours(lambda x: x.to(to), x), x.to(to), **exact)
    return "all 256"


def narrowed(dtype: torch.dtype, source: torch.dtype) -> str:
    """Every bf16 or f16 there is; of f32, the halfway points and many more."""
    if source.itemsize == 2:
        x = torch.arange(-(1 << 15), 1 << 15).to(torch.int16).view(source).to(DEVICE)
    else:
        x = floats(dtype).to(source).to(DEVICE)
    check(ours(lambda x: x.to(dtype), x).cpu(), x.to(dtype).cpu())
    return f"{len(x)} values"


def saturation() -> str:
    """Eager on this GPU is taken to do with large numbers what it does on the CPU."""
    there = torch.tensor(480.0, device=DEVICE).to(E4M3).float().item()
    assert (there == 448.0) == fp8.saturates(), there
    return f"480 becomes {there}"


def casts() -> None:
    attempt("large numbers", saturation)
    for dtype in (E4M3, E5M2):
        for other in WIDER:
            names = str(dtype)[6:], str(other)[6:]
            attempt(f"{names[0]} to {names[1]}", lambda d=dtype, o=other: widened(d, o))
            attempt(f"{names[1]} to {names[0]}", lambda d=dtype, o=other: narrowed(d, o))


# -- products --------------------------------------------------------------------------------------


def scaled(out: torch.dtype) -> Callable[..., torch.Tensor]:
    def function(x: Any, w: Any, a: Any, b: Any, *bias: Any) -> torch.Tensor:
        return torch._scaled_mm(x, w.t(), a, b, *bias, out_dtype=out)

    return function


def operands(
    m: int, k: int, n: int, kinds: tuple[torch.dtype, torch.dtype], rowwise: bool
) -> tuple[torch.Tensor, ...]:
    x, w = (torch.randn(r, k, device=DEVICE).to(d) for r, d in zip((m, n), kinds, strict=True))
    shapes = ((m, 1), (1, n)) if rowwise else ((), ())
    return x, w, *(torch.rand(s, device=DEVICE) + 0.5 for s in shapes)


def right_result(
    shape: tuple[int, int, int], kinds: tuple[torch.dtype, torch.dtype] = (E4M3, E4M3),
    rowwise: bool = False, out: torch.dtype = torch.bfloat16, biased: bool = False, **given: Any,
) -> str:  # fmt: skip
    inputs = operands(*shape, kinds, rowwise)
    bias = (torch.randn(shape[2], device=DEVICE).to(out),) if biased else ()
    with forced(GemmChoice(**given)):
        found = ours(scaled(out), *inputs, *bias).double()
    library = scaled(out)(*inputs, *bias).double()
    x, w, a, b = (t.double() for t in inputs)
    wanted = (x @ w.t()) * a * b + (bias[0].double() if biased else 0)
    most = wanted.abs().max()
    mine, theirs = (((t - wanted).abs().max() / most).item() for t in (found, library))
    # Tensor cores keep few bits of such sums; where the result shows it, the library is no better.
    limit = max({torch.bfloat16: 4e-3, torch.float16: 1e-3}.get(out, 2e-4), 1.2 * theirs)
    assert mine < limit, f"off by {mine:.2e}, cuBLAS by {theirs:.2e}"
    return f"off {mine:.1e}, cuBLAS {theirs:.1e}"


def products() -> None:
    shapes = {"even": (512, 1024, 384), "edges": (304, 208, 272)}
    for form in ("TILES", "DESCRIPTORS", "PERSISTENT"):
        for name, shape in shapes.items():
            attempt(f"{form} {name}", lambda s=shape, f=form: right_result(s, form=f, **TILE))
        attempt(f"{form} wide", lambda f=form: right_result((512, 4096, 384), form=f, **WIDE))
    even = shapes["even"]
    attempt("e4m3 by e5m2", lambda: right_result(even, (E4M3, E5M2), form="TILES", **TILE))
    attempt("e5m2 by e4m3", lambda: right_result(even, (E5M2, E4M3), form="DESCRIPTORS", **TILE))
    attempt("rows, columns", lambda: right_result(even, rowwise=True, form="TILES", **TILE))
    attempt("bias", lambda: right_result(even, biased=True, form="PERSISTENT", **TILE))
    attempt("f16", lambda: right_result(even, out=torch.float16, form="TILES", **TILE))
    attempt("f32", lambda: right_result(even, out=torch.float32, form="TILES", **TILE))
    attempt("split_k", lambda: right_result((512, 4096, 384), form="TILES", split_k=4, **TILE))
    attempt("sixteen rows", lambda: right_result((16, 4096, 512), form="TILES",
                                                 **{**TILE, "height": 16}))  # fmt: skip


# -- times -----------------------------------------------------------------------------------------

# Rows, sum, columns.
SHAPES = {
    "Llama up": (2048, 2048, 11264),
    "Llama down": (2048, 5632, 2048),
    "BERT up": (4096, 768, 3072),
    "square": (4096, 4096, 4096),
    "sixteen rows": (16, 4096, 4096),
}


def timed(m: int, k: int, n: int) -> str:
    return tried(scaled(torch.bfloat16), operands(m, k, n, (E4M3, E4M3), False), seconds=10.0)


def times() -> None:
    for name, shape in SHAPES.items():
        attempt(name, lambda s=shape: timed(*s))


PARTS: dict[str, Callable[[], None]] = {"casts": casts, "products": products, "times": times}


def main(arguments: list[str]) -> None:
    if "litz" not in list_backends(None):  # the package lies here but is not installed
        register_backend(backend, "litz")
    for name in arguments or PARTS:
        print(f"-- {name}", flush=True)
        PARTS[name]()


if __name__ == "__main__":
    hide_compilers()
    main(sys.argv[1:])
