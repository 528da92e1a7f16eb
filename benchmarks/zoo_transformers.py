"""Transformers, state spaces and mixtures of experts: small configs of real classes, no weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

VOCABULARY, LENGTH, WIDTH = 100, 12, 64
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 4 * WIDTH,
}
MARKS: dict[str, Any] = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
SEEN = {name: value for name, value in SIZES.items() if name != "vocab_size"}
PATCHES: dict[str, Any] = {"image_size": 32, "patch_size": 8}
Made = tuple[nn.Module, Any]


def tokens(length: int = LENGTH, seed: int = 0) -> Tensor:
    return torch.randint(3, VOCABULARY, (4, length), generator=torch.Generator().manual_seed(seed))


def floats(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(4, *shape, generator=torch.Generator().manual_seed(seed))


def image() -> Tensor:
    return floats(3, 32, 32)


def text(model: str, config: str = "", **options: Any) -> Callable[[Any], Made]:
    """A model of tokens, by the names of its class and of its config's."""

    def build(t: Any) -> Made:
        named = getattr(t, config or model.partition("For")[0].removesuffix("Model") + "Config")
        return getattr(t, model)(named(**{**SIZES, **MARKS, **options})), tokens()

    return build


def seen(model: str, config: str = "", **options: Any) -> Callable[[Any], Made]:
    """A model of images."""

    def build(t: Any) -> Made:
        named = getattr(t, config or model.partition("For")[0].removesuffix("Model") + "Config")
        return getattr(t, model)(named(**{**SEEN, **PATCHES, **options})), image()

    return build


def gpt2(t: Any) -> Made:
    config = t.GPT2Config(vocab_size=VOCABULARY, n_embd=WIDTH, n_layer=2, n_head=4, **MARKS)
    return t.GPT2LMHeadModel(config), tokens()


def gpt2_classifier(t: Any) -> Made:
    config = t.GPT2Config(
        vocab_size=VOCABULARY, n_embd=WIDTH, n_layer=2, n_head=4, num_labels=10, **MARKS
    )
    return t.GPT2ForSequenceClassification(config), tokens()


def t5(t: Any) -> Made:
    config = t.T5Config(
        vocab_size=VOCABULARY, d_model=WIDTH, d_kv=16, d_ff=4 * WIDTH, num_layers=2, num_heads=4
    )
    model = t.T5ForConditionalGeneration(config)
    return model, {"input_ids": tokens(), "decoder_input_ids": tokens(seed=1)}


def translator(model: str, **options: Any) -> Callable[[Any], Made]:
    """An encoder and a decoder of tokens, in the manner of BART."""

    def build(t: Any) -> Made:
        config = getattr(t, model.partition("For")[0].removesuffix("MTModel") + "Config")
        sizes = {
            "vocab_size": VOCABULARY,
            "d_model": WIDTH,
            "max_position_embeddings": 64,
            **{f"{side}_layers": 2 for side in ("encoder", "decoder")},
            **{f"{side}_attention_heads": 4 for side in ("encoder", "decoder")},
            **{f"{side}_ffn_dim": 4 * WIDTH for side in ("encoder", "decoder")},
            "decoder_start_token_id": 2,
        }
        made = getattr(t, model)(config(**{**sizes, **MARKS, **options}))
        return made, {"input_ids": tokens(), "decoder_input_ids": tokens(seed=1)}

    return build


def whisper(t: Any) -> Made:
    config = t.WhisperConfig(
        vocab_size=VOCABULARY,
        d_model=WIDTH,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=4 * WIDTH,
        decoder_ffn_dim=4 * WIDTH,
        num_mel_bins=16,
        max_source_positions=20,
        max_target_positions=20,
        decoder_start_token_id=1,
        **MARKS,
    )
    inputs = {"input_features": floats(16, 40), "decoder_input_ids": tokens()}
    return t.WhisperForConditionalGeneration(config), inputs


def speech(model: str, **options: Any) -> Callable[[Any], Made]:
    """A model of sound waves."""

    def build(t: Any) -> Made:
        sizes = {
            "conv_dim": (32, 32, 32),
            "conv_kernel": (10, 3, 2),
            "conv_stride": (5, 2, 2),
            "num_feat_extract_layers": 3,
            "num_conv_pos_embeddings": 16,
            "num_conv_pos_embedding_groups": 4,
        }
        named = getattr(t, model.partition("For")[0].removesuffix("Model") + "Config")
        return getattr(t, model)(named(**{**SIZES, **sizes, **options})), floats(800)

    return build


