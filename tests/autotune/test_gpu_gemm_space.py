"""Tuning for a GPU, with times that the tests make up: what is asked, pruned and taken."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode

from litz.autotune import Tuning, gpu_gemm_space, tune
from litz.autotune.gemm_regions import GemmSize
from litz.autotune.results import Ratio
from litz.autotune.serialization import choice_of
from litz.autotune.trial import InProcessRunner, Variant
from litz.capture import capture
from litz.config import snapshot
from litz.ir.choices import ANY, GemmChoice
from litz.ir.graph import Graph
from litz.ir.program import Extern
from litz.ir.scheduled import Tiling
from litz.passes import optimize
from litz.target import cuda
from litz.targets import toolchain_of
from litz.trace import Trace
from tests.stages import through_aot

TARGET = replace(cuda((9, 0), 132), device="cpu")
MACHINE = gpu_gemm_space.machine_of(TARGET)
UP = GemmSize(1, 4096, 768, 3072, "bfloat16", 2, True, True)
Times = Callable[[Any], float | str]


def captured(
    function: Any, *shapes: tuple[int, ...], dtype: torch.dtype = torch.bfloat16,
    weight: torch.dtype | None = None,
) -> Graph:  # fmt: skip
    """A function's graph as it is tuned for a GPU."""
    found: list[Graph] = []

    def compiler(module: torch.fx.GraphModule) -> Any:
        found.append(optimize(capture(module, "inference"), TARGET, snapshot({})))
        return module.forward

    with FakeTensorMode(), torch.no_grad():
        kinds = [weight or dtype if k == 1 else dtype for k in range(len(shapes))]
        inputs = [torch.empty(s, dtype=d) for s, d in zip(shapes, kinds, strict=True)]
        inputs = [t.to(memory_format=torch.channels_last) if t.dim() == 4 else t for t in inputs]
        through_aot(lambda *args: function(*args), compiler)(*inputs)
    return found[0]


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """`tuned(graph, times, **flags)`: what tuning comes to, what was asked, what was prepared."""

    def tuned(graph: Graph, times: Times, **flags: Any) -> tuple[Tuning, list[Any], list[Variant]]:
        asked: list[Any] = []
        prepared: list[Variant] = []

        def tried(
            self: InProcessRunner, rule: Variant, other: Variant, seconds: float
        ) -> Ratio | str:
            chosen = other.choices
            asked.append(next(iter((*chosen.gemms.values(), *chosen.tilings.values()))))
            found = times(asked[-1])
            return found if isinstance(found, str) else Ratio(found, found, found, 1e-5)

        monkeypatch.setattr(InProcessRunner, "tried", tried)
        monkeypatch.setattr(
            InProcessRunner, "prepare", lambda self, found, end: prepared.extend(found)
        )
        options = {"cache_dir": str(tmp_path), "max_autotune_report_choices_stats": False}
        config = snapshot({**options, **flags})
        return tune(graph, TARGET, toolchain_of(TARGET), config, Trace()), asked, prepared

    return tuned


def layer(x: Any, w: Any, b: Any, v: Any, c: Any) -> torch.Tensor:
    """Up, GELU, down, residual, norm: as a transformer has it."""
    return F.layer_norm(x + F.linear(F.gelu(F.linear(x, w, b)), v, c), x.shape[-1:])


SHAPES = ((4096, 768), (3072, 768), (3072,), (768, 3072), (768,))


def test_products_are_asked_about_with_what_they_would_take_in(made_up: Any) -> None:
    graph = captured(layer, *SHAPES)
    tuning, asked, prepared = made_up(graph, lambda choice: 1.5, max_autotune_gemm=True)
    whats = [f.what for f in tuning.findings]
    assert sorted(whats) == [
        "gemm, 4096 x 3072 x 768, bfloat16, with epilogue",
        "gemm, 4096 x 768 x 3072, bfloat16, with epilogue",
    ]
    assert asked and not tuning.choices.gemms
    # Both ways do all of it: the library with a kernel behind it, ours with the GELU inside.
    library, ours = prepared[0].program.body, prepared[2].program.body
    assert isinstance(library[0], Extern) and len(library) == 2
    assert len(ours) in (1, 2) and not any(isinstance(s, Extern) for s in ours)
    assert len(prepared) == len(asked) + 2  # and the rule's of each


