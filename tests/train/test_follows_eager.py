"""Twenty steps of training follow eager's losses, whatever stands around the compiled graph."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.train.following import Step, follows_eager


class Block(nn.Module):
    """Enough of each kind: a product, a norm, an activation, a sum over rows."""

    def __init__(self, width: int = 16, hidden: int = 32) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


def loss_of(y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Distance to a function of the batch that the model can learn."""
    return F.mse_loss(y, torch.sin(x) * 2)


def sgd(model: nn.Module, rate: float = 0.1) -> torch.optim.Optimizer:
    return torch.optim.SGD([p for p in model.parameters() if p.requires_grad], rate, momentum=0.9)


def plain_step(model: Any, call: Any, optimizer: torch.optim.Optimizer) -> Step:
    def step(_: int, x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(call(x), x)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def test_forward_loss_and_backward() -> None:
    def make(compile: Any) -> tuple[nn.Module, Step]:
        model = Block()
        return model, plain_step(model, compile(model), sgd(model))

    notes = follows_eager(make)
    assert sorted(g.kind for g in notes.graphs) == ["backward", "forward"]


def test_gradient_scaling() -> None:
    """The loss is scaled up, one step overflows and is left out, the scale goes down and up."""

    def make(compile: Any) -> tuple[nn.Module, Step]:
        model = Block()
        call, optimizer = compile(model), sgd(model)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=4)

        def step(number: int, x: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            loss = loss_of(call(x), x)
            scaler.scale(loss * (float("inf") if number == 5 else 1.0)).backward()
            scaler.step(optimizer)
            scaler.update()
            return loss.detach() + scaler.get_scale() / 1024

        return model, step

    follows_eager(make)


def test_autocast_to_bfloat16() -> None:
    """Eager rounds between ops where a kernel does not: losses differ by some last places."""

    def make(compile: Any) -> tuple[nn.Module, Step]:
        model = Block()
        call, optimizer = compile(model), sgd(model, 0.02)

        def step(_: int, x: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                y = call(x)
            loss = loss_of(y.float(), x)
            loss.backward()
            optimizer.step()
            return loss.detach()

        return model, step

    follows_eager(make, rtol=2**-8)


def test_gradient_accumulation() -> None:
    def make(compile: Any) -> tuple[nn.Module, Step]:
        model = Block()
        call, optimizer = compile(model), sgd(model)

        def step(number: int, x: torch.Tensor) -> torch.Tensor:
            loss = sum(loss_of(call(part), part) for part in x.chunk(2)) / 2
            loss.backward()
            if number % 2:
                optimizer.step()
                optimizer.zero_grad()
            return loss.detach()

        return model, step

    follows_eager(make)


def test_gradient_clipping() -> None:
    def make(compile: Any) -> tuple[nn.Module, Step]:
        model = Block()
        call, optimizer = compile(model), sgd(model)

        def step(_: int, x: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            loss = loss_of(call(x), x)
            loss.backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            return loss.detach() + norm.detach()

        return model, step

    follows_eager(make)


def test_batch_norm_statistics() -> None:
    """The running mean, variance and count are state, and compared as such."""

    def make(compile: Any) -> tuple[nn.Module, Step]:
        model = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 3, 1)
        )
        call, optimizer = compile(model), sgd(model, 0.05)
        train = plain_step(model, call, optimizer)

        def step(number: int, x: torch.Tensor) -> torch.Tensor:
            model.train(number != 10)  # one step uses the statistics and leaves them
            return train(number, x)

        return model, step

    follows_eager(make, 4, 3, 6, 6)


def test_hooks_on_modules_tensors_and_parameters() -> None:
    def make(compile: Any) -> tuple[nn.Module, Step]:
        model = nn.Sequential(Block(), Block())
        seen = torch.zeros(())

        def note(parameter: torch.Tensor) -> None:
            seen.add_(parameter.grad.norm())

        model[0].register_forward_hook(lambda _, args, y: y * 1.5)
        model[1].register_forward_pre_hook(lambda _, args: (args[0] - 0.1,))
        model[0].up.weight.register_hook(lambda g: g * 0.5)
        model[1].down.weight.register_post_accumulate_grad_hook(note)
        call, optimizer = compile(model), sgd(model, 0.05)

        def step(_: int, x: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            y = call(x)
            y.register_hook(lambda g: g * 2)
            loss = loss_of(y, x)
            loss.backward()
            optimizer.step()
            return loss.detach() + seen

        return model, step

    follows_eager(make)


def test_backward_hooks_on_modules() -> None:
    def make(compile: Any) -> tuple[nn.Module, Step]:
        model = nn.Sequential(Block(), Block())
        model[1].register_full_backward_hook(lambda _, given, got: (given[0] * 0.5,))
        return model, plain_step(model, compile(model), sgd(model, 0.05))

    follows_eager(make)


def test_frozen_parameters() -> None:
    def make(compile: Any) -> tuple[nn.Module, Step]:
        model = nn.Sequential(nn.Linear(16, 16), Block())
        model[0].requires_grad_(False)
        return model, plain_step(model, compile(model), sgd(model))

    follows_eager(make)


def test_a_module_used_twice() -> None:
    """One module called twice in a graph, and the compiled one called twice in a step."""

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = Block()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.block(self.block(x) * 0.5)

    def make(compile: Any) -> tuple[nn.Module, Step]:
        model = Twice()
        call = compile(model)
        return model, plain_step(model, lambda x: call(call(x)), sgd(model, 0.02))

    follows_eager(make)


def test_retain_graph() -> None:
    def make(compile: Any) -> tuple[nn.Module, Step]:
        model = Block()
        call, optimizer = compile(model), sgd(model)

        def step(_: int, x: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            y = call(x)
            loss = loss_of(y, x)
            loss.backward(retain_graph=True)
            (y.abs().mean() * 0.1).backward()
            optimizer.step()
            return loss.detach()

        return model, step

    follows_eager(make)


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_backward_may_run_as_often_as_eagers(dynamic: bool) -> None:
    """Saved values are read, never overwritten: torch would forbid it if some were donated."""
    layers = nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 8)
    model = nn.Sequential(*layers)
    x = torch.randn(5, 16, requires_grad=True)
    found = []
    for run in (torch.compile(model, backend="litz", dynamic=dynamic), model):
        y = run(x)
        for k in range(3):
            (y * y * k).sum().backward(retain_graph=True)
        found.append([t.grad for t in (x, *model.parameters())])
        x.grad = None
        model.zero_grad()
    torch.testing.assert_close(*found)


def test_compiled_autograd() -> None:
    def make(compile: Any) -> tuple[nn.Module, Step]:
        model = Block()
        optimizer = sgd(model, 0.05)

        def whole(x: torch.Tensor) -> torch.Tensor:
            loss = loss_of(model(x), x)
            loss.backward()
            return loss.detach()

        call = compile(whole)

        def step(_: int, x: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            loss: torch.Tensor = call(x)
            optimizer.step()
            return loss

        return model, step

    with torch._dynamo.config.patch(compiled_autograd=True):
        follows_eager(make)


def test_checkpoint() -> None:
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = Block(), Block()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = checkpoint(self.first, x, use_reentrant=False)
            return checkpoint(self.second, x, use_reentrant=False)

    def make(compile: Any) -> tuple[nn.Module, Step]:
        model = Checkpointed()
        return model, plain_step(model, compile(model), sgd(model))

    follows_eager(make)


def test_dropout_with_eagers_numbers() -> None:
    def make(compile: Any) -> tuple[nn.Module, Step]:
        model = nn.Sequential(Block(), nn.Dropout(0.2), nn.Linear(16, 16))
        call = compile(model, fallback_random=True)
        return model, plain_step(model, call, sgd(model, 0.05))

    follows_eager(make)


def test_the_whole_step_as_one_graph_and_the_optimizer() -> None:
    def make(compile: Any) -> tuple[nn.Module, Step]:
        model = Block()
        call, optimizer = compile(model), torch.optim.AdamW(model.parameters(), 0.01)
        update = compile(optimizer.step)

        def step(_: int, x: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            loss = loss_of(call(x), x)
            loss.backward()
            update()
            return loss.detach()

        return model, step

    follows_eager(make)
