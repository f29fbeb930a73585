"""The OpInfo runner: torch's own op database through the compiler, against eager.

In: an op of `op_db`, a dtype, a number of samples, and the way they are taken (`ways`). Out:
`Outcome`: passed, failed with the reason, unsupported by torch's own machinery (the backend
`aot_eager` fails on the sample too), or samples that the way does not apply to.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch.testing._internal import common_methods_invocations as invocations
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree

from litz.backend import litz
from litz.fuzz.compare import Meaning, judge, meaning
from litz.report import Explanation
from tests import draws
from tests.ops.exceptions import STRIDES, UNDEFINED
from tests.ops.ways import PLAIN, Way, placed

DTYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
]


@dataclass
class Outcome:
    """What one op did in one dtype."""

    op: str
    dtype: torch.dtype
    passed: int = 0
    failures: list[str] = field(default_factory=list)
    unsupported: int = 0  # samples on which aot_eager fails as well
    unapplied: int = 0  # samples that the way does not apply to
    graphs: int = 0  # compiled
    kernels: int = 0
    made: set[str] = field(default_factory=set)  # the ATen ops that kernels compute
    aten: Counter[str] = field(default_factory=Counter)
    fallbacks: set[str] = field(default_factory=set)

    @property
    def status(self) -> str:
        if self.failures or self.passed:
            return "failed" if self.failures else "passed"
        return "unapplied" if self.unapplied and not self.unsupported else "unsupported"

    def note(self, explanation: Explanation) -> None:
        self.graphs += len(explanation.graphs)
        self.kernels += explanation.kernels
        kernels = [kernel for graph in explanation.graphs for kernel in graph.kernels]
        self.made.update(origin.op for kernel in kernels for origin in kernel.origins)
        self.aten.update({k: n for k, n in explanation.aten_ops.items() if k not in BESIDE})
        self.fallbacks.update(f.reason for f in explanation.fallbacks)

    @property
    def how(self) -> str:
        """Who computes it: generated kernels, ATen, both; nobody, for a view; or eager itself."""
        if self.fallbacks or not self.graphs:
            return "eager"
        if self.aten:
            return "partly" if self.kernels else "ATen"
        return "generated" if self.kernels else "view"


def _called(op: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return op(*args, **kwargs)


# The database sets a seed inside its random ops, where no graph can be captured; we set it outside.
invocations.wrapper_set_seed = _called

# ATen calls that are not the op: assertions, and the draw of a seed for numbers of our own.
BESIDE = ("aten._assert_async.msg", "aten._assert_scalar.default", "aten.randint.low")


def name_of(op: Any) -> str:
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else str(op.name)


def supported_dtypes(op: Any, device: str = "cpu") -> list[torch.dtype]:
    return [d for d in DTYPES if d in op.supported_dtypes(device)]


def every_op() -> list[Any]:
    return sorted(op_db, key=name_of)


def _seed(number: int = 0) -> None:
    draws.seed(number)


def samples(op: Any, dtype: torch.dtype, most: int, device: str = "cpu") -> Iterator[Any]:
    """The first samples that torch itself draws, the same each time."""
    _seed()
    made = op.sample_inputs(device, dtype, requires_grad=False)
    for _, sample in zip(range(most), made, strict=False):
        yield sample


def _copied(tree: Any) -> Any:
    """Fresh tensors with the same strides: ops may write into their operands."""

    def copy(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
            return value
        like = {"dtype": value.dtype, "device": value.device}
        fresh = torch.empty_strided(value.shape, value.stride(), **like)
        with torch.no_grad():
            return fresh.copy_(value) if value.numel() else fresh

    return pytree.tree_map(copy, tree)


def _run(function: Callable[..., Any], sample: Any, seed: int = 0, way: Way = PLAIN) -> Any:
    given = _copied((sample.input, list(sample.args), dict(sample.kwargs)))
    first, args, kwargs = placed(way, given)
    _seed(seed)
    return function(first, *args, **kwargs)


def _compiled(op: Any, backend: Any, way: Way = PLAIN) -> Callable[..., Any]:
    torch._dynamo.reset()

    def call(x: Any, *args: Any, **kwargs: Any) -> Any:
        return op.op(x, *args, **kwargs)

    return torch.compile(call, backend=backend, dynamic=way.dynamic)


def check(
    op: Any, dtype: torch.dtype, most: int = 3, device: str = "cpu", way: Way = PLAIN
) -> Outcome:
    """Run the samples of one op in eager and compiled, and compare."""
    outcome = Outcome(name_of(op), dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for sample in samples(op, dtype, most, device):
            _check_sample(op, sample, outcome, way)
    return outcome


def _check_sample(op: Any, sample: Any, outcome: Outcome, way: Way) -> None:
    try:
        _run(op.op, sample)
    except Exception:
        outcome.unsupported += 1
        return
    calls = way.calls(partial(_run, op.op), sample)
    try:
        expected = [_run(op.op, call, way=way) for call in calls]
    except Exception:  # an op that writes into an operand refuses one whose rows are one row
        calls = []
    if not calls:
        outcome.unapplied += 1
        return

    def check(notes: Explanation) -> None:
        backend = partial(litz, options=way.options, explanation=notes)
        run = _compiled(op, backend, way)
        for call, wanted in zip(calls, expected, strict=True):
            _assert_right(_run(run, call, way=way), wanted, op, call, way)

    count_sample(outcome, check, partial(_aot_eager_passes, op, calls, expected, way))


def count_sample(
    outcome: Outcome, check: Callable[[Explanation], None], torch_can: Callable[[], bool]
) -> None:
    """Count a sample: passed, failed, or, if torch's own capture fails at it too, unsupported."""
    notes = Explanation()
    try:
        check(notes)
        outcome.note(notes)
        bugs = [f.reason for f in notes.fallbacks if "bug in Litz" in f.reason]
        assert not bugs, bugs[0]
    except Exception as error:
        if torch_can():
            outcome.failures.append(f"{type(error).__name__}: {str(error).strip()[:400]}")
        else:
            outcome.unsupported += 1
        return
    outcome.passed += 1


