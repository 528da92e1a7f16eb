"""Hugging Face's transformers at half their multiply-adds: heads, MLPs, certificate, files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import biprune
from biprune.structured.macs import total_macs

transformers = pytest.importorskip("transformers")
SIZES = {"hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 64}
LAYERS = {"num_hidden_layers": 2, "vocab_size": 60}


def vit() -> nn.Module:
    config = transformers.ViTConfig(
        **SIZES, num_hidden_layers=2, image_size=16, patch_size=4, num_labels=5
    )
    return transformers.ViTForImageClassification(config)


def bert() -> nn.Module:
    config = transformers.BertConfig(**SIZES, **LAYERS, max_position_embeddings=24)
    return transformers.BertForSequenceClassification(config)


def gpt2() -> nn.Module:
    """Fused q, k, v in a `Conv1D`."""
    config = transformers.GPT2Config(n_embd=32, n_head=4, n_layer=2, vocab_size=60, n_positions=24)
    return transformers.GPT2LMHeadModel(config)


def llama() -> nn.Module:
    """Rotary, and two queries to a key and value."""
    config = transformers.LlamaConfig(**SIZES, **LAYERS, num_key_value_heads=2)
    return transformers.LlamaForCausalLM(config)


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int]] = {
    "vit": (vit, (3, 16, 16), 0),  # how to build it, an input, how many words there are
    "bert": (bert, (12,), 60),
    "gpt2": (gpt2, (12,), 60),
    "llama": (llama, (12,), 60),
}


def loss_of(model: nn.Module, batch: Any) -> Tensor:
    return model(batch).logits.float().square().mean()


@pytest.mark.parametrize("method", ["magnitude", "bip-plus"])
@pytest.mark.parametrize("name", MODELS)
def test_half_of_the_multiply_adds_go(name: str, method: str, tmp_path: Path) -> None:
    build, shape, words = MODELS[name]
    model = build().eval()
    drawn = (2, 4, *shape)
    batches = list(torch.randint(words, drawn) if words else torch.randn(drawn))
    inputs = batches[0]
    how: dict[str, Any] = {"structure": "group", "budget": {"macs": 0.5}, "example_input": inputs}
    ticket = biprune.prune(model, batches, method, **how, epochs=1, loss=loss_of)

    before = total_macs(model, inputs)
    small = ticket.shrink(inputs)
    assert 0.4 * before < total_macs(small, inputs) <= 0.5 * before
    attention = [name for name in ticket.masks if "att" in name and "weight" in name]
    assert any(not ticket.masks[name].all() for name in attention)
    assert small.certificate.form == "module"  # pyright: ignore[reportAttributeAccessIssue]

    fresh = torch.randint(words, drawn[1:]) if words else torch.randn(drawn[1:])
    with torch.no_grad():
        expected, found = ticket.model(fresh).logits, small(fresh).logits
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
        again = biprune.load_small(biprune.save_small(small, tmp_path / "small"), model=build())
        assert torch.equal(again(fresh).logits, found)


def test_what_cannot_go_is_listed() -> None:
    model, inputs = llama().eval(), torch.randint(60, (4, 12))
    how: dict[str, Any] = {"structure": "group", "example_input": inputs, "loss": loss_of}
    with pytest.raises(ValueError, match=r"(?s)Left out: .*embed_tokens"):
        biprune.prune(model, [inputs], "magnitude", budget={"macs": 0.01}, epochs=1, **how)
