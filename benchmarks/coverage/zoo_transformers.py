"""transformers: tiny configurations with random weights; nothing is downloaded.

Text models get their noise on the embeddings, since token numbers cannot carry any.
"""

from __future__ import annotations

from typing import Any

import torch
import transformers as tf
from measure import NOISE_VAR, Case, Setup
from torch import nn

SMALL = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
}
TEXT = {"vocab_size": 64, **SMALL}
VISION = {"image_size": 32, "patch_size": 8, **SMALL}
STAGED = {"image_size": 64, "depths": [1, 1, 1, 1], "hidden_sizes": [8, 16, 24, 32]}
SPEECH = {
    **SMALL,
    "conv_dim": (16, 16),
    "conv_stride": (5, 2),
    "conv_kernel": (10, 3),
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4,
}
SERIES = {
    "num_input_channels": 2,
    "context_length": 32,
    "d_model": 16,
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
    "ffn_dim": 32,
}


def _made(config: str, model: str, options: dict[str, Any]) -> nn.Module:
    return getattr(tf, model)(getattr(tf, config)(**options))


def _text(family: str, config: str, model: str, further: bool = False, **options: Any) -> Case:
    def build() -> Setup:
        made = _made(config, model, options or TEXT)
        return _noise_on("inputs_embeds", torch.randn(1, 6, 32), made)

    return Case("transformers", family, model, build, further)


def _vision(family: str, config: str, model: str, further: bool = False, **options: Any) -> Case:
    size = options.get("image_size", 32)

    def build() -> Setup:
        made = _made(config, model, options)
        return _noise_on("pixel_values", torch.randn(1, 3, size, size), made)

    return Case("transformers", family, model, build, further)


def _speech(family: str, config: str, model: str, further: bool = False) -> Case:
    def build() -> Setup:
        return _noise_on("input_values", torch.randn(1, 800), _made(config, model, SPEECH))

    return Case("transformers", family, model, build, further)


def _noise_on(argument: str, x: torch.Tensor, model: nn.Module) -> Setup:
    settings = getattr(model, "config", None)
    if getattr(settings, "use_cache", None):
        settings.use_cache = False
    return Setup(model, {argument: x}, {argument: NOISE_VAR})


def _whisper() -> Case:
    options = {
        "d_model": 32,
        "encoder_layers": 2,
        "encoder_attention_heads": 4,
        "encoder_ffn_dim": 64,
        "num_mel_bins": 8,
        "max_source_positions": 16,
        "vocab_size": 64,
    }

    def build() -> Setup:
        config = tf.WhisperConfig(**options, pad_token_id=0)
        encoder = tf.models.whisper.modeling_whisper.WhisperEncoder(config)
        return _noise_on("input_features", torch.randn(1, 8, 32), encoder)

    return Case("transformers", "whisper", "WhisperEncoder", build)


def _series(family: str, config: str, model: str, further: bool = False, **options: Any) -> Case:
    def build() -> Setup:
        made = _made(config, model, options or SERIES)
        length = made.config.context_length
        return _noise_on("past_values", torch.randn(1, length, 2), made)

    return Case("transformers", family, model, build, further)


def cases() -> list[Case]:
    """The 13 models, then the further ones."""
    gpt2 = {"vocab_size": 64, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 32}
    t5 = {"vocab_size": 64, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}
    stages = {"embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "window_size": 2}
    segformer = {**STAGED, "num_attention_heads": [1, 2, 2, 4], "decoder_hidden_size": 32}
    resnet = {**STAGED, "embedding_size": 16, "layer_type": "bottleneck"}
    distilbert = {"vocab_size": 64, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64}
    mamba = {"vocab_size": 64, "hidden_size": 32, "state_size": 4, "num_hidden_layers": 2}
    dpt = {
        **VISION,
        "num_hidden_layers": 4,
        "backbone_out_indices": [0, 1, 2, 3],
        "neck_hidden_sizes": [8, 16, 24, 32],
        "fusion_hidden_size": 16,
    }
    mixer = {"num_input_channels": 2, "context_length": 32, "patch_length": 8, "d_model": 16}
    return [
        _text("bert", "BertConfig", "BertModel"),
        _text("gpt2", "GPT2Config", "GPT2Model", **gpt2),
        _text("llama", "LlamaConfig", "LlamaModel"),
        _vision("vit", "ViTConfig", "ViTModel", **VISION),
        _vision("swin", "SwinConfig", "SwinModel", image_size=32, patch_size=4, **stages),
        _vision("segformer", "SegformerConfig", "SegformerForSemanticSegmentation", **segformer),
        _vision("convnext", "ConvNextConfig", "ConvNextModel", **STAGED),
        _vision("clip", "CLIPVisionConfig", "CLIPVisionModel", **VISION),
        _speech("wav2vec2", "Wav2Vec2Config", "Wav2Vec2Model"),
        _whisper(),
        _text("t5", "T5Config", "T5EncoderModel", **t5),
        _vision("resnet", "ResNetConfig", "ResNetForImageClassification", **resnet),
        _series("patchtst", "PatchTSTConfig", "PatchTSTForPrediction"),
        _text("roberta", "RobertaConfig", "RobertaModel", True),
        _text("distilbert", "DistilBertConfig", "DistilBertModel", True, **distilbert),
        _text("deberta_v2", "DebertaV2Config", "DebertaV2Model", True),
        _text("mistral", "MistralConfig", "MistralModel", True, **TEXT, num_key_value_heads=2),
        _text("gpt_neox", "GPTNeoXConfig", "GPTNeoXModel", True),
        _text("mamba", "MambaConfig", "MambaModel", True, **mamba),
        _vision("dinov2", "Dinov2Config", "Dinov2Model", True, **VISION),
        _vision("beit", "BeitConfig", "BeitModel", True, **VISION),
        _vision("mobilevit", "MobileViTConfig", "MobileViTModel", True, image_size=64),
        _vision("dpt", "DPTConfig", "DPTForSemanticSegmentation", True, **dpt),
        _speech("hubert", "HubertConfig", "HubertModel", True),
        _series("patchtsmixer", "PatchTSMixerConfig", "PatchTSMixerForPrediction", True, **mixer),
    ]
