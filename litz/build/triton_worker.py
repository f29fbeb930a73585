"""Triton source to a cubin: run as a process of its own, or called in this one.

In: jobs from a socket, each a line of JSON: the text, name, parameter types, warps, stages,
architecture. Out: a line of JSON: the cubin in base 64, its shared memory, or the error. The file
imports nothing of Litz and no torch, so that a worker starts in a fraction of a second. No C
compiler is involved: Triton brings an assembler along, and its own launcher, which needs one, is
never built. Example:
`compiled({"text": ..., "name": "litz_0_add", "pointers": ["*fp32"], ...})["shared"]` is 0.
"""

from __future__ import annotations

import base64
import contextlib
import json
import linecache
import os
import re
import signal
import socket
import sys
import traceback
from typing import Any

Job = dict[str, Any]
FIRST: Job = {
    "text": "import triton\n@triton.jit\ndef nothing(x):\n    pass\n", "name": "nothing",
    "pointers": ["*i8"], "aligned": 1, "warps": 4, "stages": 1, "joins": True,
    "capability": 90,
}  # fmt: skip

# An op, its target and its operands.
PACKED = re.compile(r"\b((?:add|sub|min|max)\.[su])16x2\s+(%\w+), (%?\w+), (%?\w+);")


def function_of(text: str, name: str) -> Any:
    """The function that a text defines. Triton reads the source again, so Python must find it."""
    place = f"<litz kernel {name} {hash(text):x}>"
    linecache.cache[place] = (len(text), None, text.splitlines(True), place)
    scope: dict[str, Any] = {"__name__": place}
    exec(compile(text, place, "exec"), scope)
    return scope[name]


def compiled(job: Job) -> Job:
    """The cubin of a kernel and what a launch has to know."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, make_backend

    function = function_of(job["text"], job["name"])
    pointers = dict(zip(function.arg_names, job["pointers"], strict=True))
    divisible = [["tt.divisibility", 16]]
    attrs = {(k,): divisible for k in range(job["aligned"])}
    target = GPUTarget("cuda", job["capability"], 32)
    try:
        source = ASTSource(function, signature=pointers, attrs=attrs)
        made = triton.compile(source, target=target, options=options(job))
    finally:
        linecache.cache.pop(function.fn.__code__.co_filename, None)
    code, text = made.asm["cubin"], unpacked(made.asm["ptx"])
    if text != made.asm["ptx"]:
        backend = make_backend(target)
        code = backend.make_cubin(text, {}, backend.parse_options(options(job)), job["capability"])
    scratch = made.metadata.global_scratch_size + made.metadata.profile_scratch_size
    return {
        "code": base64.b64encode(code).decode(),
        "name": made.metadata.name,
        "shared": made.metadata.shared,
        "warps": made.metadata.num_warps,
        "scratch": scratch,
    }


def unpacked(ptx: str) -> str:
    """The same without arithmetic on two halves of a register at once. ptxas (12.8 and 12.9) gets
    it wrong if a half is known: of `{0, v} + {3, 3}` it adds nothing to v."""
    return PACKED.sub(_in_halves, ptx)


def _in_halves(found: re.Match[str]) -> str:
    op, target, *given = found.groups()
    lines = ["{ .reg .b32 %whole<2>; .reg .b16 %half<6>;"]
    for k, operand in enumerate(given):
        lines.append(f"mov.b32 %whole{k}, {operand};")
        lines.append(f"mov.b32 {{%half{2 * k}, %half{2 * k + 1}}}, %whole{k};")
    lines += [f"{op}16 %half4, %half0, %half2;", f"{op}16 %half5, %half1, %half3;"]
    return "\n\t".join([*lines, f"mov.b32 {target}, {{%half4, %half5}}; }}"])


def options(job: Job) -> Job:
    """What Triton is told. Denormal numbers stay what they are, as in eager."""
    return {
        "num_warps": job["warps"],
        "num_stages": job["stages"],
        "enable_reflect_ftz": False,
        "enable_fp_fusion": job["joins"],
    }


def warm_up() -> None:
    """The first kernel of a process takes ten times as long as the next: Triton loads itself, and
    hashes its own files. So that is done before there is a job."""
    with contextlib.suppress(Exception):  # the job will say what is wrong
        compiled(FIRST)


def serve(pipe: int) -> None:
    """A job a line until there are no more."""
    with socket.socket(fileno=pipe).makefile("rw", encoding="utf-8") as lines:
        for line in lines:
            try:
                result = compiled(json.loads(line))
            except Exception:
                result = {"error": traceback.format_exc(limit=-3)}
            lines.write(json.dumps(result) + "\n")
            lines.flush()


def main(pipes: list[int]) -> None:
    """A process for each socket, forked from one that has loaded Triton. Who interrupts the program
    that asks may go on with it: that alone, by closing a socket, ends a worker."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    warm_up()
    mine = pipes[0]
    for pipe in pipes[1:]:
        if os.fork() == 0:
            mine = pipe
            break
    for pipe in pipes:
        if pipe != mine:  # else its other end would not see the end of who has it
            os.close(pipe)
    with contextlib.suppress(ConnectionError):  # whoever asked is gone
        serve(mine)


if __name__ == "__main__":
    main([int(pipe) for pipe in sys.argv[1:]])
