"""A small net whose sizes are counted by hand, and a clock that a test sets."""

from __future__ import annotations

import torch
from torch import nn

from biprune.core.masks import Masks
from biprune.core.structure import get_structure

INPUTS = torch.zeros(2, 1, 8, 8)
WEIGHTS, BIASES = 64 * 32 + 32 * 10, 42  # of the perceptron


def perceptron(zeros: float = 0.0) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)).eval()
    with torch.no_grad():
        for layer in (model[1], model[3]):
            layer.weight[torch.rand_like(layer.weight) < zeros] = 0.0
    return model


def masks_of(model: nn.Module) -> Masks:
    weights = {n: p != 0 for n, p in model.named_parameters() if p.ndim > 1}
    return Masks(weights, get_structure("weight"))


class Clock:
    """Stands still, but for what is put on it."""

    now = 0.0
