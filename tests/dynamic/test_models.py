"""Models of any batch and length: one compile, against eager; and a training run likewise."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests import draws
from tests.dynamic.symbolic import Symbolic

transformers = pytest.importorskip("transformers")

SHAPES = [(2, 7), (3, 16), (2, 33), (5, 2)]


def _bert() -> torch.nn.Module:
    given = {"hidden_size": 48, "num_attention_heads": 3, "intermediate_size": 96}
    config = transformers.BertConfig(num_hidden_layers=1, vocab_size=50, **given)
    return transformers.BertModel(config)  # type: ignore[no-any-return]


def _gpt2() -> torch.nn.Module:
    config = transformers.GPT2Config(
        n_embd=48, n_layer=1, n_head=3, vocab_size=50, n_positions=64, use_cache=False,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config)  # type: ignore[no-any-return]


def _llama() -> torch.nn.Module:
    given = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4}
    config = transformers.LlamaConfig(
        num_hidden_layers=1, num_key_value_heads=2, vocab_size=50, use_cache=False, **given
    )
    return transformers.LlamaForCausalLM(config)  # type: ignore[no-any-return]


def _t5() -> torch.nn.Module:
    given = {"d_model": 48, "d_kv": 16, "d_ff": 96, "num_heads": 3, "use_cache": False}
    config = transformers.T5Config(num_layers=1, vocab_size=50, **given)
    return transformers.T5ForConditionalGeneration(config)  # type: ignore[no-any-return]


MODELS: list[Callable[[], torch.nn.Module]] = [_bert, _gpt2, _llama, _t5]


def _small_products(make: Callable[[], torch.nn.Module]) -> set[str]:
    """Older releases of transformers multiply positions and frequencies as matrices, the sum of
    which has one term: such a product is ATen's."""
    rotary = transformers.models.llama.modeling_llama.LlamaRotaryEmbedding.forward
    return {"bmm"} if make is _llama and "@ position_ids" in inspect.getsource(rotary) else set()


@pytest.mark.parametrize("make", MODELS, ids=lambda m: m.__name__)
def test_a_model_of_any_length(make: Callable[[], torch.nn.Module]) -> None:
    draws.seed(0)
    model = make().eval()

    def run(ids: torch.Tensor) -> torch.Tensor:
        more = {"decoder_input_ids": ids} if make is _t5 else {}
        result: torch.Tensor = model(input_ids=ids, return_dict=False, **more)[0]
        return result

    symbolic = Symbolic(run)
    with torch.no_grad():
        for shape in SHAPES:
            ids = torch.randint(0, 50, shape)
            torch.testing.assert_close(symbolic(ids), run(ids), rtol=1e-4, atol=1e-4)
    assert symbolic.graphs == 1 and symbolic.aten_ops <= _small_products(make)


class _Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.norm = torch.nn.Embedding(50, 32), torch.nn.LayerNorm(32)
        self.mixed, self.up = torch.nn.Linear(32, 96), torch.nn.Linear(32, 50)

    def forward(self, ids: torch.Tensor) -> Any:
        x = self.table(ids)
        b, n, _ = x.shape
        q, k, v = self.mixed(self.norm(x)).view(b, n, 3, 2, 16).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        y = self.up(x + a.transpose(1, 2).reshape(b, n, 32))
        return F.cross_entropy(y.flatten(0, 1), ids.flatten())


def test_training_with_batches_of_any_shape_follows_eager() -> None:
    """Sizes that the backward graph needs are saved for it."""
    draws.seed(0)
    model = _Block()
    twin, symbolic = copy.deepcopy(model), Symbolic(model)
    steps = [torch.optim.SGD(m.parameters(), 0.1) for m in (model, twin)]
    for shape in [(3, 9), (2, 16), (4, 5), (2, 2), (6, 33), (7, 11)]:
        ids = torch.randint(0, 50, shape)
        losses = []
        for run, step in zip((symbolic, twin), steps, strict=True):
            step.zero_grad()
            loss = run(ids)
            loss.backward()
            step.step()
            losses.append(loss.detach())
        torch.testing.assert_close(*losses, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(list(model.parameters()), list(twin.parameters()))
    assert symbolic.graphs == 2  # forward and backward
