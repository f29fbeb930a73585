"""Comparison: whether Litz is right about a function, judged by eager and float64.

In: a function and its inputs. Out: `Failure`, or None. Integers, bools, types, shapes, strides and
shared memory must be exactly as in eager. A float may be wrong by what rounding explains and no
more:

    |ours - float64| <= EAGER * |eager - float64| + SPREAD * |noisy - float64| + one ulp

where each distance is the largest over the whole result, since one element's error is luck. `noisy`
is the function in float64 with every float it computes moved by up to an ulp (see `reference`).
EAGER is 2, since Litz sums in another order. SPREAD is 8, since a function may be wrong by a few
ulps where the noise moves it by one (ours state up to 4), and a sum rounds more than once.
An integer that the noise itself changes is not judged. A value that seems wrong is compared with
many more noisy runs before it counts. Three kinds of failures are excluded: those that torch's own
capture has too, with eager instead of Litz; an op that Litz says it cannot compile, since such a
graph runs as eager; and functions that float64 cannot compute. An excluded failure is returned, and
its `who` says why, so that a hunt can count them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from litz.errors import CompileFailed, UnsupportedOp
from litz.fuzz.dynamo import ThroughDynamo, with_gradients
from litz.fuzz.predicted_layouts import Restride, as_predicted, is_shape_mispredicted, steps
from litz.fuzz.program import PLAIN, CallMode
from litz.fuzz.reference import Watched, memory, run_wide
from litz.fuzz.runs import Compiled, captured, traced
from litz.report import Explanation, Fallback

EAGER, SPREAD = 2.0, 8.0
# The `who` of an excluded failure: torch's capture is wrong in the same way; Litz says that it
# cannot compile an op; float64 fails where the program's own types do not.
TORCH, REFUSED, REFERENCE = "torch", "refused", "reference"
RUNS, MORE_RUNS = 3, 40  # noisy runs: of every program, and of one whose values seem wrong
Tensors = list[torch.Tensor]
Judged = Callable[[list["Meaning"]], "Failure | None"]


@dataclass(frozen=True)
class Failure:
    """`who` (litz or interpreter, or why it is excluded) is wrong in a way (`kind`) that a shrunk
    program must share."""

    who: str
    kind: str
    text: str
    label: int = -1  # the number of the wrong result, if it is one
    call: int = 0
    stage: str = ""  # the first stage that is wrong, if it was searched for

    @property
    def is_excluded(self) -> bool:
        return self.who in (TORCH, REFUSED, REFERENCE)

    def __str__(self) -> str:
        found = f"{self.who}: {self.kind}: {self.text}"
        return f"{found}\nfirst wrong after stage: {self.stage}" if self.stage else found


# Of a program that the noise breaks, for example by changing an index: its values are not judged.
UNMEASURED = Failure(REFERENCE, "noise", "every run with noise broke")


@dataclass(frozen=True)
class Meaning:
    """What a function should give: eager's results and the float64 references."""

    inputs: Tensors
    eager: Tensors
    exact: Tensors
    noisy: list[Tensors]
    run: Callable[[int], Tensors]  # with noise of that seed
    predicted: tuple[Tensors, ...] = ()  # eager's results with the strides that torch predicts

    def doubted(self) -> Meaning:
        """The same with many more noisy runs: a rare value may still be right."""
        return replace(self, noisy=_runs(self.run, MORE_RUNS))


class NoReference(Exception):
    """The function runs in its own types, but fails in float64."""


def meaning(function: Callable[..., Any], inputs: Sequence[torch.Tensor]) -> Meaning:
    seen: list[torch.dtype] = []
    given = copy.deepcopy(list(inputs))
    with torch.no_grad(), Watched(seen):
        eager = list(function(*given)) + given
    try:
        exact = run_wide(function, inputs, seen, 0)
    except RuntimeError as error:  # attention saves other values for its gradient in float64
        raise NoReference(str(error)) from error
    run = partial(run_wide, function, inputs, seen, 1)
    return Meaning(given, eager, exact, _runs(run, RUNS), run)


def _runs(run: Callable[[int], Tensors], count: int) -> list[Tensors]:
    """Noisy runs. The noise may break one, for example by changing an index; it is left out."""
    done = []
    for seed in range(count):
        with suppress(IndexError, RuntimeError):
            done.append(run(seed))
    return done


