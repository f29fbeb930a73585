"""An op of our own: whether a scale and a shift may go into the weights of a layer.

In: a weight, its scales and its shifts, as parameters have them at the moment. Out:
`torch.ops.litz.is_foldable`, one truth. It is asked whenever what is held of parameters is made;
if the answer is no, the call goes to a graph in which nothing is folded. Example: with a scale of
infinity, `weight * scale` gives sums of `inf - inf` where the scaled sum is infinite.
"""

from __future__ import annotations

import torch

# A scale s lies between 2**-RANGE and 2**RANGE. Scaled before they are summed, products overflow
# where the sum or they themselves would, or are at least max / 2**RANGE (3e26 in float32).
RANGE = 40


@torch.library.custom_op("litz::is_foldable", mutates_args=())
def _is_foldable(
    weight: torch.Tensor,
    scales: list[torch.Tensor],
    shifts: list[torch.Tensor],
    bias: torch.Tensor | None,
    ends_in_sum: bool,
) -> torch.Tensor:
    """`scales` are the products of the first factor, the first two and so on: the ops that they are
    taken from have such results. `bias` is what the shifts amount to; `ends_in_sum` if the last one
    is added at the end."""
    sound = torch.ones((), dtype=torch.bool, device=weight.device)
    if bias is not None:
        sound = bias.isfinite().all()
    if not scales:  # what was infinite before it was added up stays so
        for each in shifts:
            sound = sound | ~each.isfinite().all()
        return sound
    least, most = 2.0**-RANGE, 2.0**RANGE
    for size in (scale.abs() for scale in scales):
        in_range = (size >= least) & (size <= most)
        if ends_in_sum:  # only there a zero does not show the sign of what it was multiplied with
            last = shifts[-1]
            in_range = in_range | ((size == 0) & ~((last == 0) & last.signbit()))
        sound = sound & in_range.all()
    # No product with a scale overflows, or is so small that it loses digits.
    limits, values = torch.finfo(weight.dtype), weight.abs()
    whole = (values >= limits.tiny * most) & (values <= limits.max * least)
    return sound & (whole | (values == 0)).all()


@_is_foldable.register_fake
def _(
    weight: torch.Tensor,
    scales: list[torch.Tensor],
    shifts: list[torch.Tensor],
    bias: torch.Tensor | None,
    ends_in_sum: bool,
) -> torch.Tensor:
    return weight.new_empty((), dtype=torch.bool)


torch.fx.node.has_side_effect(torch.ops.litz.is_foldable.default)  # its answer has no user
