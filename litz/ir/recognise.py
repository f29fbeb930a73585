"""The recogniser: which loop nests are a gemm, an attention, a depthwise convolution.

In: a `Loop` or a `Kernel`. Out: the same one with its tag (`ir/patterns.py`). Only the form of the
stored value counts, so that a gemm or attention written out by hand is recognised as well. Steps
are tagged where they are made: `lower` tags its loops; `fuse` tags the loops that it inlines
producers into, and its kernels. All others read tags, and `schedule` renames their axes. Only
`ir/verify.py` runs the recogniser again, to check the tags. Example: the rows of
`sum over r0 of x[i0, r0] * w[r0, i1]` are i0, the columns i1.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from litz.ir.attention import parts_by, row_logsumexp, softmax_weighted_mean
from litz.ir.depthwise import depthwise_by
from litz.ir.dtypes import F32, F64, I32
from litz.ir.expr import Expr, extent_of, load, rebuild, transform, walk
from litz.ir.gemm import gemm_phase, stride_of
from litz.ir.index import ZERO
from litz.ir.patterns import Attention, Axes, Depthwise, Gemm, Pattern
from litz.ir.program import AnyStep, Extern, Kernel, Loop, loads

# A longer sum needs partial sums to stay exact: it is scheduled as an ordinary reduction.
MOST_TAPS = 1024


def recognised(step: AnyStep) -> AnyStep:
    """The step with the tag that fits it, or with none."""
    if isinstance(step, Extern):
        return step
    found = patterns_in(step)
    if isinstance(step, Loop):
        tag = found.get(0)
        return step if tag == step.pattern else replace(step, pattern=tag)
    tags = [found.get(k) for k in range(len(step.phases))]
    if tags == [p.pattern for p in step.phases]:
        return step
    tagged = (replace(p, pattern=tag) for p, tag in zip(step.phases, tags, strict=True))
    return replace(step, phases=tuple(tagged))


def patterns_in(step: Loop | Kernel) -> dict[int, Pattern]:
    """The pattern of a loop, or of one phase of a kernel, by its number."""
    if isinstance(step, Loop):
        return _known(0, _in_loop(step) if step.reduced and len(step.stores) == 1 else None)
    place = gemm_phase(step)
    if place is not None:
        phase = step.phases[place]
        (sums, *others) = {n for s in phase.stores for n in walk(s.value) if n.op == "reduce"}
        return _known(place, None if others else _gemm(_moving(sums), step.outer + phase.inner))
    node = _only_reduction(step)
    if node is not None:
        node = _moving(node)
        return _known(0, _gemm(node, step.outer) or _depthwise(node, step.outer))
    return _known(0, _attention_in(step))


def _known(place: int, found: Pattern | None) -> dict[int, Pattern]:
    return {} if found is None else {place: found}


def _in_loop(loop: Loop) -> Pattern | None:
    (store,) = loop.stores
    half, value = store.buffer.dtype.is_half, store.value
    rounds = value.op == "narrow" or (value.op == "cast" and half and value.args[0].dtype is F32)
    if (node := value.args[0] if rounds else value).op == "reduce":
        node = _moving(node)
        return _gemm(node, loop.axes) or (None if rounds else _sliding(loop, node))
    return _attention(_moving(value), loop.axes) if len(loop.reduced) == 2 else None


def _sliding(loop: Loop, node: Expr) -> Depthwise | None:
    """The tag of a loop as a depthwise convolution. Some index must move with both the window and
    the tap: otherwise it is an ordinary column sum, until it is a kernel of its own."""
    found = None if loop.stores[0].scatters else _depthwise(node, loop.axes)
    if found is None:
        return None
    image = node.args[0].args[found.flipped]
    both = {*found.along, found.taps[-1]}
    return found if any(both <= i.axes for i in image.index) else None


def _moving(root: Expr) -> Expr:
    """The expression with index zero wherever a buffer has stride zero: an operand expanded along
    an axis does not depend on it."""
    if not any(ZERO in n.buffer.strides for n in loads(root)):
        return root

    def change(node: Expr, args: tuple[Expr, ...]) -> Expr:
        node = rebuild(node, args)
        if node.op != "load":
            return node
        steps = zip(node.index, node.buffer.strides, strict=True)
        index = tuple(ZERO if step is ZERO else i for i, step in steps)
        return load(node.buffer, index, node.guard)

    return transform(root, change)


def _only_reduction(kernel: Kernel) -> Expr | None:
    """The one reduction of a kernel whose other phases are pointwise."""
    first, *rest = kernel.phases
    if not first.is_reduction or first.inside or any(p.inner for p in rest):
        return None
    nodes = {n for s in first.stores for n in walk(s.value) if n.op == "reduce"}
    if len(nodes) != 1 or any(s.scatters for s in kernel.stores):
        return None
    return nodes.pop()


# -- gemms -------------------------------------------------------------------------------------


def _gemm(node: Expr, axes: Axes) -> Gemm | None:
    """The tag of a sum of products as a gemm; `axes` are the parallel ones, in order."""
    if node.attr[0] != "sum":
        return None
    (term,), (*taps, depth) = node.args, node.attr[1]
    if term.op != "mul" or term.dtype not in (F32, F64, I32):
        return None
    if not all(_is_operand(n) and n.axes.issuperset(node.attr[1]) for n in term.args):
        return None
    for flipped in (False, True):
        left, right = term.args[::-1] if flipped else term.args
        roles = _roles(left, right, axes)
        if roles is not None and _may_lie_outside(left, right, depth, bool(taps)):
            return Gemm(flipped, *roles, tuple(taps), (depth,))
    return None


def _is_operand(node: Expr) -> bool:
    """Whether it is computed pointwise from loads, without reductions or scans."""
    return not any(n.op in ("reduce", "scan") for n in walk(node))


def _may_lie_outside(left: Expr, right: Expr, depth: Expr, taps: bool) -> bool:
    """Whether guards are those of a window: on the left operand, which is then a load, and constant
    along the depth of a tap."""
    if any(n.guard is not None for n in loads(right)):
        return False
    guards = [n.guard for n in loads(left) if n.guard is not None]
    if not guards:
        return not taps or left.op == "load"
    return taps and left.op == "load" and all(depth not in g.axes for g in guards)


def _roles(left: Expr, right: Expr, axes: Axes) -> tuple[Axes, Axes, Axes] | None:
    """(batch, rows, columns), in that order: the right operand does not depend on rows, the left
    one not on columns. A batch of single rows is an ordinary reduction."""
    rows = tuple(a for a in axes if a not in right.axes)
    first = axes.index(rows[0]) if rows else 0
    batch, columns = axes[:first], axes[first + len(rows) :]
    together = axes[first : first + len(rows)] == rows
    apart = not any(a in left.axes for a in columns)
    return (batch, rows, columns) if together and apart and columns else None


# -- depthwise convolutions --------------------------------------------------------------------


def _depthwise(node: Expr, axes: Axes) -> Depthwise | None:
    """A sum over taps of a[..., x * stride + tap, c] * w[..., tap, c], channels contiguous."""
    if node.attr[0] != "sum" or extent_of(node.attr[1]) > MOST_TAPS:
        return None
    (term,) = node.args
    if term.op != "mul" or term.dtype is not F32:
        return None
    for flipped in (False, True):
        image, weight = term.args[::-1] if flipped else term.args
        if image.op == weight.op == "load" and weight.guard is None:
            found = _windows(flipped, node, image, weight, axes)
            if found is not None:
                return found
    return None


def _windows(flipped: bool, node: Expr, image: Expr, weight: Expr, axes: Axes) -> Depthwise | None:
    lanes = [a for a in axes if a in weight.axes]
    around = [a for a in axes if a in image.axes and a not in lanes]
    if len(lanes) != 1 or not around or set(axes) - image.axes:
        return None
    (channel,), along, last = lanes, around[-1], node.attr[1][-1]
    if any(stride_of(n, channel) != 1 or stride_of(n, last) is None for n in (image, weight)):
        return None
    if stride_of(image, along) is None:
        return None
    found = Depthwise(flipped, (channel,), (along,), node.attr[1])
    return found if depthwise_by(found, node) is not None else None


# -- attention ---------------------------------------------------------------------------------


def _attention_in(kernel: Kernel) -> Attention | None:
    """The tag of a kernel as attention, with or without a store of its logsumexp."""
    mean, *sums = kernel.stores
    found = _attention(_moving(mean.value), kernel.outer) if len(sums) < 2 else None
    if found is None or not sums:
        return found
    parts = parts_by(found, mean.value)
    expected = row_logsumexp(parts.score, parts.column)
    return found if all(s.value is expected and s.mode == "put" for s in sums) else None


def _attention(value: Expr, axes: Axes) -> Attention | None:
    whole = value.args[0] if value.op in ("cast", "narrow") else value
    zeros = whole.op == "where"
    mean = whole.args[2] if zeros else whole
    if mean.op != "div" or any(n.op != "reduce" for n in mean.args):
        return None
    term, weight, (column, *_) = mean.args[0].args[0], mean.args[1].args[0], mean.args[1].attr[1]
    if term.op != "mul" or weight.op != "exp" or weight.args[0].op != "sub":
        return None
    score = weight.args[0].args[0]
    # Expressions are shared: an equal one is the same one.
    if softmax_weighted_mean(score, term.args[1], column, zeros) is not whole:
        return None
    dots = [n for n in walk(score) if n.op == "reduce"]
    if len(dots) != 1 or dots[0].attr[0] != "sum" or dots[0].args[0].op != "mul":
        return None
    (depth, *more) = dots[0].attr[1]
    # Once flat, the index of an expanded operand does not name the axis that it is expanded along.
    # So the width is found as the last axis that the scores do not depend on.
    widths = [a for a in axes if a not in score.axes]
    if more or not widths:
        return None
    for flipped in (False, True):
        tag = Attention(flipped, (), (column,), (depth,), (widths[-1],))
        parts = parts_by(tag, value)
        if any(n.op != "load" or n.guard is not None for n, _ in parts.walked):
            return None
        if column not in parts.query.axes:
            others = parts.key.axes | parts.value.axes
            rows = [a for a in axes if a in parts.query.axes and a not in others]
            tag = replace(tag, row=tuple(rows[-1:]))
            return tag if parts_by(tag, value).is_even else None
    return None


def recognise_loops(body: Iterable[Loop | Extern]) -> tuple[Loop | Extern, ...]:
    """Every loop with its tag: each stored value is looked at once."""
    return tuple(map(recognised, body))
