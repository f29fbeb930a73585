"""Every error Litz raises on purpose: one class per mistake, whose docstring is its manual page.

In: the facts of one mistake. Out: an exception whose text says what happened, where in the user's
program, and what to do. `UserError` is a mistake in a program or its settings; `InternalError` is a
mistake in Litz. No class is both. Example: `UnknownFlag("max_fusion", ["max_fusion_size"])` reads
`there is no flag 'max_fusion'; did you mean 'max_fusion_size'? ...`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from litz.errors.roots import InternalError, LitzError, UserError
from litz.errors.roots import cause_text as _cause_text
from litz.errors.roots import where as _where
from litz.errors.runtime_errors import (
    GatherOutOfRange,
    IndexOutOfRange,
    IntegerDivisionByZero,
    OutOfMemory,
    OutOfRange,
    ScalarAssertion,
    ValueRefused,
)

if TYPE_CHECKING:
    from litz.ir.program import Origin

# Settings


class UnknownFlag(UserError, AttributeError):
    """A flag was read or set under a name that no flag has.

    Flags are declared once, in `litz/config/flags.py`; without this error a misspelt one would be
    silently ignored. Use one of the similar names in the message, or see them all with
    `python -m litz options`. It is also an AttributeError, so `hasattr(litz.config, name)` works.
    """

    def __init__(self, name: str, nearest: Iterable[str] = ()) -> None:
        self.nearest = tuple(nearest)
        super().__init__(
            f"there is no flag {name!r}{_did_you_mean(self.nearest)} "
            "`python -m litz options` lists every flag."
        )
        self.name = name


class WrongFlagType(UserError, TypeError):
    """A flag was given a value of another type than it is declared with.

    Types are exact: True is not accepted for an int, nor 1 for a bool, nor 4.0 for an int. In an
    environment variable a bool is written 0, 1, true or false, and a missing value is none.
    """

    def __init__(self, name: str, expected: str, value: object) -> None:
        self.name, self.expected, self.value = name, expected, value
        super().__init__(
            f"flag {name!r} takes {expected}, got {value!r} of type {type(value).__name__}. "
            f"Give it a value of type {expected}."
        )


class FlagValueError(UserError, ValueError):
    """A flag was given a value of the right type that it does not allow.

    The message lists the allowed values; `python -m litz options` says what they mean.
    """

    def __init__(self, name: str, value: object, allowed: str) -> None:
        self.name, self.value, self.allowed = name, value, allowed
        super().__init__(f"flag {name!r} cannot be {value!r}. Allowed: {allowed}.")


class UnknownMode(UserError, ValueError):
    """`mode=` was given a name that no mode has.

    A mode is a named set of flags. `litz.list_mode_options()` shows the modes and the flags that
    each sets. To choose single flags, pass `options=` instead of `mode=`.
    """

    def __init__(self, mode: object, known: Iterable[str]) -> None:
        self.mode, self.known = mode, tuple(known)
        super().__init__(
            f"there is no mode {mode!r}. Modes: {', '.join(self.known)}. "
            "`litz.list_mode_options()` shows what each sets."
        )


class ModeWithOptions(UserError, ValueError):
    """`mode=` and `options=` were given together.

    A mode is a set of options, and torch.compile takes one or the other. Combine the mode's flags
    with your own: `options={**litz.list_mode_options(mode), ...}`.
    """

    def __init__(self) -> None:
        super().__init__(
            "mode= and options= were given together, and only one of them can be. "
            "Pass options={**litz.list_mode_options(mode), ...} to have both."
        )


class UnknownBenchmark(UserError, ValueError):
    """`python -m litz bench` was asked for a suite, a case or a candidate that does not exist.

    The message lists those that do. Names are exact, and lists of them are separated by commas:
    `--models bert,gpt2`.
    """

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        self.kind, self.name, self.known = kind, name, tuple(known)
        super().__init__(f"there is no {kind} {name!r}. Choose from: {', '.join(self.known)}.")


class SuiteCannotRun(UserError):
    """`python -m litz bench` was asked for a suite that this machine cannot run.

    The message says what is missing. `--suite all` leaves such suites out.
    """

    def __init__(self, suite: str, why: str) -> None:
        self.suite, self.why = suite, why
        super().__init__(f"suite {suite!r} cannot run here: {why}. Choose another suite.")


class DifferentMachines(UserError, ValueError):
    """`python -m litz bench --from` was given results from different machines.

    A table is about one machine. The message names the facts that differ; show the files one by
    one.
    """

    def __init__(self, one: Mapping[str, str], other: Mapping[str, str]) -> None:
        names = [name for name in one if one[name] != other.get(name)]
        cause_text = ", ".join(f"{name} ({one[name]}; {other.get(name)})" for name in names)
        super().__init__(f"these results differ in {cause_text}. Show the files one by one.")


# The environment


class MissingDependency(UserError, ImportError):
    """A package that Litz needs for this is not installed.

    The message names it and the command that installs it. llvmlite generates the machine code on
    the CPU and is always needed; triton is needed for GPUs only.
    """

    def __init__(self, package: str, install: str = "") -> None:
        command = install or f"pip install {package}"
        self.package, self.install = package, command
        super().__init__(f"{package} is not installed. Install it with `{command}`.")


class UnsupportedTorch(UserError, ImportError):
    """The installed torch is not one of the releases that Litz is tested with.

    Litz reads graphs from Dynamo and AOTAutograd, and their form changes between releases.
    Install one of the releases that the message allows, or a Litz made for yours.
    """

    def __init__(self, version: str, supported: str) -> None:
        self.version, self.supported = version, supported
        super().__init__(
            f"torch {version} is installed, and this Litz works with torch {supported}. "
            f'Install one with `pip install "torch{supported}"`.'
        )


class UnsupportedDevice(UserError):
    """A graph uses a device for which Litz generates no code.

    Move the model and its inputs to a supported device, or leave that part of the program out of
    `torch.compile`.
    """

    def __init__(
        self, device: str, origin: Origin | None = None, supported: Iterable[str] = ("cpu",)
    ) -> None:
        self.device, self.origin, self.supported = device, origin, tuple(supported)
        super().__init__(
            f"Litz generates no code for device {device!r}{_where(origin)}. "
            f"Supported: {', '.join(self.supported)}."
        )


# The user's program, while it compiles


class UnsupportedOp(UserError):
    """An op of the program cannot be compiled.

    Ops without a lowering normally run through ATen. This error means that this op cannot run
    there either, or that `implicit_fallbacks=False` forbids it. The message says which op, on
    which line and why. Rewrite that line, or leave it out of the compiled function with
    `torch.compiler.disable`.
    """

    def __init__(self, op: str, origin: Origin | None, why: str) -> None:
        self.op, self.origin, self.why = op, origin, why
        super().__init__(
            f"{op} cannot be compiled{_where(origin, op)}: {why.rstrip('.')}. "
            "Rewrite that line, or leave it out with torch.compiler.disable."
        )


class SizeUnknown(UserError):
    """The value of a symbolic size is needed to compile a graph.

    You do not see this error: an op whose kernel needs the value is left to ATen, and a graph that
    cannot be compiled for all sizes at once is compiled for each combination of sizes.
    `litz.explain` says which and why.
    """

    def __init__(self, size: str, why: str = "") -> None:
        self.size = size
        super().__init__(
            f"the value of the size {size} is needed to compile{f' ({why})' if why else ''}. "
            "Mark the dimension static, or let it be compiled for each size."
        )


class CompileFailed(UserError):
    """A graph could not be compiled, and `on_error="raise"` forbids running it as eager.

    The message names the stage and the line, and the cause is chained. Fix the cause, or set
    `on_error="eager"` (the default) to run such graphs as eager with one warning. An
    `InternalError` is never wrapped in this error: it is raised as it is.
    """

    def __init__(self, stage: str, origin: Origin | None, cause: BaseException) -> None:
        self.stage, self.origin, self.cause = stage, origin, cause
        super().__init__(
            f"stage {stage!r} could not compile this graph{_where(origin)}: {_cause_text(cause)}\n"
            'Mend that, or set on_error="eager" to run such graphs as eager.'
        )
        self.__cause__ = cause


class CustomPassFailed(UserError):
    """A custom graph pass raised an exception.

    `joint_custom_pre_pass`, `post_grad_custom_pre_pass` and their post passes are called with the
    FX graph and change it in place; `custom_partitioner_fn` gets the joint module and returns a
    forward and a backward module. The exception that your function raised is chained.
    """

    def __init__(self, name: str, cause: BaseException) -> None:
        self.name, self.cause = name, cause
        super().__init__(
            f"your graph pass {name!r} raised {_cause_text(cause)}\n"
            "Mend the pass, or set its flag to None to compile without it."
        )
        self.__cause__ = cause


class ParseError(UserError):
    """A text is not a program of the loop IR.

    `litz/ir/text.py` has the grammar; everything Litz prints parses again. The message gives the
    line, its text and what was expected there.
    """

    def __init__(self, line: int, text: str, why: str) -> None:
        self.line, self.text, self.why = line, text, why
        super().__init__(
            f"line {line} is not loop IR: {why.rstrip('.')}.\n    {text.strip()}\n"
            "The grammar is in litz/ir/text.py."
        )


# The user's program, while it runs


class NotFinite(UserError, FloatingPointError):
    """A tensor holds NaN or an infinity, and `nan_asserts` looks for them.

    Each input and each result is checked as soon as it exists, so the message names the first
    one, with the ops of its kernel and their lines. Infinities that come from a constant of the
    program, such as a mask's, are expected and do not count. If an input is meant to hold some,
    turn `nan_asserts` off.
    """

    def __init__(self, name: str, where: str, nans: int, infinities: int) -> None:
        self.name, self.where, self.nans, self.infinities = name, where, nans, infinities
        super().__init__(
            f"{name} holds {nans} NaN and {infinities} infinities: {where}. "
            "Look at what this line computes, or set nan_asserts=False."
        )


class UnserializableOperand(UserError):
    """A call that was rebuilt from its text has an operand that text cannot hold.

    For example, the modules that a higher-order op is given live in the process that made them.
    Compile the graph in the process that runs it.
    """

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"{reason}: this call runs only in the process that compiled it.")


class CudaGraphsRefused(UserError):
    """A graph cannot be captured as a CUDA graph, but `triton.require_cudagraphs` demands it.

    The message names each op that prevents it, with its line. Move those ops out of the compiled
    function, do their work on the GPU, or set `triton.cudagraphs` instead: it captures the parts
    that can be captured.
    """

    def __init__(self, reasons: list[str]) -> None:
        self.reasons = reasons
        super().__init__(
            f"triton.require_cudagraphs: the graph cannot be recorded: {'; '.join(reasons)}. "
            "Move that out of what is compiled, or set triton.cudagraphs instead."
        )


class CaptureFailed(UserError, RuntimeError):
    """CUDA failed to capture a graph although no op seemed to prevent it.

    Most often a library call inside waits for the GPU. The error below this one shows the call.
    Leave it out of the compiled function, register it with the tag `cudagraph_unsafe`, so that the
    graph is split around it, or compile without CUDA graphs.
    """

    def __init__(self, why: str) -> None:
        self.why = why
        super().__init__(
            f"CUDA could not record the graph: {why.strip().partition(chr(10))[0]} "
            "Leave the call that the traceback shows out of what is compiled, tag it as "
            "cudagraph_unsafe, or set triton.cudagraphs=False."
        )


class InputMismatch(UserError):
    """A compiled graph was called with an input that it was not compiled for.

    Generated code relies on dtype, shape and strides. torch.compile guards them, so this happens
    only if a compiled graph is called directly or a guard was removed. Compile again for such
    inputs; `size_asserts=False` removes the check and its protection.
    """

    def __init__(self, which: str, expected: str, got: str) -> None:
        self.which, self.expected, self.got = which, expected, got
        super().__init__(
            f"input {which} does not fit this compiled graph: expected {expected}, got {got}. "
            "Compile again for such inputs."
        )


class FrozenParameterChanged(UserError, RuntimeError):
    """A parameter was changed after a graph had been compiled with `freezing`.

    The graph computes with the values that its parameters had then, and would ignore the change.
    Compile again after it (`torch.compiler.reset()` discards compiled code), or leave `freezing`
    off: results then follow every change.
    """

    def __init__(self, name: str, count: int) -> None:
        self.name, self.count = name, count
        others = f" (and {count - 1} more)" if count > 1 else ""
        super().__init__(
            f"parameter {name}{others} was changed after it was frozen into a compiled graph. "
            "Call torch.compiler.reset() to compile with the new values, or leave freezing off."
        )


class DiscardedParameter(UserError, RuntimeError):
    """A parameter was used whose memory `freezing_discard_parameters` has freed.

    Its values exist only in the compiled graph, folded and packed. Load them again from their
    source, into a new module, or leave `freezing_discard_parameters` off.
    """

    def __init__(self, function: str) -> None:
        self.function = function
        super().__init__(
            f"{function} was called on a parameter that was discarded when its module was compiled "
            "with freezing_discard_parameters. Only the compiled module can use it; load the model "
            "anew, or leave that flag off."
        )


class DriverError(UserError, RuntimeError):
    """The CUDA driver refused a call.

    The code is the driver's own. An illegal address or a failed assertion in an earlier kernel is
    reported by the next call, whatever it is. Run with CUDA_LAUNCH_BLOCKING=1 to find that kernel.
    `on_error="eager"` and `torch.compiler.disable` run the program without Litz's kernels.
    """

    def __init__(self, call: str, code: int, text: str) -> None:
        self.call, self.code, self.text = call, code, text
        super().__init__(
            f"{call} failed with CUDA error {code}: {text}. "
            "Run with CUDA_LAUNCH_BLOCKING=1 to see which kernel caused it."
        )


# Ours


class VerifyError(InternalError):
    """A stage made a program that breaks a law of the IR.

    `litz/ir/verify.py` states the laws and checks them between stages, so the stage that the
    error's note names is at fault.
    """


class PassFailed(InternalError):
    """One of Litz's own graph passes raised an exception, which is chained."""

    def __init__(self, name: str, cause: BaseException) -> None:
        self.name, self.cause = name, cause
        super().__init__(f"graph pass {name!r} raised {_cause_text(cause)}")
        self.__cause__ = cause


