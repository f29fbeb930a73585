"""Hand-written networks over graphs and tables, functions of functions, and optimizers.

In: nothing. Out: `STRUCTURES`, entries. Sizes are numbers of edges, rows or points.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, hessian, jacrev, jvp, vmap

from tests.zoo.entry import SIZED, Entry

WIDTH = 8


def edges(n: int) -> dict[str, Any]:
    return {"x": torch.randn(6, WIDTH), "edge": torch.randint(0, 6, (2, n))}


def rows(n: int) -> dict[str, Any]:
    return {"x": torch.randn(n, WIDTH)}


def clicks(n: int) -> dict[str, Any]:
    return {"x": torch.randn(n, WIDTH), "ids": torch.randint(0, 50, (n, 3))}


class GCN(nn.Module):
    """Sums over neighbours, normalised by both degrees."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))

    def forward(self, x: Tensor, edge: Tensor) -> Tensor:
        source, target = edge
        degree = torch.ones(len(x)).index_add(0, target, torch.ones(edge.shape[1]))
        weight = torch.rsqrt(degree[source] * degree[target])
        for layer in self.layers:
            y = layer(x)
            sums = torch.zeros_like(y).index_add(0, target, y[source] * weight[:, None])
            x = F.relu(y / degree[:, None] + sums)
        return x


class GAT(nn.Module):
    """Attention over neighbours: a softmax by scatter."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(WIDTH, WIDTH)
        self.score = nn.Parameter(torch.randn(2, WIDTH))

    def forward(self, x: Tensor, edge: Tensor) -> Tensor:
        source, target = edge
        y = self.project(x)
        score = F.leaky_relu((y[source] @ self.score[0]) + (y[target] @ self.score[1]), 0.2)
        lowest = torch.full((len(x),), -1e9)
        most = lowest.scatter_reduce(0, target, score.detach(), "amax")
        weight = torch.exp(score - most[target])
        total = torch.zeros(len(x)).scatter_add(0, target, weight)
        weight = weight / total[target]
        return torch.zeros_like(y).index_add(0, target, weight[:, None] * y[source])


class MessagePassing(nn.Module):
    """Messages of both ends of an edge, their mean and maximum, and a gated update."""

    def __init__(self) -> None:
        super().__init__()
        self.message = nn.Sequential(nn.Linear(2 * WIDTH, 16), nn.ReLU(), nn.Linear(16, WIDTH))
        self.update = nn.GRUCell(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor, edge: Tensor) -> Tensor:
        source, target = edge
        for _ in range(2):
            sent = self.message(torch.cat([x[source], x[target]], -1))
            at = target[:, None].expand_as(sent)
            mean = torch.zeros_like(x).scatter_reduce(0, at, sent, "mean", include_self=False)
            most = torch.zeros_like(x).scatter_reduce(0, at, sent, "amax", include_self=False)
            x = self.update(torch.cat([mean, most], -1), x)
        return x


class EGNN(nn.Module):
    """Positions moved along differences, by weights of distances."""

    def __init__(self) -> None:
        super().__init__()
        self.weigh = nn.Sequential(nn.Linear(1, 16), nn.SiLU(), nn.Linear(16, 1))

    def forward(self, x: Tensor, edge: Tensor) -> Tensor:
        source, target = edge
        way = x[target] - x[source]
        square = way.square().sum(-1, keepdim=True)
        move = way * self.weigh(square) / (1 + (square + 1e-6).sqrt())
        return x.index_add(0, target, move)


class DLRM(nn.Module):
    """Bags of embeddings, and the products of all pairs."""

    def __init__(self) -> None:
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(50, WIDTH, mode=m) for m in ("sum", "mean"))
        self.bottom = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU())
        self.top = nn.Linear(WIDTH + 3, 1)

    def forward(self, x: Tensor, ids: Tensor) -> Tensor:
        dense = self.bottom(x)
        parts = torch.stack([dense, *(bag(ids) for bag in self.bags)], 1)
        i, j = torch.triu_indices(3, 3, 1)
        pairs = (parts @ parts.mT)[:, i, j]
        return self.top(torch.cat([dense, pairs], -1)).sigmoid()


class DeepFM(nn.Module):
    """A factorisation machine beside an MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.factors = nn.Embedding(50, 1), nn.Embedding(50, 4)
        self.deep = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, x: Tensor, ids: Tensor) -> Tensor:
        v = self.factors(ids)
        pairs = 0.5 * (v.sum(1).square() - v.square().sum(1)).sum(-1, keepdim=True)
        return (self.linear(ids).sum(1) + pairs + self.deep(v.flatten(1))).sigmoid()


