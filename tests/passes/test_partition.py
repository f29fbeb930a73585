"""What the forward keeps for the backward, and what the backward computes again."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch._dynamo.backends.common import aot_autograd
from torch._functorch import config as functorch
from torch._functorch.partitioners import default_partition
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

import litz
from litz.capture.decompositions import decompositions
from litz.config import Config
from litz.errors import CustomPassFailed
from litz.passes import partition
from litz.passes.partition import cut_joint_graph
from litz.passes.recompute import bytes_of
from tests import draws

aten = torch.ops.aten
RAISE = {"on_error": "raise"}
Function = Callable[..., torch.Tensor]
W, V = torch.randn(16, 32), torch.randn(32, 8)


class Cut:
    """The two graphs of a function, cut as asked, and the gradients they give."""

    def __init__(
        self, function: Function, *given: torch.Tensor, config: Config | None = None,
        dynamic: bool | None = None,
    ) -> None:  # fmt: skip
        torch._dynamo.reset()
        self.seconds = 0.0
        self.config = config or Config()
        hook = aot_autograd(
            fw_compiler=lambda gm, _: gm.forward,
            bw_compiler=lambda gm, _: gm.forward,
            partition_fn=self._partition,
            decompositions=decompositions(),
        )
        inputs = [t.clone().requires_grad_() for t in given]
        draws.seed(0)
        self.result = torch.compile(function, backend=hook, dynamic=dynamic)(*inputs)
        self.result.sum().backward()
        self.gradients = [t.grad for t in inputs]

    def _partition(self, joint: Any, inputs: Any, **given: Any) -> Any:
        start = time.perf_counter()
        self.forward, self.backward = partition(joint, inputs, self.config, **given)
        self.seconds = time.perf_counter() - start
        returned = self.forward.graph.output_node().args[0]
        outputs, saved = returned[: given["num_fwd_outputs"]], returned[given["num_fwd_outputs"] :]
        self.saved = [n for n in saved if n.op != "placeholder" and n not in outputs]
        return self.forward, self.backward

    @property
    def names(self) -> list[str]:
        """The ops whose results are kept."""
        return sorted(str(n.target).split(".")[1] for n in self.saved)

    @property
    def bytes(self) -> int:
        return sum(bytes_of(n.meta["val"]) for n in self.saved)

    @property
    def again(self) -> set[str]:
        """The ops that both graphs compute."""
        made = [
            {n.name: str(n.target).split(".")[1] for n in m.graph.nodes if _is_op(n)}
            for m in (self.forward, self.backward)
        ]
        return {made[0][name] for name in made[0].keys() & made[1].keys()}


def _is_op(node: torch.fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload)


def chain(x: torch.Tensor) -> torch.Tensor:
    return torch.tanh(torch.sin(x * 2) + 1).exp()


def mlp(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.gelu(x @ w) @ v


def test_a_cheap_chain_is_computed_again_from_its_input() -> None:
    cut = Cut(chain, torch.randn(64))
    assert cut.saved == []
    assert {"sin", "tanh", "mul"} <= cut.again


def test_products_are_kept_and_what_lies_between_is_not() -> None:
    """gelu's result feeds a product in both directions: it lies in memory and is kept."""
    cut = Cut(mlp, torch.randn(8, 16), W, V)
    assert cut.names == ["mm", "mul"]
    assert "mm" not in cut.again and "erf" in cut.again


def test_a_mask_is_kept_and_the_draw_is_not_made_twice() -> None:
    cut = Cut(lambda x: F.dropout(torch.sin(x), 0.5), torch.randn(64))
    assert [n.meta["val"].dtype for n in cut.saved] == [torch.bool]
    assert "native_dropout" not in cut.again


def test_small_results_of_reductions_are_kept() -> None:
    cut = Cut(lambda x: F.layer_norm(x, (64,)), torch.randn(8, 64))
    assert cut.bytes <= 2 * 8 * 4  # means and deviations of the rows


@pytest.mark.parametrize("requires_grad", [False, True])
def test_what_is_written_into_is_not_read_in_the_backward(requires_grad: bool) -> None:
    """The buffer has another value by then: twice of it is kept, not made again."""

    def function(x: torch.Tensor, buffer: torch.Tensor) -> torch.Tensor:
        y = x * (buffer * 2)
        buffer.add_(1)
        return y

    litz.reset()
    x = torch.randn(64, requires_grad=True)
    buffer = torch.ones(64, requires_grad=requires_grad) * 1.0
    torch.compile(function, backend="litz", options=RAISE)(x, buffer).sum().backward()
    assert torch.equal(buffer, torch.full((64,), 2.0))
    assert torch.equal(x.grad, torch.full((64,), 2.0))


