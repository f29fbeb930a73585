"""The model zoo: models from transformers' configs and from `models.py`, with random weights.

In: a name. Out: `Workload`: a model in eval mode and its inputs. Nothing is downloaded.
Example: `workload("bert").model`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from litz.bench.models import Mixer, Recurrence, UNet


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
    """The size of a model: tests use the small one, benchmarks the width of the real models."""

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


def _resnet50(scale: Scale) -> tuple[Any, dict[str, Any]]:
    """As published: fifty layers, whatever the scale."""
    from transformers import ResNetConfig, ResNetModel

    return ResNetModel(ResNetConfig()), {"pixel_values": _image(scale)}


def _t5(scale: Scale) -> tuple[Any, dict[str, Any]]:
    from transformers import T5Config, T5EncoderModel

    config = T5Config(
        vocab_size=1000, d_model=scale.hidden, num_layers=scale.layers, num_heads=scale.heads,
        d_kv=scale.hidden // scale.heads, d_ff=4 * scale.hidden,
    )  # fmt: skip
    return T5EncoderModel(config), {"input_ids": _tokens(scale)}


def _distilbert(scale: Scale) -> tuple[Any, dict[str, Any]]:
    from transformers import DistilBertConfig, DistilBertModel

    config = DistilBertConfig(
        vocab_size=1000, dim=scale.hidden, n_layers=scale.layers, n_heads=scale.heads,
        hidden_dim=4 * scale.hidden,
    )  # fmt: skip
    return DistilBertModel(config), {"input_ids": _tokens(scale)}


def _albert(scale: Scale) -> tuple[Any, dict[str, Any]]:
    from transformers import AlbertConfig, AlbertModel

    config = AlbertConfig(
        vocab_size=1000, embedding_size=scale.hidden // 4, hidden_size=scale.hidden,
        num_hidden_layers=scale.layers, num_attention_heads=scale.heads,
        intermediate_size=4 * scale.hidden,
    )  # fmt: skip
    return AlbertModel(config), {"input_ids": _tokens(scale)}


def _opt(scale: Scale) -> tuple[Any, dict[str, Any]]:
    from transformers import OPTConfig, OPTForCausalLM

    config = OPTConfig(
        vocab_size=1000, hidden_size=scale.hidden, num_hidden_layers=scale.layers,
        num_attention_heads=scale.heads, ffn_dim=4 * scale.hidden,
        word_embed_proj_dim=scale.hidden, pad_token_id=1, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    return OPTForCausalLM(config), {"input_ids": _tokens(scale), "use_cache": False}


def _phi(scale: Scale) -> tuple[Any, dict[str, Any]]:
    from transformers import PhiConfig, PhiForCausalLM

    config = PhiConfig(
        vocab_size=1000, hidden_size=scale.hidden, num_hidden_layers=scale.layers,
        num_attention_heads=scale.heads, intermediate_size=4 * scale.hidden,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    return PhiForCausalLM(config), {"input_ids": _tokens(scale), "use_cache": False}


def _mobilevit(scale: Scale) -> tuple[Any, dict[str, Any]]:
    from transformers import MobileViTConfig, MobileViTModel

    unit = scale.hidden // 48 * 8 or 8
    config = MobileViTConfig(
        image_size=scale.image, hidden_sizes=[2 * unit, 2 * unit, 2 * unit],
        neck_hidden_sizes=[unit, unit, 2 * unit, 2 * unit, 2 * unit, 2 * unit, 4 * unit],
        num_attention_heads=4,
    )  # fmt: skip
    model = _settled(MobileViTModel(config), replace(scale, batch=4))
    return model, {"pixel_values": _image(scale)}


def _settled(model: Any, scale: Scale) -> Any:
    """The model with batch norms that have seen a batch: with means of 0 and deviations of 1,
    thirty layers of small random weights make everything zero."""
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.momentum = 1.0
    with torch.no_grad():
        model.train()(_image(scale))
    return model


def _mixer(scale: Scale) -> tuple[Any, dict[str, Any]]:
    patch = 16 if scale.image >= 224 else 8
    return Mixer(scale.image, patch, scale.hidden, scale.layers), {"image": _image(scale)}


def _lstm(scale: Scale) -> tuple[Any, dict[str, Any]]:
    steps = torch.randn(scale.batch, scale.tokens // 4, scale.hidden // 2)
    return Recurrence(scale.hidden // 2), {"steps": steps}


def _unet(scale: Scale) -> tuple[Any, dict[str, Any]]:
    return UNet(scale.hidden // 16 // 8 * 8 or 8), {"image": _image(scale)}


ZOO: dict[str, Callable[[Scale], tuple[Any, dict[str, Any]]]] = {
    "bert": _bert,
    "gpt2": _gpt2,
    "llama": _llama,
    "vit": _vit,
    "resnet": _resnet,
    "t5": _t5,
    "distilbert": _distilbert,
    "albert": _albert,
    "opt": _opt,
    "phi": _phi,
    "mobilevit": _mobilevit,
    "mixer": _mixer,
    "lstm": _lstm,
    "unet": _unet,
}

# Too large for the CPU suites.
LARGE = {"resnet50": _resnet50}


def workload(name: str, scale: Scale = SMALL, dtype: torch.dtype = torch.float32) -> Workload:
    """Build a model with seeded random weights; float inputs have its type."""
    torch.manual_seed(0)
    model, inputs = (ZOO | LARGE)[name](scale)
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
