"""The steps that programs are made of: texts with holes, in families.

In: nothing. Out: `WEIGHTED`, each family as often as it should be drawn. `{a}` is the operand,
`{b}` one of broadcastable shape, `{b2}` one of the same, `{c}` a mask; `{d}` and `{e}` are
dimensions, `{n}` a small number, `{t}` a type, `{s}` a shape, `{p}` a permutation, `{r}` repeats;
`{i}`, `{j}` and `{g}` are indices.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch


def _rows(text: str) -> list[str]:
    return [row.strip() for row in text.replace("\n", ";").split(";") if row.strip()]


# Continuous functions of a float, safe over all of its range.
SMOOTH = _rows("""
    {a}.exp(); {a}.sin(); {a}.cos(); {a}.tanh(); {a}.sigmoid(); {a}.relu(); -{a}; {a}.abs()
    {a} * {a}; ({a}.abs() + 1).log(); ({a}.abs() + 0.5).rsqrt(); ({a}.abs() + 0.1).sqrt()
    1 / ({a}.abs() + 0.5); {a}.erf(); {a}.expm1(); {a}.abs().log1p(); {a}.atan(); {a}.asinh()
    {a}.clamp(-1, 0.5); F.gelu({a}); F.silu({a}); F.gelu({a}, approximate="tanh"); {a}.sinh()
    F.leaky_relu({a}, 0.1); F.softplus({a}); F.elu({a}); F.mish({a}); F.hardswish({a})
    F.hardtanh({a}); {a} ** 3; ({a}.abs() + 0.5) ** 1.7
""")
PLAIN = _rows("""
    {a} * 2; {a} + 1; {a} - 3; {a}.clone(); 3 - {a}; {a} * 0.5; {a}.clamp(min=1)
""")
PAIRS = _rows("""
    {a} + {b}; {a} - {b}; {a} * {b}; torch.maximum({a}, {b}); torch.minimum({a}, {b})
    torch.lerp({a}, {b}, 0.3); {a} / ({b}.abs() + 1); torch.atan2({a}, {b}.abs() + 1)
    torch.add({a}, {b}, alpha=2); {a}.clamp(max={b}); torch.hypot({a}, {b})
    torch.addcmul({a}, {b}, {b}); torch.rsub({a}, {b})
""")
CHOICES = _rows("torch.where({c}, {a}, {b}); {a}.masked_fill({c}, 2); torch.where({c}, {a}, 0)")
# Jumps: of exact operands alone.
JUMPS = _rows("""
    {a}.floor(); {a}.ceil(); {a}.round(); {a}.trunc(); {a}.sign(); {a} > 0; {a} <= {b}; {a} == {b}
    {a} != 0; torch.isnan({a}); {a}.isfinite(); {a}.bool(); ~({a} > {b}); {a}.argmax({d})
    {a}.argmin({d}); {a}.argmax(); {a}.any({d}); {a}.all(); {a}.max({d})[1]; {a}.min({d})[1]
    {a}.logical_not(); torch.signbit({a}); {a}.any({d}, keepdim=True); {a} // 2; {a} % 3
    {a}.remainder({b}); {a}.fmod({b}); {a} // {b}; {a}.logical_and({b}); {a}.heaviside({b})
    torch.div({a}, {b}, rounding_mode="trunc")
""")
INTEGER = _rows("""
    {a} & {b}; {a} | {b}; {a} ^ {b}; ~{a}; {a} << {n}; {a} >> {n}; {a}.abs(); -{a}; {a} ** {n}
    {a} // 3; {a} % 5; {a} % -4; torch.div({a}, 2, rounding_mode="trunc"); {a}.fmod(3); {a}.sign()
""")
VIEWS = _rows("""
    {a}.transpose({d}, {e}); {a}.unsqueeze({d}); {a}.squeeze(); {a}.flatten(); {a}.mT; {a}[..., ::2]
    {a}[1:]; {a}.narrow({d}, 0, 1); {a}.select({d}, -1); {a}.select({d}, 0); {a}.movedim({d}, {e})
    {a}[..., :-1]; {a}.diagonal(0, {d}, {e}); {a}.unfold({d}, 2, 1); {a}.chunk(2, {d})[-1]
    {a}.unbind({d})[0]; {a}.reshape(-1); {a}.reshape({s}); {a}.contiguous(); {a}.view({s})
    {a}.expand(2, *{a}.shape); {a}.split(2, {d})[0]; {a}[None]; {a}.permute({p}); {a}[..., None]
    {a}.unflatten({d}, (-1, 2))