VIEWS: dict[str, Function] = {
    "view": lambda x: x.view(-1),
    "slice": lambda x: x[1:],
    "one of several": lambda x: x.split(2)[1],
    "of a view": lambda x: x.t()[1:].t(),
}


@pytest.mark.parametrize("name", VIEWS)
def test_nor_are_views_of_it(name: str) -> None:
    """It would be one value to save in place of three, but another one by then."""

    def function(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        shown = VIEWS[name](x)
        y = sum((shown + k) * w for k, w in enumerate(weights, 1))
        x.mul_(2)
        return y  # type: ignore[return-value]

    litz.reset()
    x = torch.randn(4, 16)
    weights = [torch.randn_like(VIEWS[name](x), requires_grad=True) for _ in range(3)]
    found, expected = (
        torch.autograd.grad(f(x.clone(), *weights).sum(), weights)
        for f in (torch.compile(function, backend="litz", options=RAISE), function)
    )
    assert all(map(torch.equal, found, expected))


@pytest.mark.parametrize("function", [chain, lambda x: mlp(x, W, V)], ids=["chain", "mlp"])
def test_less_is_kept_than_by_default(function: Function) -> None:
    x = torch.randn(64, 16)
    ours, theirs = Cut(function, x), Cut(function, x, config=Config(custom_partitioner_fn=plain))
    assert ours.bytes < theirs.bytes
    torch.testing.assert_close(ours.gradients, theirs.gradients)


def plain(joint: Any, inputs: Any, **given: Any) -> Any:
    return default_partition(joint, inputs, **given)


# -- what the user says --------------------------------------------------------------------------


def test_a_checkpointed_region_is_computed_again_products_included() -> None:
    def function(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return checkpoint(mlp, x, w, v, use_reentrant=False).sin()

    cut = Cut(function, torch.randn(8, 16), W, V)
    assert "mm" in cut.again and cut.names in ([], ["mm"])


def test_a_policy_keeps_products_of_a_checkpointed_region() -> None:
    def choose(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        kept = op is aten.mm.default
        return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE

    def function(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        contexts = partial(create_selective_checkpoint_contexts, choose)
        return checkpoint(mlp, x, w, v, use_reentrant=False, context_fn=contexts).sin()

    cut = Cut(function, torch.randn(8, 16), W, V)
    assert "mm" not in cut.again and set(cut.names) == {"mm"}


def test_between_two_checkpointed_regions_a_value_is_kept() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        x = checkpoint(chain, x, use_reentrant=False)
        return checkpoint(chain, x, use_reentrant=False)

    assert Cut(function, torch.randn(64)).names == ["exp"]


def test_recomputed_dropout_draws_the_same_mask() -> None:
    def region(x: torch.Tensor) -> torch.Tensor:
        return F.dropout(x, 0.5) * 3

    x = torch.ones(4096, requires_grad=True)
    litz.reset()
    compiled = torch.compile(
        lambda x: checkpoint(region, x, use_reentrant=False).sin(), backend="litz", options=RAISE
    )
    for seed in range(2):
        draws.seed(seed)
        y = compiled(x)
        (gradient,) = torch.autograd.grad(y.sum(), x)
        kept = y.detach() != 0
        assert 0.4 < kept.float().mean() < 0.6
        torch.testing.assert_close(gradient, torch.where(kept, 6 * torch.tensor(6.0).cos(), 0.0))


def test_a_budget_of_memory_is_kept() -> None:
    def function(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        for w in weights:
            x = torch.relu(x @ w).softmax(-1)
        return x

    given = [torch.randn(64, 16), *(torch.randn(16, 16) / 4 for _ in range(3))]
    kept = {}
    for budget in (1.0, 0.5, 0.2, 0.0):
        with functorch.patch(activation_memory_budget=budget):
            cut = Cut(function, *given)
        kept[budget] = cut.bytes
        assert cut.bytes <= budget * kept[1.0]
        expected = kept.setdefault("gradients", cut.gradients)
        torch.testing.assert_close(cut.gradients, expected)
    assert kept[1.0] > kept[0.5] >= kept[0.2] >= kept[0.0] == 0
    assert "mm" in cut.again


SEVERAL: dict[str, Function] = {
    "max": lambda x: x.max(-1)[0].sin(),
    "min and where": lambda x: torch.stack([t.to(x.dtype) for t in x.min(2)]).sin(),
    "sort": lambda x: x.sort(-1)[0].cumsum(-1),
    "topk": lambda x: x.topk(3)[0].exp(),
    "median": lambda x: x.median(-1)[0].exp(),
    "cummax": lambda x: x.cummax(1)[0].tanh(),
    "layer norm": lambda x: F.layer_norm(x, [8]).tanh(),
    "group norm": lambda x: F.group_norm(x, 2).tanh(),
    "batch norm": lambda x: F.batch_norm(x, None, None, training=True).tanh(),
    "pool": lambda x: F.max_pool2d(x, 2).exp(),
    "adaptive pool": lambda x: F.adaptive_max_pool2d(x, 3).exp(),
    "variance and mean": lambda x: torch.stack(torch.var_mean(x, -1)).sin(),
    "pieces": lambda x: torch.cat([t.exp() for t in x.split([3, 5], -1)], -1).tanh(),
    "items": lambda x: sum(t.exp() * (k + 1) for k, t in enumerate(x.unbind(1))).tanh(),
    "attention": lambda x: F.scaled_dot_product_attention(x, x, x).tanh(),
    "frexp": lambda x: torch.frexp(x)[0].sin(),
    "qr": lambda x: torch.linalg.qr(x)[1].tanh(),
    "determinant": lambda x: torch.linalg.slogdet(x)[1].tanh(),
}  # fmt: skip


@pytest.mark.parametrize("budget", [0.0, 0.25, 0.5, 0.9])
@pytest.mark.parametrize("name", SEVERAL)
def test_ops_of_several_results_fit_into_a_budget(name: str, budget: float) -> None:
    draws.seed(0)
    x = torch.randn(2, 4, 8, 8, dtype=torch.float64)

    def function(x: torch.Tensor) -> torch.Tensor:
        return SEVERAL[name](x.exp() + x) * 2

    with functorch.patch(activation_memory_budget=budget):
        cut = Cut(function, x)
    (expected,) = torch.autograd.grad(function(x.requires_grad_()).sum(), x)
    torch.testing.assert_close(cut.gradients, [expected], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("budget", [0.0, 0.5])
def test_a_dropout_in_a_budget_is_drawn_once(budget: float) -> None:
    """Of a product, gradients times their values add up to what it is."""
    with functorch.patch(activation_memory_budget=budget):
        cut = Cut(lambda x, y: F.dropout(x * y, 0.5).reshape(-1), W, V.t()[:, :1].expand(8, 32)[:1])
    assert (cut.result == 0).any() and (cut.result != 0).any()
    torch.testing.assert_close((cut.gradients[0] * W).reshape(-1), cut.result.detach())


DRAWN: dict[str, Function] = {
    "rrelu": lambda x: F.rrelu(x - 0.5, training=True),
    "dropout": lambda x: F.dropout(x, 0.5),
    "alpha dropout": lambda x: F.alpha_dropout(x, 0.3, True),
    "channels": lambda x: F.dropout1d(x, 0.5),
    "bernoulli": lambda x: x * torch.bernoulli(x.detach()),
    "uniform": lambda x: x * torch.empty_like(x).uniform_(1, 2),
    "normal": lambda x: x * torch.normal(x.detach(), 1.0),
    "integers": lambda x: x * torch.randint(0, 9, (4, 8)),
    "order": lambda x: x[:, torch.randperm(8)],
    "exponential": lambda x: x * torch.empty_like(x).exponential_(),
    "geometric": lambda x: x * torch.empty_like(x).geometric_(0.4),
    "choice": lambda x: x.gather(1, torch.multinomial(x.detach(), 8)),
    "poisson": lambda x: x * torch.poisson(x.detach() * 5),
    "binomial": lambda x: x * torch.binomial(torch.full_like(x, 9), x.detach()),
    "gamma": lambda x: torch._standard_gamma(x + 1),
    "gumbel": lambda x: F.gumbel_softmax(x, hard=True),
    "attention": lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None], dropout_p=0.3),
}


@pytest.mark.parametrize("name", DRAWN)
def test_what_a_checkpoint_draws_is_what_eager_draws(name: str) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return checkpoint(lambda x: DRAWN[name](x.sin()).tanh() * x, x, use_reentrant=False)

    x = torch.rand(4, 8, generator=draws.generator(0)) * 0.8 + 0.1
    cut = Cut(function, x, config=Config(fallback_random=True))
    draws.seed(0)
    expected = function(x.requires_grad_())
    (gradient,) = torch.autograd.grad(expected.sum(), x)
    torch.testing.assert_close(cut.result, expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(cut.gradients, [gradient], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["dropout", "uniform", "rrelu", "attention"])
def test_what_a_checkpoint_draws_from_a_seed_of_ours(name: str) -> None:
    """The same in forward and backward: the gradient is the slope under one seed."""

    def function(x: torch.Tensor) -> torch.Tensor:
        region = lambda x: DRAWN[name](x.sin()).tanh() * x  # noqa: E731
        return checkpoint(region, x, use_reentrant=False)

    x = torch.rand(4, 8, generator=draws.generator(0)).double() * 0.8 + 0.1
    cut = Cut(function, x)
    ends = [Cut(function, x + step).result.sum() for step in (1e-6, -1e-6)]
    slope = (ends[0] - ends[1]) / 2e-6
    torch.testing.assert_close(cut.gradients[0].sum(), slope, rtol=1e-5, atol=1e-6)


def test_a_region_of_symbolic_sizes_draws_from_a_seed() -> None:
    """Sizes are nodes of the graph, so that it runs by itself, too."""

    def function(x: torch.Tensor) -> torch.Tensor:
        return checkpoint(lambda x: F.dropout(x.sin(), 0.5), x, use_reentrant=False)

    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="Raw SymInt")
        cut = Cut(function, torch.randn(6, 8), dynamic=True)
    assert "random_bits" in cut.again


# -- hooks -------------------------------------------------------------------------------------


def test_the_users_partitioner_is_called_with_what_torch_gives() -> None:
    seen: list[dict[str, Any]] = []

    def mine(joint: Any, inputs: Any, **given: Any) -> Any:
        seen.append(given)
        return default_partition(joint, inputs, **given)

    Cut(chain, torch.randn(64), config=Config(custom_partitioner_fn=mine))
    assert seen == [{"num_fwd_outputs": 1, "static_lifetime_input_indices": ()}]


def test_joint_passes_see_forward_and_backward_at_once() -> None:
    seen: list[tuple[str, bool, bool]] = []

    def look(when: str) -> Callable[[torch.fx.Graph], None]:
        def note(graph: torch.fx.Graph) -> None:
            targets = [n.target for n in graph.nodes]
            tangents = any("tangents" in n.name for n in graph.nodes)
            seen.append((when, tangents, targets.count(aten.cos.default) > 1))

        return note

    config = Config(joint_custom_pre_pass=look("pre"), joint_custom_post_pass=look("post"))
    Cut(lambda x: x.sin() + x.cos(), torch.randn(8), config=config)
    assert seen == [("pre", True, True), ("post", True, False)]  # one cosine serves both


def test_joint_passes_see_an_inference_graph() -> None:
    def double(graph: torch.fx.Graph) -> None:
        (sin,) = (n for n in graph.nodes if n.target is aten.sin.default)
        sin.target = aten.cos.default

    litz.reset()
    options = {**RAISE, "joint_custom_pre_pass": double}
    x = torch.randn(8)
    assert torch.compile(torch.sin, backend="litz", options=options)(x).allclose(x.cos())


def test_a_failing_function_of_the_users_is_named() -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise KeyError("mine")

    joint = torch.fx.symbolic_trace(lambda x: x)
    with pytest.raises(CustomPassFailed, match=r"custom_partitioner_fn: .*broken"):
        partition(joint, [], Config(custom_partitioner_fn=broken), num_fwd_outputs=1)


def test_constants_of_the_joint_graph_are_folded_unless_told_not_to() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x * torch.ones(64).mul(3)

    def fills(config: Config) -> int:
        cut = Cut(function, torch.randn(64), config=config)
        return sum(n.target is aten.mul.Tensor for n in cut.forward.graph.nodes)

    assert fills(Config()) == 1
    assert fills(Config(joint_graph_constant_folding=False)) == 2


def _joint(ops: int) -> torch.fx.GraphModule:
    """A chain of ops, each fourth read again much further down, and the gradients back along it."""
    graph, like = torch.fx.Graph(), torch.empty(64, device="meta")

    def noted(node: torch.fx.Node) -> torch.fx.Node:
        node.meta["val"] = like
        return node

    def call(op: Any, *args: Any) -> torch.fx.Node:
        return noted(graph.call_function(op, args))

    values, inner = [noted(graph.placeholder("primals_1"))], []
    gradient = noted(graph.placeholder("tangents_1"))
    for k in range(ops // 4):
        far = call(aten.add.Tensor, call(aten.mul.Tensor, values[-1], 0.5), values[k // 2])
        inner.append(call(aten.tanh.default, far))
        values.append(call(aten.cos.default, inner[-1]))
    for value in reversed(inner):
        slope = call(aten.mul.Tensor, call(aten.sin.default, value), value)
        gradient = call(aten.mul.Tensor, gradient, slope)
    graph.output((values[-1], gradient))
    return torch.fx.GraphModule(torch.nn.Module(), graph)


@pytest.mark.alone
def test_time_is_linear() -> None:
    def seconds(ops: int) -> float:
        best = float("inf")
        for _ in range(2):
            joint = _joint(ops)
            start = time.perf_counter()
            cut_joint_graph(joint, 1)
            best = min(best, time.perf_counter() - start)
        return best

    small, large = seconds(250), seconds(2000)
    assert large < 8 * small * 2.5, f"{small * 1e3:.0f} ms for 250, {large * 1e3:.0f} for 2000"