def spectrogram(t: Any) -> Made:
    config = t.ASTConfig(
        **SEEN, patch_size=8, max_length=32, num_mel_bins=16, frequency_stride=8, time_stride=8
    )
    return t.ASTForAudioClassification(config), floats(32, 16)


def clip(t: Any) -> Made:
    part = {**SEEN, "projection_dim": 32}
    config = t.CLIPConfig(
        text_config={**part, "vocab_size": VOCABULARY, "max_position_embeddings": 16, **MARKS},
        vision_config={**part, **PATCHES},
        projection_dim=32,
    )
    return t.CLIPModel(config), {"input_ids": tokens(), "pixel_values": image()}


def segformer(t: Any) -> Made:
    config = t.SegformerConfig(
        depths=[1] * 4,
        hidden_sizes=[16, 32, 48, 64],
        num_attention_heads=[1, 2, 3, 4],
        decoder_hidden_size=64,
    )
    return t.SegformerForSemanticSegmentation(config), floats(3, 64, 64)


def detr(t: Any) -> Made:
    config = t.YolosConfig(
        **{**SEEN, "image_size": [32, 32], "patch_size": 8}, num_detection_tokens=8, num_labels=10
    )
    return t.YolosForObjectDetection(config), image()


def mamba2(t: Any) -> Made:
    config = t.Mamba2Config(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        num_hidden_layers=2,
        state_size=8,
        num_heads=8,
        head_dim=16,
        n_groups=2,
        chunk_size=4,
        **MARKS,
    )
    return t.Mamba2ForCausalLM(config), tokens()


def experts(model: str, **options: Any) -> Callable[[Any], Made]:
    """A decoder of which four experts share the inner layers.

    As batched products, which run in float64 and at any width, and which ONNX knows.
    """
    shared = {"num_key_value_heads": 2, "num_experts_per_tok": 2}
    return text(model, **shared, experts_implementation="batched_mm", **options)


# The first eleven are those of the first zoo.
TRANSFORMERS: dict[str, Callable[[Any], Made]] = {
    "bert": text("BertForSequenceClassification"),
    "roberta": text("RobertaForSequenceClassification"),
    "distilbert": text(
        "DistilBertForSequenceClassification",
        "DistilBertConfig",
        dim=WIDTH,
        n_layers=2,
        n_heads=4,
        hidden_dim=4 * WIDTH,
    ),
    "gpt2": gpt2,
    "gpt2-classifier": gpt2_classifier,
    "llama": text("LlamaForCausalLM", num_key_value_heads=2),
    "mistral": text("MistralForCausalLM", num_key_value_heads=2),
    "t5": t5,
    "vit": seen("ViTForImageClassification"),
    "whisper": whisper,
    "mamba": text("MambaForCausalLM", state_size=8),
    "albert": text("AlbertForSequenceClassification", embedding_size=32),
    "electra": text("ElectraForSequenceClassification", embedding_size=32),
    "deberta-v2": text(
        "DebertaV2ForSequenceClassification",
        relative_attention=True,
        pos_att_type=["p2c", "c2p"],
        position_buckets=8,
        max_relative_positions=16,
    ),
    "mpnet": text("MPNetForSequenceClassification", "MPNetConfig"),
    "opt": text("OPTForCausalLM", "OPTConfig", ffn_dim=4 * WIDTH, word_embed_proj_dim=WIDTH),
    "gpt-neox": text("GPTNeoXForCausalLM"),
    "bloom": text("BloomForCausalLM", n_layer=2, n_head=4),
    "falcon": text("FalconForCausalLM"),
    "phi": text("PhiForCausalLM"),
    "qwen3": text("Qwen3ForCausalLM", num_key_value_heads=2, head_dim=16),
    "gemma2": text("Gemma2ForCausalLM", num_key_value_heads=2, head_dim=16),
    "mixtral": experts("MixtralForCausalLM", num_local_experts=4),
    "qwen2-moe": experts(
        "Qwen2MoeForCausalLM",
        num_experts=4,
        moe_intermediate_size=64,
        shared_expert_intermediate_size=128,
    ),
    "bart": translator("BartForConditionalGeneration"),
    "marian": translator("MarianMTModel"),
    "pegasus": translator("PegasusForConditionalGeneration"),
    "mamba2": mamba2,
    "dinov2": seen("Dinov2ForImageClassification", mlp_ratio=4),
    "beit": seen("BeitForImageClassification"),
    "segformer": segformer,
    "yolos": detr,
    "clip": clip,
    "wav2vec2": speech("Wav2Vec2ForSequenceClassification"),
    "hubert": speech("HubertForSequenceClassification"),
    "audio-spectrogram": spectrogram,
}
