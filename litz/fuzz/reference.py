"""The reference: a program's results without rounding, and how far rounding may move them.

In: a function and its inputs. Out: its results in float64; and again with noise: every float that
it computes is moved at random by up to an ulp of the type that it has in eager (for a sum of n
numbers, sqrt(n) ulps of the type of the accumulator). The distance between the two is the effect of
one ulp a step, with all conditioning and cancellation.

Both runs are the same function, called under a mode to which torch passes every call.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

Tensors = list[torch.Tensor]
HALF_DTYPES = (torch.float16, torch.bfloat16)
ROUNDED = (torch.float32, *HALF_DTYPES)

# Calls that copy, move or choose numbers and so never round; neither do views.
_EXACT = """
    abs amax amin argmax argmin as_strided cat ceil chunk clamp clone contiguous copysign cummax
    cummin embedding expand fill flip floor gather __getitem__ index_copy index_fill index_select
    masked_fill masked_scatter max maximum min minimum nan_to_num neg pad relu repeat
    repeat_interleave roll round scatter select_scatter sign slice_scatter sort stack
    take_along_dim topk tril triu trunc unfold where zero
"""
# Calls with steps inside, one of which may cancel digits that the step before it rounded, as sums
# do. Their result for operands an ulp away is as right as any other.
_STEPS = """
    batch_norm instance_norm group_norm layer_norm rms_norm local_response_norm normalize std var
    std_mean var_mean cosine_similarity softmax log_softmax softmin logsumexp logcumsumexp diff
    cross_entropy kl_div interpolate lerp norm vector_norm frac logit sinc einsum
    addcmul addcdiv addmm linear conv1d conv2d matmul __matmul__ dot trace sum mean nansum nanmean
    cumsum scaled_dot_product_attention outer
