"""The Triton worker: turns source into a cubin, as a process of its own or called in this one.

In: jobs from a socket, each a line of JSON: the text, name, parameter types, warps, stages,
architecture. Out: a line of JSON: the cubin in base 64, its shared memory, or the error. The file
imports neither Litz nor torch, so that a worker starts in a fraction of a second. No C compiler is
needed: Triton brings its assembler along, and its launcher, which would need one, is never built.
Example:
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
    "pointers": ["*i8"], "aligned": 1, "warps": 4, "stages": 1, "fp_fusion": True,
    "capability": 90,
}  # fmt: skip

# An op, its target and its operands.
PACKED_16X2 = re.compile(r"\b((?:add|sub|min|max)\.[su])16x2\s+(%\w+), (%?\w+), (%?\w+);")


def function_of(text: str, name: str) -> Any:
    """The function that a text defines. Triton reads its source again, through `linecache`."""
    place = f"<litz kernel {name} {hash(text):x}>"
    linecache.cache[place] = (len(text), None, text.splitlines(True), place)
    scope: dict[str, Any] = {"__name__": place}
    exec(compile(text, place, "exec"), scope)
    return scope[name]


def compiled(job: Job) -> Job:
    """The cubin of a kernel, and the facts that a launch needs."""
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
    code, text = made.asm["cubin"], without_packed_16x2(made.asm["ptx"])
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


def without_packed_16x2(ptx: str) -> str:
    """The same PTX without packed 16x2 arithmetic. ptxas (12.8 and 12.9) miscompiles it if one half
    is a constant: for `{0, v} + {3, 3}` it adds nothing to v."""
    return PACKED_16X2.sub(_unpack_16x2, ptx)


def _unpack_16x2(found: re.Match[str]) -> str:
    op, target, *given = found.groups()
    lines = ["{ .reg .b32 %whole<2>; .reg .b16 %half<6>;"]
    for k, operand in enumerate(given):
        lines.append(f"mov.b32 %whole{k}, {operand};")
        lines.append(f"mov.b32 {{%half{2 * k}, %half{2 * k + 1}}}, %whole{k};")
    lines += [f"{op}16 %half4, %half0, %half2;", f"{op}16 %half5, %half1, %half3;"]
    return "\n\t".join([*lines, f"mov.b32 {target}, {{%half4, %half5}}; }}"])


def options(job: Job) -> Job:
    """Triton's options. Denormals are not flushed, as in eager."""
    return {
        "num_warps": job["warps"],
        "num_stages": job["stages"],
        "enable_reflect_ftz": False,
        "enable_fp_fusion": job["fp_fusion"],
    }


def warm_up() -> None:
    """Compile an empty kernel before the first job: the first kernel of a process takes ten times
    as long as the next, since Triton loads itself and hashes its own files."""
    with contextlib.suppress(Exception):  # the first job will report the error
        compiled(FIRST)


def serve(pipe: int) -> None:
    """Answer jobs, one a line, until the socket is closed."""
    with socket.socket(fileno=pipe).makefile("rw", encoding="utf-8") as lines:
        for line in lines:
            try:
                result = compiled(json.loads(line))
            except Exception:
                result = {"error": traceback.format_exc(limit=-3)}
            lines.write(json.dumps(result) + "\n")
            lines.flush()


def main(pipes: list[int]) -> None:
    """Serve each socket in a process of its own, forked from one that has loaded Triton. SIGINT is
    ignored, because an interrupted program may go on; a worker ends when its socket is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    warm_up()
    mine = pipes[0]
    for pipe in pipes[1:]:
        if os.fork() == 0:
            mine = pipe
            break
    for pipe in pipes:
        if pipe != mine:  # otherwise the other end would not notice when its worker dies
            os.close(pipe)
    with contextlib.suppress(ConnectionError):  # the parent is gone
        serve(mine)


if __name__ == "__main__":
    main([int(pipe) for pipe in sys.argv[1:]])