""")
MOVES = _rows("""
    {a}.flip({d}); {a}.repeat({r}); {a}.roll({n}, {d}); F.pad({a}, (1, 2))
    F.pad({a}, (-1, 1, 0, 1)); torch.cat([{a}, {b2}], {d}); torch.stack([{a}, {a}], {d})
    torch.cat([{a}] * 5, {d}); torch.cat([{a}, {b2}.to({t})], {d}); torch.tril({a})
    torch.triu({a}, 1); {a}.repeat_interleave(2, {d}); F.pad({a}, (1, 0), value=2)
    {a}.index_select({d}, {i}); {a}[{i}]; {a}[..., {i}]; {a}.gather({d}, {g}); {a}[{i}, {i}]
    {a}.take_along_dim({g}, {d}); {a}[{i}, :, {i}]; {a}[{j}]; {a}[..., {j}]
    {a}.index_select({d}, {j}.flatten()); F.embedding({j}, {a})
    torch.slice_scatter({a}.contiguous(), {a}[1:], 0, 0, -1)
    torch.select_scatter({a}.contiguous(), {a}.select({d}, 0), {d}, -1)
""")
REDUCTIONS = _rows("""
    {a}.sum(); {a}.sum({d}); {a}.sum({d}, keepdim=True); {a}.amax({d}); {a}.amin({d}, keepdim=True)
    {a}.max(); {a}.min(); {a}.max({d})[0]; {a}.sum(({d}, {e})); {a}.amax(({d}, {e}), keepdim=True)
    {a}.cumsum({d})
""")
FLOAT_REDUCTIONS = _rows("""
    {a}.mean(); {a}.mean({d}, keepdim=True); {a}.mean(({d}, {e})); {a}.softmax({d}); {a} @ {a}.mT
    {a}.log_softmax({d}); {a}.logsumexp({d}); {a}.var({d}, correction=0); {a}.std({d}, keepdim=True)
    torch.var_mean({a}, {d})[1]; {a}.norm(dim={d}); F.layer_norm({a}, {a}.shape[-1:])
    F.linear({a}, {a}.flatten(0, -2)); F.rms_norm({a}, {a}.shape[-1:]); F.normalize({a}, dim={d})
    {a}.clamp(-1.5, 1.5).prod({d})
""")
MUTATIONS = _rows("""
    {a}.add_(1); {a}.mul_(2); {a}.copy_({b}); {a}[..., :1].add_(1); {a}.neg_(); {a}.sub_({b})
    {a}.zero_(); {a}.transpose({d}, {e}).add_({b}); {a}.fill_(2); {a}[..., 0] = 1; {a}.clamp_(-1, 1)
    {a}.copy_({a}.flip({d}))
""")

# What a step makes: a float that is rounded anew, the operand's own numbers, exact ones, nothing.
NEW, SAME, EXACT, MUTATED = "new", "same", "exact", "mutated"


@dataclass(frozen=True)
class Family:
    """Texts, what they make, and of what. `jumps`: operands must be exact; `sums`: each element
    of the operand takes part in roundings of its own."""

    texts: list[str]
    makes: str
    takes: Callable[[torch.Tensor], bool] = lambda t: True
    weight: int = 1
    jumps: bool = False
    sums: bool = False


def is_float(value: torch.Tensor) -> bool:
    return value.is_floating_point()


def is_integer(value: torch.Tensor) -> bool:
    return not is_float(value) and value.dtype is not torch.bool


def _is_number(value: torch.Tensor) -> bool:
    return value.dtype is not torch.bool


FAMILIES = [
    Family(SMOOTH, NEW, is_float, 3),
    Family(PLAIN, NEW, _is_number),
    Family(PAIRS, NEW, weight=3),
    Family(CHOICES, NEW),
    Family(INTEGER, EXACT, is_integer),
    Family(JUMPS, EXACT, jumps=True),
    Family(VIEWS, SAME, weight=4),
    Family(MOVES, SAME, weight=2),
    Family(REDUCTIONS, NEW, weight=2, sums=True),
    Family(FLOAT_REDUCTIONS, NEW, is_float, 2, sums=True),
    Family(["{a}.to({t}, copy=True)"], NEW, weight=2),
    Family(MUTATIONS, MUTATED),
]
WEIGHTED: list[Any] = [family for family in FAMILIES for _ in range(family.weight)]
