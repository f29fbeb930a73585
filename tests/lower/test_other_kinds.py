"""Sparse, quantised and complex tensors, and shapes that depend on data: as eager, through ATen."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tests import draws

X = torch.randn(8, 8, generator=draws.generator(0))

FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sparse inside": lambda x: torch.sparse.mm(x.relu().to_sparse(), x) + 1,
    "quantised": lambda x: torch.quantize_per_tensor(x + 1, 0.1, 3, torch.quint8).dequantize() * 2,
    "rounded as if quantised": lambda x: torch.fake_quantize_per_tensor_affine(x, 0.1, 3, 0, 255),
    "complex": lambda x: torch.view_as_real(torch.fft.fft(x)).abs().sum(),
    "unique": lambda x: x.round().unique() + 1,
    "nonzero": lambda x: (x > 0).nonzero() * 2,
}


@pytest.mark.filterwarnings("ignore")  # torch's own: quantised types are on their way out
@pytest.mark.parametrize("name", FUNCTIONS)
def test_other_kinds(name: str) -> None:
    torch._dynamo.reset()
    function = FUNCTIONS[name]
    torch.testing.assert_close(torch.compile(function, backend="litz")(X), function(X))


@pytest.mark.filterwarnings("ignore")  # Litz says that it runs such a graph as eager
def test_a_sparse_input() -> None:
    def function(s: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return torch.sparse.mm(s, x) + 1

    torch._dynamo.reset()
    sparse = X.relu().to_sparse()
    torch.testing.assert_close(
        torch.compile(function, backend="litz")(sparse, X), function(sparse, X)
    )


# -- types that are not generated ----------------------------------------------------------------

Z = torch.complex(X, X.t().contiguous())
OF_COMPLEX: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "angle": lambda z: z.angle(),
    "angle, later": lambda z: (z * z.conj() + z).angle() * 2,
    "absolute": lambda z: (z * 2).abs().sqrt(),
    "polar": lambda z: torch.polar(z.abs(), z.angle()).real + z.imag,
    "sign": lambda z: z.sgn().real,
    "products": lambda z: (z @ z.mH).real.sum(0),
    "spectrum": lambda z: torch.fft.ifft(torch.fft.fft(z.real) * z).imag,
    "choice": lambda z: torch.where(z.real > 0, z, z * 1j).imag,
    "gather": lambda z: z[:, [2, 0, 2]].real.cumsum(0),
    "pieces": lambda z: torch.cat([z, z.conj()]).imag.sum(1),
    "a power": lambda z: (z**3).real + z.exp().imag,
    "means": lambda z: torch.view_as_real(z.mean(0) - z.sum(1)),
}


@pytest.mark.parametrize("name", OF_COMPLEX)
def test_complex_numbers_are_atens_in_both_directions(name: str) -> None:
    torch._dynamo.reset()
    function = OF_COMPLEX[name]
    run = torch.compile(function, backend="litz", options={"on_error": "raise"})
    z = Z.clone().requires_grad_()
    found, expected = run(z), function(z)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    gradients = (torch.autograd.grad(y.sum(), z)[0] for y in (found, expected))
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-4)


OPAQUE = (torch.complex64, torch.complex128, torch.uint16, torch.uint32, torch.uint64,
          torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.float8_e8m0fnu)  # fmt: skip
MOVED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "a view": lambda x: x.t()[1:],
    "a copy": lambda x: x.t().contiguous(),
    "twice": lambda x: torch.cat([x, x]),
    "reversed": lambda x: x.flip(0),
    "another type": lambda x: x.to(torch.complex128 if x.is_complex() else torch.float64) + 1,
}


def _bits(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous().view(torch.uint8)


@pytest.mark.parametrize("dtype", OPAQUE)
def test_types_without_arithmetic_are_moved_by_aten(dtype: torch.dtype) -> None:
    x = torch.arange(1.0, 7).view(2, 3).to(dtype)
    for function in MOVED.values():
        torch._dynamo.reset()
        found = torch.compile(function, backend="litz", options={"on_error": "raise"})(x)
        expected = function(x)
        assert found.dtype is expected.dtype and found.stride() == expected.stride()
        assert torch.equal(_bits(found), _bits(expected))


def _reversed(x: torch.Tensor) -> torch.Tensor:
    return x.copy_(x.flip(0))


def _column(x: torch.Tensor) -> torch.Tensor:
    x[:, 1].copy_(x[:, 0])
    return x.clone()


UPDATES: list[tuple[torch.dtype, Callable[[torch.Tensor], torch.Tensor]]] = [
    *((dtype, _reversed) for dtype in OPAQUE),
    (torch.uint16, _column),
    (torch.complex64, _column),
    (torch.complex64, lambda z: z.add_(1) * 2),
    (torch.complex64, lambda z: z.real.mul_(2) + 1),
    (torch.complex64, lambda z: z[0].imag.fill_(3)),
]


@pytest.mark.parametrize(("dtype", "update"), UPDATES)
def test_updates_in_place_of_such_types(
    dtype: torch.dtype, update: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    torch._dynamo.reset()
    mine, other = (torch.arange(1.0, 7).view(2, 3).to(dtype) for _ in range(2))
    run = torch.compile(update, backend="litz", options={"on_error": "raise"})
    for _ in range(2):
        assert torch.equal(_bits(run(mine)), _bits(update(other)))
        assert torch.equal(_bits(mine), _bits(other))
