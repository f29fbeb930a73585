"""An op of our own: whether a scale and a shift may be folded into the weights of a layer.

In: the current values of a weight, its scales and its shifts. Out: `torch.ops.litz.is_foldable`,
one bool. It runs whenever the prepacked weights are made; if it is False, calls go to a graph in
which nothing is folded. Example: with an infinite scale, `weight * scale` gives sums of `inf - inf`
where the scaled sum is infinite.
"""

from __future__ import annotations

import torch

# A scale must be between 2**-RANGE and 2**RANGE. Then products that are scaled before they are
# summed overflow only where the sum or the products themselves would, or where they are at least
# max / 2**RANGE (3e26 in float32).
RANGE = 40


@torch.library.custom_op("litz::is_foldable", mutates_args=())
def _is_foldable(
    weight: torch.Tensor,
    scales: list[torch.Tensor],
    shifts: list[torch.Tensor],
    bias: torch.Tensor | None,
    ends_in_sum: bool,
) -> torch.Tensor:
    """`scales` are the first factor, the product of the first two and so on, as the original ops
    compute them. `bias` is the folded shift; `ends_in_sum` says that a shift is the last op."""
    sound = torch.ones((), dtype=torch.bool, device=weight.device)
    if bias is not None:
        sound = bias.isfinite().all()
    if not scales:  # a shift that is infinite by itself makes the bias infinite either way
        for each in shifts:
            sound = sound | ~each.isfinite().all()
        return sound
    least, most = 2.0**-RANGE, 2.0**RANGE
    for size in (scale.abs() for scale in scales):
        in_range = (size >= least) & (size <= most)
        if ends_in_sum:  # a final addition hides the sign of a zero product, unless it adds -0.0
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
