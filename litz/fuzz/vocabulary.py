"""The steps that random programs are made of: texts with holes, by family.

In: nothing. Out: `FAMILIES`. A hole is filled by the generator:

    {a} the operand          {b} one that broadcasts with it    {s} one of its shape
    {c} a mask for it        {d} {e} dimensions                 {n} {k} small numbers
    {t} {f} a type, a float type      {z} a shape of as many elements     {p} a permutation
    {r} repeats              {i} a constant index               {j} {g} computed indices: for the
    {l} its last size                                           first dimension, for `gather`
    {q} a part: such a text is drawn for two or three of them
    {w:...} a parameter of that shape, in which `c` is the operand's second size (the channels of a
            layer) and `l` its last; {u:...} an input, which the step may write to; {W:...} {U:...}
            the same of positive numbers

A text that eager rejects costs only a try, so holes need not always fit. Divisors stay away from
zero and -1, shifts are small, and floats that become integers are inside every integer's range:
beyond these, eager itself is undefined. The mean beside a variance is of finite numbers: eager's is
NaN for an infinity.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

Takes = Callable[[torch.Tensor], bool]


@dataclass(frozen=True)
class Family:
    """Texts for operands that `takes` accepts, drawn with a weight."""

    name: str
    texts: tuple[str, ...]
    takes: Takes
    weight: int


def _any(tensor: torch.Tensor) -> bool:
    return True


def _float(tensor: torch.Tensor) -> bool:
    return bool(tensor.is_floating_point())


def _bool(tensor: torch.Tensor) -> bool:
    return tensor.dtype is torch.bool


def _number(tensor: torch.Tensor) -> bool:
    return not _bool(tensor)


def _integer(tensor: torch.Tensor) -> bool:
    return _number(tensor) and not _float(tensor)


def _family(name: str, takes: Takes, weight: int, texts: str) -> Family:
    split = tuple(t.strip() for line in texts.splitlines() for t in line.split(" ;"))
    return Family(name, tuple(t for t in split if t), takes, weight)


FAMILIES = (
    _family("function", _float, 4, """
        {a}.exp() ;{a}.sin() ;{a}.cos() ;{a}.tanh() ;{a}.sigmoid() ;{a}.relu() ;-{a} ;{a}.abs()
        {a} * {a} ;({a}.abs() + 1).log() ;({a}.abs() + 0.5).rsqrt() ;({a}.abs() + 0.1).sqrt()
        1 / ({a}.abs() + 0.5) ;{a}.erf() ;{a}.expm1() ;{a}.abs().log1p() ;{a}.atan() ;F.gelu({a})
        {a}.clamp(-1, 0.5) ;F.silu({a}) ;F.gelu({a}, approximate="tanh") ;F.leaky_relu({a}, 0.1)
        F.softplus({a}) ;F.elu({a}) ;F.mish({a}) ;{a}.asinh() ;F.hardswish({a}) ;F.hardtanh({a})
        {a} ** 3 ;({a}.abs() + 0.5) ** 1.7 ;{a}.sinh() ;{a}.cosh() ;{a}.erfc() ;{a}.exp2()
        ({a}.abs() + 1).log2() ;({a}.abs() + 1).log10() ;{a}.tanh().asin() ;{a}.frac()
        {a}.sigmoid().logit() ;{a}.square() ;F.relu6({a}) ;F.selu({a}) ;F.celu({a}, 1.3)
        F.softsign({a}) ;F.logsigmoid({a}) ;F.hardsigmoid({a}) ;F.softshrink({a}, 0.3)
        F.threshold({a}, 0.1, 2.0) ;{a} - {a}.tanh() ;({a}.abs() + 1).acosh() ;{a}.deg2rad()
        {a}.nan_to_num(0.5, 2.0, -2.0) ;torch.sinc({a}.abs() + 0.5) ;{a}.tanh().atanh() ;{a} / 3
        2 / ({a}.abs() + 1)
    """),
    _family("plain", _number, 2, """
        {a} * 2 ;{a} + 1 ;{a} - 3 ;{a}.clone() ;3 - {a} ;{a} * 0.5 ;{a}.clamp(min=1) ;{a} / 4
        {a}.clamp(max=2) ;{a} * -1.5 ;{a}.clamp(-2, 3) ;{a} + 0.25
    """),
    _family("pair", _any, 6, """
        {a} + {b} ;{a} - {b} ;{a} * {b} ;torch.maximum({a}, {b}) ;torch.minimum({a}, {b})
        torch.lerp({a}, {b}, 0.3) ;{a} / ({b}.abs() + 1) ;torch.atan2({a}, {b}.abs() + 1)
        torch.add({a}, {b}, alpha=2) ;{a}.clamp(max={b}) ;{a}.clamp(min={b}) ;torch.hypot({a}, {b})
        torch.addcmul({a}, {b}, {b}) ;torch.rsub({a}, {b}) ;torch.addcdiv({a}, {b}, {b}.abs() + 1)
        torch.fmax({a}, {b}) ;torch.fmin({a}, {b}) ;torch.copysign({a}, {b})
        torch.logaddexp({a}, {b}) ;torch.xlogy({a}, {b}.abs() + 1) ;F.mse_loss({a}, {s})
        F.smooth_l1_loss({a}, {s}) ;F.huber_loss({a}, {s}, reduction="none") ;F.l1_loss({a}, {s})
        {a} - {b} * {s} ;torch.where({a} > {b}, {a}, {b}) ;({a} + {b}) * ({a} - {b})
    """),
    _family("choice", _any, 2, """
        torch.where({c}, {a}, {b}) ;{a}.masked_fill({c}, 2) ;torch.where({c}, {a}, 0)
        torch.where({c}, 1.5, {a}) ;{a} * {c} ;{a}.masked_fill(~{c}, -1)
    """),
    _family("integer", _integer, 3, """
        {a} & {b} ;{a}.bitwise_or({b}) ;{a} ^ {b} ;~{a} ;{a}.bitwise_left_shift({n}) ;{a} >> {n}
        {a}.abs() ;-{a} ;{a} ** {n} ;{a} // 3 ;{a} % 5 ;{a} % -4 ;{a}.fmod(3) ;{a}.sign()
        {a} * {b} ;torch.div({a}, 2, rounding_mode="trunc") ;{a} // ({b}.abs() % 9 + 1)
        {a} % ({b}.abs() % 7 + 1) ;torch.gcd({a}, {b}) ;{a}.fmod({b}.abs() % 5 + 1) ;{a} // -3
        {a} << ({b} % 3) ;torch.div({a}, {b}.abs() % 6 + 1, rounding_mode="floor")
        {a}.remainder(3) ;F.one_hot({a}.long() % 3, 3) ;{a}.prod({d}) ;{a}.bool()
        torch.lcm({a} % 5, {b} % 5)
    """),
    _family("jump", _any, 3, """
        {a}.floor() ;{a}.ceil() ;{a}.round() ;{a}.trunc() ;{a}.sign() ;{a} > 0 ;{a} <= {b}
        {a} == {b} ;{a} != 0 ;torch.isnan({a}) ;{a}.isfinite() ;{a}.bool() ;~({a} > {b})
        {a}.argmax({d}) ;{a}.argmin({d}) ;{a}.argmax() ;{a}.any({d}) ;{a}.all() ;{a}.max({d})[1]
        {a}.min({d})[1] ;{a}.logical_not() ;torch.signbit({a}) ;{a}.any({d}, keepdim=True)
        {a} // 2 ;{a} % 3 ;{a}.remainder(({b}.abs() + 1)) ;{a}.fmod({b}.abs() + 1)
        {a}.logical_and({b}) ;torch.div({a}, {b}.abs() + 1, rounding_mode="trunc")
        torch.heaviside({a}, {s}) ;{a}.round(decimals=1) ;{a}.logical_xor({b})
        {a}.count_nonzero({d}) ;({a} > {b}) & ({a} < 2) ;{a}.argmax({d}, keepdim=True)
        torch.isclose({a}, {b}) ;{a}.all({d})
    """),
    _family("view", _any, 7, """
        {a}.transpose({d}, {e}) ;{a}.unsqueeze({d}) ;{a}.squeeze() ;{a}.flatten() ;{a}.mT ;{a}[1:]
        {a}[..., ::2] ;{a}.narrow({d}, 0, 1) ;{a}.select({d}, -1) ;{a}.select({d}, 0)
        {a}[..., :-1] ;{a}.movedim({d}, {e}) ;{a}.diagonal(0, {d}, {e}) ;{a}.unfold({d}, 2, 1)
        {a}.chunk(2, {d})[-1] ;{a}.unbind({d})[0] ;{a}.reshape(-1) ;{a}.reshape({z})
        {a}.contiguous() ;{a}.view({z}) ;{a}.expand(2, *{a}.shape) ;{a}.split(2, {d})[0] ;{a}[None]
        {a}.permute({p}) ;{a}[..., None] ;{a}.unflatten({d}, (-1, 2)) ;{a}[::2]
        {a}.flatten({d}, {e}) ;{a}[..., 1::3] ;{a}.squeeze({d}) ;{a}.unfold({d}, 3, 2) ;{a}[-1]
        {a}.tensor_split(3, {d})[1] ;{a}.T ;{a}.diagonal(1, {d}, {e})
    """),
    _family("move", _any, 4, """
        {a}.flip({d}) ;{a}.repeat({r}) ;{a}.roll({n}, {d}) ;F.pad({a}, (1, 2))
        F.pad({a}, (-1, 1, 0, 1)) ;torch.cat([{a}, {s}], {d}) ;torch.stack([{a}, {s}], {d})
        torch.cat([{a}, {s}, {a}, {s}, {a}], {d}) ;torch.tril({a}) ;torch.triu({a}, 1)
        {a}.repeat_interleave(2, {d}) ;{a}.index_select({d}, {i}) ;{a}[{i}] ;{a}[..., {i}]
        {a}.gather({d}, {g}) ;{a}.take_along_dim({g}, {d}) ;{a}[{j}] ;F.pad({a}, (1, 0), value=2)
        {a}.index_select(0, {j}.flatten())
        F.embedding({j}, {a}) ;{a}[{i}, {i}] ;{a}[{i}, :, {i}] ;{a}[{j}, {j}]
        torch.slice_scatter({a}, {a}[1:], 0, 0, -1) ;torch.cat([{a}, {s}.to({t})], {d})
        torch.select_scatter({a}, {a}.select({d}, 0), {d}, -1) ;{a}.rot90() ;{a}.tile({r})
        torch.diagonal_scatter({a}, {a}.diagonal(0, 0, 1) * 2, 0, 0, 1) ;torch.diag_embed({a})
        F.pad({a}[None], (1, 1), mode="reflect") ;F.pad({a}[None], (1, 2), mode="replicate")
        torch.cat([{a}.flatten(), {b}.flatten()]) ;torch.column_stack([{a}, {s}]) ;{a}.clone().T
        F.pad({a}, (1, 0, 0, 2)) ;torch.cat([{a}[..., :1], {a}], -1) ;torch.meshgrid({a}, {b})[0]
    """),
    _family("scatter", _any, 2, """
        torch.zeros_like({a}).scatter({d}, {g}, {s}) ;{a}.scatter_add({d}, {g}, {s})
        {a}.index_add(0, {j}.flatten(), {a}[{j}.flatten()]) ;{a}.index_fill({d}, {i}, 2)
        {a}.index_copy({d}, torch.tensor([0]), {a}.narrow({d}, -1, 1)) ;{a}.scatter({d}, {g}, 3)
        {a}.scatter_reduce({d}, {g}, {s}, "amax") ;{a}.index_put(({i},), {a}[{i}] + 1)
        {a}.index_put(({j},), {a}[{j}], accumulate=True) ;{a}.scatter_reduce({d}, {g}, {s}, "sum")
        {a}.masked_scatter({c}, {a}.flip(0))
        {a}.scatter_reduce({d}, {g}, {s}, "amin", include_self=False)
    """),
    _family("reduce", _any, 4, """
        {a}.sum() ;{a}.sum({d}) ;{a}.sum({d}, keepdim=True) ;{a}.amax({d})
        {a}.amin({d}, keepdim=True) ;{a}.max() ;{a}.max({d})[0] ;{a}.sum(({d}, {e}))
        {a}.amax(({d}, {e}), keepdim=True) ;{a}.min() ;{a}.cumsum({d}) ;{a}.aminmax(dim={d})[1]
        {a}.cummax({d})[0] ;{a}.cummin({d})[0] ;{a}.nansum({d}) ;{a}.sum({d}, dtype={f})
        {a}.trace() ;{a}.diff(dim={d})
    """),
    # A vector of zeros has no direction: eager's cosine of one in a half type is NaN, and rounding
    # decides whether a norm is zero.
    _family("float reduce", _float, 5, """
        {a}.mean() ;{a}.mean({d}, keepdim=True) ;{a}.softmax({d}) ;{a}.log_softmax({d})
        {a}.logsumexp({d}) ;{a}.var({d}, correction=0) ;{a}.std({d}, keepdim=True)
        {a}.norm(dim={d}) ;torch.var_mean({a}, {d})[0] ;F.layer_norm({a}, {a}.shape[-1:])
        {a}.mean(({d}, {e})) ;F.rms_norm({a}, {a}.shape[-1:]) ;F.normalize({a}, dim={d})
        {a}.clamp(-1.5, 1.5).prod({d}) ;{a}.clamp(-1.2, 1.2).cumprod({d}) ;{a}.logcumsumexp({d})
        {a}.norm(1, {d}) ;{a}.nanmean({d}) ;F.group_norm({a}, 1) ;F.instance_norm({a})
        F.batch_norm({a}, None, None, training=True) ;torch.linalg.vector_norm({a}, 3, {d})
        F.cosine_similarity({a}.abs() + 1, {s}.abs() + 1, {d}) ;{a}.norm(inf, {d})
        F.cross_entropy({a}, {a}.argmax(1))
        F.kl_div({a}, {s}) ;torch.std_mean({a}, {d})[0] ;F.softmin({a}, {d}) ;F.glu({a}, {d})
        F.local_response_norm({a}, 2) ;torch.var_mean({a}.nan_to_num(0, 0, 0), {d})[1]
    """),
    _family("window", _float, 1, """
        F.max_pool1d({a}, 2) ;F.avg_pool1d({a}, 2) ;F.max_pool2d({a}, 2, 1)
        F.avg_pool2d({a}, 2, 1, 1) ;F.adaptive_avg_pool2d({a}, 2)
        F.interpolate({a}, scale_factor=2) ;F.adaptive_avg_pool1d({a}, 3)
        F.interpolate({a}, scale_factor=2, mode="linear") ;F.max_pool2d({a}, 3, 2, 1)
        F.interpolate({a}, scale_factor=1.5, mode="bilinear") ;F.pixel_shuffle({a}, 2)
        F.unfold({a}, 2) ;F.avg_pool2d({a}, (1, 2)) ;F.pixel_unshuffle({a}, 2)
    """),
    _family("matrix", _float, 2, """
        {a} @ {a}.mT ;F.linear({a}, {a}.flatten(0, -2)) ;{a}.mT @ {s} ;torch.outer({a}, {b})
        torch.addmm({s}, {a}, {a}) ;torch.einsum("...i,...j->...ij", {a}, {s}) ;{a}.sort({d})[0]
        {a}.topk(1, {d})[0] ;torch.dot({a}, {s}) ;({a} * {s}).sum(-1)
        F.scaled_dot_product_attention({a}.nan_to_num(0, 0, 0), {s}.nan_to_num(0, 0, 0), {s})
        F.scaled_dot_product_attention(*2 * [{a}.nan_to_num(0, 0, 0)], {s}, is_causal=True)
    """),
    # Rows larger than any cache, reduced to a few numbers.
    _family("long", _float, 1, """
        torch.linspace(0, 1, 70_001).outer({a}.flatten()[:2]).sum(0)
        ({a}.flatten()[:1] + torch.linspace(-1, 1, 70_001)).softmax(0).amax()
        ({a}.flatten()[:3, None] + torch.linspace(-1, 1, 70_001)).var(1)
        ({a}.flatten()[:3, None] * torch.linspace(-1, 1, 70_001)).sin().sum(1)
        ({a}.flatten()[:2, None] + torch.linspace(-1, 1, 4099)).softmax(1)[:, ::97]
        ({a}.flatten()[:2, None] * torch.linspace(-1, 1, 30_001)).logsumexp(1)
        ({a}.flatten()[:2, None] * torch.linspace(-1, 1, 90_001)).amax(1)
        F.pad({a}.flatten()[:9, None] + torch.linspace(-1, 1, 4099), (300, 400))[:, ::97]
        torch.cat([{a}.flatten()[:9, None] * torch.linspace(0, 1, n) for n in (999, 77)], 1)[:, ::9]
        F.layer_norm({a}.flatten()[:2, None] * torch.linspace(-1, 1, 70_001), (70_001,))[:, ::999]
    """),
    # Several views of one memory, and parts of it joined again.
    _family("layout", _any, 4, """
        {a}.contiguous().as_strided(({k}, {k}), (1, 1))
        {a}.flatten().as_strided(({k}, 2), ({k}, 1))
        {a}.as_strided({a}.shape, {a}.stride()) ;{a}[1:].as_strided(({k},), (1,))
        {a}.contiguous().as_strided({a}.shape[::-1], {a}.contiguous().stride()[::-1])
        {a}.clone().as_strided(({a}.numel() // 2,), (2,))
        {a}[..., ::2].as_strided((2, {k}), (1, 2))
        {a}.mT.reshape({z}) ;{a}.mT.reshape(-1) ;{a}.transpose({d}, {e}).flatten()
        {a}.mT.contiguous()
        {a}.contiguous(memory_format=torch.channels_last) ;{a}.movedim({d}, {e}).contiguous()
        {a}.to(memory_format=torch.channels_last) + 1 ;{a}.flip({d}).mT
        {a}.unfold({d}, 2, 1).flatten(-2)
        {a}[..., None].expand(*{a}.shape, 3) ;{a}[None, ..., ::2].mT ;{a}.unfold({d}, 3, 1).mT
        {a}.permute({p}).reshape(-1) ;{a}.permute({p}).contiguous().permute({p}) ;{a}.expand_as({b})
        torch.cat([{a}[1:], {s}[:-1]]) ;torch.cat([{a}.mT, {s}.mT], {d})
        torch.cat([{a}.mT[1:], {s}.mT])
        torch.stack([{a}[..., ::2], {s}[..., ::2]], {d}) ;torch.stack({a}.unbind({d})[::-1], {e})
        torch.cat({a}.chunk(2, {d})[::-1], {d}) ;torch.cat([p.mT for p in {a}.chunk(2, {d})], {e})
        torch.stack([{a}.mT, {s}.mT], {d}) ;torch.cat([{a}[..., :1], {s}.flip(-1)[..., 1:]], -1)
        torch.cat([{a}.select({d}, 0), {s}.select({d}, -1)]) ;torch.stack([{a}, {s}, {a}], -1).mT
        {a}.flatten()[:96].reshape(2, 3, 4, 4) ;{a}.flatten()[-60:].reshape(2, 3, 10)
        {a}.flatten()[:96].reshape(2, 3, 4, 4).contiguous(memory_format=torch.channels_last)
    """),
    _family("piece", _any, 2, """
        {a}.split(2, {d})[{q}] ;{a}.chunk(3, {d})[{q}] ;{a}.mT.chunk(2, {d})[{q}]
        {a}.unbind({d})[{q}]
        {a}.tensor_split(2, {d})[{q}] ;{a}[1:].split(2)[{q}]
        torch.cat([{a}, {s}], {d}).chunk(2, {d})[{q}]
        {a}.aminmax(dim={d})[{q}] ;{a}.max({d})[{q}]
        {a}.sort({d}, stable=True)[0].chunk(2, {d})[{q}]
    """),
    # Layers of a module: their parameters are written to between calls.
    _family("layer", _float, 3, """
        F.gelu(F.linear({a}, {w:32,l}, {w:32})) ;{a} @ {w:l,64} ;F.linear({a}, {w:33,l}, {w:33}) + 1
        F.linear({a}, {w:5,l}, {w:5}) ;F.linear({a}, {w:l,l}) ;F.linear({a}.relu(), {w:3,l}, {w:3})
        F.layer_norm({a}, {a}.shape[-1:], {w:l}, {w:l}) ;F.rms_norm({a}, {a}.shape[-1:], {w:l})
        F.group_norm({a}, 1, {w:c}, {w:c}) ;F.batch_norm({a}, {w:c}, {W:c}, {w:c}, {w:c})
        F.batch_norm({a}.nan_to_num(0, 0, 0), {u:c}, {U:c}, {w:c}, {w:c}, training=True)
        {a} @ {w:l,4} + {w:4}
        F.conv1d({a}, {w:3,c,3}, {w:3}, padding=1)
        F.conv1d({a}, {w:c,1,3}, padding=1, groups={a}.shape[1])
        F.conv2d({a}, {w:4,c,3,3}, {w:4}, padding=1) ;F.conv2d({a}, {w:2,c,1,1})
        F.relu({a}) @ {w:l,l}
        F.conv2d({a}, {w:c,1,3,3}, {w:c}, padding=1, groups={a}.shape[1])
        F.conv2d({a}, {w:3,c,2,2}, {w:3}, stride=2) ;F.prelu({a}, {w:c}) ;{a} * {w:l} + {w:l}
        F.batch_norm(F.conv2d({a}, {w:4,c,3,3}, {w:4}, padding=1), {w:4}, {W:4}, {w:4}, {w:4})
    """),
    _family("embedding", _integer, 2, """
        F.embedding({a}.long() % 7, {w:7,4}) ;F.embedding({a}.long() % 3, {w:3,5}).sum(-2)
        F.embedding({a}.long() % 7, {w:7,4}, 2)
    """),
    _family("cast", _float, 3, """
        {a}.to({f}) ;{a}.nan_to_num(0, 0, 0).clamp(0, 100).to({t}) ;{a}.to({f}).to({f})
        {a}.to({f}, copy=True)
    """),
    _family("integer cast", _integer, 2, "{a}.to({t}) ;{a}.to({f}) ;{a}.to({t}, copy=True)"),
    _family("bool cast", _bool, 2, "{a}.to({t}) ;~{a} ;{a} ^ {b} ;{a} | {b}"),
    _family("make", _any, 1, """
        torch.arange({l}) ;torch.zeros_like({a}) ;torch.full_like({a}, 2) ;torch.eye({l})
        torch.linspace(0, 1, {l}) ;{a}.new_ones({z}) ;torch.ones_like({a}) * {b}
        torch.arange({l}) + {a} ;torch.arange({n}, {n} + 5, 2)
        torch.bucketize({a}, torch.tensor([0, 1]))
    """),
)  # fmt: skip

MUTATIONS = _family("mutation", _any, 3, """
    {a}.add_(1) ;{a}.mul_(2) ;{a}.copy_({b}) ;{a}[..., :1].add_(1) ;{a}.neg_() ;{a}.sub_({b})
    {a}.zero_() ;{a}.transpose({d}, {e}).add_({b}) ;{a}.fill_(2) ;{a}[..., 0] = 1 ;{a}[1:] = {b}
    {a}.copy_({a}.flip({d})) ;{a}.clamp_(-1, 1) ;{a}.mul_({b}) ;{a}.select({d}, 0).copy_({b})
    {a}[..., ::2].mul_(3) ;{a}.masked_fill_({c}, 1) ;{a}.scatter_({d}, {g}, {s}) ;{a}[{i}] = 2
    {a}.diagonal().add_(1) ;{a}.index_add_(0, {i}, {a}[{i}]) ;{a}.relu_() ;{a}.add_({b}, alpha=2)
    {a}[{c}] = 0 ;{a}.view(-1)[::2] = 1 ;{a}.unsqueeze(0).sub_(1) ;{a}.t_().add_(1)
""")  # fmt: skip

WEIGHTED = tuple(f for f in (*FAMILIES, MUTATIONS) for _ in range(f.weight))
LAYERS = tuple(f for f in FAMILIES if f.name in ("layer", "embedding"))
