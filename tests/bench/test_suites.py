"""The suites: every case has a name of its own and builds; Litz is right about the small ones."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import flop_registry

from litz.autotune.peak import Peak
from litz.bench.agreement import Agreement
from litz.bench.candidates import CANDIDATES
from litz.bench.case import Case, Settings, Suite
from litz.bench.gpu import ATTENTION, Peaks, kind_of
from litz.bench.results import OURS, Row
from litz.bench.run import run
from litz.bench.suites import SUITES, case_named, gemm, gpu
from litz.bench.suites.gemm import PEAK, measure_peak
from litz.bench.suites.kernels import KERNELS, SIZES, program
from litz.bench.suites.scaling import FEW_OPS, OPS, SHAPES, many_ops
from litz.bench.zoo import ZOO
from litz.demo import AtenCounter
from litz.errors import SuiteCannotRun
from litz.fuzz.runs import Compiled
from tests_gpu import bench

MODELS = {"cpu", "best", "compile", "memory"}
QUICK = [case for name in SUITES for case in SUITES[name].cases(True)]
# Models are built and compared by tests/models, and have the rest of the command in common.
# Cases with threads of their own are those of `kernels` again; layers have parameters.
OTHERS = {*MODELS, "gemm", "conv", "train", "dynamic", "gpu"}
SMALL = [case for case in QUICK if case.suite not in OTHERS and case.threads is None]


@pytest.mark.parametrize("quick", [True, False])
@pytest.mark.parametrize("name", SUITES)
def test_names_are_unique_and_find_their_case(name: str, quick: bool) -> None:
    cases = SUITES[name].cases(quick)
    assert Counter(case.label for case in cases).most_common(1)[0][1] == 1
    assert {case.suite for case in cases} == {name}
    last = cases[-1]
    assert case_named(name, last.name, last.variant, quick).label == last.label
    assert SUITES[name].sentence.endswith(".")


def test_the_models_are_in_every_suite_of_models() -> None:
    assert len(ZOO) >= 12
    for name in MODELS:
        assert {case.name for case in SUITES[name].cases(False)} == set(ZOO)
    batches = {case.variant for case in SUITES["cpu"].cases(False)}
    assert batches == {"batch 1", "batch 4"}


def test_kernels_are_measured_at_every_size() -> None:
    cases = SUITES["kernels"].cases(False)
    assert {case.variant for case in cases} == set(SIZES)
    assert len(cases) == len(SIZES) * sum(len(kernel.dtypes) for kernel in KERNELS.values())
    sizes = [rows * columns * 4 for rows, columns in SIZES.values()]
    assert sizes == [16 << 10, 512 << 10, 64 << 20]


def test_forty_layers_and_what_follows_them() -> None:
    cases = [case for case in SUITES["gemm"].cases(False) if case.name != PEAK]
    assert {case.variant for case in cases} == {f"{n} rows" for n in (1, 4, 16, 64, 256, 1024)}
    assert sum(case.name in gemm.LAYERS for case in cases) >= 40
    assert {"bert up gelu", "bert down residual"} <= {case.name for case in cases}


def test_a_share_of_the_peak() -> None:
    """A loop of multiply-adds is faster than any product, and the sums are what they should be."""
    (peak,) = measure_peak(SUITES["gemm"].cases(True)[0], Settings(seconds=0.1, threads=1), print)
    assert Peak(1)() == Peak(1)() != [0.0]
    row = Row("gemm", "bert up", "4 rows", "short call", {OURS: (1e-3,)}, {}, {"MFLOP": 5.0})
    found = gemm.finish([peak, row])
    assert found[0].facts["% of peak"] == pytest.approx(100)
    assert found[1].facts["GFLOP/s"] == pytest.approx(5)
    assert found[1].facts["% of peak"] == pytest.approx(500 / gemm.rate(peak))
    assert gemm.rate(peak) > 5


def test_onednn_holds_packed_weights() -> None:
    built = gemm.layer("t5 down", 4)
    packed = CANDIDATES["onednn"].compile(built.function)
    torch.testing.assert_close(built(packed), built(), rtol=1e-5, atol=1e-5)
    assert packed.linear.packed.is_mkldnn and isinstance(built.function.linear, torch.nn.Linear)


@pytest.mark.parametrize("case", SMALL, ids=lambda case: f"{case.suite} {case.label}")
def test_litz_agrees_with_eager(case: Case) -> None:
    """Without Dynamo, whose guards take longer than all else here."""
    built = case.build()
    found = Compiled(lambda *args: [built.function(*args)], {})(built.args)
    assert Agreement(built).fault(found) == ""


@pytest.mark.parametrize("name", ["resnet 3x3", "bert up gelu", "bert down residual"])
def test_litz_agrees_with_eager_on_layers(name: str) -> None:
    built = case_named("gemm", name, "4 rows", quick=True).build()
    torch._dynamo.reset()
    assert Agreement(built).fault(built(CANDIDATES["litz"].compile(built.function))) == ""


@pytest.mark.parametrize("name", ["mobilenet 3x3 depthwise", "unet up"])
def test_convolutions_agree_with_eager(name: str) -> None:
    """Litz, and oneDNN with packed weights."""
    built = case_named("conv", name, "", quick=True).build()
    torch._dynamo.reset()
    for candidate in ("litz", "onednn"):
        assert Agreement(built).fault(built(CANDIDATES[candidate].compile(built.function))) == ""


def test_lengths_share_one_compile_and_stand_beside_a_compile_of_their_own() -> None:
    (case,) = SUITES["dynamic"].cases(True)
    settings = Settings(against=("eager",), seconds=0.01, quick=True)
    rows = case.measure(case, settings, lambda _: None)
    assert [row.variant for row in rows] == ["2 x 24", "2 x 5", "2 x 17"]
    for row in rows:
        assert set(row.samples) == {"litz", "litz static", "eager"} and not row.missing
        assert row.facts == {"compiles": 1, "by size": 0}


def test_a_training_step_gives_the_gradients_of_the_same_parameters_each_time() -> None:
    built = case_named("train", "mixer", "step", True).build()
    agreement = Agreement(built)
    assert len(agreement.eager) == 1 + len(list(built.function.parameters()))
    torch._dynamo.reset()
    step = CANDIDATES["litz"].compile(built.function)
    for _ in range(2):
        assert agreement.fault(built(step)) == ""
    assert any(t.norm() > 0 for t in agreement.eager[1:])
    models = {case.name for case in SUITES["train"].cases(False)}
    assert len(models & set(ZOO)) >= 8


@pytest.mark.parametrize("shape", SHAPES)
def test_ops_scale_as_they_say(shape: str) -> None:
    """As many ops as asked for; and however many, the values neither vanish nor grow."""
    for ops in FEW_OPS:
        built = many_ops(shape, ops)
        with AtenCounter() as counted:
            built()
        assert counted.count == ops
    assert 1e-3 < many_ops(shape, OPS[-1])().abs().max() < 2


def test_nothing_is_the_graph_op_by_op_and_the_floor_is_not_even_that() -> None:
    built = program("gelu", "L1")
    torch._dynamo.reset()
    results = {name: CANDIDATES[name].compile(built.function) for name in ("nothing", "floor")}
    for compiled in results.values():
        assert torch.equal(built(compiled), built())
    built.args[0].zero_()
    assert torch.equal(built(results["nothing"]), built())
    assert not torch.equal(built(results["floor"]), built())


def test_the_gpu_suite_says_that_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SuiteCannotRun, match="no CUDA device"):
        run(["gpu"], [], Settings(against=("eager",), quick=True))


@pytest.mark.parametrize("training", [False, True])
def test_the_gpu_suite_measures_every_way(training: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """On this CPU: what only a GPU has (kernels by kind) is left out."""
    monkeypatch.setattr(gpu, "peaks", lambda _: Peaks(1e10, 1e11))
    monkeypatch.setattr(gpu, "_warm", lambda *_: "")
    build = partial(gpu.program, "token", True, training, "cpu")
    ways = gpu.TRAINING if training else gpu.INFERENCE[:2]
    case = Case("gpu", "token", "", build, partial(gpu.measure, ways, "cpu"))
    rows = case.measure(case, Settings(against=("eager",), seconds=0.05), lambda _: None)
    assert [(r.variant, r.metric) for r in rows[:-2]] == [(w.variant, "call") for w in ways]
    for row in rows[:-2]:
        assert not row.missing and set(row.samples) == {"litz", "eager"}
        assert row.facts["floor ms"] > 0
    assert [row.metric for row in rows[-2:]] == ["graph, cold", "first call, cold"]
    assert all(set(row.samples) == {"litz"} for row in rows[-2:])
    assert rows[-2].samples["litz"] < rows[-1].samples["litz"]


@pytest.mark.parametrize("budget", [-1.0, 60.0])
def test_a_run_that_is_cut_short_shows_what_it_has(
    budget: float, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measure(case: Case, settings: Settings, say: Any) -> list[Row]:
        return [Row("made", case.name, "", "call", {"litz": (1e-3,), "eager": (3e-3,)}, {})]

    build: Any = None  # nobody asks for the program
    cases = [Case("made", name, "", build, measure) for name in ("one", "two")]
    monkeypatch.setitem(SUITES, "made", Suite("Made up.", lambda quick: cases))
    status = bench.main("made", [], Settings(against=("eager",)), budget)
    text = capsys.readouterr().out
    assert status == (1 if budget < 0 else 0)
    assert text.count("| one | 3.00") == 2  # after its case, and in the table
    assert ("not reached after -1 s: two" in text) == (budget < 0) == ("| two" not in text)


def test_kernels_are_told_apart_by_name() -> None:
    kinds = {
        "litz_3_add_gelu": "generated",
        "triton_poi_fused_add_0": "generated",
        "nvjet_sm90_tst_64x8_64x16_4x1_v_bz_TNT": "gemm",
        "void cublasLt::splitKreduce_kernel<32, 16>": "gemm",
        "fmha_cutlassF_bf16_aligned_64x128_rf_sm80": "attention",
        "sm80_xmma_fprop_implicit_gemm_bf16": "convolution",
        "Memcpy DtoD (Device -> Device)": "other",
    }
    assert {name: kind_of(name) for name in kinds} == kinds


def test_multiplications_of_attention_are_torchs_and_grouped_heads_count_too() -> None:
    query, key = (2, 8, 5, 16), (2, 8, 7, 16)
    grouped = (2, 2, 7, 16)
    for op, formula in ATTENTION.items():
        is_backward = str(op).endswith("backward")
        given = ((query,) if is_backward else ()) + (query, key, key)
        assert formula(*given) == flop_registry[op](*given, out_val=None)
        assert formula(*given[:-2], grouped, grouped) == formula(*given)
