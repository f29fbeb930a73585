"""The flags: one declaration each, as a field of `Config` or of one of its groups.

In: nothing. Out: `Config`, the frozen value that every stage takes, and `FLAGS`, the table of all
flags by dotted name. A field gives name, type and default. `flag(...)` adds the stage that reads
it, one sentence, the allowed values, and whether it changes generated code: then it is part of the
cache key. The environment variable follows from the name: `cpp.threads` is `LITZ_CPP_THREADS`.
Example: `Config(max_fusion_size=1).cpp.threads` is `-1`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, Literal, TypeVar, get_type_hints

T = TypeVar("T")
Pass = Callable[[Any], None]  # takes an FX graph and changes it in place
Partitioner = Callable[..., tuple[Any, Any]]  # takes a joint module, gives forward and backward


def flag(
    default: T,
    stage: str,
    sentence: str,
    *,
    code: bool = True,
    low: int | None = None,
    high: int | None = None,
    allowed: tuple[object, ...] = (),
) -> T:
    """One declaration; `code=False` says that generated code does not depend on it."""
    facts = {
        "stage": stage,
        "sentence": sentence,
        "affects_code": code,
        "low": low,
        "high": high,
        "allowed": allowed,
    }
    return field(default=default, metadata=facts)  # type: ignore[no-any-return, call-overload]


@dataclass(frozen=True)
class Cpp:
    """Code for the CPU. The name is TorchInductor's; no C++ is involved."""

    threads: int = flag(
        -1, "schedule", "Threads a kernel may use; below 1 it is torch.get_num_threads().", low=-1
    )
    simdlen: int | None = flag(
        None,
        "schedule",
        "Vector width in bits; None is the widest of the host.",
        allowed=(None, 32, 64, 128, 256, 512),
    )
    min_chunk_size: int = flag(
        4096, "schedule", "Elements of work that a thread must get before another is used.", low=1
    )
    weight_prepack: bool = flag(
        True,
        "lower",
        "Keep a copy of each parameter in the order in which matrix products read it.",
    )
    weight_prepack_check: Literal["contents", "versions"] = flag(
        "contents",
        "runtime",
        "How such a copy is known to be stale: by its parameter's bytes, or by torch's count of "
        "changes alone, which misses writes through `.data` and NumPy.",
    )
    fold_affine_into_weights: bool = flag(
        True,
        "passes",
        "Put what scales and shifts the channels of a layer into the weights that are kept of it.",
    )
    enable_concat_linear: bool = flag(
        False,
        "passes",
        "Compute linear layers that read one input as one, with their weights side by side.",
    )
    huge_pages: bool = flag(
        True,
        "runtime",
        "Ask the system for large pages below outputs and arenas of 4 MiB and more.",
    )
    opt_level: int = flag(
        2,
        "build",
        "0 only inlines, 2 is our short pipeline, 3 is LLVM's own.",
        low=0,
        high=3,
    )


@dataclass(frozen=True)
class Triton:
    """Code for GPUs."""

    cudagraphs: bool = flag(
        False, "runtime", "Record the whole graph as a CUDA graph and replay it."
    )
    require_cudagraphs: bool = flag(
        False, "runtime", "Record as triton.cudagraphs does; what cannot be recorded whole raises."
    )
    cudagraph_sizes: int = flag(
        8,
        "runtime",
        "Sizes of a graph with symbolic sizes that are recorded; the others run as they are.",
        low=0,
    )
    launch_graphs: bool = flag(
        True,
        "runtime",
        "Launch a run of kernels as one CUDA graph when every tensor is where it was before.",
        code=False,
    )
    autotune_at_compile_time: bool = flag(
        False,
        "autotune",
        "Time two or three tilings of each GPU kernel while compiling, whatever else is asked for.",
    )
    cooperative_reductions: bool = flag(
        False,
        "schedule",
        "Programs of one launch share a few long rows; the last of them to end adds up.",
    )
    unique_kernel_names: bool = flag(
        True,
        "codegen",
        "Name a kernel by its place in the graph and its ops; False: by what its text says.",
    )
    descriptive_names: Literal["original_aten", "inductor_node"] = flag(
        "original_aten",
        "codegen",
        "The words of a kernel's name: ops of ATen, or nodes of the FX graph.",
    )
    use_block_ptr: bool = flag(
        False,
        "schedule",
        "Write accesses at even steps as block pointers, where Triton has them.",
    )
    gemm_max_rows: int = flag(
        1,
        "lower",
        "Compute matrix products of at most so many rows in kernels of ours, with what follows.",
        low=0,
    )
    atomics: bool = flag(
        True,
        "schedule",
        "Where scattered elements meet, let the memory combine them: quick, in any order.",
    )


