"""What a data set is: batches for training, validation and test, and where its files come from."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

Batch = tuple[Tensor, Tensor]


class Batches(Protocol):
    """A re-iterable of (x, y): x float32 [B, C, H, W], normalised; y int64 [B]."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Batch]: ...


@dataclass(frozen=True, eq=False)
class Dataset:
    """Normalised batches of one data set.

    `train` is shuffled anew at every iteration and augmented. Both draw from torch's global RNG,
    as a `DataLoader(shuffle=True)` does, so a caller who forks and seeds that RNG decides the
    batches. `val` and `test` come in a fixed order, unaugmented and complete, and draw nothing;
    `val` is None where `val_fraction` was 0.

    `load_data(**options)` loads the same data again; `options` can be written as JSON. They leave
    out `download`: only a person agrees to that.
    """

    name: str
    num_classes: int
    in_channels: int
    image_size: int
    train: Batches = field(repr=False)
    val: Batches | None = field(repr=False)
    test: Batches = field(repr=False)
    options: dict[str, Any]


class Images(Protocol):
    """Labelled images, in memory or on disk, from which splits are cut."""

    @property
    def labels(self) -> Tensor:
        """The class of each image, int64 [N]."""
        ...

    def batches(self, indices: Tensor, *, batch_size: int, shuffle: bool, augment: bool) -> Batches:
        """Batches of the images at `indices`."""
        ...


@dataclass(frozen=True, eq=False)
class Source:
    """The images of a data set before its training images are split."""

    train: Images
    test: Images
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
    """One row of `DATASETS`. An `image_size` of None leaves the size to the caller."""

    description: str
    load: Callable[[Request], Source]
    files: str
    image_size: int | None
    batch_size: int = 64