class StageFailed(InternalError):
    """A stage of the compiler raised an exception that is not one of Litz's; it is chained."""

    def __init__(self, stage: str, cause: BaseException) -> None:
        self.stage, self.cause = stage, cause
        super().__init__(f"stage {stage!r} raised {_cause_text(cause)}")
        self.__cause__ = cause


def _did_you_mean(nearest: tuple[str, ...]) -> str:
    names = " or ".join(repr(name) for name in nearest)
    return f"; did you mean {names}?" if names else "."


__all__ = [
    "CaptureFailed",
    "CompileFailed",
    "CudaGraphsRefused",
    "CustomPassFailed",
    "DifferentMachines",
    "DiscardedParameter",
    "DriverError",
    "FlagValueError",
    "FrozenParameterChanged",
    "GatherOutOfRange",
    "IndexOutOfRange",
    "InputMismatch",
    "IntegerDivisionByZero",
    "InternalError",
    "LitzError",
    "MissingDependency",
    "ModeWithOptions",
    "NotFinite",
    "OutOfMemory",
    "OutOfRange",
    "ParseError",
    "PassFailed",
    "ScalarAssertion",
    "SizeUnknown",
    "StageFailed",
    "SuiteCannotRun",
    "UnknownBenchmark",
    "UnknownFlag",
    "UnknownMode",
    "UnsupportedDevice",
    "UnsupportedOp",
    "UnsupportedTorch",
    "UserError",
    "ValueRefused",
    "VerifyError",
    "WrongFlagType",
]