def check(
    function: Callable[..., Any],
    inputs: Sequence[torch.Tensor],
    options: Mapping[str, Any] | None = None,
    labels: Sequence[str] = (),
    device: str = "cpu",
    judged: Sequence[str] = ("litz", "interpreter"),
    notes: Explanation | None = None,
) -> Failure | None:
    """Run eager, Litz and the interpreter. Options are flags by their dotted names. Eager runs on
    the CPU, Litz's code on `device`; the interpreter runs only kernels for a CPU. Reports of what
    was compiled are added to `notes`."""
    try:
        meant = meaning(function, inputs)
    except NoReference as error:
        return Failure(REFERENCE, "float64", str(error))
    compiled = Compiled(function, options or {}, device, notes)
    for who in judged if device == "cpu" else ("litz",):
        compiled.interpret = who == "interpreter"
        failure = failure_of_run(who, compiled, meant, inputs, labels)
        if failure is not None:
            if _is_refused(failure, notes):
                return replace(failure, who=REFUSED)
            both = (compiled, partial(traced, function, device))
            runs = (partial(_once, who, inputs, run) for run in both)
            is_torchs = _is_torchs(failure, function, [meant], [inputs], *runs)
            return replace(failure, who=TORCH) if is_torchs else failure
    return None if meant.noisy else UNMEASURED


def _once(
    who: str,
    inputs: Sequence[torch.Tensor],
    run: Callable[[Tensors], Tensors],
    meant: list[Meaning],
) -> Failure | None:
    return failure_of_run(who, run, meant[0], inputs)


def _is_refused(failure: Failure, notes: Explanation | None) -> bool:
    """Whether Litz said that it cannot compile an op: without `on_error="raise"` the graph would
    run as eager, with a warning. The fallback is added to `notes`."""
    is_refusal = failure.kind == UnsupportedOp.__name__
    if is_refusal and notes is not None:
        notes.fallbacks.append(Fallback("whole", failure.text))
    return is_refusal


def check_calls(
    function: Callable[..., Any],
    calls: Sequence[Sequence[torch.Tensor]],
    options: Mapping[str, Any] | None = None,
    labels: Sequence[str] = (),
    call_mode: CallMode = PLAIN,
    parameters: Sequence[int] = (),
    notes: Explanation | None = None,
    device: str = "cpu",
) -> Failure | None:
    """Compile once through torch.compile and make the calls in order; each call is judged by
    itself. Eager runs on the CPU, Litz's code on `device`."""
    try:
        meant = [meaning(meant_by(function, call_mode), inputs) for inputs in calls]
    except NoReference as error:
        return Failure(REFERENCE, "float64", str(error))
    given = (call_mode, parameters)
    compiled = ThroughDynamo(function, options or {}, *given, notes=notes, device=device)
    ours = failure_of_calls(compiled, meant, calls, labels, call_mode.threads)
    if ours is None:
        return None if all(known.noisy for known in meant) else UNMEASURED
    if _is_refused(ours, notes):
        return replace(ours, who=REFUSED)
    theirs = ThroughDynamo(function, {}, *given, backend=captured, device=device)
    is_torchs = _is_torchs(
        ours, meant_by(function, call_mode), meant, calls,
        lambda known: failure_of_calls(compiled, known, calls, labels),
        lambda known: failure_of_calls(theirs, known, calls, labels),
    )  # fmt: skip
    return replace(ours, who=TORCH) if is_torchs else ours


def meant_by(function: Callable[..., Any], call_mode: CallMode) -> Callable[..., Any]:
    return with_gradients(function) if call_mode.gradients else function


def failure_of_calls(
    compiled: ThroughDynamo,
    meant: list[Meaning],
    calls: Sequence[Sequence[torch.Tensor]],
    labels: Sequence[str],
    threads: int = 1,
) -> Failure | None:
    for k, (known, inputs) in enumerate(zip(meant, calls, strict=True)):
        failure = failure_of_run("litz", compiled, known, inputs, labels)
        if failure is None and threads > 1:
            failure = _by_threads(compiled, known, inputs, labels)
        if failure is not None:
            where = f"call {k}: " if len(calls) > 1 else ""
            return replace(failure, text=where + failure.text, call=k)
    return None


