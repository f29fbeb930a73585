"""A training step as a program: forward, loss, backward, AdamW.

In: a model and its inputs. Out: `Training`, a module whose call is one step and returns the loss
and the gradients. The learning rate is almost zero: every call does all the work but starts from
the same parameters, so that results can be compared with eager's. Example:

    Program(Training(model), (), inputs)
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

from litz.bench.zoo import first_tensor

# Less than a rounding of any parameter; with zero, AdamW's formula gives NaN.
RATE = 1e-20


class Training(nn.Module):
    """Dropout is off, since candidates draw different numbers; batch norms use their batch."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model.eval()
        for module in model.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.train()
        # On a GPU the step counter is there too, so that a step can be compiled.
        there = next(self.model.parameters()).is_cuda
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=RATE, capturable=there)

    def __deepcopy__(self, memo: dict[int, Any]) -> Training:
        """Without the optimizer's state: a copy may have another type."""
        return Training(copy.deepcopy(self.model, memo))

    def forward(self, **inputs: Any) -> tuple[torch.Tensor, ...]:
        self.optimizer.zero_grad()
        with torch.enable_grad():
            loss = first_tensor(self.model(**inputs)).square().mean()
            loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        gradients = (p.grad for p in self.model.parameters())
        return loss.detach(), *(g for g in gradients if g is not None)


class Updates(nn.Module):
    """A step of AdamW over many parameters with given gradients.

    It returns the parameters, which do not change; `tests/train` compares updates with eager's.
    """

    def __init__(self, held: list[nn.Parameter], foreach: bool) -> None:
        super().__init__()
        self.held, self.foreach = nn.ParameterList(held), foreach
        self.optimizer = torch.optim.AdamW(self.held, lr=RATE, foreach=foreach)

    def __deepcopy__(self, memo: dict[int, Any]) -> Updates:
        return Updates(copy.deepcopy(list(self.held), memo), self.foreach)

    def forward(self) -> tuple[torch.Tensor, ...]:
        self.optimizer.step()
        return tuple(p.detach() for p in self.held)
