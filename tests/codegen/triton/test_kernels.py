"""Every kernel of the cases runs under Triton's interpreter, and is compiled for a real GPU.

Triton decides at import whether it interprets, so all cases run in one process of their own.
"""

from __future__ import annotations

import math
import os
import re
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from litz.build import start_triton, triton_worker
from litz.build import triton as triton_build
from litz.build.triton import _job, compile_kernels
from litz.build.workers import CompileWorkerPool
from litz.codegen.triton.module import emit_kernels
from litz.config import snapshot
from litz.errors import InternalError, UnsupportedOp
from litz.ir.expr import extent_of
from litz.ir.scheduled import Tiling
from litz.ir.source import DeviceKernel
from litz.runtime.counters import Counters
from litz.schedule.tile import candidates, neighbours
from litz.target import configured, cuda, host
from litz.targets import toolchain_of
from tests.codegen.triton.apart import Outcomes, outcomes
from tests.codegen.triton.cases import NAMES
from tests.stages import Stages, staged, through_aot
from tests.toolchain import emit

triton = pytest.importorskip("triton")
GPUTarget = pytest.importorskip("triton.backends.compiler").GPUTarget
ASTSource = pytest.importorskip("triton.compiler").ASTSource
ROOT = Path(__file__).parents[3]
ELF = b"\x7fELF"


@pytest.fixture(scope="module")
def outcome() -> Outcomes:
    return outcomes("tests.codegen.triton.cases")


@pytest.mark.parametrize("name", NAMES)
def test_a_kernel_means_what_the_loop_ir_says(name: str, outcome: Any) -> None:
    assert name in outcome, f"the process ended in {list(outcome)[-1]!r}, or the case after it"
    assert not outcome[name][0], outcome[name][0]


def test_every_kernel_becomes_a_cubin(outcome: Any, tmp_path: Path, monkeypatch: Any) -> None:
    """No GPU, no C compiler: the path has none."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    texts: dict[str, DeviceKernel] = {}
    for _, kernels in outcome.values():
        for k in kernels:
            plain = k["text"].replace(k["name"], "litz_kernel")
            kernel = DeviceKernel(**{**k, "name": "litz_kernel", "text": plain})
            texts[plain] = kernel
    named = []
    for number, kernel in enumerate(texts.values()):
        name = f"litz_{number}"
        text = kernel.text.replace("litz_kernel", name)
        named.append(DeviceKernel(**{**vars(kernel), "name": name, "text": text}))
    assert len(named) > 100
    cubins = compile_kernels(tuple(named), 90, threads=2)
    assert all(cubins[k.name].code.startswith(ELF) for k in named)
    assert {c.warps for c in cubins.values()} == {k.warps for k in named}


def scheduled(function: Any, *inputs: torch.Tensor, **options: Any) -> Stages:
    """Every stage up to `schedule`, for a GPU."""
    found: list[Stages] = []
    config = snapshot({name.replace("__", "."): value for name, value in options.items()})
    target = configured(replace(cuda((9, 0), 132), device="cpu"), config)
    target = replace(target, gemm_max_rows=16)

    def compiler(module: torch.fx.GraphModule) -> Any:
        found.append(staged(module, target, config, inputs))
        return module.forward

    with torch.no_grad():
        through_aot(function, compiler)(*inputs)
    return found[0]


def kernels_of(function: Any, *inputs: torch.Tensor, **options: Any) -> tuple[DeviceKernel, ...]:
    made = scheduled(function, *inputs, **options)
    return emit_kernels(made.plan, made.scheduled).kernels


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64, torch.int64])
def test_memory_itself_adds_every_type_it_can(dtype: torch.dtype) -> None:
    """Halves are added up in float32."""
    x, i = torch.ones(9, 16, dtype=dtype), torch.tensor([1, 0, 1, 2, 2, 2, 0, 1, 1])
    made = kernels_of(lambda x, i: x.index_put((i,), x, accumulate=True), x, i)
    (kernel,) = [kernel for kernel in made if "tl.atomic_add" in kernel.text]
    assert compile_kernels((kernel,), 90, 1)[kernel.name].code.startswith(ELF)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("emulate", [False, True])
def test_every_op_rounds_by_itself(dtype: torch.dtype, emulate: bool) -> None:
    """LLVM and ptxas join a product and a sum to one step, unless they are told not to: then
    `x * y - x * y` is not zero, and a half is not rounded before it is computed with."""
    x = torch.ones(64, 64, dtype=dtype)
    option = {"emulate_precision_casts": emulate}
    (kernel,) = kernels_of(lambda x, y: (p := x * y + y) - p.amax(1, keepdim=True), x, x, **option)

    def joins(kernel: DeviceKernel) -> bool:
        return "fma.rn." in ptx_of(kernel)

    assert (
        not joins(kernel) and triton_worker.options(_job(kernel, 90))["enable_fp_fusion"] is False
    )
    assert joins(replace(kernel, rounds=False))  # what the flag is for


def test_a_row_may_be_a_vector_and_then_be_walked() -> None:
    """A loop of Triton's keeps the types of the names that it sets."""

    def several(
        x: torch.Tensor, y: torch.Tensor, z: torch.Tensor, n: torch.Tensor
    ) -> list[torch.Tensor]:
        more, filled = x + 1, y.index_fill(1, n, 2)  # that many ops, in this order, are one kernel
        return [more, z.scatter_reduce(0, z.long() % 3, z, "amax"), filled]

    given = torch.ones(3, 2), torch.ones(2, 3), torch.ones(3, 2), torch.tensor([-1, -1, 0, 1])
    made = kernels_of(several, *given, aggressive_fusion=True)
    (kernel,) = (k for k in made if "tl.arange" in k.text and "for step in range(" in k.text)
    assert compile_kernels((kernel,), 90, 1)[kernel.name].code.startswith(ELF)


