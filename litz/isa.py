"""Instruction sets of CPUs: one row of facts each, which the CPU's stages ask.

In: the triple of a machine. Out: `Isa`, a frozen value. What is one instruction set's alone has its
name here and nowhere else: whoever spells it takes it from the row, and has a portable form for
rows that hold none. Example: `isa_of("aarch64-linux-gnu").dot("i8", 4).symbol(4)` is
`llvm.aarch64.neon.sdot.v4i32.v16i8`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Vectors:
    """Vectors of some bytes, if the processor has all these features, and how many registers."""

    features: tuple[str, ...]
    size: int
    registers: int


@dataclass(frozen=True)
class DotInstruction:
    """An instruction that multiplies `group` neighbours of a type and adds them to each sum.
    `intrinsic` is LLVM's name for it, given the lanes of the sums, their bits, and the lanes of the
    operands."""

    feature: str
    dtype: str
    group: int
    intrinsic: str
    unsigned_left: bool = False  # it takes the left numbers without a sign

    def symbol(self, lanes: int) -> str:
        """The intrinsic for sums in so many lanes."""
        return self.intrinsic.format(lanes=lanes, bits=32 * lanes, many=lanes * self.group)


@dataclass(frozen=True)
class Isa:
    """What instruction sets differ in."""

    name: str
    triples: tuple[str, ...] = ()  # what triples of it begin with
    vectors: tuple[Vectors, ...] = (Vectors((), 16, 16),)  # the widest first
    dots: tuple[DotInstruction, ...] = ()
    # The feature whose instruction rounds to bfloat16, and the intrinsic that finds denormals, if
    # that instruction takes them for zeros.
    bf16_feature: str = ""
    bf16_denormals: str = ""
    # The intrinsic that waits for stores past the caches; without one there are no such stores.
    nontemporal_fence: str = ""
    # Whether a float outside of an integer type becomes the nearest integer, and NaN zero; else
    # both become the least integer. Eager's C++ casts do what the processor does.
    saturates: bool = True

    def vector_bytes(self, features: tuple[str, ...]) -> int:
        """Of the widest vectors that a processor with these features has."""
        return next(v.size for v in self.vectors if {*v.features} <= {*features})

    def registers(self, vector_bytes: int) -> int:
        """Vector registers, if vectors are so wide."""
        return next(v.registers for v in reversed(self.vectors) if v.size >= vector_bytes)

    def dot(self, dtype: str, group: int) -> DotInstruction:
        """The instruction for such groups."""
        return next(d for d in self.dots if (d.dtype, d.group) == (dtype, group))


GENERIC = Isa("generic")
X86_64 = Isa(
    "x86_64",
    triples=("x86_64", "amd64"),
    vectors=(
        Vectors(("+avx512f", "+avx512bw", "+avx512vl"), 64, 32),
        Vectors(("+avx2",), 32, 16),
        Vectors((), 16, 16),
    ),
    dots=(
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
    dots=(
        DotInstruction("+bf16", "bf16", 2, "llvm.aarch64.neon.bfdot.v{lanes}f32.v{many}bf16"),
        DotInstruction("+dotprod", "i8", 4, "llvm.aarch64.neon.sdot.v{lanes}i32.v{many}i8"),
    ),
    bf16_feature="+bf16",
)
ISAS = {isa.name: isa for isa in (X86_64, AARCH64, GENERIC)}


def isa_of(triple: str) -> Isa:
    """The row of a machine; of one that no row names, vectors of 16 bytes and no instruction by
    its name."""
    return next((i for i in ISAS.values() if i.triples and triple.startswith(i.triples)), GENERIC)