def test_the_quickest_is_taken_and_kept(made_up: Any) -> None:
    graph = captured(layer, *SHAPES)

    def times(choice: GemmChoice) -> float:
        return 0.5 if choice.form == "DESCRIPTORS" and choice.fused else 1.5

    tuning, _, _ = made_up(graph, times, max_autotune_gemm=True)
    chosen = tuning.choices.gemms
    assert len(chosen) == 2 and {c.form for c in chosen.values()} == {"DESCRIPTORS"}
    again, asked, _ = made_up(graph, lambda choice: 2.0, max_autotune_gemm=True)
    assert not asked and again.choices == tuning.choices


def test_the_library_stays_if_nothing_is_surely_quicker(made_up: Any) -> None:
    tuning, _, _ = made_up(captured(layer, *SHAPES), lambda choice: 0.98, max_autotune_gemm=True)
    assert not tuning.choices.gemms and all(f.choice == f.default for f in tuning.findings)


def test_backends_limit_what_is_tried(made_up: Any) -> None:
    graph = captured(layer, *SHAPES)
    flags = {"max_autotune_gemm": True, "max_autotune_gemm_backends": "ATEN"}
    _, asked, _ = made_up(graph, lambda choice: 0.5, **flags)
    assert not asked  # the rule's already
    one = captured(lambda x, w: x @ w.t(), (1, 2048), (4096, 2048))
    _, asked, _ = made_up(one, lambda choice: 0.5, max_autotune_gemm=True)
    assert GemmChoice("ATEN") in asked
    flags["max_autotune_gemm_backends"] = "TRITON"
    _, asked, _ = made_up(one, lambda choice: 0.5, **flags)
    assert GemmChoice("ATEN") not in asked


def test_convolutions_of_single_places_are_asked_about(made_up: Any) -> None:
    def images(x: Any, w: Any, v: Any) -> torch.Tensor:
        return F.conv2d(F.conv2d(x, w).relu(), v, padding=1).relu()

    graph = captured(images, (8, 512, 14, 14), (256, 512, 1, 1), (64, 256, 3, 3))
    flags = {"max_autotune_gemm": True, "max_autotune_conv_backends": "ATEN"}
    _, asked, _ = made_up(graph, lambda choice: 0.5, **flags)
    assert not asked
    tuning, asked, prepared = made_up(graph, lambda choice: 0.5, max_autotune_gemm=True)
    (finding,) = tuning.findings
    assert finding.what == "convolution, 1568 x 512 x 256, bfloat16, with epilogue"
    (chosen,) = tuning.choices.gemms.values()
    assert chosen.form is not None and len(asked) > 4
    assert isinstance(prepared[0].program.body[0], Extern)


def int8(x: Any, w: Any, s: Any) -> torch.Tensor:
    return x @ (w.to(x.dtype) * s[:, None]).t()


def test_what_computes_an_operand_is_timed_inside_and_apart(made_up: Any) -> None:
    shapes = ((64, 2048), (4096, 2048), (4096,))
    graph = captured(int8, *shapes, weight=torch.int8)

    def times(choice: GemmChoice) -> float:
        return 0.5 if choice.prologue else 0.7 if choice.backend == "LITZ" else 1.0

    flags: dict[str, Any] = {"max_autotune_gemm": True}
    tuning, asked, prepared = made_up(graph, times, **flags)
    (chosen,) = tuning.choices.gemms.values()
    assert chosen.prologue and chosen.form == "TILES"
    ours = [choice for choice in asked if choice.form is not None and choice.fused]
    assert {c.form for c in ours if c.prologue} == {"TILES"}
    assert len({c.form for c in ours if c.prologue is False}) > 1
    assert all(c.prologue is not None for c in ours)
    # The unit of a trial holds the weight's cast and scale, so both ways do the same work.
    for variant in prepared:
        choice = variant.choices.gemms[ANY]
        inside = choice.prologue or not choice.fused  # that one is otherwise by rule
        assert len(variant.program.body) == (1 if inside else 2) + bool(choice.split_k)
        assert {"x0", "x1", "x2"} == {b.name for b in variant.program.inputs}
    flags |= {"autotune_local_cache": False}
    for more in ({"benchmark_epilogue_fusion": False}, {"prologue_fusion": False}):
        _, asked, _ = made_up(graph, times, **flags, **more)
        assert asked and not any(choice.prologue is not None for choice in asked)


