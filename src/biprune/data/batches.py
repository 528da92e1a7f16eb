"""From uint8 images, in memory or on disk, to normalised batches."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad as pad_edges
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler
from torch.utils.data import Dataset as TorchDataset

from biprune.data.dataset import Batch

# From the path of an image file to its uint8 pixels [size, size, 3].
Decoder = Callable[[str], NDArray[np.uint8]]


@dataclass(frozen=True)
class Transform:
    """From uint8 pixels to what a network sees.

    `mean` and `std` are per channel, for pixels scaled to [0, 1]. Images are cropped before they
    are normalised, so the padding is black.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    pad: int
    flips: bool

    def __call__(self, pixels: Tensor, *, augment: bool) -> Tensor:
        """Augment if asked to, then normalise."""
        return self.normalise(self.augment(pixels) if augment else pixels)

    def augment(self, pixels: Tensor) -> Tensor:
        """Crop at random, and flip half of the images if `flips`; draws from torch's global RNG."""
        top, left = torch.randint(2 * self.pad + 1, (2, len(pixels)))
        flipped = torch.rand(len(pixels)) < (0.5 if self.flips else 0.0)
        return crop_and_flip(pixels, top, left, flipped, self.pad)

    def normalise(self, pixels: Tensor) -> Tensor:
        """(pixels / 255 - mean) / std, in float32."""
        mean = torch.tensor(self.mean)[:, None, None]
        std = torch.tensor(self.std)[:, None, None]
        return pixels.float().sub_(255 * mean).div_(255 * std)


def crop_and_flip(pixels: Tensor, top: Tensor, left: Tensor, flipped: Tensor, pad: int) -> Tensor:
    """Pad each image with black, cut a window of the old size out of it, and mirror some.

    Args:
        pixels: [B, C, H, W].
        top: Each window's first row in the padded image, int64 [B], in [0, 2 * pad]. `pad` itself
            leaves the image where it was.
        left: The same for columns.
        flipped: Which images to mirror, bool [B].
        pad: Black pixels added on every side.
    """
    height, width = pixels.shape[2:]
    padded = pad_edges(pixels, (pad, pad, pad, pad))
    windows = padded.unfold(2, height, 1).unfold(3, width, 1)
    crops = windows[torch.arange(len(pixels)), :, top, left]
    return torch.where(flipped[:, None, None, None], crops.flip(3), crops)


@dataclass(frozen=True, eq=False)
class MemoryImages:
    """Images in memory: uint8 pixels [N, C, H, W] and int64 labels [N]."""

    pixels: Tensor
    labels: Tensor
    transform: Transform

    def batches(
        self, indices: Tensor, *, batch_size: int, shuffle: bool, augment: bool
    ) -> "MemoryBatches":
        """Batches of the images at `indices`; they share the pixels."""
        return MemoryBatches(self, indices, batch_size, shuffle, augment)


@dataclass(frozen=True, eq=False)
class MemoryBatches:
    """Batches gathered from `MemoryImages`; the last one may be smaller."""

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
        images = self.images
        for chosen in order.split(self.batch_size):
            pixels = images.transform(images.pixels[chosen], augment=self.augment)
            yield pixels, images.labels[chosen]


@dataclass(frozen=True, eq=False)
class DiskImages:
    """Image files, decoded again for every epoch, and their int64 labels [N].

    `decode_augmented` reads the training images if they are augmented, and `decode` all others.
    The transform then works on whole batches.
    """

    paths: tuple[str, ...]
    labels: Tensor
    decode: Decoder
    decode_augmented: Decoder
    transform: Transform
    workers: int

    def batches(
        self, indices: Tensor, *, batch_size: int, shuffle: bool, augment: bool
    ) -> "DiskBatches":
        """Batches of the images at `indices`, decoded by `workers` processes."""
        decoded = _DecodedBatches(
            tuple(self.paths[index] for index in indices.tolist()),
            self.labels[indices],
            self.decode_augmented if augment else self.decode,
        )
        sampler = RandomSampler(decoded) if shuffle else SequentialSampler(decoded)
        loader = DataLoader(
            decoded,
            batch_size=None,
            sampler=BatchSampler(sampler, batch_size, drop_last=False),
            num_workers=self.workers,
            # A loader without its own generator seeds its workers from the global RNG. That is
            # right for training, but reading val or test must not change that RNG.
            generator=None if shuffle else torch.Generator(),
        )
        return DiskBatches(loader, self.transform, augment)


@dataclass(frozen=True, eq=False)
class DiskBatches:
    """Batches from a `DataLoader` that yields uint8 pixels, or the message of a read error."""

    loader: "DataLoader[tuple[Tensor, Tensor] | str]"
    transform: Transform
    augment: bool

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Batch]:
        for batch in self.loader:
            if isinstance(batch, str):
                raise ValueError(batch)
            pixels, labels = batch
            yield self.transform(pixels, augment=self.augment), labels


class _DecodedBatches(TorchDataset["tuple[Tensor, Tensor] | str"]):
    """Maps a list of indices to uint8 pixels [B, 3, H, W] and labels.

    An unreadable image gives its message instead, because an exception from a worker would arrive
    wrapped in that worker's traceback.
    """

    def __init__(self, paths: tuple[str, ...], labels: Tensor, decode: Decoder) -> None:
        self.paths = paths
        self.labels = labels
        self.decode = decode

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, indices: list[int]) -> tuple[Tensor, Tensor] | str:
        try:
            pixels = np.stack([self.decode(self.paths[index]) for index in indices])
        except ValueError as error:
            return str(error)
        return torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous(), self.labels[indices]