def _by_threads(
    compiled: ThroughDynamo, meant: Meaning, inputs: Sequence[torch.Tensor], labels: Sequence[str]
) -> Failure | None:
    """Judge the results of each thread like those of a single call."""
    try:
        every = compiled.at_once(inputs)
    except Exception as error:
        return Failure("litz", type(error).__name__, f"threads: {error}")
    for found, given in every:
        failure = _judged("litz", meant, found + given, given, labels)
        if failure is not None:
            return replace(failure, text=f"threads: {failure.text}")
    return None


def failure_of_run(
    who: str,
    run: Callable[[Tensors], Tensors],
    meant: Meaning,
    inputs: Sequence[torch.Tensor],
    labels: Sequence[str] = (),
) -> Failure | None:
    given = copy.deepcopy(list(inputs))
    try:
        found = run(given) + given
    except Exception as error:
        raised = getattr(error, "inner_exception", error)  # Dynamo wraps a backend's exception
        cause = raised.cause if isinstance(raised, CompileFailed) else raised
        return Failure(who, type(cause).__name__, str(error))
    return _judged(who, meant, found, given, labels)


def _judged(
    who: str, meant: Meaning, found: Tensors, given: Tensors, labels: Sequence[str]
) -> Failure | None:
    """A value that seems wrong is compared with more noisy runs."""
    failure = judge(who, meant, found, given, labels)
    if failure is None or failure.kind != "value":
        return failure
    return judge(who, meant.doubted(), found, given, labels)


def _is_torchs(
    failure: Failure, function: Callable[..., Any], meant: list[Meaning],
    calls: Sequence[Sequence[torch.Tensor]], again: Judged, theirs: Judged,
) -> bool:  # fmt: skip
    """Whether torch's own capture is wrong in the same way (`theirs`, with eager behind it), or in
    what it says of a shape or of strides. What is wrong beside strides of torch's own is seen when
    Litz is judged `again`, without them."""
    try:
        predicted = [_with_predicted(function, *known) for known in zip(meant, calls, strict=True)]
    except Exception:  # as torch lays values out, eager itself refuses the program
        return _is_alike(theirs(meant), failure)
    found = again(predicted) if failure.kind == "strides" else failure
    if found is None or _reads_layout(predicted[found.call], found):
        return True
    if any(is_shape_mispredicted(function, inputs) for inputs in calls):
        return True
    return _is_alike(theirs(predicted), found)


def _is_alike(failure: Failure | None, other: Failure) -> bool:
    return failure is not None and (failure.kind, failure.label) == (other.kind, other.label)


def _with_predicted(
    function: Callable[..., Any], meant: Meaning, inputs: Sequence[torch.Tensor]
) -> Meaning:
    """The same, with the results that eager gives with torch's predicted strides."""
    return replace(
        meant, predicted=tuple(as_predicted(function, inputs, which) for which in Restride)
    )


def _reads_layout(meant: Meaning, failure: Failure) -> bool:
    """Whether a result has other numbers with torch's predicted strides, because as_strided reads
    the memory of a value."""
    if failure.kind != "value" or failure.label < 0:
        return False
    eager, predicted = meant.eager[failure.label], [run[failure.label] for run in meant.predicted]
    return not all(torch.allclose(eager, t, 1e-2, 1e-2, equal_nan=True) for t in predicted)


def assert_same(
    function: Callable[..., Any],
    inputs: Sequence[torch.Tensor],
    options: Mapping[str, Any] | None = None,
    device: str = "cpu",
) -> None:
    """Called by a stored script: fails as long as Litz does."""
    failure = check(function, inputs, options, device=device)
    assert failure is None, str(failure)


def assert_calls_same(
    function: Callable[..., Any],
    calls: Sequence[Sequence[torch.Tensor]],
    options: Mapping[str, Any] | None = None,
    parameters: Sequence[int] = (),
    device: str = "cpu",
    **call_mode: Any,
) -> None:
    """The same for a script that calls more than once, for gradients or from threads."""
    given = (options, (), CallMode(**call_mode), parameters)
    failure = check_calls(function, calls, *given, device=device)
    assert failure is None, str(failure)