def test_what_follows_a_product_is_not_taken_from_it(made_up: Any) -> None:
    """The GELU between two products is the first one's, not the second one's."""
    _, asked, _ = made_up(captured(layer, *SHAPES), lambda choice: 1.5, max_autotune_gemm=True)
    assert asked and not any(choice.prologue is not None for choice in asked)


def test_the_budget_is_kept(made_up: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both graphs of a model that is trained get ten seconds, so that a model has twenty;
    no trial begins when they are over."""
    clock = [100.0]
    monkeypatch.setattr("litz.autotune.tuner.time.monotonic", lambda: clock[0])
    graph = captured(layer, *SHAPES)

    def times(choice: Any) -> float:
        clock[0] += 0.9
        return 1.5

    tuning, asked, _ = made_up(graph, times, max_autotune=True)
    assert 9.0 < clock[0] - 100.0 < 11.0 and len(asked) == 12
    assert any("max_autotune_budget_seconds" in d.reason for d in tuning.decisions)


def test_exact_singles_stay_with_the_library(made_up: Any) -> None:
    graph = captured(lambda x, w: x @ w, (512, 512), (512, 512), dtype=torch.float32)
    _, asked, _ = made_up(graph, lambda choice: 0.5, max_autotune_gemm=True)
    assert not asked
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        _, asked, _ = made_up(graph, lambda choice: 0.5, max_autotune_gemm=True)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = False
    assert asked


def test_scaled_products_are_asked_about(made_up: Any) -> None:
    def function(x: Any, w: Any, a: Any, b: Any) -> torch.Tensor:
        kind = torch.float8_e4m3fn
        scales = a.float().sum(), b.float().sum()
        return torch._scaled_mm(x.to(kind), w.to(kind).t(), *scales, out_dtype=torch.bfloat16)

    graph = captured(function, (512, 1024), (768, 1024), (1, 1), (1, 1))
    times: Times = lambda choice: 0.5 if choice.form == "TILES" else 1.5  # noqa: E731
    tuning, asked, _ = made_up(graph, times, max_autotune_gemm=True)
    (what,) = [f.what for f in tuning.findings]
    assert what == "gemm, 512 x 1024 x 768, float8_e4m3fn, with epilogue"  # its scales
    assert asked and {c.form for c in tuning.choices.gemms.values()} == {"TILES"}


def test_what_does_not_fit_is_not_tried() -> None:
    for size in (UP, replace(UP, rows=16), replace(UP, bytes=1, dtype="int8")):
        for choice in gpu_gemm_space.tiles(size, TARGET):
            staged = choice.stages * (choice.height + choice.width) * choice.step * size.bytes
            assert staged <= gpu_gemm_space.SHARED
            assert (
                choice.height * choice.width // (32 * choice.warps) < gpu_gemm_space.MOST_REGISTERS
            )
            assert choice.height < 2 * size.rows or choice.height == 16
    wide = GemmChoice(form="TILES", height=256, width=256, step=64, warps=4)
    assert gpu_gemm_space.occupancy_of(wide, 2) is None  # 512 sums a thread
    # Sums of fp8 floats are there twice.
    fp8 = replace(UP, bytes=1, dtype="float8_e4m3fn")
    sums = {c.height * c.width // (32 * c.warps) for c in gpu_gemm_space.tiles(fp8, TARGET)}
    assert max(sums) == 64
    older = replace(TARGET, name="sm_80", capability=(8, 0))
    assert {c.form for c in gpu_gemm_space.tiles(UP, older)} == {"TILES"}


def test_the_way_out_of_a_persistent_tile_counts() -> None:
    """Shared memory as Triton's compiler asked for it, for sm_90."""
    tile = {"form": "PERSISTENT", "height": 128, "width": 256, "step": 64, "warps": 8}
    asked = {(4, True): 229408, (3, True): 180248, (4, False): 327712, (3, False): 278552}
    for (stages, fused), wanted in asked.items():
        choice = GemmChoice(**tile, stages=stages, fused=fused)  # type: ignore[arg-type]
        assert 0 <= gpu_gemm_space.shared_bytes(choice, 2, stages) - wanted < 100
    fit = gpu_gemm_space.occupancy_of(GemmChoice(**tile), 2)  # type: ignore[arg-type]
    assert fit == gpu_gemm_space.Occupancy(4, 1)
    apart = [c for c in gpu_gemm_space.candidates(UP, TARGET, snapshot({}), MACHINE) if not c.fused]
    assert apart and all(
        gpu_gemm_space.shared_bytes(c, 2, c.stages) <= gpu_gemm_space.SHARED for c in apart
    )


def test_the_short_list_is_short_and_the_long_one_is_not() -> None:
    few = gpu_gemm_space.candidates(UP, TARGET, snapshot({}), MACHINE)
    every = snapshot({"max_autotune_gemm_search_space": "EXHAUSTIVE"})
    many = gpu_gemm_space.candidates(UP, TARGET, every, MACHINE)
    assert len(few) <= gpu_gemm_space.SHORT_LIST + 2 < len(many) and set(few) <= set(many)
    best = gpu_gemm_space.estimate(UP, few[2], TARGET, MACHINE)
    assert best < gpu_gemm_space.estimate(UP, GemmChoice(form="TILES", height=64, width=64, step=64,
                                                 warps=4, stages=3), TARGET, MACHINE)  # fmt: skip


def test_long_sums_of_few_tiles_are_sliced() -> None:
    long = GemmSize(1, 64, 16384, 64, "bfloat16", 2, False, True)
    assert any(c.split_k for c in gpu_gemm_space.tiles(long, TARGET))
    assert not any(c.split_k for c in gpu_gemm_space.tiles(UP, TARGET))


def test_the_descent_walks_through_tiles(made_up: Any) -> None:
    """Times fall with the number of stages, of which the list has as many as fit."""

    def times(choice: GemmChoice) -> float:
        return 1.5 if choice.form is None else 0.5 + 0.05 * choice.stages

    flags = {"max_autotune_gemm": True, "coordinate_descent_tuning": True}
    graph = captured(lambda x, w: x @ w.t(), (256, 512), (512, 512))
    plain, _, _ = made_up(graph, times, max_autotune_gemm=True)
    walked, _, _ = made_up(graph, times, **flags)
    (one,), (other,) = plain.choices.gemms.values(), walked.choices.gemms.values()
    assert other.stages == 2 < one.stages


@pytest.mark.parametrize(
    ("flags", "few"),
    [
        ({"triton.autotune_at_compile_time": True}, True),
        ({"max_autotune": True}, True),
        ({"max_autotune_pointwise": True}, False),
    ],
)
def test_tilings_of_other_kernels_are_tried(made_up: Any, flags: Any, few: bool) -> None:
    graph = captured(lambda x: x.softmax(-1) + 1, (4096, 768), dtype=torch.float32)
    tuning, asked, _ = made_up(graph, lambda t: 0.5 if t.warps == 8 else 1.5, **flags)
    (finding,) = tuning.findings
    assert isinstance(finding.default, Tiling) and all(isinstance(t, Tiling) for t in asked)
    assert (len(set(asked)) <= 2) == few
    chosen = list(tuning.choices.tilings.values())
    assert few or [t.warps for t in chosen] == [8]
    assert "->" in finding.table()


def test_a_kept_tiling_is_read_with_care() -> None:
    rule = Tiling((4, 128), 64, 4)
    assert choice_of(rule, {"blocks": [8, 64], "warps": 2}) == replace(
        rule, blocks=(8, 64), warps=2
    )
    for wrong in ({"blocks": [8]}, {"warps": "2"}, {"row": 0}, {"nothing": 1}):
        with pytest.raises((ValueError, TypeError)):
            choice_of(rule, wrong)


def test_a_process_of_its_own_is_not_for_gpus(made_up: Any) -> None:
    graph = captured(lambda x, w: x @ w.t(), (256, 512), (512, 512))
    flags = {"max_autotune_gemm": True, "autotune_in_subproc": True}
    tuning, asked, _ = made_up(graph, lambda choice: 0.5, **flags)
    assert asked and any("autotune_in_subproc" in d.reason for d in tuning.decisions)