"""
# Calls that choose one of their numbers. Of 0.0 and -0.0, which are equal, they may return either.
_CHOICES = "max min amax amin aminmax maximum minimum fmax fmin cummax cummin clamp relu"
EXACT, STEPS = frozenset(_EXACT.split()), frozenset(_STEPS.split())
CHOICES = frozenset(_CHOICES.split())
WRITES = frozenset(("__setitem__", "__iadd__", "__isub__", "__imul__"))
# Calls that sum long rows. They round sums of neighbours, which may be far larger than the result:
# so neighbours among their operands are also moved together.
SUMS, SUM_BLOCKS = frozenset(("sum", "mean", "nansum", "nanmean")), 8
# Calls that take the mean away, in the backward too, where all elements see its rounding alike.
_CENTRED = "var std var_mean std_mean batch_norm instance_norm group_norm layer_norm"
CENTRED = frozenset(_CENTRED.split())
DEVIATIONS = ("std", "std_mean")
# A call whose backward subtracts: from each gradient of a weight the mean of its row.
ATTENTION = "scaled_dot_product_attention"
NOTHING = 1e-10  # beside an operand: float64 rounds to it, and no narrower type comes as near
KEEPS_STATISTICS = frozenset(("batch_norm", "instance_norm"))  # in operands, beside their result


class Watched(TorchFunctionMode):
    """Eager itself; notes the type of every tensor that a call takes or returns."""

    def __init__(self, seen: list[torch.dtype]) -> None:
        super().__init__()
        self.seen = seen

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.seen.extend(t.dtype for t in _tensors((args, kwargs)))
        result = function(*args, **(kwargs or {}))
        self.seen.extend(t.dtype for t in changed_by(function, args, result))
        return result


class Widened(TorchFunctionMode):
    """The same calls in float64, with `noise` ulps of the types that eager was seen to use."""

    def __init__(self, seen: list[torch.dtype], noise: float, seed: int = 0) -> None:
        super().__init__()
        self.seen, self.noise, self.at = seen, noise, 0
        self.source = torch.Generator().manual_seed(seed)

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        args, kwargs = pytree.tree_map(_wide, (args, kwargs or {}))
        given = _tensors((args, kwargs))
        types_seen = [self._next() for _ in given]
        before = {memory(t) for t in given}
        largest = max((t.numel() for t in given), default=0)
        keeps = _name(function) in KEEPS_STATISTICS
        old = [t.clone() for t in given] if keeps else given
        result = function(*args, **kwargs)
        if self.noise and self._may_move(function, types_seen, result, before):
            near = [self._near(t, d, function) for t, d in zip(old, types_seen, strict=True)]
            moved = iter(near)
            args, kwargs = pytree.tree_map_only(torch.Tensor, lambda _: next(moved), (args, kwargs))
            plain = (
                _name(function) == ATTENTION and len(args) == 3 and kwargs.keys() <= {"is_causal"}
            )
            again = self._attention if plain else function
            exact, result = result, again(*args, **kwargs)
            self._vanish(function, _tensors(result), _tensors(exact), old)
            kept = zip(given, old, near, types_seen, strict=True) if keeps else ()
            for tensor, was, now, dtype in kept:
                if not torch.allclose(tensor, was, 0, 0, equal_nan=True):  # it was written to
                    _overwrite(tensor, now)
                    self._move(tensor, dtype, _roundings(function, tensor, [dtype], largest))
        if _name(function) == "to" and given and self.seen[self.at] is not types_seen[0]:
            result = result.clone()  # as in eager, though it is float64 before and after
        for tensor in changed_by(function, args, result):
            dtype = self._next()
            is_made = bool(before) or _name(function) == "linspace"  # a constructor that rounds
            is_new = memory(tensor) not in before and is_made
            if tensor.is_floating_point() and (is_new or writes(function)):
                if _name(function) == "to":
                    self._cast(tensor, dtype)
                elif _name(function) == "linspace":
                    self._snap(tensor, dtype)
                elif not is_exact(function):
                    inside = types_seen if _name(function) in STEPS else []
                    most = _roundings(function, tensor, [dtype, *inside], largest)
                    self._move(tensor, dtype, most)
                if _name(function) == "group_norm":
                    self._shift(tensor, dtype, *args, **kwargs)
                self._turn(function, tensor)
                self._move_gradient(tensor, dtype)
        return result

    def _move_gradient(self, tensor: torch.Tensor, dtype: torch.dtype) -> None:
        """The gradient of a value rounds there as well."""

        def near(gradient: torch.Tensor | None) -> torch.Tensor | None:
            if gradient is None:  # no gradient arrived
                return None
            moved = gradient.clone()
            self._move(moved, dtype, 2 * torch.finfo(dtype).eps)
            return moved

        if self.noise and tensor.requires_grad:
            tensor.register_hook(near)

    def _may_move(
        self, function: Any, types_seen: list[torch.dtype], result: Any, before: set[int]
    ) -> bool:
        """Whether operands an ulp away are as good: for a call with steps inside, and for half
        types, which a compiler may keep wide for one use and round for another."""
        if writes(function) or is_exact(function) or _name(function) == "__setitem__":
            return False
        if any(memory(t) in before for t in _tensors(result)):
            return False
        return _name(function) in STEPS or any(t in HALF_DTYPES for t in types_seen)

    def _next(self) -> torch.dtype:
        self.at += 1
        return self.seen[self.at - 1]

    def _near(self, tensor: torch.Tensor, dtype: torch.dtype, of: Any) -> torch.Tensor:
        """An operand moved by up to an ulp; for a sum, also each of its blocks as a whole."""
        if not tensor.is_floating_point():
            return tensor
        moved = tensor.clone()
        if _name(of) in SUMS:
            off = 2 * torch.rand(SUM_BLOCKS, generator=self.source, dtype=torch.float64) - 1
            place = torch.arange(tensor.numel()) * SUM_BLOCKS // max(tensor.numel(), 1)
            moved *= 1 + self.noise * torch.finfo(dtype).eps * off[place].view(tensor.shape)
        self._move(moved, dtype, torch.finfo(dtype).eps)
        if _name(of) in CENTRED and moved.requires_grad and moved.numel():
            x, coarse = tensor.detach(), torch.finfo(dtype).eps
            apart = float((x - x.mean()).abs().max())
            shift = coarse * float(x.abs().max()) / apart if apart else coarse
            off = 2 * torch.rand((), generator=self.source, dtype=torch.float64) - 1
            moved.register_hook(lambda g: g + self.noise * shift * off * g.abs().max())
        return moved

    def _attention(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, is_causal: bool = False
    ) -> torch.Tensor:
        """Attention step by step. Its backward subtracts from each gradient of a weight the mean of
        its row. That mean rounds too, for the whole row alike: of equal rows only this is left."""
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        if is_causal:
            seen = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
            scores = scores.masked_fill(~seen, -math.inf)
        weights = scores.softmax(-1)
        if weights.requires_grad:
            ulp, means = self.noise * torch.finfo(torch.float32).eps, []
            off = 2 * torch.rand((*weights.shape[:-1], 1), generator=self.source).double() - 1
            weights.register_hook(lambda g: means.append((g * weights).sum(-1, keepdim=True)))
            scores.register_hook(lambda g: g + weights.detach() * means.pop() * ulp * off)
        return weights @ v

    def _move(self, tensor: torch.Tensor, dtype: torch.dtype, ulp: float) -> None:
        """By up to so much, of which the last half an ulp is spent on rounding to a number that the
        type has: so two may meet, and `a - b` be zero."""
        if self.noise and tensor.numel():
            off = 2 * torch.rand(tensor.shape, generator=self.source, dtype=torch.float64) - 1
            most = ulp - torch.finfo(dtype).eps / 2
            _overwrite(tensor, (tensor * (1 + self.noise * most * off)).to(dtype))

    def _cast(self, tensor: torch.Tensor, dtype: torch.dtype) -> None:
        """A number that the type represents exactly is not rounded."""
        before, held = tensor.clone(), tensor.to(dtype).double() == tensor
        self._move(tensor, dtype, torch.finfo(dtype).eps)
        _overwrite(tensor, torch.where(held, before, tensor))

    def _snap(self, tensor: torch.Tensor, dtype: torch.dtype) -> None:
        """A number between two others rounds like them: near zero it may be zero, or not."""
        if self.noise and tensor.numel():
            step = torch.finfo(dtype).eps * float(tensor.abs().max()) + torch.finfo(dtype).tiny
            off = 2 * torch.rand(tensor.shape, generator=self.source, dtype=torch.float64) - 1
            _overwrite(tensor, ((tensor / step + off / 2).round() * step).to(dtype))

    def _shift(
        self, tensor: torch.Tensor, dtype: torch.dtype, x: torch.Tensor, groups: int,
        weight: torch.Tensor | None = None, bias: torch.Tensor | None = None, eps: float = 1e-5,
    ) -> None:  # fmt: skip
        """Eager's group norm adds its mean to the bias, both scaled, and rounds that sum, which may
        be much larger than the result."""
        if self.noise and weight is not None and tensor.numel():
            with torch.no_grad():
                rows = x.reshape(x.shape[0], groups, -1)
                means = rows.mean(-1) * (rows.var(-1, correction=0) + eps).rsqrt()
                means = means.repeat_interleave(x.shape[1] // groups, 1) * weight
                means = means.reshape(*x.shape[:2], *[1] * (x.dim() - 2))
                off = 2 * torch.rand(tensor.shape, generator=self.source, dtype=torch.float64) - 1
                ulp = min(torch.finfo(dtype).eps, torch.finfo(torch.float32).eps)
                _overwrite(tensor, tensor + self.noise * ulp * means * off)

    def _vanish(self, function: Any, results: Tensors, exact: Tensors, given: Tensors) -> None:
        """Equal numbers less their mean are nothing, or what a type rounds their mean by. Float64
        has one of the two; the other is as right. So is a deviation whose square float32 has not
        (docs/correctness.md, where a promise is weaker)."""
        nothing = NOTHING * max((_largest(t) for t in given), default=0.0)
        if _name(function) in DEVIATIONS:
            nothing = max(nothing, math.sqrt(torch.finfo(torch.float32).tiny))
        for near, true in zip(results, exact, strict=True):
            if near.is_floating_point():
                coin = torch.rand(near.shape, generator=self.source) < 0.5
                _overwrite(near, torch.where((true.abs() <= nothing) & coin, 0.0, near))

    def _turn(self, function: Any, tensor: torch.Tensor) -> None:
        """The sign of a NaN is arbitrary, and so is that of a zero chosen among zeros or summed of
        them: a sum that begins with its first number may be -0.0, one that begins with 0.0 is
        not."""
        if self.noise:
            free = tensor.isnan()
            if _name(function).rstrip("_") in CHOICES or _name(function) in STEPS:
                free |= tensor == 0
            coin = torch.rand(tensor.shape, generator=self.source) < 0.5
            _overwrite(tensor, torch.where(free & coin, -tensor, tensor))


def _overwrite(tensor: torch.Tensor, values: torch.Tensor) -> None:
    """Without autograd's notice: a value that it saved is now another one, which is as good."""
    with torch.no_grad(), torch.autograd._unsafe_preserve_version_counter(tensor):
        tensor.copy_(values)


