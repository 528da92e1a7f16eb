"""Multiply-accumulates against closed forms, published figures and torch's own counter."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.flop_counter import FlopCounterMode

from biprune.models import MODELS, create_model
from biprune.structured.macs import count_macs, total_macs


@pytest.mark.parametrize(
    ("layer", "shape", "macs"),
    [
        (nn.Conv1d(4, 6, 5), (4, 20), 6 * 4 * 5 * 16),
        (nn.Conv2d(3, 8, 3, padding=1), (3, 10, 12), 8 * 3 * 9 * 120),
        (nn.Conv2d(3, 8, 3, stride=2, dilation=2), (3, 11, 11), 8 * 3 * 9 * 16),
        (nn.Conv2d(6, 12, 3, groups=3), (6, 8, 8), 12 * 2 * 9 * 36),
        (nn.Conv2d(6, 6, 3, groups=6, bias=False), (6, 8, 8), 6 * 9 * 36),
        (nn.Conv3d(2, 5, 2), (2, 4, 4, 4), 5 * 2 * 8 * 27),
        (nn.ConvTranspose1d(4, 3, 4, stride=2), (4, 9), 4 * 3 * 4 * 9),
        (nn.ConvTranspose2d(4, 6, 3, stride=2, groups=2), (4, 5, 5), 4 * 3 * 9 * 25),
        (nn.Linear(7, 5), (7,), 35),
        (nn.Linear(7, 5, bias=False), (7,), 35),
        (nn.Linear(7, 5), (3, 7), 3 * 35),
        (nn.Linear(7, 5), (2, 3, 7), 6 * 35),
    ],
)
@pytest.mark.parametrize("batch", [1, 3])
def test_a_layer(layer: nn.Module, shape: tuple[int, ...], macs: int, batch: int) -> None:
    assert count_macs(layer, torch.zeros(batch, *shape)) == {"weight": macs}


def test_a_layer_of_two_inputs() -> None:
    counts = count_macs(nn.Bilinear(3, 4, 5), (torch.zeros(2, 3), torch.zeros(2, 4)))
    assert counts == {"weight": 3 * 4 * 5}


def encoder_layer(tokens: int, dim: int, hidden: int) -> dict[str, int]:
    return {
        "self_attn.in_proj_weight": tokens * dim * 3 * dim + 2 * tokens * tokens * dim,
        "self_attn.out_proj.weight": tokens * dim * dim,
        "linear1.weight": tokens * dim * hidden,
        "linear2.weight": tokens * dim * hidden,
    }


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("batch", [1, 2])
def test_encoder_layers_whose_fast_path_hides_their_parts(training: bool, batch: int) -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 20, batch_first=True).train(training)
    counts = count_macs(layer, torch.zeros(batch, 5, 8))
    assert counts == encoder_layer(5, 8, 20)
    assert layer.training == training
    assert torch.backends.mha.get_fastpath_enabled()

    encoder = nn.TransformerEncoder(layer, num_layers=2).train(training)
    expected = {f"layers.{i}.{n}": c for i in (0, 1) for n, c in counts.items()}
    assert count_macs(encoder, torch.zeros(batch, 5, 8)) == expected


def test_attention_of_unlike_inputs() -> None:
    attention = nn.MultiheadAttention(8, 2, kdim=4, vdim=6, batch_first=True)
    inputs = torch.zeros(2, 5, 8), torch.zeros(2, 7, 4), torch.zeros(2, 7, 6)
    assert count_macs(attention, inputs) == {
        "q_proj_weight": 5 * 8 * 8,
        "k_proj_weight": 7 * 4 * 8,
        "v_proj_weight": 7 * 6 * 8 + 2 * 5 * 7 * 8,
        "out_proj.weight": 5 * 8 * 8,
    }


class VisionTransformer(nn.Module):
    """Patches, a class token, pre-norm blocks with attention written by hand, a head."""

    def __init__(self, dim: int = 24, depth: int = 2, heads: int = 3) -> None:
        super().__init__()
        self.heads = heads
        self.patches = nn.Conv2d(3, dim, 4, 4)
        self.token = nn.Parameter(torch.zeros(1, 1, dim))
        self.qkv = nn.ModuleList(nn.Linear(dim, 3 * dim) for _ in range(depth))
        self.out = nn.ModuleList(nn.Linear(dim, dim) for _ in range(depth))
        self.head = nn.Linear(dim, 10)

    def forward(self, images: Tensor) -> Tensor:
        hidden = self.patches(images).flatten(2).transpose(1, 2)
        hidden = torch.cat([self.token.expand(len(images), -1, -1), hidden], dim=1)
        for qkv, out in zip(self.qkv, self.out, strict=True):
            q, k, v = qkv(hidden).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
            mixed = scaled_dot_product_attention(q, k, v)
            hidden = hidden + out(mixed.transpose(1, 2).flatten(2))
        return self.head(hidden[:, 0])


def test_vision_transformer() -> None:
    counts = count_macs(VisionTransformer(), torch.zeros(2, 3, 16, 16))
    tokens, dim = 17, 24
    block = {"qkv": tokens * dim * 3 * dim + 2 * tokens * tokens * dim, "out": tokens * dim * dim}
    assert counts == {
        "patches.weight": 16 * dim * 3 * 16,
        **{f"qkv.{i}.weight": block["qkv"] for i in (0, 1)},
        **{f"out.{i}.weight": block["out"] for i in (0, 1)},
        "head.weight": dim * 10,
    }


def test_published_figures() -> None:
    """ResNet-18 with CIFAR's stem 0.56 G, ResNet-50 on ImageNet 4.1 G; no memory is needed."""
    with torch.device("meta"):
        small = create_model("resnet18")
        large = create_model("resnet50", num_classes=1000, stem="imagenet")
        assert total_macs(small, torch.zeros(1, 3, 32, 32)) == 555_422_720
        assert total_macs(large, torch.zeros(1, 3, 224, 224)) == 4_089_184_256


