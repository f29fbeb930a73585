"""The model zoo: small models from transformers' configs, with random weights.

In: a name. Out: `Workload`: a model in eval mode and its inputs. Nothing is downloaded.
Example: `workload("bert").model`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Workload:
    """A model and the keyword arguments it is called with."""

    name: str
    model: torch.nn.Module
    inputs: dict[str, Any]

    def __call__(self) -> Any:
        with torch.no_grad():
            return self.model(**self.inputs)


@dataclass(frozen=True)
class Scale:
    """How large to build: tests use the small one, benchmarks the width of the real models."""

    hidden: int
    heads: int
    layers: int
    batch: int
    tokens: int
    image: int


SMALL = Scale(hidden=64, heads=4, layers=2, batch=2, tokens=24, image=32)
BASE = Scale(hidden=768, heads=12, layers=4, batch=2, tokens=128, image=224)


def _tokens(scale: Scale, vocabulary: int = 1000) -> torch.Tensor:
    return torch.randint(0, vocabulary, (scale.batch, scale.tokens))


def _image(scale: Scale) -> torch.Tensor:
    return torch.randn(scale.batch, 3, scale.image, scale.image)


def _bert(scale: Scale) -> tuple[Any, dict[str, Any]]:
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=1000, hidden_size=scale.hidden, num_hidden_layers=scale.layers,
        num_attention_heads=scale.heads, intermediate_size=4 * scale.hidden,
    )  # fmt: skip
    return BertModel(config), {"input_ids": _tokens(scale)}


def _gpt2(scale: Scale) -> tuple[Any, dict[str, Any]]:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=1000, n_embd=scale.hidden, n_layer=scale.layers, n_head=scale.heads,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    return GPT2LMHeadModel(config), {"input_ids": _tokens(scale), "use_cache": False}


def _llama(scale: Scale) -> tuple[Any, dict[str, Any]]:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=1000, hidden_size=scale.hidden, num_hidden_layers=scale.layers,
        num_attention_heads=scale.heads, num_key_value_heads=scale.heads // 2,
        intermediate_size=3 * scale.hidden,
    )  # fmt: skip
    return LlamaForCausalLM(config), {"input_ids": _tokens(scale), "use_cache": False}


def _vit(scale: Scale) -> tuple[Any, dict[str, Any]]:
    from transformers import ViTConfig, ViTModel

    config = ViTConfig(
        hidden_size=scale.hidden, num_hidden_layers=scale.layers, image_size=scale.image,
        num_attention_heads=scale.heads, intermediate_size=4 * scale.hidden,
        patch_size=16 if scale.image >= 224 else 8,
    )  # fmt: skip
    return ViTModel(config), {"pixel_values": _image(scale)}


def _resnet(scale: Scale) -> tuple[Any, dict[str, Any]]:
    from transformers import ResNetConfig, ResNetModel

    widths = [scale.hidden // 3 * k for k in (1, 2, 3, 4)]
    config = ResNetConfig(
        embedding_size=scale.hidden // 4, hidden_sizes=widths, depths=[1, 1, 1, 1]
    )
    return ResNetModel(config), {"pixel_values": _image(scale)}


def _t5(scale: Scale) -> tuple[Any, dict[str, Any]]:
    from transformers import T5Config, T5EncoderModel

    config = T5Config(
        vocab_size=1000, d_model=scale.hidden, num_layers=scale.layers, num_heads=scale.heads,
        d_kv=scale.hidden // scale.heads, d_ff=4 * scale.hidden,
    )  # fmt: skip
    return T5EncoderModel(config), {"input_ids": _tokens(scale)}


ZOO: dict[str, Callable[[Scale], tuple[Any, dict[str, Any]]]] = {
    "bert": _bert,
    "gpt2": _gpt2,
    "llama": _llama,
    "vit": _vit,
    "resnet": _resnet,
    "t5": _t5,
}


def workload(name: str, scale: Scale = SMALL, dtype: torch.dtype = torch.float32) -> Workload:
    """Build a model with seeded random weights, floating inputs in its type."""
    torch.manual_seed(0)
    model, inputs = ZOO[name](scale)
    moved = {k: v.to(dtype) if _is_float(v) else v for k, v in inputs.items()}
    return Workload(name, model.eval().to(dtype), moved)


def _is_float(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def first_tensor(output: Any) -> torch.Tensor:
    """The main result of a transformers output."""
    if isinstance(output, torch.Tensor):
        return output
    found = next(iter(output.values() if hasattr(output, "values") else output))
    assert isinstance(found, torch.Tensor)
    return found
