"""Instruction sets of CPUs: one row of facts each, for the CPU's stages.

In: the LLVM triple of a machine. Out: `Isa`, a frozen value. This is the only file that names
instructions of one instruction set: code generation takes the name from the row, and emits a
portable form where the row has none. Example: `isa_of("aarch64-linux-gnu").dot("i8", 4).symbol(4)`
is `llvm.aarch64.neon.sdot.v4i32.v16i8`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Vectors:
    """Vectors of `size` bytes in `registers` registers, if the processor has all `features`."""

    features: tuple[str, ...]
    size: int
    registers: int


@dataclass(frozen=True)
class DotInstruction:
    """A dot product instruction: it multiplies `group` neighbours of a type and adds them to each
    lane of the accumulator. `intrinsic` is LLVM's name for it, with holes for the lanes and the
    bits of the accumulator and the lanes of the operands."""

    feature: str
    dtype: str
    group: int
    intrinsic: str
    unsigned_left: bool = False  # it reads the left operand as unsigned

    def symbol(self, lanes: int) -> str:
        """The intrinsic for an accumulator of so many lanes."""
        return self.intrinsic.format(lanes=lanes, bits=32 * lanes, many=lanes * self.group)


@dataclass(frozen=True)
class Isa:
    """The facts in which instruction sets differ."""

    name: str
    triples: tuple[str, ...] = ()  # prefixes of its triples
    vectors: tuple[Vectors, ...] = (Vectors((), 16, 16),)  # the widest first
    dot_instructions: tuple[DotInstruction, ...] = ()
    # The feature that has an instruction which rounds to bfloat16. If that instruction flushes
    # denormals to zero: the intrinsic that finds them.
    bf16_feature: str = ""
    bf16_denormals: str = ""
    # The fence behind non-temporal stores; without one, no such stores are emitted.
    nontemporal_fence: str = ""
    # Whether a cast of a float outside an integer type's range gives the nearest integer, and of
    # NaN zero; else both give the least integer. Eager's C++ casts do what the processor does.
    saturates: bool = True

    def vector_bytes(self, features: tuple[str, ...]) -> int:
        """The bytes of the widest vectors that a processor with these features has."""
        return next(v.size for v in self.vectors if {*v.features} <= {*features})

    def registers(self, vector_bytes: int) -> int:
        """How many vector registers there are at this vector width."""
        return next(v.registers for v in reversed(self.vectors) if v.size >= vector_bytes)

    def dot(self, dtype: str, group: int) -> DotInstruction:
        """The dot product instruction for groups of so many of a type."""
        return next(d for d in self.dot_instructions if (d.dtype, d.group) == (dtype, group))


GENERIC = Isa("generic")
X86_64 = Isa(
    "x86_64",
    triples=("x86_64", "amd64"),
    vectors=(
        Vectors(("+avx512f", "+avx512bw", "+avx512vl"), 64, 32),
        Vectors(("+avx2",), 32, 16),
        Vectors((), 16, 16),
    ),
    dot_instructions=(
        DotInstruction("+avx512bf16", "bf16", 2, "llvm.x86.avx512bf16.dpbf16ps.{bits}"),
        DotInstruction("+avx512vnni", "i8", 4, "llvm.x86.avx512.vpdpbusd.{bits}", True),
    ),
    bf16_feature="+avx512bf16",
    bf16_denormals="llvm.x86.avx512.fpclass.ps",
    nontemporal_fence="llvm.x86.sse.sfence",
    saturates=False,
)
AARCH64 = Isa(
    "aarch64",
    triples=("aarch64", "arm64"),
    vectors=(Vectors((), 16, 32),),
    dot_instructions=(
        DotInstruction("+bf16", "bf16", 2, "llvm.aarch64.neon.bfdot.v{lanes}f32.v{many}bf16"),
        DotInstruction("+dotprod", "i8", 4, "llvm.aarch64.neon.sdot.v{lanes}i32.v{many}i8"),
    ),
    bf16_feature="+bf16",
)
ISAS = {isa.name: isa for isa in (X86_64, AARCH64, GENERIC)}


def isa_of(triple: str) -> Isa:
    """The row of a machine; an unknown one has vectors of 16 bytes and no instructions by name."""
    return next((i for i in ISAS.values() if i.triples and triple.startswith(i.triples)), GENERIC)