def _aot_eager_passes(op: Any, calls: list[Any], expected: list[Any], way: Way) -> bool:
    try:
        run = _compiled(op, "aot_eager", way)
        for call, wanted in zip(calls, expected, strict=True):
            _assert_same(_run(run, call, way=way), wanted)
    except Exception:
        return False
    return True


# -- what counts as right --------------------------------------------------------------------

# Eager may be off by this much of the largest number, or nobody knows what is right.
MEASURE = 0.1
# Eager's random numbers, and in half types its rounding, since there is no telling in float64.
AS_EAGER = {"fallback_random": True, "emulate_precision_casts": True}


def _assert_right(found: Any, expected: Any, op: Any, sample: Any, way: Way) -> None:
    """As eager's; or, in a half type, as near to the result in float64 as rounding allows.

    Litz keeps float32 between the steps of a composite op where eager rounds after each, so that
    eager's own error can be larger than any tolerance around it: see `litz.fuzz.compare`. So it is
    with the long sums of a way that makes operands larger, in float32, too. Random
    numbers are eager's if `fallback_random` asks for them; otherwise they only look like eager's.
    """
    if name_of(op) in STRIDES:
        dense = partial(pytree.tree_map_only, torch.Tensor, torch.Tensor.contiguous)
        found, expected = dense(found), dense(expected)
    if name_of(op) in UNDEFINED:
        _assert_same(found, expected, values=False)
        return
    if _is_random(op, sample, expected, way):
        _assert_same(found, expected, values=False)
        backend = partial(litz, options={**way.options, **AS_EAGER})
        _assert_same(_run(_compiled(op, backend, way), sample, way=way), expected)
        return
    try:
        _assert_same(found, expected)
    except AssertionError:
        rounds = _is_half if way is PLAIN else _is_float
        if not any(rounds(t) for t in pytree.tree_leaves(expected)):
            raise
        _assert_same(found, expected, values=False)
        inputs, call = _flat(op, sample, way)
        meant = meaning(call, inputs)
        if not meant.noisy or not (_is_measure(meant) or _is_measure(_wider(call, inputs))):
            raise
        ours = [t.cpu() for t in _tensors(found)]  # its layout and place were compared above
        failure = judge("litz", meant, ours + meant.inputs, meant.inputs)
        assert failure is None or failure.kind in ("aliasing", "strides"), str(failure)


