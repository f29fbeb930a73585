"""A few quick architectures of the zoo, unlike each other; `make test-zoo` runs all of them."""

from __future__ import annotations

import pytest
import torch

from tests.zoo import check as checks
from tests.zoo.check import check
from tests.zoo.entries import ENTRIES
from tests.zoo.entry import Entry

SAMPLE = ["dcn", "gcn", "deepfm", "complex linear", "vmap of grad", "AdamW"]


@pytest.fixture(autouse=True)
def _dynamo_as_it_was() -> object:
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("name", SAMPLE)
def test_an_architecture_computes_what_it_means(name: str) -> None:
    result = check(ENTRIES[name])
    # Compiled, by `aot_eager` too, an optimizer's powers of its betas are float32, and one minus
    # them has few digits; eager computes them as doubles.
    assert result.status in ("passed", *("torch",) * bool(ENTRIES[name].optimizer)), result.failures
    assert result.graphs and not result.fallbacks
    assert set(result.errors) == set(ENTRIES[name].kinds)


class Wrong(torch.nn.Module):
    """Off by more than rounding, but only where it is compiled: its results and its gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        more = 1e-5 if torch.compiler.is_compiling() else 0.0
        return x * (self.weight * (1 + more))


# Of one row, gradients are no sums, of which nothing may be left: each is off by 1e-5 of itself,
# ten times what is allowed, whatever is drawn. The loss is a sum, and may be as good as zero.
WRONG = Entry("wrong", "none", Wrong, lambda n: {"x": torch.randn(n, 4)}, (1,))


def test_what_is_wrong_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "_torchs_fault", lambda bound: "")
    result = check(WRONG)
    assert result.status == "failed"
    assert len(result.failures) == 2  # inference and training


def test_what_torch_cannot_do_is_told_apart() -> None:
    assert check(WRONG).status == "torch"
