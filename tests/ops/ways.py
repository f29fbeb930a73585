"""The ways in which the sweep takes each op: sizes, layouts of operands, how it is compiled.

In: a sample of torch's op database. Out: the calls of a way: samples that one compiled function is
called with, one after the other, each operand placed in memory as the way says. Both sweeps, the
CPU's and the GPU's, read this list. A way that eager itself refuses for a sample (a tensor of three
dimensions has no channels last, a matrix is not as long as it is wide) does not apply to it.
Example: `python -m tests.ops.sweep --ways sizes,negated --op softmax`.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

Place = Callable[[torch.Tensor], torch.Tensor]
Sample = Any  # torch's SampleInput: input, args, kwargs
# How operands grow together: all along their last dimension, all along their first, the first one.
GROWTHS = ("last", "first", "alone")
ROW = 1100  # elements: past every vector, unrolled loop and block of a row
TASK = 300_000  # elements of a tensor: past a task's share, and the second cache
MOST, PATIENCE = 100, 2.0  # results of a call, and seconds that eager takes for it
MOST_ELEMENTS = 1 << 27  # of any tensor that it makes: a machine has so much memory for each job


@dataclass(frozen=True)
class Way:
    """`sizes` are the times that a sample's operands are repeated, a call each; `least` makes it as
    many times as one takes to have so many elements. `place` lays out an operand; `options` are
    Litz's, `dynamic` is torch.compile's. `devices` are where it makes sense; Triton's interpreter
    takes minutes for a large tensor."""

    name: str
    says: str
    sizes: tuple[int, ...] = (1,)
    least: int = 0
    place: Place = lambda tensor: tensor
    dynamic: bool | None = False
    options: dict[str, Any] = field(default_factory=dict)
    devices: tuple[str, ...] = ("cpu", "cuda", "interpreter")

    def calls(self, function: Callable[[Sample], Any], sample: Sample) -> list[Sample]:
        """The samples of its calls; none where the way does not apply. `function` runs eager."""
        if self.place is not PLAIN.place and not _differs(self.place, sample):
            return []
        if self.sizes == (1,) and not self.least:
            return [sample]
        start = time.monotonic()
        for growth in GROWTHS:
            if time.monotonic() - start > 5 * PATIENCE:
                return []  # eager's time grows with the square of a size, or worse
            try:
                found = [grown(sample, growth, n) for n in self._times(sample, growth)]
                feasible = all(_is_feasible(function, call) for call in found)
            except Exception:
                continue
            if feasible:
                return found
        return []

    def _times(self, sample: Sample, growth: str) -> tuple[int, ...]:
        if not self.least:
            return self.sizes
        sizes = [t.numel() if self.least > ROW else t.shape[-1] for t in tensors(sample) if t.dim()]
        most = max((n for n in sizes if n), default=0)
        if not most:
            raise ValueError("nothing grows")
        return (-(-self.least // most) | 1,)  # odd: no multiple of a vector


def tensors(sample: Sample) -> list[torch.Tensor]:
    """The operands of a sample."""
    leaves = pytree.tree_leaves((sample.input, sample.args, sample.kwargs))
    return [t for t in leaves if isinstance(t, torch.Tensor)]


def mapped(sample: Sample, change: Callable[[Any], Any]) -> Sample:
    """A sample with each of its leaves changed."""
    given = (sample.input, list(sample.args), dict(sample.kwargs))
    first, args, kwargs = pytree.tree_map(change, given)
    return type(sample)(first, args=tuple(args), kwargs=kwargs)


def grown(sample: Sample, growth: str, times: int) -> Sample:
    """A sample whose operands are repeated along a dimension."""
    first = next(iter(tensors(sample)), None)
    changed = 0

    def repeated(value: Any) -> Any:
        nonlocal changed
        if not isinstance(value, torch.Tensor) or not value.dim() or times == 1:
            return value
        if growth == "alone" and value is not first:
            return value
        if value.layout is not torch.strided:
            raise ValueError("a layout of its own")
        counts = [1] * value.dim()
        counts[-1 if growth == "last" else 0] = times
        changed += value.numel() > 0
        return value.detach().repeat(counts)

    found = mapped(sample, repeated)
    if times > 1 and not changed:
        raise ValueError("nothing grows")
    return found


def _is_feasible(function: Callable[[Sample], Any], sample: Sample) -> bool:
    """Whether eager has a result in reasonable time and memory: not a hundred thousand of them, as
    of `unbind`, nor a factorisation of an enormous matrix, nor the outer product of two long
    vectors. On the CPU: an index that is out of range ends all work of a process on a GPU."""

    def on(device: str) -> Any:
        moved = mapped(sample, lambda v: v.to(device) if isinstance(v, torch.Tensor) else v)
        with _Sized():
            return function(moved)

    try:
        on("meta")
    except _TooLarge:
        return False
    except Exception:
        pass  # not every op can do without numbers
    start = time.monotonic()
    results = on("cpu")
    return len(pytree.tree_leaves(results)) <= MOST and time.monotonic() - start <= PATIENCE


class _TooLarge(Exception):
    """A call makes a tensor of more than `MOST_ELEMENTS`."""


class _Sized(TorchDispatchMode):
    """Looks at what every op makes."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        sizes = [t.numel() for t in pytree.tree_leaves(made) if isinstance(t, torch.Tensor)]
        if max(sizes, default=0) > MOST_ELEMENTS:
            raise _TooLarge(f"{func} makes {max(sizes)} elements")
        return made


