"""The CPU target for AArch64, on this machine: objects are built for it, and run under emulation.

In: programs, in a context that compiles for that CPU. Out: the object of each graph; the graph is
run step by step, kernels by the IR's interpreter or by their machine code in `qemu-aarch64`. Each
program becomes one static executable: the object, a start of ours in LLVM IR, and four lines that
enter the system. It reads an image of a kernel's memory, runs one kernel, and writes the image.
Example:

    with for_aarch64(("+dotprod",)) as made:
        torch.compile(torch.exp, backend="litz")(x)
    undefined(made[0].code)    # {"omp_get_max_threads", ...}
"""

from __future__ import annotations

import shutil
import struct
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from litz.build.llvm import compile_object
from litz.call import plan_call
from litz.config import Config
from litz.fuzz.interpreted import as_array, as_tensor, interpreted
from litz.fuzz.stages import without_arena
from litz.ir.aten import torch_dtype
from litz.ir.call_plan import ARENA, ERROR_RECORD, CallPlan
from litz.ir.checks import error_of
from litz.ir.interpret import Environment
from litz.ir.program import HOST, Buffer, Kernel, Plan
from litz.ir.source import Source
from litz.runtime.size_exprs import float_bits
from litz.target import DEVICES, CpuTarget, aarch64
from litz.targets import TOOLCHAINS
from litz.trace import Trace

PACKAGES = "qemu-user binutils-aarch64-linux-gnu"
EMULATOR, ASSEMBLER, LINKER = "qemu-aarch64", "aarch64-linux-gnu-as", "aarch64-linux-gnu-ld"
MISSING = [tool for tool in (EMULATOR, ASSEMBLER, LINKER) if shutil.which(tool) is None]
THREADS = 3  # that kernels may have; their shares run one after the other
LINE = 64  # what memory is aligned to, in bytes
ROOM, HEAP = 1 << 24, 1 << 26  # bytes of an image, and of what kernels allocate
AARCH64_MACHINE = 183  # in the header of an object

# System call: its number, and three arguments.
ENTER = """
.globl enter
enter:
    mov x8, x0
    mov x0, x1
    mov x1, x2
    mov x2, x3
    svc #0
    ret
"""
READ, WRITE, EXIT = 63, 64, 93

