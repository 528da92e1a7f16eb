"""No trainer asks a hub for anything; what several of them train on."""

from __future__ import annotations

import os

import pytest
import torch
from torch import Tensor

os.environ["HF_HUB_OFFLINE"] = "1"  # read when the libraries are imported


@pytest.fixture
def samples(batches: list[tuple[Tensor, Tensor]]) -> list[dict[str, Tensor]]:
    """32 of them."""
    images, labels = (torch.cat(each) for each in zip(*batches, strict=True))
    return [{"images": i, "labels": c} for i, c in zip(images, labels, strict=True)]