def _largest(tensor: torch.Tensor) -> float:
    """The largest absolute value of the finite floats."""
    if not tensor.is_floating_point():
        return 0.0
    finite = tensor.detach()[tensor.isfinite()].abs()
    return float(finite.max()) if finite.numel() else 0.0


def _roundings(
    function: Any, result: torch.Tensor, dtypes: list[torch.dtype], largest: int
) -> float:
    """The relative rounding error of a call: an ulp of its coarsest type. A sum of n numbers also
    rounds n times in its accumulator, which is never a half type; two right orders differ by
    sqrt(n)."""
    ulp = max(float(torch.finfo(d).eps) for d in dtypes if d.is_floating_point)
    added = largest / max(result.numel(), 1)
    if dtypes[0] is torch.float64 and _name(function) in STEPS:
        added = largest  # the exact result is a sum in the same type
    return ulp + (math.sqrt(max(added, 1)) - 1) * min(ulp, float(torch.finfo(torch.float32).eps))


def changed_by(function: Any, args: Any, result: Any) -> Tensors:
    """The tensors that a call returns or writes into."""
    return [args[0]] if _name(function) == "__setitem__" else _tensors(result)


def writes(function: Any) -> bool:
    name = _name(function)
    return name in WRITES or (name.endswith("_") and not name.endswith("__"))


