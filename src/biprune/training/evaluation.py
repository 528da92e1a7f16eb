"""Top-1 accuracy of a model on batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from biprune.training.batches import device_of, logits_of


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Eval mode for every submodule, each put back as it was."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training


@torch.no_grad()
def accuracy(model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]]) -> float:
    """Percentage of samples whose largest logit is the label's."""
    device = device_of(model)
    correct, total = 0, 0
    with evaluation_mode(model):
        for inputs, labels in batches:
            predicted = logits_of(model(inputs.to(device))).argmax(dim=1)
            correct += int((predicted == labels.to(device)).sum())
            total += len(labels)
    if total == 0:
        raise ValueError("There are no samples to evaluate on: the loader is empty.")
    return 100.0 * correct / total