def judge(
    who: str, meant: Meaning, found: Tensors, given: Tensors, labels: Sequence[str] = ()
) -> Failure | None:
    """The first result, or input after the call, that is wrong."""
    if not meant.noisy:
        return None  # every noisy run broke: rounding decides whether the program runs
    if len(found) != len(meant.eager):
        return Failure(who, "results", f"{len(found)}, eager gives {len(meant.eager)}")
    for k, got in enumerate(found):
        name = labels[k] if labels else f"result {k}"
        noisy = [run[k] for run in meant.noisy]
        layouts = [run[k] for run in (meant.eager, *meant.predicted)]
        wrong = _difference(got, meant.eager[k], meant.exact[k], noisy, layouts)
        if wrong is not None:
            return Failure(who, wrong[0], f"{name}: {wrong[1]}", k)
    if who == "litz" and _sharing(found, given) != _sharing(meant.eager, meant.inputs):
        return Failure(who, "aliasing", "results share other memory than eager's")
    return None


def _sharing(results: Tensors, given: Tensors) -> list[list[int]]:
    """For each result, the inputs and results that share its memory."""
    every = [*given, *results]
    return [[k for k, t in enumerate(every) if memory(t) == memory(r)] for r in results]


def _difference(
    got: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor, noisy: Tensors, layouts: Tensors
) -> tuple[str, str] | None:
    """What is wrong with one result: a kind and a text."""
    if got.dtype is not eager.dtype:
        return "type", f"{got.dtype}, eager gives {eager.dtype}"
    if got.shape != eager.shape:
        return "shape", f"{list(got.shape)}, eager gives {list(eager.shape)}"
    if steps(got) not in map(steps, layouts):
        return "strides", f"{got.stride()}, eager gives {eager.stride()}"
    if not got.numel():
        return None
    if not eager.is_floating_point():
        return _integer_difference(got, eager, exact, noisy)
    return _float_difference(got, eager, exact, noisy)


def _integer_difference(
    got: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor, noisy: Tensors
) -> tuple[str, str] | None:
    differs = (got != eager) & (exact == eager)
    for run in noisy:
        differs &= run == eager
    return ("value", _first(differs, got=got, eager=eager)) if differs.any() else None


def _float_difference(
    got: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor, noisy: Tensors
) -> tuple[str, str] | None:
    ours, theirs = got.double(), eager.double()
    finite = theirs.isfinite() & exact.isfinite()
    settled = _kind(theirs) == _kind(exact)
    for run in noisy:
        finite &= run.isfinite()
        settled &= _kind(run) == _kind(theirs)
    unlike = settled & (_kind(ours) != _kind(theirs))
    if unlike.any():
        return "value", _first(unlike, got=got, eager=eager, float64=exact)
    finite &= ours.isfinite()
    if not finite.any():
        return None
    spread = max(_largest(run - exact, finite) for run in noisy)
    ulp = torch.finfo(got.dtype).eps * _largest(exact, finite) + torch.finfo(got.dtype).tiny
    allowed = EAGER * _largest(theirs - exact, finite) + SPREAD * spread + ulp
    error = _largest(ours - exact, finite)
    if error <= allowed:
        return None
    worst = finite & ((ours - exact).abs() == error)
    shown = _first(worst, got=got, eager=eager, float64=exact)
    return "value", f"{shown}; wrong by {error:.3g}, rounding explains {allowed:.3g}"


def _kind(values: torch.Tensor) -> torch.Tensor:
    """0 finite, 1 NaN, 2 inf, 3 -inf."""
    kinds = torch.where(values.isnan(), 1, 0)
    kinds = torch.where(values == torch.inf, 2, kinds)
    return torch.where(values == -torch.inf, 3, kinds)


def _largest(values: torch.Tensor, where: torch.Tensor) -> float:
    return float(values[where].abs().max())


def _first(where: torch.Tensor, **values: torch.Tensor) -> str:
    """The first wrong element, and its values."""
    place = tuple(where.nonzero()[0].tolist())
    shown = ", ".join(f"{name} {value[place].item()}" for name, value in values.items())
    return f"at {list(place)} of {list(where.shape)}: {shown}"
