"""What a data set is: batches for training, validation and testing, and what they are made from."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
    """The images of a data set, before the validation images are cut from `train`."""

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
    """One row of `DATASETS`; the caller chooses the image size where `image_size` is None."""

    description: str
    load: Callable[[Request], Source]
    files: str
    image_size: int | None
    batch_size: int = 64


@contextmanager
def needs_extra() -> Iterator[None]:
    """Around an import of a package that only some data sets need: says how to install it."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"This data needs {error.name}, which is not installed: pip install 'biprune[data]'",
            name=error.name,
        ) from None