class TwoTower(nn.Module):
    """Users against items, with the other rows as negatives."""

    def __init__(self) -> None:
        super().__init__()
        self.user = nn.Sequential(nn.Linear(WIDTH, 16), nn.ReLU(), nn.Linear(16, 4))
        self.item = nn.EmbeddingBag(50, 4, mode="mean")

    def forward(self, x: Tensor, ids: Tensor) -> Any:
        scores = F.normalize(self.user(x), dim=-1) @ F.normalize(self.item(ids), dim=-1).T
        return scores, F.cross_entropy(scores / 0.1, torch.arange(len(x)))


class DCN(nn.Module):
    """Crosses of features with the first layer."""

    def __init__(self) -> None:
        super().__init__()
        self.cross = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        y = x
        for cross in self.cross:
            y = x * cross(y) + y
        return y


class KAN(nn.Module):
    """Radial functions of each input on a grid, each with a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, 5, 4))

    def forward(self, x: Tensor) -> Tensor:
        return torch.einsum(
            "bik,iko->bo", torch.exp(-((x[..., None] - torch.linspace(-2, 2, 5)) ** 2)), self.weight
        )


class Small(nn.Module):
    """The network that functions of functions are taken of."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(WIDTH, 12), nn.Tanh(), nn.Linear(12, 1))

    def one(self, x: Tensor) -> Tensor:
        return self.net(x)[0]

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


class Mapped(Small):
    def forward(self, x: Tensor) -> Tensor:
        return vmap(self.one)(x)


class Scored(Small):
    """The gradient by the input, of each row."""

    def forward(self, x: Tensor) -> Tensor:
        return vmap(grad(self.one))(x)


class Curved(Small):
    def forward(self, x: Tensor) -> Any:
        return vmap(jacrev(self.one))(x), vmap(hessian(self.one))(x)


class Pushed(Small):
    """A derivative along a direction."""

    def forward(self, x: Tensor) -> Any:
        return jvp(self.net, (x,), (x.flip(0),))


class Ensemble(nn.Module):
    """Three networks as one, by stacked parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 4, WIDTH))
        self.bias = nn.Parameter(torch.randn(3, 4))
        self.skeleton = [nn.Linear(WIDTH, 4, device="meta")]

    def forward(self, x: Tensor) -> Tensor:
        def one(weight: Tensor, bias: Tensor) -> Tensor:
            return functional_call(self.skeleton[0], {"weight": weight, "bias": bias}, (x,))

        return vmap(one)(self.weight, self.bias)


class PINN(Small):
    """The residual of an equation: second derivatives inside the loss."""

    def forward(self, x: Tensor) -> Tensor:
        curvature = vmap(lambda p: torch.trace(hessian(self.one)(p)))(x)
        return curvature + self.net(x)[:, 0].sin()


def _row(
    name: str, family: str, build: Callable[[], nn.Module], inputs: Any = rows, **options: Any
) -> Entry:
    return Entry(name, family, build, inputs, **{"kinds": SIZED, **options})


OPTIMIZERS = "SGD Adam AdamW Adagrad RMSprop Adadelta NAdam RAdam Adamax ASGD Rprop Adafactor"
FORWARD = ("inference",)
STRUCTURES = [
    _row("gcn", "graph", GCN, edges),
    _row("gat", "graph", GAT, edges),
    _row("message passing", "graph", MessagePassing, edges),
    _row("egnn", "graph", EGNN, edges),
    _row("dlrm", "recommendation", DLRM, clicks),
    _row("deepfm", "recommendation", DeepFM, clicks),
    _row("two-tower", "recommendation", TwoTower, clicks),
    _row("dcn", "recommendation", DCN),
    _row("kan", "function", KAN),
    _row("vmap", "function", Mapped),
    _row("vmap of grad", "function", Scored),
    _row("jacobian and hessian", "function", Curved, kinds=FORWARD),
    _row("jvp", "function", Pushed),
    _row("ensemble", "function", Ensemble, kinds=FORWARD),
    _row("pinn", "function", PINN, kinds=FORWARD),
    *(
        _row(name, "optimizer", Small, kinds=("optimizer",), optimizer=name)
        for name in OPTIMIZERS.split()
    ),
]
