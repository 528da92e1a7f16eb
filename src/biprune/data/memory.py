"""Images that fit in memory: a batch is one gather and a few tensor operations."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from biprune.data.augmentation import Transform
from biprune.data.base import Batch


@dataclass(frozen=True, eq=False)
class MemoryImages:
    """uint8 pixels [N, C, H, W] and int64 labels [N]."""

    pixels: Tensor
    labels: Tensor
    transform: Transform

    def batches(
        self, indices: Tensor, *, batch_size: int, shuffle: bool, augment: bool
    ) -> "MemoryBatches":
        """Batches of the images at `indices`; the pixels are shared, not copied."""
        return MemoryBatches(self, indices, batch_size, shuffle, augment)


@dataclass(frozen=True, eq=False)
class MemoryBatches:
    """Batches gathered from `MemoryImages`, the last one possibly smaller."""

    images: MemoryImages
    indices: Tensor
    batch_size: int
    shuffle: bool
    augment: bool

    def __len__(self) -> int:
        return math.ceil(len(self.indices) / self.batch_size)

    def __iter__(self) -> Iterator[Batch]:
        order = self.indices
        if self.shuffle:
            order = order[torch.randperm(len(order))]
        transform = self.images.transform
        for chosen in order.split(self.batch_size):
            pixels = self.images.pixels[chosen]
            if self.augment:
                pixels = transform.augment(pixels)
            yield transform.normalise(pixels), self.images.labels[chosen]
