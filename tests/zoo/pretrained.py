"""Architectures of transformers, from their configs at tiny sizes with random weights.

In: rows of a name, a class and what its config needs beyond the common sizes. Out: entries. Dropout
of every kind is off, so that eager and compiled runs compute the same. Example:

    _row("bert", "encoder", "BertModel", masked)
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import transformers
from torch import nn

from tests.zoo.entry import BATCHES, BOTH, LENGTHS, SIZED, Entry

VOCABULARY = 99
COMMON = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 64,
    "initializer_range": 0.2,
    "experts_implementation": "eager",  # torch has no product by groups in float64
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
ABSENT = object()  # of a common setting: this config refuses it, or derives it
BF16 = (*SIZED, "bfloat16")
LM = (*BOTH, "generate")
ALL = (*SIZED, "bfloat16", "generate")


def words(n: int, batch: int = 2) -> dict[str, Any]:
    return {"input_ids": torch.randint(3, VOCABULARY, (batch, n))}


def masked(n: int) -> dict[str, Any]:
    mask = torch.ones(2, n, dtype=torch.long)
    mask[1, n - 2 :] = 0
    return {**words(n), "attention_mask": mask}


def causal(n: int) -> dict[str, Any]:
    return {**words(n), "use_cache": False}


def translated(n: int) -> dict[str, Any]:
    return {**causal(n), "decoder_input_ids": torch.randint(3, VOCABULARY, (2, n - 2))}


def pixels(batch: int, side: int = 32) -> dict[str, Any]:
    return {"pixel_values": torch.randn(batch, 3, side, side)}


def sound(n: int) -> dict[str, Any]:
    return {"input_values": torch.randn(2, 160 * n)}


def spectrum(n: int) -> dict[str, Any]:

    return {
        "input_features": torch.randn(2, 4 * n, 16),
        "decoder_input_ids": torch.randint(3, VOCABULARY, (2, 5)),
    }


def whispered(n: int) -> dict[str, Any]:
    return {
        "input_features": torch.randn(2, 16, 24),
        "decoder_input_ids": torch.randint(3, VOCABULARY, (2, n)),
        "use_cache": False,
    }


def captioned(n: int) -> dict[str, Any]:
    return {**masked(n), **pixels(2)}


def _build(model: str, options: dict[str, Any]) -> nn.Module:
    made = getattr(transformers, model)
    settings = {name: v for name, v in {**COMMON, **options}.items() if v is not ABSENT}
    config = made.config_class(**settings)
    for name, value in config.to_dict().items():
        if "drop" in name and isinstance(value, float):
            setattr(config, name, 0.0)
    network: nn.Module = made(config)
    for part in network.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
    return network


def _row(
    name: str,
    family: str,
    model: str,
    inputs: Callable[[int], dict[str, Any]],
    kinds: tuple[str, ...] = BOTH,
    sizes: tuple[int, ...] = LENGTHS,
    **options: Any,
) -> Entry:
    return Entry(name, family, partial(_build, model, options), inputs, sizes, kinds)


ENCODERS = [
    _row("bert", "encoder", "BertModel", masked, BF16),
    _row("roberta", "encoder", "RobertaModel", masked),
    _row("distilbert", "encoder", "DistilBertModel", masked, dim=32, hidden_dim=64, n_layers=2,
         n_heads=4),
    _row("albert", "encoder", "AlbertModel", masked, embedding_size=16),
    _row("electra", "encoder", "ElectraModel", masked, embedding_size=16),
    _row("deberta_v2", "encoder", "DebertaV2Model", masked, relative_attention=True,
         position_biased_input=False, pos_att_type=["p2c", "c2p"]),
    _row("mobilebert", "encoder", "MobileBertModel", masked, embedding_size=16,
         intra_bottleneck_size=16, true_hidden_size=16, bottleneck=True),
    # In training it draws from NumPy, which compiled code does not do again.
    _row("bigbird", "encoder", "BigBirdModel", masked, ("inference",), sizes=(96, 88, 96),
         max_position_embeddings=128, block_size=8, num_random_blocks=1),
    _row("longformer", "encoder", "LongformerModel", masked, attention_window=[4, 4],
         sep_token_id=2),
    _row("funnel", "encoder", "FunnelModel", masked, block_sizes=[1, 1], d_model=32,
         num_hidden_layers=ABSENT, n_head=4,
         d_head=8, d_inner=64, num_decoder_layers=1),
    _row("fnet", "encoder", "FNetModel", words),
    _row("squeezebert", "encoder", "SqueezeBertModel", masked, embedding_size=32),
    _row("convbert", "encoder", "ConvBertModel", masked, embedding_size=16, head_ratio=2),
    _row("mpnet", "encoder", "MPNetModel", masked),
    _row("nystromformer", "encoder", "NystromformerModel", masked, sizes=(16,),
         segment_means_seq_len=16,
         num_landmarks=16),
    _row("yoso", "encoder", "YosoModel", masked, use_expectation=True),
    _row("canine", "encoder", "CanineModel", masked, sizes=(16, 32, 16), downsampling_rate=4,
         local_transformer_stride=8, num_hash_functions=2, num_hash_buckets=50),
    _row("modernbert", "encoder", "ModernBertModel", masked, global_attn_every_n_layers=2,
         local_attention=4),
    _row("perceiver", "encoder", "PerceiverForMaskedLM", words, d_latents=32, d_model=32,
         num_latents=6, num_blocks=1, num_self_attends_per_block=2, num_self_attention_heads=4,
         num_cross_attention_heads=4, qk_channels=32, v_channels=32),
]  # fmt: skip

DECODERS = [
    _row("gpt2", "decoder", "GPT2LMHeadModel", causal, ALL, n_embd=32, n_layer=2, n_head=4),
    _row("gpt_neo", "decoder", "GPTNeoForCausalLM", causal, LM, num_layers=2, num_heads=4,
         attention_types=[[["global", "local"], 1]], window_size=4),
    _row("gpt_neox", "decoder", "GPTNeoXForCausalLM", causal, LM),
    _row("gptj", "decoder", "GPTJForCausalLM", causal, LM, n_embd=32, n_layer=2, n_head=4,
         rotary_dim=4),
    _row("codegen", "decoder", "CodeGenForCausalLM", causal, LM, n_embd=32, n_layer=2, n_head=4,
         rotary_dim=4),
    _row("opt", "decoder", "OPTForCausalLM", causal, LM, ffn_dim=64, word_embed_proj_dim=16),
    _row("bloom", "decoder", "BloomForCausalLM", causal, LM, n_layer=2, n_head=4),
    _row("llama", "decoder", "LlamaForCausalLM", causal, ALL, num_key_value_heads=2),
    _row("mistral", "decoder", "MistralForCausalLM", causal, LM, num_key_value_heads=2,
         sliding_window=4),
    _row("mixtral", "decoder", "MixtralForCausalLM", causal, LM, num_key_value_heads=2,
         num_local_experts=4),
    _row("qwen2", "decoder", "Qwen2ForCausalLM", causal, LM, num_key_value_heads=2),
    _row("qwen3_moe", "decoder", "Qwen3MoeForCausalLM", causal, LM, num_key_value_heads=2,
         num_experts=4, moe_intermediate_size=16, head_dim=8, num_experts_per_tok=2),
    _row("gemma2", "decoder", "Gemma2ForCausalLM", causal, LM, num_key_value_heads=2, head_dim=8,
         sliding_window=4),
    _row("phi", "decoder", "PhiForCausalLM", causal, LM),
    _row("falcon", "decoder", "FalconForCausalLM", causal, LM),
    _row("stablelm", "decoder", "StableLmForCausalLM", causal, LM, num_key_value_heads=2),
    _row("mamba", "decoder", "MambaForCausalLM", causal, LM, state_size=4, expand=2),
    _row("mamba2", "decoder", "Mamba2ForCausalLM", causal, state_size=8, num_heads=8, head_dim=8,
         n_groups=2, chunk_size=4),
    _row("rwkv", "decoder", "RwkvForCausalLM", causal, attention_hidden_size=32, context_length=64),
    _row("xlnet", "decoder", "XLNetModel", words, d_model=32, n_layer=2, n_head=4, d_inner=64,
         max_position_embeddings=ABSENT),
    _row("reformer", "decoder", "ReformerModel", words, ("inference",), sizes=(16, 32, 16),
         attn_layers=["local", "local"], attention_head_size=8, feed_forward_size=64,
         is_decoder=True,
         axial_pos_embds=False, local_attn_chunk_length=4),
]  # fmt: skip

SIDES = {"encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "d_model": 32,
         "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64,
         "decoder_start_token_id": 1, "num_hidden_layers": 2, "max_length": None}  # fmt: skip
SEQ2SEQ = [
    _row("t5", "encoder-decoder", "T5ForConditionalGeneration", translated, ALL, d_model=32, d_kv=8,
         d_ff=64, num_layers=2, num_heads=4, decoder_start_token_id=0),
    _row("bart", "encoder-decoder", "BartForConditionalGeneration", translated, LM, **SIDES),
    _row("pegasus", "encoder-decoder", "PegasusForConditionalGeneration", translated, LM, **SIDES),
    _row("marian", "encoder-decoder", "MarianMTModel", translated, LM, **SIDES),
    _row("blenderbot", "encoder-decoder", "BlenderbotForConditionalGeneration", translated, LM,
         **SIDES),
    _row("led", "encoder-decoder", "LEDForConditionalGeneration", translated, attention_window=4,
         max_encoder_position_embeddings=64, max_decoder_position_embeddings=64, **SIDES),
    _row("prophetnet", "encoder-decoder", "ProphetNetForConditionalGeneration", translated,
         num_hidden_layers=ABSENT, num_encoder_layers=2, num_decoder_layers=2,
         num_encoder_attention_heads=4,
         num_decoder_attention_heads=4, encoder_ffn_dim=64, decoder_ffn_dim=64),
]  # fmt: skip

IMAGE = {"image_size": 32, "patch_size": 8}
VISION = [
    _row("vit", "vision", "ViTModel", pixels, BF16, BATCHES, **IMAGE),
    _row("deit", "vision", "DeiTModel", pixels, sizes=BATCHES, **IMAGE),
    _row("dinov2", "vision", "Dinov2Model", pixels, sizes=BATCHES, **IMAGE),
    _row("beit", "vision", "BeitModel", pixels, sizes=BATCHES, use_relative_position_bias=True,
         **IMAGE),
    _row("swin", "vision", "SwinModel", pixels, sizes=BATCHES, embed_dim=16, depths=[1, 2],
         num_heads=[2, 4], window_size=2, image_size=32, patch_size=4,
         num_attention_heads=ABSENT, num_hidden_layers=ABSENT),
    _row("swinv2", "vision", "Swinv2Model", pixels, sizes=BATCHES, embed_dim=16, depths=[1, 2],
         num_heads=[2, 4], window_size=2, image_size=32, patch_size=4,
         num_attention_heads=ABSENT, num_hidden_layers=ABSENT),
    _row("convnext", "vision", "ConvNextModel", pixels, sizes=BATCHES, hidden_sizes=[8, 16, 24, 32],
         depths=[1, 1, 1, 1]),
    _row("resnet", "vision", "ResNetModel", pixels, BF16, BATCHES, embedding_size=8,
         hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic"),
    _row("mobilenet_v2", "vision", "MobileNetV2Model", pixels, sizes=BATCHES,
         depth_multiplier=0.25),
    _row("efficientnet", "vision", "EfficientNetModel", pixels, sizes=(2,), image_size=32,
         width_coefficient=0.25, depth_coefficient=0.25, hidden_dim=320),
    _row("segformer", "vision", "SegformerForSemanticSegmentation", pixels, sizes=BATCHES,
         num_encoder_blocks=2, depths=[1, 1], sr_ratios=[4, 2], hidden_sizes=[8, 16],
         num_attention_heads=[1, 2], patch_sizes=[7, 3], strides=[4, 2], mlp_ratios=[2, 2],
         decoder_hidden_size=16),
    _row("poolformer", "vision", "PoolFormerModel", pixels, sizes=BATCHES, depths=[1, 1, 1, 1],
         hidden_sizes=[8, 8, 16, 16], num_encoder_blocks=4),
    _row("cvt", "vision", "CvtModel", pixels, sizes=BATCHES, embed_dim=[8, 16, 32],
         num_heads=[1, 2, 4], depth=[1, 2, 3], num_hidden_layers=ABSENT, num_attention_heads=ABSENT,
         hidden_size=ABSENT, drop_path_rate=[0.0, 0.0, 0.0]),
    _row("levit", "vision", "LevitModel", partial(pixels, side=64), sizes=BATCHES, image_size=64,
         hidden_sizes=[16, 32, 48],
         num_attention_heads=[2, 2, 2], depths=[1, 1, 1], key_dim=[8, 8, 8]),
    _row("dpt", "vision", "DPTForDepthEstimation", pixels, sizes=BATCHES, neck_hidden_sizes=[8, 8,
         16, 16],
         backbone_out_indices=[0, 1, 2, 3], fusion_hidden_size=16, **{**IMAGE,
         "num_hidden_layers": 4}),
    _row("yolos", "detection", "YolosForObjectDetection", pixels, sizes=BATCHES,
         image_size=[32, 32], patch_size=8, num_detection_tokens=5),
    _row("mae", "vision", "ViTMAEModel", lambda n: {**pixels(n), "noise": torch.rand(n, 16)},
         sizes=BATCHES, **IMAGE),
]  # fmt: skip

RESNET = transformers.ResNetConfig(
    embedding_size=8,
    hidden_sizes=[8, 8, 16, 16],
    depths=[1, 1, 1, 1],
    out_features=["stage2", "stage3", "stage4"],
)
DETECTS = {**SIDES, "num_queries": 5, "use_pretrained_backbone": False, "use_timm_backbone": False,
           "backbone": None, "num_feature_levels": 3}  # fmt: skip
DETECTION = [
    _row("detr", "detection", "DetrForObjectDetection", partial(pixels, side=64), sizes=(2, 3, 2),
         backbone_config=RESNET, **DETECTS),
    _row("conditional_detr", "detection", "ConditionalDetrForObjectDetection", partial(pixels,
         side=64),
         sizes=(2, 3, 2), backbone_config=RESNET, **DETECTS),
    _row("deformable_detr", "detection", "DeformableDetrForObjectDetection", partial(pixels,
         side=64),
         sizes=(2, 3, 2), backbone_config=RESNET, **DETECTS),
]  # fmt: skip

CONVS = {"conv_dim": [16, 16], "conv_kernel": [10, 3], "conv_stride": [5, 2],
         "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2,
         "apply_spec_augment": False, "num_feat_extract_layers": 2}  # fmt: skip
SPEECH = [
    _row("whisper", "speech", "WhisperForConditionalGeneration", whispered, LM, num_mel_bins=16,
         max_source_positions=12, max_target_positions=64, suppress_tokens=None,
         begin_suppress_tokens=None, **SIDES),
    _row("wav2vec2", "speech", "Wav2Vec2ForCTC", sound, **CONVS),
    _row("hubert", "speech", "HubertModel", sound, **CONVS),
    _row("wavlm", "speech", "WavLMModel", sound, **CONVS),
    _row("sew", "speech", "SEWModel", sound, squeeze_factor=2, **CONVS),
    _row("wav2vec2_conformer", "speech", "Wav2Vec2ConformerModel", sound, **CONVS),
    _row("speech_to_text", "speech", "Speech2TextForConditionalGeneration", spectrum,
         input_feat_per_channel=16, input_channels=1, conv_channels=16, max_source_positions=64,
         max_target_positions=64, **SIDES),
    _row("audio_spectrogram", "speech", "ASTModel",
         lambda n: {"input_values": torch.randn(n, 24, 16)}, sizes=BATCHES, patch_size=4,
         max_length=24, num_mel_bins=16, frequency_stride=4, time_stride=4),
]  # fmt: skip

_TEXT = {**COMMON}
_IMAGE = {**COMMON, **IMAGE}
MULTIMODAL = [
    _row("clip", "multimodal", "CLIPModel", captioned, text_config=_TEXT, vision_config=_IMAGE,
         projection_dim=16),
    _row("siglip", "multimodal", "SiglipModel", captioned, text_config=_TEXT, vision_config=_IMAGE),
    _row("vilt", "multimodal", "ViltModel", captioned, max_image_length=-1, **IMAGE),
    _row("blip", "multimodal", "BlipModel", captioned, text_config=_TEXT, vision_config=_IMAGE,
         projection_dim=16),
]  # fmt: skip

PRETRAINED = [*ENCODERS, *DECODERS, *SEQ2SEQ, *VISION, *DETECTION, *SPEECH, *MULTIMODAL]
