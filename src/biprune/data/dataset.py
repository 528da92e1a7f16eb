"""What a data set is: batches for training, validation and testing, split by seed."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

if TYPE_CHECKING:
    from biprune.data.batches import DiskImages, MemoryImages

Batch = tuple[Tensor, Tensor]


class Batches(Protocol):
    """A re-iterable of (x, y): x float32 [B, C, H, W], normalised; y int64 [B]."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Batch]: ...


@dataclass(frozen=True, eq=False)
class Dataset:
    """Normalised batches of one data set, as `load_data` returns them.

    Attributes:
        train: Shuffled anew at every iteration, and augmented. Both draw from torch's global RNG,
            as `DataLoader(shuffle=True)` does, so the caller decides the batches by seeding it.
        val: In a fixed order, complete and not augmented; None if `val_fraction` was 0.
        test: In a fixed order, complete and not augmented.
        options: `load_data(**options)` loads the same data again. They can be written as JSON.
            `download` is not among them, because only a person can agree to a download.
    """

    name: str
    num_classes: int
    in_channels: int
    image_size: int
    train: Batches = field(repr=False)
    val: Batches | None = field(repr=False)
    test: Batches = field(repr=False)
    options: dict[str, Any]


@dataclass(frozen=True, eq=False)
class Source:
    """The images of a data set, before the validation images are cut from `train`."""

    train: "MemoryImages | DiskImages"
    test: "MemoryImages | DiskImages"
    num_classes: int
    in_channels: int
    image_size: int


@dataclass(frozen=True)
class Request:
    """The arguments of `load_data` that concern reading the files."""

    root: Path
    seed: int
    image_size: int | None
    workers: int
    download: bool
    verify: bool


@dataclass(frozen=True)
class DataEntry:
    """One row of `DATASETS`; the caller chooses the image size where `image_size` is None."""

    description: str
    load: Callable[[Request], Source]
    files: str
    image_size: int | None
    batch_size: int = 64


@contextmanager
def needs_extra() -> Iterator[None]:
    """Say how to install a package that only some data sets need, if importing it fails within."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"This data needs {error.name}, which is not installed: pip install 'biprune[data]'",
            name=error.name,
        ) from None


def split_train(
    labels: Tensor, num_classes: int, *, subset: int | None, val_fraction: float, seed: int
) -> tuple[Tensor, Tensor | None]:
    """Indices of the images for training and for validation, None if `val_fraction` is 0.

    Raises:
        ValueError: `subset` is impossible, or a split would be empty.
    """
    kept = torch.arange(len(labels))
    if subset is not None:
        if not num_classes <= subset <= len(labels):
            raise ValueError(
                f"`subset` must be from {num_classes}, the number of classes, to {len(labels)}, "
                f"the number of training images, got {subset}."
            )
        kept = balanced_subset(labels, subset, seed=seed)
    if val_fraction == 0:
        return kept, None
    train, val = stratified_cut(labels[kept], val_fraction, seed=seed)
    if len(train) == 0 or len(val) == 0:
        raise ValueError(
            f"`val_fraction` {val_fraction} of {len(kept)} images leaves {len(train)} for training "
            f"and {len(val)} for validation. Use more images, or `val_fraction=0`."
        )
    return kept[train], kept[val]


def balanced_subset(labels: Tensor, count: int, *, seed: int) -> Tensor:
    """Ascending indices of `count` images, equally many of each class.

    Class counts differ by at most one, unless a class has too few images. Then all of its images
    are taken, and the other classes share the rest.
    """
    order, ranks = _ranks_within_class(labels, seed)
    return order[torch.argsort(ranks, stable=True)][:count].sort().values


def stratified_cut(labels: Tensor, fraction: float, *, seed: int) -> tuple[Tensor, Tensor]:
    """Ascending indices of the images that stay, and of the `fraction` that is cut off.

    The cut has round(fraction * N) images. Each class gives its share, to within one image.
    """
    order, ranks = _ranks_within_class(labels, seed)
    sizes = torch.bincount(labels)[labels[order]]
    # Place the i-th image of a class at (i + 1/2) / size, so that every prefix is proportional.
    positions = (ranks + 0.5) / sizes
    order = order[torch.argsort(positions, stable=True)]
    count = round(fraction * len(labels))
    return order[count:].sort().values, order[:count].sort().values


def _ranks_within_class(labels: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """A random order of all images, and for each in that order its rank within its class."""
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    shuffled = labels[order]
    by_class = torch.argsort(shuffled, stable=True)
    sizes = torch.bincount(labels)
    first = sizes.cumsum(0) - sizes
    ranks = torch.empty_like(order)
    ranks[by_class] = torch.arange(len(labels)) - first[shuffled[by_class]]
    return order, ranks
