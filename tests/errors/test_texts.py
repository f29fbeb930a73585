"""The text of every error: what happened, where, what to do. A changed text is a changed test."""

from __future__ import annotations

import inspect

import pytest

from litz import errors
from litz.errors import (
    CaptureFailed,
    CompileFailed,
    CudaGraphsRefused,
    CustomPassFailed,
    DifferentMachines,
    DiscardedParameter,
    DriverError,
    FlagValueError,
    FrozenParameterChanged,
    GatherOutOfRange,
    IndexOutOfRange,
    InputMismatch,
    IntegerDivisionByZero,
    InternalError,
    LitzError,
    MissingDependency,
    ModeWithOptions,
    NotFinite,
    OutOfMemory,
    OutOfRange,
    ParseError,
    PassFailed,
    ScalarAssertion,
    SizeUnknown,
    StageFailed,
    SuiteCannotRun,
    UnknownBenchmark,
    UnknownFlag,
    UnknownMode,
    UnserializableOperand,
    UnsupportedDevice,
    UnsupportedOp,
    UnsupportedTorch,
    UserError,
    ValueRefused,
    VerifyError,
    WrongFlagType,
)
from litz.ir.program import Origin

ADD = Origin("add_1", "aten.add.Tensor", "model.py:12")
NOWHERE = Origin("add_1", "aten.add.Tensor")
REPORT = "\nThis is a bug in Litz. Please report it with the output of LITZ_DEBUG=5."