def is_exact(function: Any) -> bool:
    name = _name(function)
    return name in EXACT or name.rstrip("_") in EXACT


def _name(function: Any) -> str:
    return getattr(function, "__name__", "")


def _tensors(tree: Any) -> Tensors:
    return [t for t in pytree.tree_leaves(tree) if isinstance(t, torch.Tensor)]


def _wide(value: Any) -> Any:
    return torch.float64 if isinstance(value, torch.dtype) and value in ROUNDED else value


def memory(tensor: torch.Tensor) -> int:
    """Equal for tensors that share storage."""
    return int(tensor.untyped_storage()._cdata)


def widened(tensors: Sequence[torch.Tensor]) -> Tensors:
    """Copies with floats in float64; tensors that shared memory still do."""
    storages: dict[int, torch.Tensor] = {}
    return [_rebased(t, storages) for t in tensors]


def _rebased(tensor: torch.Tensor, storages: dict[int, torch.Tensor]) -> torch.Tensor:
    key = memory(tensor)
    if key not in storages:
        storage = tensor.untyped_storage()
        flat = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        flat = flat.set_(storage, 0, (storage.nbytes() // tensor.itemsize,))  # type: ignore
        wide = torch.float64 if flat.is_floating_point() else flat.dtype
        storages[key] = flat.to(wide, copy=True)
    base = storages[key]
    return base.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


@contextmanager
def default_dtype(dtype: torch.dtype) -> Any:
    """In this block, dividing integers gives this type."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def run_wide(
    function: Callable[..., Any],
    inputs: Sequence[torch.Tensor],
    seen: list[torch.dtype],
    noise: float,
    seed: int = 0,
) -> Tensors:
    """The results and the inputs after the call, in float64."""
    wide = widened(inputs)
    with torch.no_grad(), default_dtype(torch.float64), Widened(seen, noise, seed):
        results = list(function(*wide))
    return results + wide