# The library that a kernel finds: memory, and threads, whose shares run one after the other.
# An image begins with the number of a step, the entries of its table, and the table: offsets into
# the image, or numbers. Behind it stands which of them are offsets.
START = f"""
@image = internal global [{ROOM} x i8] zeroinitializer, align {LINE}
@heap = internal global [{HEAP} x i8] zeroinitializer, align {LINE}
@used = internal global i64 0
@me = internal global i32 0
@all = internal global i32 1
declare i64 @enter(i64, i64, ptr, i64)

define i32 @omp_get_max_threads() {{
  ret i32 {THREADS}
}}
define i32 @omp_get_num_threads() {{
  %all = load i32, ptr @all
  ret i32 %all
}}
define i32 @omp_get_thread_num() {{
  %me = load i32, ptr @me
  ret i32 %me
}}
define void @GOMP_parallel(ptr %worker, ptr %job, i32 %threads, i32 %flags) {{
entry:
  store i32 %threads, ptr @all
  br label %next
next:
  %k = phi i32 [ 0, %entry ], [ %k.next, %next ]
  store i32 %k, ptr @me
  call void %worker(ptr %job)
  %k.next = add i32 %k, 1
  %more = icmp ult i32 %k.next, %threads
  br i1 %more, label %next, label %done
done:
  store i32 0, ptr @me
  store i32 1, ptr @all
  ret void
}}
define ptr @malloc(i64 %size) {{
  %used = load i64, ptr @used
  %found = getelementptr i8, ptr @heap, i64 %used
  %wide = add i64 %size, {LINE - 1}
  %whole = and i64 %wide, {-LINE}
  %after = add i64 %used, %whole
  store i64 %after, ptr @used
  %fits = icmp ule i64 %after, {HEAP}
  %given = select i1 %fits, ptr %found, ptr null
  ret ptr %given
}}
define void @free(ptr %memory) {{
  ret void
}}
define ptr @memset(ptr %to, i32 %value, i64 %size) {{
entry:
  %byte = trunc i32 %value to i8
  br label %next
next:
  %k = phi i64 [ 0, %entry ], [ %k.next, %one ]
  %more = icmp ult i64 %k, %size
  br i1 %more, label %one, label %done
one:
  %at = getelementptr i8, ptr %to, i64 %k
  store volatile i8 %byte, ptr %at
  %k.next = add i64 %k, 1
  br label %next
done:
  ret ptr %to
}}
define ptr @memcpy(ptr %to, ptr %from, i64 %size) {{
entry:
  br label %next
next:
  %k = phi i64 [ 0, %entry ], [ %k.next, %one ]
  %more = icmp ult i64 %k, %size
  br i1 %more, label %one, label %done
one:
  %from.at = getelementptr i8, ptr %from, i64 %k
  %byte = load volatile i8, ptr %from.at
  %at = getelementptr i8, ptr %to, i64 %k
  store volatile i8 %byte, ptr %at
  %k.next = add i64 %k, 1
  br label %next
done:
  ret ptr %to
}}
define i32 @memcmp(ptr %a, ptr %b, i64 %size) {{
  ret i32 1
}}
define i32 @ioctl(i32 %file, i64 %asked, ...) {{
  ret i32 -1
}}
declare void @litz_step(i64, ptr)
define void @_start() {{
entry:
  br label %read
read:
  %size = phi i64 [ 0, %entry ], [ %size.next, %read ]
  %free = getelementptr i8, ptr @image, i64 %size
  %room = sub i64 {ROOM}, %size
  %got = call i64 @enter(i64 {READ}, i64 0, ptr %free, i64 %room)
  %size.next = add i64 %size, %got
  %some = icmp sgt i64 %got, 0
  br i1 %some, label %read, label %ready
ready:
  %step = load i64, ptr @image
  %count.at = getelementptr i64, ptr @image, i64 1
  %count = load i64, ptr %count.at
  %table = getelementptr i64, ptr @image, i64 2
  %kinds = getelementptr i64, ptr %table, i64 %count
  br label %entry.next
entry.next:
  %k = phi i64 [ 0, %ready ], [ %k.next, %entry.next ]
  %at = getelementptr i64, ptr %table, i64 %k
  %given = load i64, ptr %at
  %kind.at = getelementptr i64, ptr %kinds, i64 %k
  %kind = load i64, ptr %kind.at
  %base = ptrtoint ptr @image to i64
  %added = mul i64 %base, %kind
  %there = add i64 %given, %added
  store i64 %there, ptr %at
  %k.next = add i64 %k, 1
  %k.more = icmp ult i64 %k.next, %count
  br i1 %k.more, label %entry.next, label %run
run:
  call void @litz_step(i64 %step, ptr %table)
  br label %write
write:
  %from = phi i64 [ 0, %run ], [ %from.next, %write ]
  %left.at = getelementptr i8, ptr @image, i64 %from
  %left = sub i64 %size, %from
  %put = call i64 @enter(i64 {WRITE}, i64 1, ptr %left.at, i64 %left)
  %from.next = add i64 %from, %put
  %from.more = icmp ult i64 %from.next, %size
  br i1 %from.more, label %write, label %end
end:
  %never = call i64 @enter(i64 {EXIT}, i64 0, ptr null, i64 0)
  unreachable
}}
"""


@dataclass
class Made:
    """A graph that was compiled for AArch64."""

    plan: Plan
    source: Source
    call: CallPlan
    code: bytes = b""
    kernels: list[str] = field(default_factory=list)  # run, one after the other


@contextmanager
def for_aarch64(features: tuple[str, ...] = (), emulated: bool = False) -> Iterator[list[Made]]:
    """What is compiled inside is for that CPU. Kernels run in the emulator, or are interpreted."""
    made: list[Made] = []
    target = aarch64(features, THREADS)
    real, before = TOOLCHAINS[CpuTarget], DEVICES[HOST]

    placed: list[Plan] = []

    def emit(plan: Plan, kernels: Any, target: Any) -> Source:
        placed.append(without_arena(plan, keeps_prepacked=False))
        return real.emit(placed[-1], kernels, target)  # type: ignore[no-any-return]

    def drive(source: Source, call: CallPlan, target: Any) -> Source:
        """For calls that keep nothing from one to the next."""
        plain = plan_call(placed[-1], source, {}, Config(), target)
        driven = real.drive(source, plain, target)
        made.append(Made(placed[-1], driven, plain))
        return driven  # type: ignore[no-any-return]

    def link(call: CallPlan, code: bytes, constants: Any, *_: Any) -> _Linked:
        made[-1].code = code
        return _Linked(made[-1], constants, emulated)

    DEVICES[HOST] = lambda device, config: target
    TOOLCHAINS[CpuTarget] = replace(
        real, emit=emit, drive=drive, load=lambda source, code: code, link=link, tuning=None
    )
    try:
        yield made
    finally:
        DEVICES[HOST], TOOLCHAINS[CpuTarget] = before, real


class _Linked:
    """A graph whose steps the interpreter goes through."""

    guards_folding, frozen, unfolded = False, None, None

    def __init__(self, made: Made, constants: dict[str, torch.Tensor], emulated: bool) -> None:
        hook = Emulated(made) if emulated and made.plan.graph.kernels else None
        run = partial(interpreted, made.plan.graph, constants, kernel=hook)

        def call(args: list[Any]) -> list[Any]:
            return run(args)

        call._boxed_call = True  # type: ignore[attr-defined]
        self.call, self._boxed_call = call, True

    def __call__(self, args: list[Any]) -> list[Any]:
        return self.call(args)