TEXTS: list[tuple[LitzError, str]] = [
    (
        SizeUnknown("s0 + 1", "it may count from the end"),
        "the value of the size s0 + 1 is needed to compile (it may count from the end). "
        "Mark the dimension static, or let it be compiled for each size.",
    ),
    (
        UnknownFlag("max_fusion", ["max_fusion_size", "debug"]),
        "there is no flag 'max_fusion'; did you mean 'max_fusion_size' or 'debug'? "
        "`python -m litz options` lists every flag.",
    ),
    (
        UnknownFlag("zzz"),
        "there is no flag 'zzz'. `python -m litz options` lists every flag.",
    ),
    (
        WrongFlagType("debug", "int", "3"),
        "flag 'debug' takes int, got '3' of type str. Give it a value of type int.",
    ),
    (
        FrozenParameterChanged("layers.0.weight", 3),
        "parameter layers.0.weight (and 2 more) was changed after it was frozen into a compiled "
        "graph. Call torch.compiler.reset() to compile with the new values, or leave freezing off.",
    ),
    (
        UnserializableOperand("higher_order.cond is given a live module (cond (model.py:3))"),
        "higher_order.cond is given a live module (cond (model.py:3)): this call runs only in the "
        "process that compiled it.",
    ),
    (
        DiscardedParameter("sum"),
        "sum was called on a parameter that was discarded when its module was compiled with "
        "freezing_discard_parameters. Only the compiled module can use it; load the model anew, or "
        "leave that flag off.",
    ),
    (
        FlagValueError("debug", 9, "0 to 6"),
        "flag 'debug' cannot be 9. Allowed: 0 to 6.",
    ),
    (
        UnknownBenchmark("suite", "cpus", ["cpu", "kernels"]),
        "there is no suite 'cpus'. Choose from: cpu, kernels.",
    ),
    (
        DifferentMachines({"torch": "2.13", "threads": "2"}, {"torch": "2.12", "threads": "2"}),
        "these results differ in torch (2.13; 2.12). Show the files one by one.",
    ),
    (
        UnknownMode("fast", ["default", "max-autotune"]),
        "there is no mode 'fast'. Modes: default, max-autotune. "
        "`litz.list_mode_options()` shows what each sets.",
    ),
    (
        ModeWithOptions(),
        "mode= and options= were given together, and only one of them can be. "
        "Pass options={**litz.list_mode_options(mode), ...} to have both.",
    ),
    (
        MissingDependency("llvmlite"),
        "llvmlite is not installed. Install it with `pip install llvmlite`.",
    ),
    (
        MissingDependency("triton", "pip install litz[gpu]"),
        "triton is not installed. Install it with `pip install litz[gpu]`.",
    ),
    (
        UnsupportedTorch("2.9.1", ">=2.11,!=2.12.*,<2.14"),
        "torch 2.9.1 is installed, and this Litz works with torch >=2.11,!=2.12.*,<2.14. "
        'Install one with `pip install "torch>=2.11,!=2.12.*,<2.14"`.',
    ),
    (
        UnsupportedDevice("mps", ADD),
        "Litz generates no code for device 'mps' at model.py:12, in aten.add.Tensor. "
        "Supported: cpu.",
    ),
    (
        UnsupportedOp("aten.add.Tensor", ADD, "its operands are complex."),
        "aten.add.Tensor cannot be compiled at model.py:12: its operands are complex. "
        "Rewrite that line, or leave it out with torch.compiler.disable.",
    ),
    (
        CompileFailed("lower", NOWHERE, ValueError("no")),
        "stage 'lower' could not compile this graph in aten.add.Tensor: ValueError: no\n"
        'Mend that, or set on_error="eager" to run such graphs as eager.',
    ),
    (
        CustomPassFailed("fold_scales", KeyError()),
        "your graph pass 'fold_scales' raised KeyError\n"
        "Mend the pass, or set its flag to None to compile without it.",
    ),
    (
        ParseError(3, "  a[i0 = 1", "expected ]"),
        "line 3 is not loop IR: expected ].\n    a[i0 = 1\nThe grammar is in litz/ir/text.py.",
    ),
    (
        IndexOutOfRange(ADD, index=7, size=5, dim=1),
        "index 7 is out of bounds for dimension 1 with size 5 at model.py:12, in aten.add.Tensor. "
        "Allowed are 0 to 4.",
    ),
    (
        GatherOutOfRange(ADD, index=-7, size=5, wraps=True),
        "index -7 is out of bounds for a dimension with size 5 at model.py:12, in aten.add.Tensor. "
        "Allowed are -5 to 4.",
    ),
    (
        IndexOutOfRange(NOWHERE, index=0, size=0, dim=0),
        "index 0 is out of bounds for dimension 0 with size 0 in aten.add.Tensor. None is allowed.",
    ),
    (
        IndexOutOfRange(),
        "an index is out of bounds. Check the values that this line indexes with.",
    ),
    (
        OutOfMemory(3840064),
        "a kernel could not allocate 3840064 bytes for the rows that it keeps. "
        "Free memory, or compute on smaller tensors.",
    ),
    (
        ValueRefused("all elements of input should be between 0 and 1", "one is 1.5", ADD),
        "all elements of input should be between 0 and 1 (one is 1.5) at model.py:12, "
        "in aten.add.Tensor.",
    ),
    (
        ValueRefused("all elements of input should be between 0 and 1"),
        "all elements of input should be between 0 and 1.",
    ),
    (
        IntegerDivisionByZero(ADD),
        "ZeroDivisionError: integers were divided by zero at model.py:12, in aten.add.Tensor. "
        "Make the divisor non-zero, or divide floats.",
    ),
    (
        NotFinite("t1", "aten.log.default (model.py:3)", 2, 0),
        "t1 holds 2 NaN and 0 infinities: aten.log.default (model.py:3). "
        "Look at what this line computes, or set nan_asserts=False.",
    ),
    (
        SuiteCannotRun("gpu", "torch finds no CUDA device here"),
        "suite 'gpu' cannot run here: torch finds no CUDA device here. Choose another suite.",
    ),
    (
        ScalarAssertion("too many.", "aten._assert_scalar.default (model.py:3)", {"u0": 9}),
        "too many (u0 is 9): aten._assert_scalar.default (model.py:3). "
        "Mend the data, or what the program says of it.",
    ),
    (
        ScalarAssertion("u0 <= 8 does not hold.", "aten._assert_scalar.default (model.py:3)"),
        "u0 <= 8 does not hold: aten._assert_scalar.default (model.py:3). "
        "Mend the data, or what the program says of it.",
    ),
    (
        CudaGraphsRefused(["cond decides on the CPU what runs next (model.py:3)"]),
        "triton.require_cudagraphs: the graph cannot be recorded: "
        "cond decides on the CPU what runs next (model.py:3). "
        "Move that out of what is compiled, or set triton.cudagraphs instead.",
    ),
    (
        CaptureFailed("operation not permitted when stream is capturing.\nMore."),
        "CUDA could not record the graph: operation not permitted when stream is capturing. "
        "Leave the call that the traceback shows out of what is compiled, tag it as "
        "cudagraph_unsafe, or set triton.cudagraphs=False.",
    ),
    (
        InputMismatch("1", "f32[2, 3]", "f32[3, 2]"),
        "input 1 does not fit this compiled graph: expected f32[2, 3], got f32[3, 2]. "
        "Compile again for such inputs.",
    ),
    (
        DriverError("cuModuleLoadData", 209, "no kernel image"),
        "cuModuleLoadData failed with CUDA error 209: no kernel image. "
        "Run with CUDA_LAUNCH_BLOCKING=1 to see which kernel caused it.",
    ),
    (InternalError("two kernels are named k0"), "two kernels are named k0" + REPORT),
    (VerifyError("axis i0 is not bound\n"), "axis i0 is not bound" + REPORT),
    (
        PassFailed("fold_views", AssertionError("shape")),
        "graph pass 'fold_views' raised AssertionError: shape" + REPORT,
    ),
    (
        StageFailed("fuse", ZeroDivisionError("by zero")),
        "stage 'fuse' raised ZeroDivisionError: by zero" + REPORT,
    ),
]
ROOTS = {LitzError, UserError, OutOfRange}
CLASSES = [c for _, c in inspect.getmembers(errors, inspect.isclass) if issubclass(c, LitzError)]