def _differs(place: Place, sample: Sample) -> bool:
    """Whether a way lays out an operand otherwise than it lies."""
    return any(_as_laid(place(t)) != _as_laid(t) for t in tensors(sample) if _is_plain(t))


def _as_laid(tensor: torch.Tensor) -> Any:
    return tensor.stride(), tensor.storage_offset(), tensor.is_neg()


def _is_plain(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.layout is torch.strided


def placed(way: Way, tree: Any) -> Any:
    """Operands in memory as a way has them: the same values, in memory of their own."""
    return pytree.tree_map(lambda v: way.place(v) if _is_plain(v) else v, tree)


# -- layouts ---------------------------------------------------------------------------------


def _transposed(tensor: torch.Tensor) -> torch.Tensor:
    """The last two dimensions lie the other way round."""
    return tensor.mT.contiguous().mT if tensor.dim() > 1 else tensor


def _offset(tensor: torch.Tensor) -> torch.Tensor:
    """One element behind the beginning of its memory, which nothing wide begins at."""
    flat = torch.zeros(tensor.numel() + 1, dtype=tensor.dtype, device=tensor.device)[1:]
    return flat.view(tensor.shape).copy_(tensor)


def _expanded(tensor: torch.Tensor) -> torch.Tensor:
    """Its first row everywhere, in memory once."""
    if not tensor.dim() or tensor.shape[0] < 2:
        return tensor
    return tensor[:1].clone().expand(tensor.shape)


def _negated(tensor: torch.Tensor) -> torch.Tensor:
    """Memory that holds the negated numbers, and a bit that says so."""
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return tensor
    return torch._neg_view(-tensor)


def _channels_last(tensor: torch.Tensor) -> torch.Tensor:
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    if tensor.dim() not in formats:
        return tensor
    return tensor.contiguous(memory_format=formats[tensor.dim()])


PLAIN = Way("plain", "as torch draws it")
WAYS: dict[str, Way] = {
    way.name: way
    for way in (
        PLAIN,
        Way("dynamic", "every size a symbol", dynamic=True),
        Way("sizes", "three sizes, the longest first and last", (29, 3, 29), dynamic=None),
        Way("symbols", "three sizes, every one a symbol", (31, 2, 31), dynamic=True),
        Way("long", "rows past vectors, unrolling and blocks", least=ROW),
        Way("large", "tensors past a task and the second cache", least=TASK,
            devices=("cpu", "cuda")),
        Way("transposed", "operands transposed in memory", place=_transposed),
        Way("offset", "operands one element into their memory", place=_offset),
        Way("expanded", "operands whose rows are one row", place=_expanded),
        Way("negated", "operands with the lazy negative bit", place=_negated),
        Way("channels_last", "images with their channels last", place=_channels_last),
        Way("unfused", "kernels of one op", options={"max_fusion_size": 1}),
        Way("few", "kernels of four ops", options={"max_fusion_size": 4}),
        Way("threads", "two threads", options={"cpp.threads": 2}, devices=("cpu",)),
        Way("narrow", "vectors of 128 bits", options={"cpp.simdlen": 128}, devices=("cpu",)),
        Way("wide", "vectors of 512 bits", options={"cpp.simdlen": 512}, devices=("cpu",)),
    )
}  # fmt: skip


def drawn(name: str, device: str, among: int) -> Way | None:
    """The way that an op's name picks: one op in so many has one, and nobody chooses."""
    ways = [w for w in WAYS.values() if device in w.devices]
    number = zlib.crc32(f"{device} {name}".encode())
    return None if number % among else ways[number // among % len(ways)]


def chosen(names: str, device: str = "cpu") -> list[Way]:
    """Ways by name, with commas between them; `all` is every way of a device."""
    if names == "all":
        return [way for way in WAYS.values() if device in way.devices]
    return list(_named(names.split(","), device))


def _named(names: list[str], device: str) -> Iterator[Way]:
    for name in names:
        if name not in WAYS or device not in WAYS[name].devices:
            there = ", ".join(w.name for w in WAYS.values() if device in w.devices)
            raise SystemExit(f"there is no way {name} on {device}: {there}")
        yield WAYS[name]
