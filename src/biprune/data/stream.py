"""Images too many for memory: decoded by `DataLoader` workers, augmented a batch at a time."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler
from torch.utils.data import Dataset as TorchDataset

from biprune.data.augmentation import Transform
from biprune.data.base import Batch
from biprune.data.decoding import Decoder, open_rgb


@dataclass(frozen=True, eq=False)
class DiskImages:
    """Image files and their int64 labels [N].

    `decode` gives the pixels of val and test, and of training without augmentation;
    `decode_augmented` those of training. The batched transform follows.
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
        """Batches of the images at `indices`, read again at every iteration."""
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
            # A loader without its own generator takes the workers' seed from the global RNG: right
            # for training, but reading val or test must not move that RNG.
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
            if self.augment:
                pixels = self.transform.augment(pixels)
            yield self.transform.normalise(pixels), labels


class _DecodedBatches(TorchDataset["tuple[Tensor, Tensor] | str"]):
    """Maps a list of indices to uint8 pixels [B, 3, H, W] and labels.

    An unreadable image gives its message instead, because an exception raised in a worker arrives
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
            pixels = np.stack([self.decode(open_rgb(self.paths[index])) for index in indices])
        except ValueError as error:
            return str(error)
        return torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous(), self.labels[indices]
