"""A kernel's private memory: on the stack if it is small, on the heap if it is not.

In: how much a kernel needs, and for what. Out: a pointer aligned to a cache line. A stack may have
no more than 512 KB, in a thread of the program or in a worker of OpenMP's, and the caller of a
kernel has used some of it. So one array takes at most `MAX_STACK_ARRAY` bytes of it, and all
together `MAX_STACK_FRAME`. The rest is allocated when the kernel begins and freed when it ends.
Example: a row of 60000 numbers in each of 16 lanes is

    %0 = call ptr @malloc(i64 3840064)

If there is no memory left, the kernel runs no task and notes `MEMORY`, which the call raises.
"""

from __future__ import annotations

from litz.codegen.llvm.builder import Builder, Type, Value
from litz.codegen.llvm.scope import Scopes

POINTER = Type("ptr", 1)
WORD = Type("i64", 1)
CACHE_LINE = 64
# Bytes of the stack: of one array, and of all.
MAX_STACK_ARRAY, MAX_STACK_FRAME = 1 << 15, 1 << 16


class Frame:
    """The memory of one function."""

    def __init__(self, b: Builder, scopes: Scopes) -> None:
        self.b, self.scopes = b, scopes
        self.on_stack = 0  # bytes so far
        self.heap: list[tuple[Value, Value]] = []  # each allocation: its pointer and its bytes
        self.checked = False  # whether allocations were tested for null; there are none afterwards

    def take(self, name: str, count: int, kind: Type) -> Value:
        """Memory for `count` elements of a type, allocated at the function's entry."""
        size, found = count * kind.lanes * max(kind.bits // 8, 1), f"%{self.b.fresh(name)}"
        entry = self.scopes.stack[0].lines
        if size > MAX_STACK_ARRAY or self.on_stack + size > MAX_STACK_FRAME:
            wanted = Value(str(size + CACHE_LINE), WORD)
            entry[1:1] = self._allocation(found, wanted)
        else:
            self.on_stack += size
            entry.insert(1, f"  {found} = alloca [{count} x {kind}], align {CACHE_LINE}")
        return Value(found, POINTER)

    def allocate_bytes(self, name: str, size: Value) -> Value:
        """Memory of a size that only a call knows. On the heap: it may not fit a stack."""
        found = f"%{self.b.fresh(name)}"
        self.b.lines += self._allocation(found, self.b.add(size, CACHE_LINE))
        return Value(found, POINTER)

    def _allocation(self, found: str, wanted: Value) -> list[str]:
        self.b.declares |= {
            "declare noalias ptr @malloc(i64)",
            "declare void @free(ptr)",
            "declare ptr @llvm.ptrmask.p0.i64(ptr, i64)",
        }
        assert not self.checked, found
        memory = Value(f"{found}.memory", POINTER)
        self.heap.append((memory, wanted))
        return [
            f"  {memory.text} = call noalias ptr @malloc({wanted})",
            f"  {found}.end = getelementptr i8, {memory}, i64 {CACHE_LINE - 1}",
            f"  {found} = call ptr @llvm.ptrmask.p0.i64(ptr {found}.end, i64 {-CACHE_LINE})",
        ]

    def free(self) -> None:
        self.b.lines += [f"  call void @free({memory})" for memory, _ in self.heap]
