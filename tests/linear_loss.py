"""A model whose loss is linear in its weights, so that what a step does can be written down."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def linear_problem(theta: list[float], inputs: list[float]) -> tuple[nn.Module, Tensor]:
    """A model of one weight vector w with loss c.w, so that g is c whatever w is."""
    model = nn.Linear(len(theta), 1, bias=False).double()
    with torch.no_grad():
        model.weight.copy_(torch.tensor([theta], dtype=torch.float64))
    return model, torch.tensor([inputs], dtype=torch.float64)


def backward(model: nn.Module, inputs: Tensor) -> None:
    model.zero_grad()
    model(inputs).sum().backward()