class Emulated:
    """Runs the kernels of a graph in the emulator, one at a time: a `KernelCall`."""

    def __init__(self, made: Made) -> None:
        kernels = made.plan.graph.kernels
        self.made, self.plan = made, made.call
        self.steps = {k.name: (number, k) for number, k in enumerate(kernels)}
        self.folder = tempfile.TemporaryDirectory()
        self.program = linked(made.code, Path(self.folder.name))

    def __call__(self, kernel: Kernel, env: Environment) -> None:
        number, step = self.steps[kernel.name]
        self.made.kernels.append(kernel.name)
        buffers = list(dict.fromkeys((*step.writes, *step.reads)))
        for buffer in (b for b in buffers if b.name not in env.storage):
            env.allocate(buffer)
        memory = [as_tensor(env.storage[b.name], torch_dtype(b.dtype)) for b in buffers]
        image, places = self._image(number, env, buffers, memory)
        command = [EMULATOR, "-cpu", "max", str(self.program)]
        done = subprocess.run(command, input=image, capture_output=True, timeout=300)
        assert done.returncode == 0 and len(done.stdout) == len(image), done.stderr.decode()
        record = struct.unpack_from("<qqq", done.stdout, places[0])
        if record[0]:
            raise error_of(self.plan.sites, *record)
        for buffer, tensor, place in zip(buffers, memory, places[1:], strict=True):
            if buffer in step.writes:
                size = tensor.numel() * tensor.element_size()
                found = bytearray(done.stdout[place : place + size])
                flat = torch.frombuffer(found, dtype=tensor.dtype) if size else tensor.flatten()
                env.storage[buffer.name][...] = as_array(flat.view(tensor.shape))

    def _image(
        self, number: int, env: Environment, buffers: Sequence[Buffer],
        memory: Sequence[torch.Tensor],
    ) -> tuple[bytes, list[int]]:  # fmt: skip
        """The memory of one call, and where in it the record and each buffer are."""
        layout = self.plan.table
        entries = [0] * (len(layout) + ARENA + 2)
        kinds = list(entries)
        for name, value in self.plan.computed.items():
            found = env.resolve(value)
            entries[layout[name]] = float_bits(found) if value.dtype.is_float else found
        blocks = [bytes(24), *(_bytes(tensor) for tensor in memory)]
        rows = [ERROR_RECORD, *(layout[b.name] for b in buffers)]
        image, places = bytearray(8 * (2 + 2 * len(entries))), []
        for row, block in zip(rows, blocks, strict=True):
            image += bytes(-len(image) % LINE)
            places.append(len(image))
            entries[row], kinds[row] = len(image), 1
            image += block
        words = (number, len(entries), *entries, *kinds)
        image[: 8 * len(words)] = struct.pack(f"<{len(words)}q", *words)
        assert len(image) <= ROOM
        return bytes(image), places


def _bytes(tensor: torch.Tensor) -> bytes:
    flat = tensor.contiguous().flatten()
    return flat.view(torch.uint8).numpy().tobytes() if len(flat) else b""


def linked(code: bytes, folder: Path) -> Path:
    """A static executable of an object, which runs one of its steps."""
    (folder / "enter.s").write_text(ENTER)
    (folder / "kernels.o").write_bytes(code)
    (folder / "start.o").write_bytes(compile_object(START, aarch64(), 1, Trace()))
    _run(ASSEMBLER, "enter.s", "-o", "enter.o", folder=folder)
    _run(LINKER, "-static", "-o", "program", "start.o", "kernels.o", "enter.o", folder=folder)
    return folder / "program"


def _run(*command: str, folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def undefined(code: bytes) -> set[str]:
    """The names that an object for AArch64 leaves to whoever loads it."""
    assert (
        code[:6] == b"\x7fELF\x02\x01" and struct.unpack_from("<H", code, 18)[0] == AARCH64_MACHINE
    )
    (at,) = struct.unpack_from("<Q", code, 40)
    size, count = struct.unpack_from("<HH", code, 58)
    sections = [struct.unpack_from("<IIQQQQIIQQ", code, at + k * size) for k in range(count)]
    found: set[str] = set()
    for kind, where, length, names in ((s[1], s[4], s[5], s[6]) for s in sections):
        if kind != 2:  # SHT_SYMTAB
            continue
        text = sections[names][4]
        for symbol in range(where + 24, where + length, 24):
            name, _, _, section = struct.unpack_from("<IBBH", code, symbol)
            if not section:
                found.add(code[text + name : code.index(b"\0", text + name)].decode())
    return found