@pytest.mark.parametrize("name", sorted(MODELS))
def test_registry_against_torchs_counter(name: str) -> None:
    with torch.device("meta"):
        model = create_model(name, width=8).eval()
        images = torch.zeros(2, 3, 32, 32)
    with FlopCounterMode(display=False) as counter:
        model(images)
    counts = count_macs(model, images)
    assert 2 * 2 * sum(counts.values()) == counter.get_total_flops()
    weights = [n for n, p in model.named_parameters() if p.ndim > 1]
    assert list(counts) == weights


class Shared(nn.Module):
    """Calls one layer twice, ties two, leaves one unused, and multiplies in functional code."""

    def __init__(self) -> None:
        super().__init__()
        self.twice = nn.Linear(6, 6)
        self.tied = nn.Linear(6, 6)
        self.tied.weight = self.twice.weight
        self.unused = nn.Linear(6, 6)
        self.free = nn.Parameter(torch.zeros(6, 4))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.tied(self.twice(self.twice(inputs))) @ self.free


def test_what_is_called_twice_counts_twice() -> None:
    assert count_macs(Shared(), torch.zeros(5, 6)) == {"free": 24, "twice.weight": 3 * 36}


def test_parts_of_one_storage() -> None:
    layers = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 2, bias=False))
    flat = torch.zeros(24)
    layers[0].weight.data, layers[1].weight.data = flat[:16].view(4, 4), flat[16:].view(2, 4)
    assert count_macs(layers, torch.zeros(3, 4)) == {"0.weight": 16, "1.weight": 8}


def test_names_are_the_users() -> None:
    inner = nn.Linear(4, 3)
    with_copies = nn.DataParallel(nn.Sequential(inner))
    assert count_macs(with_copies, torch.zeros(2, 4)) == {"0.weight": 12}


class Restless(nn.Module):
    """Counts its calls in a buffer and draws from every generator, in eval mode too."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.Dropout())
        self.calls: Tensor
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("seen", torch.zeros(3))

    def forward(self, images: Tensor) -> Tensor:
        self.calls += 1
        self.seen = images.mean(dim=(0, 2, 3)) + random.random() + np.random.rand()
        return self.layers(images + torch.rand_like(images))


def test_nothing_is_left_behind(same_state: Callable[[nn.Module, nn.Module], bool]) -> None:
    model = Restless()
    model.layers[1].eval()
    seen: list[int] = []
    model.layers[0].register_forward_hook(lambda *_: seen.append(1))
    twin = Restless()
    twin.load_state_dict(model.state_dict())
    modes = [module.training for module in model.modules()]
    drawn = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    seen_buffer = model.seen

    assert count_macs(model, torch.ones(2, 3, 4, 4)) == {"layers.0.weight": 4 * 3 * 16}

    assert same_state(model, twin)
    assert model.seen is seen_buffer
    assert [module.training for module in model.modules()] == modes
    assert torch.equal(torch.get_rng_state(), drawn[0])
    assert (random.getstate(), np.random.get_state()[1].tolist()) == drawn[1:]
    assert seen == [1]
    assert len(model.layers[0]._forward_hooks) == 1
    assert all(not module._forward_pre_hooks for module in model.modules())
    assert torch.is_grad_enabled()


def test_it_puts_things_back_when_the_model_fails() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(4, 4))
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        count_macs(model, torch.zeros(2, 3))
    assert model.training
    assert torch.backends.mha.get_fastpath_enabled()


def test_inference_tensors() -> None:
    with torch.inference_mode():
        layers, inputs = nn.Sequential(nn.Conv1d(2, 3, 1), nn.Linear(5, 4)), torch.zeros(2, 2, 5)
    assert count_macs(layers, inputs) == {"0.weight": 30, "1.weight": 60}


@pytest.mark.parametrize("wrong", [torch.zeros(()), torch.zeros(0, 3), (), ("images",)])
def test_an_input_without_samples_is_refused(wrong: object) -> None:
    with pytest.raises(ValueError, match="`example_input` must be a batch of samples"):
        count_macs(nn.Linear(3, 3), wrong)  # pyright: ignore[reportArgumentType]