@dataclass(frozen=True)
class Config:
    """The settings of one compile, fixed when it starts and handed to every stage."""

    on_error: Literal["eager", "raise"] = flag(
        "eager", "compiler", "A graph that cannot be compiled runs as eager, or raises.", code=False
    )
    debug: int = flag(
        0,
        "trace",
        "How much to print: 1 stages, 2 kernels, 3 fusion, 4 source, 5 IR, 6 LLVM and assembly.",
        code=False,
        low=0,
        high=6,
    )
    verify: bool = flag(True, "trace", "Check the laws of the IR after each stage.", code=False)
    disable_progress: bool = flag(
        False, "trace", "Say nothing on stderr while a compile takes seconds.", code=False
    )

    use_dce: bool = flag(True, "passes", "Remove ops whose results nothing uses.")
    joint_graph_constant_folding: bool = flag(
        True, "passes", "Compute at compile time what depends on constants alone."
    )
    joint_custom_pre_pass: Pass | None = flag(
        None, "passes", "Your function, called with the joint FX graph before our passes over it."
    )
    joint_custom_post_pass: Pass | None = flag(
        None, "passes", "Your function, called with the joint FX graph before it is cut in two."
    )
    custom_partitioner_fn: Partitioner | None = flag(
        None, "passes", "Your function, which cuts the joint module into forward and backward."
    )
    post_grad_custom_pre_pass: Pass | None = flag(
        None, "passes", "Your function, called with the FX graph before our passes."
    )
    post_grad_custom_post_pass: Pass | None = flag(
        None, "passes", "Your function, called with the FX graph after our passes."
    )

    assume_32bit_indexing: bool = flag(
        False, "schedule", "A GPU kernel whose places do not fit 32 bits is an error."
    )
    implicit_fallbacks: bool = flag(
        True, "lower", "An op without a lowering runs through ATen; False makes it an error."
    )
    fallback_by_default: bool = flag(False, "lower", "Run every op through ATen.")
    layout_optimization: bool = flag(
        True, "passes", "Run convolutions of images, and what lies between them, channels last."
    )
    conv_1x1_as_mm: bool = flag(
        True, "lower", "Compute a convolution whose windows are single places as a matrix product."
    )
    max_autotune_gemm_backends: str = flag(
        "ATEN,LITZ",
        "lower",
        "Who computes matrix products: LITZ (also named CPP or TRITON) where it can, or ATEN.",
        allowed=("ATEN,LITZ", "LITZ", "ATEN", "ATEN,CPP", "ATEN,TRITON", "ATEN,TRITON,CPP", "CPP",
                 "TRITON"),
    )  # fmt: skip
    max_autotune_conv_backends: str = flag(
        "ATEN,LITZ",
        "lower",
        "Who computes convolutions: LITZ (also named CPP or TRITON) where it can, which on a GPU is"
        " where windows are single places, or ATEN.",
        allowed=("ATEN,LITZ", "LITZ", "ATEN", "ATEN,CPP", "ATEN,TRITON", "CPP", "TRITON"),
    )
    max_autotune: bool = flag(
        False, "autotune", "Time ways to compute each kernel and take what is surely quicker."
    )
    max_autotune_gemm: bool = flag(False, "autotune", "The same for matrix products alone.")
    max_autotune_pointwise: bool = flag(
        False, "autotune", "The same for all kernels but matrix products."
    )
    max_autotune_gemm_search_space: Literal["DEFAULT", "EXHAUSTIVE"] = flag(
        "DEFAULT", "autotune", "How many ways: those the cost model likes best, or all of them."
    )
    max_autotune_budget_seconds: float | None = flag(
        None, "autotune", "Seconds of tuning for one graph, after which the rest runs by rule; None"
        " is one and a half on a CPU, ten on a GPU.", code=False, low=0,
    )  # fmt: skip
    max_autotune_report_choices_stats: bool = flag(
        True, "autotune", "Print a table of what was timed, on stderr.", code=False
    )
    coordinate_descent_tuning: bool = flag(
        False, "autotune", "Go on from what is best, a field at a time, while that gets quicker."
    )
    benchmark_epilogue_fusion: bool = flag(
        True, "autotune", "Time a matrix product also with what surrounds it in a kernel apart."
    )
    autotune_in_subproc: bool = flag(
        False, "autotune", "Time in a process of its own, which may crash or hang.", code=False
    )
    max_autotune_subproc_result_timeout_seconds: float = flag(
        60.0, "autotune", "How long that process may take for one trial.", code=False, low=0
    )
    autotune_local_cache: bool = flag(
        True, "autotune", "Keep what was found on disk, so that it is timed once.", code=False
    )
    cache_dir: str = flag(
        "", "autotune", "Folder of what is kept on disk; none is litz in the user's cache folder.",
        code=False,
    )  # fmt: skip
    deterministic: bool = flag(
        False, "autotune", "Let no timing decide about code: the same program gives the same code."
    )
    freezing: bool = flag(False, "passes", "Make parameters constants of graphs without gradients.")
    freezing_discard_parameters: bool = flag(
        False, "runtime", "Free the parameters that frozen graphs no longer need."
    )
    split_reductions: bool = flag(
        True, "fuse", "Reduce few long rows in pieces, so that threads can share them."
    )
    online_softmax: bool = flag(
        True,
        "fuse",
        "Take the maximum and the sum of exponentials of a row that does not fit in one pass.",
    )
    unroll_reductions_threshold: int = flag(
        8, "lower", "Write a reduction over at most this many elements as plain ops.", low=1
    )

    max_fusion_size: int = flag(
        64, "fuse", "Loops that one kernel may hold, and ops inlined into one loop.", low=1
    )
    max_fusion_unique_io_buffers: int | None = flag(
        None, "fuse", "Buffers that one kernel may read or write at most; None is no limit.", low=1
    )
    score_fusion_memory_threshold: int = flag(
        1, "fuse", "Bytes that need not be moved again if two loops are to share a kernel.", low=0
    )
    epilogue_fusion: bool = flag(
        True,
        "fuse",
        "Let what follows a product or a convolution be part of its kernel.",
    )
    prologue_fusion: bool = flag(
        True,
        "fuse",
        "Let what makes the left operand of a product (on a GPU, either) be part of its kernel.",
    )
    aggressive_fusion: bool = flag(
        False, "fuse", "Let loops of equal rows share a kernel also if that saves a launch alone."
    )
    loop_ordering_after_fusion: bool = flag(
        True, "fuse", "Reorder a loop so that it reads what it shares where its kernel does."
    )
    assert_indirect_indexing: bool = flag(
        True, "lower", "An index out of range raises eager's error; off, it is clamped."
    )
    debug_index_asserts: bool = flag(
        False, "schedule", "Kernels hold every access against the bounds of its buffer."
    )
    debug_poison_memory: bool = flag(
        False,
        "plan",
        "Fill memory with NaN before each call, and look for writes outside of buffers after it.",
    )
    fallback_random: bool = flag(
        False, "lower", "Random ops run through ATen: eager's numbers, bit for bit."
    )
    emulate_precision_casts: bool = flag(
        False, "fuse", "Round half-precision values after every op, as eager does."
    )
    realize_reads_threshold: int = flag(
        4, "fuse", "Store a value that reads more buffers than this and has several users.", low=0
    )
    realize_opcount_threshold: int = flag(
        30, "fuse", "Store a value that takes more ops than this and has several users.", low=0
    )

    inplace_buffers: bool = flag(
        True, "plan", "Write a result over an operand that is read there for the last time."
    )
    allow_buffer_reuse: bool = flag(
        True, "plan", "Give the memory of a dead buffer to a later one."
    )

    pick_loop_orders: bool = flag(
        True, "schedule", "Order loops by the strides of what they touch."
    )
    multi_kernel_hints: tuple[int, ...] = flag(
        (),
        "schedule",
        "Sizes for which kernels of symbolic sizes get a schedule of their own, chosen by call.",
        low=1,
    )
    size_asserts: bool = flag(
        True, "runtime", "Check dtype, shape and strides of the inputs of each call."
    )
    alignment_asserts: bool = flag(
        False, "runtime", "Check that tensors lie at addresses that kernels were compiled for."
    )
    scalar_asserts: bool = flag(
        True,
        "lower",
        "Check what the program says of sizes and numbers that only data tells (torch._check).",
    )
    nan_asserts: bool = flag(
        False,
        "runtime",
        "Look for NaN, and infinities not of a constant, in every input and result; slow.",
    )

    compile_threads: int = flag(
        -1,
        "build",
        "Processes that compile GPU kernels at once; below 1, one a processor, up to 16.",
        code=False,
        low=-1,
    )

    cpp: Cpp = Cpp()
    triton: Triton = Triton()

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Config:
        """The config with these values: one for every flag, by dotted name."""
        return _assembled(cls, values)

    def code_key(self) -> tuple[tuple[str, Any], ...]:
        """The flags that generated code depends on, by name: a hashable key.

        A function is replaced by its `uuid()`, if it has one. Any other stays a function: it is
        equal to no other in this process, and has no text, so it cannot reach a key on disk.
        """
        pairs = ((f.name, f.value_in(self)) for f in FLAGS.values() if f.affects_code)
        return tuple((name, _identity(value)) for name, value in pairs)

    def changed(self) -> dict[str, Any]:
        """The flags that do not have their default."""
        values = ((f, f.value_in(self)) for f in FLAGS.values())
        return {f.name: value for f, value in values if value != f.default}