def _wider(call: Callable[..., list[torch.Tensor]], inputs: list[torch.Tensor]) -> Meaning:
    """Halves as float32: of the 300,000 that it adds to one element, eager may lose all but a few
    hundred, and then says nothing about float64."""
    return meaning(call, [t.float() if _is_half(t) else t for t in inputs])


def _is_measure(meant: Meaning) -> bool:
    """Whether the result in float64 is one: eager's is about the same."""
    for theirs, exact in zip(meant.eager, meant.exact, strict=True):
        if not theirs.is_floating_point() or not theirs.numel():
            continue
        finite = theirs.isfinite() & exact.isfinite()
        if not finite.any():
            continue
        off = (theirs.double() - exact)[finite].abs().max()
        if not off <= MEASURE * exact[finite].abs().max():
            return False
    return True


def _flat(
    op: Any, sample: Any, way: Way
) -> tuple[list[torch.Tensor], Callable[..., list[torch.Tensor]]]:
    """A sample as its tensors, and the op as a function of them."""
    given = placed(way, (sample.input, list(sample.args), dict(sample.kwargs)))
    given = pytree.tree_map_only(torch.Tensor, lambda t: t.resolve_neg().cpu(), given)
    leaves, shape = pytree.tree_flatten(given)
    inputs = [v for v in leaves if isinstance(v, torch.Tensor)]

    def call(*tensors: torch.Tensor) -> list[torch.Tensor]:
        given = iter(tensors)
        filled = [next(given) if isinstance(v, torch.Tensor) else v for v in leaves]
        first, args, kwargs = pytree.tree_unflatten(filled, shape)
        return _tensors(op.op(first, *args, **kwargs))

    return inputs, call


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [t for t in pytree.tree_leaves(tree) if isinstance(t, torch.Tensor)]


def _leaves(found: Any, expected: Any) -> Iterator[tuple[Any, Any]]:
    ours, theirs = pytree.tree_leaves(found), pytree.tree_leaves(expected)
    assert len(ours) == len(theirs), f"{len(ours)} results, eager gives {len(theirs)}"
    return zip(ours, theirs, strict=True)


def _is_random(op: Any, sample: Any, expected: Any, way: Way) -> bool:
    """Whether another seed gives another result, or could: a few numbers may come again."""
    _seed(1)
    unused = _generators()
    try:
        _assert_same(_run(op.op, sample, seed=1, way=way), expected)
    except AssertionError:
        return True
    return any(not torch.equal(a, b) for a, b in zip(unused, _generators(), strict=True))


def _generators() -> list[torch.Tensor]:
    """The state of the generators that an op may draw from."""
    on_gpu = [torch.cuda.get_rng_state()] if torch.cuda.is_available() else []
    return [torch.get_rng_state(), *on_gpu]


def _assert_same(found: Any, expected: Any, values: bool = True) -> None:
    """Values with torch's tolerances; types, shapes and strides exactly."""
    for a, b in _leaves(found, expected):
        if isinstance(b, torch.Tensor):
            a, b = (a, b) if values else (torch.zeros_like(a), torch.zeros_like(b))
            torch.testing.assert_close(a, b, equal_nan=True, check_stride=b.numel() > 1)
        elif values:
            assert a == b or (a != a and b != b), f"{a!r}, eager gives {b!r}"


def _is_half(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype in (torch.float16, torch.bfloat16)


def _is_float(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()
