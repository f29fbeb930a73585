"""Norms and losses against eager: none of them leaves an op to ATen, forward or backward."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.fx
import torch.nn.functional as F
from functorch.compile import make_boxed_func
from torch._functorch.aot_autograd import aot_function

from litz.capture import decompositions
from litz.lower.registry import RULES
from tests import draws
from tests.lower.agreement import FLOATS, HALF_DTYPES, agree, numbers, takes

Function = Callable[..., Any]


def image(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return numbers(dtype, 3, 4, 5, 6)


NORMS: dict[str, Function] = {
    "batch_train": lambda x: F.batch_norm(x, None, None, x[0, :, 0, 0], x[1, :, 0, 0], True),
    "batch_eval": lambda x: F.batch_norm(
        x, x[0, :, 0, 0].detach(), x[1, :, 0, 0].abs().detach(), None, None, False
    ),
    "layer": lambda x: F.layer_norm(x, (5, 6), x[0, 0], x[1, 1]),
    "layer_plain": lambda x: F.layer_norm(x, (6,)),
    "group": lambda x: F.group_norm(x, 2, x[0, :, 0, 0], x[1, :, 0, 0]),
    "instance": lambda x: F.instance_norm(x, weight=x[0, :, 0, 0], bias=x[1, :, 0, 0]),
    "rms": lambda x: F.rms_norm(x, (6,), x[0, 0, 0]),
    "local_response": lambda x: F.local_response_norm(x, 3, alpha=0.1),
    "normalize": lambda x: F.normalize(x, dim=1),
    "normalize_p": lambda x: F.normalize(x, 1.0, 2),
    "cosine": lambda x: F.cosine_similarity(x, x.flip(1), dim=2),
    "pairwise": lambda x: F.pairwise_distance(x, x.flip(1), keepdim=True),
    "dist": lambda x: torch.dist(x, x.flip(0), 3.0),
    "renorm": lambda x: x.renorm(2, 1, 3.0),
    "logsumexp": lambda x: x.logsumexp((1, 3)),
    "softmax": lambda x: x.softmax(1),
    "log_softmax": lambda x: x.log_softmax(2),
}


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("norm", NORMS)
def test_norms(norm: str, dtype: torch.dtype) -> None:
    if takes(NORMS[norm], image(dtype)):
        # The terms of a cosine are rounded to a half before they are summed, and nearly cancel.
        agree(NORMS[norm], image(dtype), wide=True, as_far_as_eager=norm == "cosine")


def test_batch_norm_updates_its_statistics() -> None:
    def step(x: torch.Tensor, mean: torch.Tensor, var: torch.Tensor) -> torch.Tensor:
        return F.batch_norm(x, mean, var, training=True, momentum=0.3)

    agree(step, image(), torch.zeros(4), torch.ones(4))
    agree(lambda x, m, v: F.instance_norm(x, m, v), image(), torch.zeros(4), torch.ones(4))


ORDERS = [2.0, 1.0, 0.0, math.inf, -math.inf, 3.0, 0.5, -1.0]


@pytest.mark.parametrize("order", ORDERS)
def test_vector_norms(order: float) -> None:
    x = numbers(torch.float32, 3, 4, 5)
    table: dict[str, Function] = {
        "all": lambda x: torch.linalg.vector_norm(x, order),
        "some": lambda x: torch.linalg.vector_norm(x, order, dim=(0, 2)),
        "kept": lambda x: torch.linalg.vector_norm(x, order, dim=1, keepdim=True),
        "wider": lambda x: torch.linalg.vector_norm(x, order, dim=1, dtype=torch.float64),
        "old": lambda x: x.norm(order, dim=1),
    }
    agree(table, x)


def test_matrix_norms() -> None:
    table: dict[str, Function] = {
        f"{order}": lambda x, order=order: torch.linalg.matrix_norm(x, order)
        for order in ("fro", 1, -1, math.inf, -math.inf)
    }
    agree(table, numbers(torch.float32, 3, 4, 5))


STATISTICS: dict[str, Function] = {
    "std": lambda x: x.std(1),
    "std_all": lambda x: x.std(),
    "std_biased": lambda x: x.std(dim=(0, 2), correction=0, keepdim=True),
    "var": lambda x: x.var(1),
    "var_mean": lambda x: torch.var_mean(x, 1),
    "std_mean": lambda x: torch.std_mean(x, (0, 1)),
    "aminmax": lambda x: torch.aminmax(x, dim=1),
    "count_nonzero": lambda x: torch.count_nonzero(x.round(), 1),
    "nansum": lambda x: x.sqrt().nansum(1),
    "nanmean": lambda x: x.sqrt().nanmean(1),
}


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", STATISTICS)
def test_statistics(name: str, dtype: torch.dtype) -> None:
    agree(STATISTICS[name], numbers(dtype, 4, 9, 3), wide=True)


# Functions of scores (batch, classes, places), the same shape of targets, and class numbers.
LOSSES: dict[str, Function] = {
    "cross_entropy": lambda x, y, c: F.cross_entropy(x, c),
    "cross_entropy_weight": lambda x, y, c: F.cross_entropy(x, c, y[0, :, 0], reduction="none"),
    "cross_entropy_ignore": lambda x, y, c: F.cross_entropy(x, c, ignore_index=2),
    "cross_entropy_smooth": lambda x, y, c: F.cross_entropy(
        x, c, y[0, :, 0], label_smoothing=0.2, ignore_index=1
    ),
    "cross_entropy_classes": lambda x, y, c: F.cross_entropy(x, y.softmax(1), reduction="sum"),
    "nll": lambda x, y, c: F.nll_loss(x[:, :, 0], c[:, 0], y[0, :, 0]),
    "nll_none": lambda x, y, c: F.nll_loss(x, c, reduction="none"),
    "nll_2d": lambda x, y, c: F.nll_loss(x.unsqueeze(2), c.unsqueeze(1), ignore_index=3),
    "mse": lambda x, y, c: F.mse_loss(x, y),
    "l1": lambda x, y, c: F.l1_loss(x, y, reduction="sum"),
    "smooth_l1": lambda x, y, c: F.smooth_l1_loss(x, y, beta=0.5),
    "huber": lambda x, y, c: F.huber_loss(x, y, delta=2.0),
    "bce": lambda x, y, c: F.binary_cross_entropy(x.sigmoid(), y.sigmoid(), y.abs()),
    "bce_logits": lambda x, y, c: F.binary_cross_entropy_with_logits(
        x, y.sigmoid(), y.abs(), pos_weight=y[0, 0].abs()
    ),
    "kl_div": lambda x, y, c: F.kl_div(x.log_softmax(1), y.softmax(1), reduction="batchmean"),
    "kl_div_log": lambda x, y, c: F.kl_div(
        x.log_softmax(1), y.log_softmax(1), reduction="sum", log_target=True
    ),
    "soft_margin": lambda x, y, c: F.soft_margin_loss(x, y.sign()),
    "multi_margin": lambda x, y, c: F.multi_margin_loss(x[:, :, 0], c[:, 0]),
    # Every class is a label: torch's decomposition, which is applied above every backend, counts
    # what stands behind a -1.
    "multilabel_margin": lambda x, y, c: F.multilabel_margin_loss(x[:, :, 0], c),
    "multilabel_soft": lambda x, y, c: F.multilabel_soft_margin_loss(x[..., 0], y[..., 0].abs()),
    "hinge": lambda x, y, c: F.hinge_embedding_loss(x, y.sign()),
    "margin_ranking": lambda x, y, c: F.margin_ranking_loss(x, y, y.sign()),
    "cosine": lambda x, y, c: F.cosine_embedding_loss(x[..., 0], y[..., 0], y[:, 0, 0].sign()),
    "triplet": lambda x, y, c: F.triplet_margin_loss(x[..., 0], y[..., 0], y[..., 1]),
    "poisson": lambda x, y, c: F.poisson_nll_loss(x, y.abs(), full=True),
}


def scores(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    classes = torch.randint(0, 5, (6, 5), generator=draws.generator(2))
    return numbers(dtype, 6, 5, 5), numbers(dtype, 6, 5, 5, seed=1), classes


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("loss", LOSSES)
def test_losses(loss: str, dtype: torch.dtype) -> None:
    agree(LOSSES[loss], *scores(dtype))


@pytest.mark.parametrize("dtype", HALF_DTYPES, ids=str)
@pytest.mark.parametrize("loss", ["cross_entropy", "mse", "l1", "bce_logits", "huber", "kl_div"])
def test_losses_of_halves(loss: str, dtype: torch.dtype) -> None:
    agree(LOSSES[loss], *scores(dtype), wide=True)


def not_generated(function: Function, x: torch.Tensor, *others: torch.Tensor) -> set[str]:
    """The ops without a rule in the graphs of training, with gradients for the first tensor."""
    left: set[str] = set()

    def look(module: torch.fx.GraphModule, _: Any) -> Function:
        calls = [n.target for n in module.graph.nodes if n.op == "call_function"]
        left.update(str(c) for c in calls if c is not operator.getitem and c not in RULES)
        return make_boxed_func(module.forward)  # type: ignore[no-any-return]

    traced = aot_function(function, look, look, decompositions=decompositions())
    traced(x.requires_grad_(), *others).sum().backward()
    return left


@pytest.mark.parametrize("norm", NORMS)
def test_norms_train_without_aten(norm: str) -> None:
    assert not not_generated(NORMS[norm], image())


@pytest.mark.parametrize("loss", LOSSES)
def test_losses_train_without_aten(loss: str) -> None:
    assert not not_generated(LOSSES[loss], *scores(torch.float32))


POOLS: dict[str, Function] = {
    "max": lambda x: F.max_pool2d(x, 2),
    "average": lambda x: F.avg_pool2d(x, 2),
    "adaptive_average": lambda x: F.adaptive_avg_pool2d(x, 2),
    "adaptive_max": lambda x: F.adaptive_max_pool2d(x, 2),
    "lp": lambda x: F.lp_pool2d(x, 2.0, 2),
    "nearest": lambda x: F.interpolate(x, scale_factor=2),
    "bilinear": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
    "bicubic": lambda x: F.interpolate(x, scale_factor=2, mode="bicubic"),
    "reflect": lambda x: F.pad(x, (1, 1, 1, 1), "reflect"),
    "replicate": lambda x: F.pad(x, (1, 1, 1, 1), "replicate"),
    "unfold": lambda x: F.unfold(x, 2),
}


@pytest.mark.parametrize("name", POOLS)
def test_pools_and_pads_train_without_aten(name: str) -> None:
    assert not not_generated(POOLS[name], image())