@pytest.mark.parametrize(("error", "text"), TEXTS, ids=lambda v: type(v).__name__)
def test_text(error: LitzError, text: str) -> None:
    assert str(error) == text


def test_every_error_has_a_text_here() -> None:
    assert {type(error) for error, _ in TEXTS} == set(CLASSES) - ROOTS


@pytest.mark.parametrize("kind", CLASSES)
def test_every_error_is_the_users_or_ours_and_has_a_manual_page(kind: type) -> None:
    assert kind.__doc__ and kind.__doc__.rstrip().endswith(".")
    if kind is not LitzError:
        assert issubclass(kind, UserError) != issubclass(kind, InternalError)


@pytest.mark.parametrize(
    ("kind", "also"),
    [
        (UnknownFlag, AttributeError),
        (WrongFlagType, TypeError),
        (FlagValueError, ValueError),
        (UnknownMode, ValueError),
        (MissingDependency, ImportError),
        (IndexOutOfRange, IndexError),
        (GatherOutOfRange, RuntimeError),
        (ValueRefused, RuntimeError),
        (OutOfMemory, RuntimeError),
        (ScalarAssertion, RuntimeError),
        (IntegerDivisionByZero, RuntimeError),
    ],
)
def test_errors_can_be_caught_as_pythons_own(kind: type, also: type) -> None:
    assert issubclass(kind, also)


def test_an_index_error_is_what_eager_raises_and_nothing_else() -> None:
    assert not issubclass(IndexOutOfRange, RuntimeError)
    assert not issubclass(GatherOutOfRange, IndexError)


def test_the_facts_stay_readable() -> None:
    assert UnknownFlag("a", ["b"]).name == "a"
    assert UnknownFlag("a", ["b"]).nearest == ("b",)
    assert UnsupportedOp("op", ADD, "why").origin is ADD
    cause = ValueError("no")
    for error in (CompileFailed("lower", None, cause), PassFailed("p", cause)):
        assert error.__cause__ is cause