@pytest.mark.parametrize(
    ("dtype", "count", "stages"),
    [(torch.float32, 3, 3), (torch.float32, 11, 2), (torch.float64, 11, 1)],
)
def test_blocks_that_are_under_way_fit_the_shared_memory(
    dtype: torch.dtype, count: int, stages: int
) -> None:
    def plus_many(x: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
        return sum(others, start=x.softmax(1))

    with FakeTensorMode():
        given = [torch.empty(4096, 50304, dtype=dtype) for _ in range(count)]
        (kernel,) = kernels_of(plus_many, *given)
    assert kernel.stages == stages
    shared = compile_kernels((kernel,), 90, 1)[kernel.name].shared
    assert shared <= cuda((9, 0), 132).shared_bytes


def test_places_that_were_promised_to_fit_32_bits_do() -> None:
    with FakeTensorMode():
        x = torch.empty(1 << 16, 1 << 16, dtype=torch.int8)
        with pytest.raises(UnsupportedOp, match="assume_32bit_indexing promises"):
            kernels_of(lambda x: x + 1, x, assume_32bit_indexing=True)
        assert kernels_of(lambda x: x + 1, x[:4].clone(), assume_32bit_indexing=True)


def test_kernels_are_named_as_asked_for() -> None:
    def sources(f: Any, **options: Any) -> list[DeviceKernel]:
        config = snapshot({f"triton.{name}": value for name, value in options.items()})
        target = configured(replace(cuda((9, 0), 132), device="cpu"), config)
        made = scheduled(f, torch.ones(6, 20))
        return list(emit(made.plan, made.scheduled, target).kernels)

    two = lambda x: (x.sum(1), x.t().contiguous().exp())  # noqa: E731
    assert [k.name for k in sources(lambda x: x.exp())] == ["litz_0_exp"]
    (node,) = sources(lambda x: x.exp().exp(), descriptive_names="inductor_node")
    assert node.name == "litz_0_exp_exp_1" and f"def {node.name}(" in node.text
    first, second = (sources(f, unique_kernel_names=False) for f in (two, lambda x: x.sum(1)))
    names = {k.name for k in first}
    assert len(names) == 2 and second[0] in first  # another graph, the same text
    assert all(f"def {k.name}(" in k.text for k in first)


def ptx_of(kernel: DeviceKernel) -> str:
    """What a GPU of capability 9.0 would run, all pointers aligned as ours are."""
    function = triton_worker.function_of(kernel.text, kernel.name)
    pointers = dict(zip(function.arg_names, kernel.pointers, strict=True))
    attributes = {(k,): [["tt.divisibility", 16]] for k in range(len(pointers))}
    source = ASTSource(function, signature=pointers, attrs=attributes)
    job = _job(kernel, 90)
    made = triton.compile(
        source, target=GPUTarget("cuda", 90, 32), options=triton_worker.options(job)
    )
    return str(made.asm["ptx"])


@pytest.mark.parametrize(
    ("function", "shape", "dtype", "wide", "narrow"),
    [
        (lambda x: x + 1, (1 << 20,), torch.float32, "v4.b32", ""),
        (lambda x: x.exp(), (1 << 20,), torch.bfloat16, "v4.b32", ""),
        (lambda x: x.softmax(1), (4096, 4096), torch.bfloat16, "v4.b32", ""),
        (lambda x: x.softmax(1), (4096, 50304), torch.bfloat16, "v4.b32", ""),
        (lambda x: x.softmax(1), (4096, 50257), torch.bfloat16, "v4.b32", "st.global.b16"),
        (lambda x: x.sum(0), (3000, 1 << 16), torch.float32, "v4.b32", "st.global.b32"),
    ],
)
def test_accesses_are_as_wide_as_a_thread_can_have_them(
    function: Any, shape: tuple[int, ...], dtype: torch.dtype, wide: str, narrow: str
) -> None:
    """Only the ends of an odd row, and sums, are stored by single elements."""
    with FakeTensorMode():
        kernel = kernels_of(function, torch.empty(shape, dtype=dtype))[0]
    found = set(re.findall(r"(?:ld|st)\.global[.\w]*", ptx_of(kernel)))
    assert f"ld.global.{wide}" in found
    assert {f for f in found if wide not in f} == ({narrow} if narrow else set())


def test_a_row_has_one_pointer() -> None:
    """Steps between the points of a thread are numbers in the instructions, not sums before them:
    a softmax of rows of 1013 took 91 us for 80 with a 32-bit sum for each element."""
    with FakeTensorMode():
        (kernel,) = kernels_of(lambda x: x.softmax(1), torch.empty(65536, 1013).bfloat16())
    assert ptx_of(kernel).count("mul.wide") <= 4


def test_places_beyond_32_bits_are_counted_in_64() -> None:
    with FakeTensorMode():
        x = torch.empty(1 << 16, 1 << 16, dtype=torch.int8)
        made = [kernels_of(f, x) for f in (lambda x: x + x.t(), lambda x: x.argmax(0))]
    for (kernel,) in made:
        assert "tl.program_id(0).to(tl.int64)" in kernel.text
        assert kernel.text.count("tl.arange(") == kernel.text.count(").to(tl.int64)[")
        assert compile_kernels((kernel,), 90, 1)[kernel.name].code.startswith(ELF)


def ttir_of(kernel: DeviceKernel) -> str:
    """What Triton makes of a kernel's text, with the type of every number."""
    function = triton_worker.function_of(kernel.text, kernel.name)
    pointers = dict(zip(function.arg_names, kernel.pointers, strict=True))
    target = GPUTarget("cuda", 90, 32)
    options = triton_worker.options(_job(kernel, 90))
    return str(
        triton.compile(ASTSource(function, pointers), target=target, options=options).asm["ttir"]
    )


@pytest.mark.parametrize("reduced", ["amax", "softmax", "cumsum"])
def test_a_step_across_a_far_tensor_is_counted_in_64(reduced: str) -> None:
    """A loop's own number has 32 bits, and so had its product with the distance of two rows."""
    with FakeTensorMode():
        x = torch.empty(1 << 16, 1 << 16, dtype=torch.bfloat16)
        (kernel,) = kernels_of(lambda x: getattr(x, reduced)(0), x)
    loops = ttir_of(kernel).split("scf.for")[1:]
    assert loops and all("arith.extsi" in text for text in loops)
    assert not any(re.search(r"arith.muli .* : (tensor<.*x)?i32", text) for text in loops)


def test_a_row_beyond_32_bits_that_lies_in_few_elements() -> None:
    with FakeTensorMode():
        x = torch.empty(3, 1).expand(3, 3 << 30)
        (kernel, *_) = scheduled(lambda x: x.argmax(1), x).scheduled
    assert kernel.choice.wide


@pytest.mark.parametrize(
    ("function", "shape", "blocks", "row"),
    [
        (lambda x: x + 1, (1 << 24,), (1024,), 1),
        (lambda x: torch.nn.functional.gelu(x), (1 << 24,), (2048,), 1),
        (lambda x: x + 1, (5, 7), (64,), 1),
        (lambda x: x.t().contiguous(), (4096, 4096), (64, 64), 1),
        (lambda x: x.t().contiguous(), (512, 512), (32, 32), 1),
        (lambda x: x.view(-1, 2, 3).mT.contiguous(), (4096, 3072), (1024,), 1),
        (lambda x: x.softmax(1), (65536, 768), (1,), 1024),
        (lambda x: x.softmax(1), (65536, 64), (16,), 64),
        (lambda x: x.softmax(1), (4096, 16000), (1,), 16384),
        (lambda x: x.amax(1), (4096, 30000), (1,), 4096),
        (lambda x: x.sum(0), (3000, 1 << 16), (64,), 16),
        (lambda x: x.softmax(0), (3000, 1 << 16), (128,), 16),
    ],
)
def test_tiles_follow_sizes_and_strides(
    function: Any, shape: tuple[int, ...], blocks: tuple[int, ...], row: int
) -> None:
    with FakeTensorMode():
        (kernel,) = scheduled(function, torch.empty(shape)).scheduled
    assert kernel.choice.blocks == blocks and kernel.choice.row == row
    assert eval(repr(kernel.choice), {"Tiling": Tiling}) == kernel.choice
    points = math.prod(blocks) * row
    assert 32 * kernel.choice.warps <= max(points, 32)


@pytest.mark.parametrize(
    ("function", "online", "plain"),
    [(lambda x: x.softmax(1), 2, 3), (lambda x: x.logsumexp(1), 1, 2)],
)
def test_a_long_row_of_exponentials_is_read_once_less(
    function: Any, online: int, plain: int
) -> None:
    with FakeTensorMode():
        x = torch.empty(4096, 50304, dtype=torch.bfloat16)
        (one,) = kernels_of(function, x)
        (other,) = kernels_of(function, x, online_softmax=False)
    assert one.text.count("tl.load(") == online and other.text.count("tl.load(") == plain


@pytest.mark.parametrize(
    ("function", "shape", "plain"),
    [
        (lambda x: x.sum(), (1 << 24,), 2),
        (lambda x: x.mean(1).exp(), (10, 300001), 2),
        (lambda x: x.sum(0), (300000, 40), 2),
        (lambda x: x.sum(0), (8192, 8192), 2),
        (lambda x: x.argmax(), (1 << 24,), 1),
        (lambda x: x.sum(1), (4096, 4096), 1),
    ],
)
def test_programs_of_one_launch_share_a_few_long_rows(
    function: Any, shape: tuple[int, ...], plain: int
) -> None:
    with FakeTensorMode():
        x = torch.empty(shape)
        (kernel,) = scheduled(function, x, triton__cooperative_reductions=True).scheduled
        usual = scheduled(function, x).scheduled
    assert len(usual) == plain
    # Nothing else splits rows in which a place is asked for.
    assert all(k.choice.rsplit == 1 or "argmax" in k.kernel.name for k in usual)
    rsplit, rsplit_points = kernel.choice.rsplit, kernel.choice.rsplit_points
    assert (
        (rsplit > 1)
        == (shape != (4096, 4096))
        == ("reduce each row cooperatively" in str(kernel.steps))
    )
    (row,) = kernel.kernel.phases[0].inner
    assert rsplit == 1 or (rsplit - 1) * rsplit_points < row.extent.number <= rsplit * rsplit_points


def test_channels_of_images_are_rows() -> None:
    """A channel lies in as many places as there are images; in each its points are neighbours. A
    mean of each channel, which is read beside them, says nothing of that."""

    def spread(x: torch.Tensor, mean: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        squares = (x.float() - mean[:, None, None]).square().sum((0, 2, 3))
        return squares, squares.rsqrt()

    with FakeTensorMode():
        halves = {c: torch.empty(32, c, 56, 56, dtype=torch.bfloat16) for c in (64, 256)}
        pieces, whole = scheduled(spread, halves[64], torch.empty(64)).scheduled
        (kernel,) = scheduled(spread, halves[256], torch.empty(256)).scheduled
    assert pieces.choice.blocks == kernel.choice.blocks == (1,)
    assert extent_of(pieces.kernel.outer) == 16 * 64 and extent_of(whole.kernel.outer) == 64
    assert kernel.choice.row == 4096


def test_sums_of_columns_are_split_by_what_programs_take() -> None:
    """768 columns are twelve programs; what makes the numbers is no part of that."""

    def gradient(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        made = x * y.exp()
        return made, made.float().sum(0).bfloat16()

    with FakeTensorMode():
        x = torch.empty(4096, 768, dtype=torch.bfloat16)
        points, pieces, whole = scheduled(gradient, x, x).scheduled
    assert not points.kernel.phases[0].inner
    assert extent_of(pieces.kernel.outer) > 20 * 768 == 20 * extent_of(whole.kernel.outer)


def test_counters_belong_to_a_stream_or_a_recording() -> None:
    device = SimpleNamespace(name="cpu", is_capturing=lambda: False)
    counters = Counters(3, device)
    first = counters(7)
    assert counters(7) is first and counters(None) is counters(0) is not first
    device.is_capturing = lambda: True
    assert counters(7) is not first and not counters(7).any() and len(counters(7)) == 3


@pytest.mark.parametrize(
    ("function", "shape"),
    [
        (lambda x: x + 1, (1 << 20,)),
        (lambda x: x.t().contiguous(), (4096, 4096)),
        (lambda x: x.softmax(1), (65536, 768)),
        (lambda x: x.amax(1), (4096, 30000)),
        (lambda x: x.sum(0), (3000, 1 << 16)),
        (lambda x: x + 1, (5,)),
    ],
)
def test_candidates_begin_with_the_rule_and_keep_what_is_no_choice(
    function: Any, shape: tuple[int, ...]
) -> None:
    with FakeTensorMode():
        (kernel,) = scheduled(function, torch.empty(shape)).scheduled
    few, many = candidates(kernel), candidates(kernel, wide=True)
    assert few[0] == many[0] == kernel.choice
    assert len(set(few)) == len(few) <= 3 and len(set(many)) == len(many)
    assert set(few) <= set(many) and len(many) >= len(few)
    assert set(neighbours(kernel, kernel.choice)) < set(many) or shape == (5,)
    for tiling in many:
        assert replace(tiling, blocks=(), row=1, warps=1, stages=1) == replace(
            kernel.choice, blocks=(), row=1, warps=1, stages=1
        )
        whole = math.prod(tiling.blocks) * max(tiling.row, 1)
        assert 32 * tiling.warps <= max(whole, 32)


def test_what_triton_rejects_is_shown_with_its_text() -> None:
    text = "import triton\n\n\n@triton.jit\ndef broken(b0):\n    b0.nothing()\n"
    with pytest.raises(InternalError, match=r"Triton rejects broken(?s:.*)b0.nothing"):
        compile_kernels((DeviceKernel("broken", text, ("*fp32",), 1, 1, 1),), 90, 1)


def test_workers_are_there_before_their_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    workers = CompileWorkerPool()
    monkeypatch.setattr(triton_build, "WORKERS", workers)
    target = cuda((9, 0), 132)
    for threads, ops, count in ((1, 100, 0), (3, 7, 0), (3, 8, 1), (3, 100, 3), (3, 100, 3)):
        start_triton(target, snapshot({"compile_threads": threads}), ops)
        assert len(workers.free) == count
    toolchain_of(host()).get_ready(host(), snapshot({"compile_threads": 8}), 100)
    assert len(workers.free) == 3 and len(workers.first) == 2
    text = "import triton\n@triton.jit\ndef idle(b0):\n    pass\n"
    kernels = [DeviceKernel("idle", text.replace("pass", f"b0 + {k}"), ("*fp32",), 1, 1, 1)
               for k in range(5)]  # fmt: skip
    monkeypatch.setattr(triton_build, "_here", None)
    cubins = compile_kernels(tuple(replace(k, name=f"k{n}", text=k.text.replace("idle", f"k{n}"))
                                   for n, k in enumerate(kernels)), 90, 3)  # fmt: skip
    assert all(cubin.code.startswith(ELF) for cubin in cubins.values()) and len(cubins) == 5
    assert len(workers.free) == 3 and workers.busy == 0
    for first in workers.first:  # dies while it waits; whom it forked lives on
        first.kill()
        first.wait()
    cubins = compile_kernels(tuple(kernels[:1]), 90, 3)
    assert cubins["idle"].code.startswith(ELF) and workers.busy == 0
    alive = list(workers.free)
    workers.stop()
    assert alive and not workers.free


def test_a_job_that_kills_its_worker_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    workers = CompileWorkerPool()
    monkeypatch.setattr(triton_build, "WORKERS", workers)
    workers.start(1)
    text = "import os\nos._exit(3)\n"
    with pytest.raises(InternalError, match="the worker that compiles it dies"):
        compile_kernels((DeviceKernel("deadly", text, ("*fp32",), 1, 1, 1),), 90, 2)
    assert workers.busy == 0 and not workers.free
    workers.stop()


def test_a_forked_program_has_workers_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    workers = CompileWorkerPool()
    workers.start(1)
    (worker,) = workers.free
    child = os.fork()
    if child == 0:
        workers.forget()
        os._exit(len(workers.free) + len(workers.first) + workers.busy)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    kernel = DeviceKernel(
        "k", "import triton\n@triton.jit\ndef k(b0):\n    pass\n", ("*i8",), 1, 1, 1
    )
    assert "code" in workers.run(_job(kernel, 90)) and workers.free == [worker]
    with monkeypatch.context() as patched:
        patched.setattr(sys, "executable", "/nowhere")
        workers.free.clear()
        with pytest.raises(OSError):
            workers.run(_job(kernel, 90))
        monkeypatch.setattr(triton_build, "WORKERS", workers)
        start_triton(cuda((9, 0), 132), snapshot({"compile_threads": 2}), 100)
    assert workers.busy == 0 and not workers.free
    worker.close()
    workers.stop()
