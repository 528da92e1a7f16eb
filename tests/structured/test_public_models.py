"""A slice of public architectures, where their packages are installed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from biprune.structured.find import find_groups
from biprune.structured.removing import zero_
from biprune.structured.shrink import shrink

SMALL: dict[str, Any] = {
    "vocab_size": 100,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
}


def tokens() -> torch.Tensor:
    return torch.randint(3, 100, (2, 12), generator=torch.Generator().manual_seed(0))


def images(size: int) -> torch.Tensor:
    return torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(0))


def bert(t: Any) -> tuple[nn.Module, Any]:
    return t.BertForSequenceClassification(t.BertConfig(**SMALL)), tokens()


def gpt2(t: Any) -> tuple[nn.Module, Any]:
    config = t.GPT2Config(
        vocab_size=100, n_embd=64, n_layer=2, n_head=4, bos_token_id=1, eos_token_id=2
    )
    return t.GPT2LMHeadModel(config), tokens()


def llama(t: Any) -> tuple[nn.Module, Any]:
    return t.LlamaForCausalLM(t.LlamaConfig(**SMALL, num_key_value_heads=2)), tokens()


def t5(t: Any) -> tuple[nn.Module, Any]:
    config = t.T5Config(vocab_size=100, d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4)
    both = {"input_ids": tokens(), "decoder_input_ids": tokens()}
    return t.T5ForConditionalGeneration(config), both


def vit(t: Any) -> tuple[nn.Module, Any]:
    sizes = {"image_size": 32, "patch_size": 8}
    config = t.ViTConfig(**{k: v for k, v in SMALL.items() if k != "vocab_size"}, **sizes)
    return t.ViTForImageClassification(config), images(32)


def mamba(t: Any) -> tuple[nn.Module, Any]:
    config = t.MambaConfig(
        vocab_size=100,
        hidden_size=64,
        num_hidden_layers=1,
        state_size=8,
        bos_token_id=1,
        eos_token_id=2,
    )
    return t.MambaForCausalLM(config), tokens()


# How many groups and units there are, and what is left of the model if half of them go.
TRANSFORMERS: dict[str, tuple[Callable[[Any], tuple[nn.Module, Any]], int, int, str]] = {
    "bert": (bert, 5, 328, "module"),
    "gpt2": (gpt2, 4, 520, "module"),
    "llama": (llama, 4, 260, "module"),
    "t5": (t5, 9, 532, "graph"),
    "vit": (vit, 4, 264, "module"),
    "mamba": (mamba, 3, 140, "module"),
}
TIMM = {"vit_tiny_patch16_224": 24, "levit_128s": 28, "ghostnet_050": 31}


def halved(model: nn.Module, example: Any) -> tuple[Any, Any]:
    found = find_groups(model, example)
    keep = {group.name: torch.arange(group.size) % 2 == 0 for group in found.groups}
    zero_(model, found.groups, keep)
    return found, shrink(model, found, example).certificate


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", TRANSFORMERS)
def test_transformers(name: str) -> None:
    package = pytest.importorskip("transformers")
    build, groups, units, form = TRANSFORMERS[name]
    torch.manual_seed(0)
    found, certificate = halved(*build(package))
    assert (len(found.groups), sum(group.size for group in found.groups)) == (groups, units)
    assert certificate.form == form
    assert certificate.max_error < 1e-12
    assert certificate.after.parameters < 0.75 * certificate.before.parameters


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", TIMM)
def test_timm(name: str) -> None:
    package = pytest.importorskip("timm", exc_type=ImportError)
    torch.manual_seed(0)
    model = package.create_model(name, num_classes=10)
    found, certificate = halved(model, images(224))
    assert len(found.groups) == TIMM[name]
    assert certificate.max_error < 1e-12