@dataclass(frozen=True)
class Flag:
    """The facts of one declaration."""

    name: str
    type: Any  # as annotated: bool, int, `int | None`, Literal[...], a callable
    default: Any
    stage: str
    sentence: str
    affects_code: bool
    low: int | None
    high: int | None
    allowed: tuple[object, ...]

    @property
    def env(self) -> str:
        return "LITZ_" + self.name.upper().replace(".", "_")

    def value_in(self, config: Config) -> Any:
        value: Any = config
        for part in self.name.split("."):
            value = getattr(value, part)
        return value


def _declared(group: type, prefix: str = "") -> Iterator[Flag]:
    """The flags of a group and of the groups inside it, in order of declaration."""
    types = get_type_hints(group)
    for item in fields(group):
        if is_dataclass(item.default):
            yield from _declared(type(item.default), f"{prefix}{item.name}.")
        else:
            yield Flag(prefix + item.name, types[item.name], item.default, **item.metadata)


def _assembled(group: type[T], values: Mapping[str, Any], prefix: str = "") -> T:
    """The inverse of `_declared`: a group from values by dotted name."""
    parts: dict[str, Any] = {}
    for item in fields(group):  # type: ignore[arg-type]
        name = prefix + item.name
        if is_dataclass(item.default):
            parts[item.name] = _assembled(type(item.default), values, f"{name}.")
        else:
            parts[item.name] = values[name]
    return group(**parts)


def _identity(value: Any) -> Any:
    uuid = getattr(value, "uuid", None)
    return uuid() if callable(uuid) else value


FLAGS: dict[str, Flag] = {f.name: f for f in _declared(Config)}
GROUPS: frozenset[str] = frozenset(name.rpartition(".")[0] for name in FLAGS) - {""}
