"""Random weights and statistics, so that no mistake hides behind a weight that is zero."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


@torch.no_grad()
def randomize_(model: nn.Module, seed: int) -> None:
    """Weights that keep signals near one, whatever the depth, and statistics of no batch."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        if not parameter.is_floating_point():
            continue
        drawn = torch.randn(parameter.shape, generator=generator)
        if parameter.ndim >= 2:
            parameter.copy_(drawn * math.sqrt(2 / max(1, math.prod(parameter.shape[1:]))))
        else:
            parameter.copy_(drawn * 0.3)
    for module in model.modules():
        norm = hasattr(module, "eps") and isinstance(getattr(module, "weight", None), Tensor)
        names = ["running_var"] + ["weight"] * norm
        for values in (getattr(module, name, None) for name in names):
            if isinstance(values, Tensor):
                values.copy_(torch.rand(values.shape, generator=generator) + 0.5)
        if isinstance(mean := getattr(module, "running_mean", None), Tensor):
            mean.copy_(torch.randn(mean.shape, generator=generator) * 0.3)
