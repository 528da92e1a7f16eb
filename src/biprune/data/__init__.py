"""Data sets as normalised batches, by name. This package imports nothing else of biprune."""

import difflib
from pathlib import Path

import torch

from biprune.data.cifar import load_cifar10, load_cifar100
from biprune.data.dataset import Batch, Batches, DataEntry, Dataset, Request, split_train
from biprune.data.digits import load_digits
from biprune.data.fashion_mnist import load_fashion_mnist
from biprune.data.folders import load_folder, load_imagenet, load_tiny_imagenet

__all__ = ["DATASETS", "Batch", "Batches", "DataEntry", "Dataset", "load_data"]

FOLDER = "folder:"

DATASETS: dict[str, DataEntry] = {
    "digits": DataEntry(
        description="1,797 handwritten digits of 8 x 8, 10 classes; they come with scikit-learn",
        load=load_digits,
        files="none",
        image_size=8,
    ),
    "cifar10": DataEntry(
        description="60,000 colour photographs of 32 x 32, 10 classes",
        load=load_cifar10,
        files="ROOT/cifar-10-{binary,python}.tar.gz or extracted, from www.cs.toronto.edu/~kriz",
        image_size=32,
    ),
    "cifar100": DataEntry(
        description="60,000 colour photographs of 32 x 32, 100 fine classes",
        load=load_cifar100,
        files="ROOT/cifar-100-{binary,python}.tar.gz or extracted, from www.cs.toronto.edu/~kriz",
        image_size=32,
    ),
    "fashion_mnist": DataEntry(
        description="70,000 grey pictures of clothes, 28 x 28, 10 classes",
        load=load_fashion_mnist,
        files="ROOT/{train,t10k}-{images-idx3,labels-idx1}-ubyte.gz or gunzipped, "
        "from github.com/zalandoresearch/fashion-mnist",
        image_size=28,
    ),
    "tiny_imagenet": DataEntry(
        description="110,000 labelled photographs of 64 x 64, 200 classes",
        load=load_tiny_imagenet,
        files="ROOT/tiny-imagenet-200/{wnids.txt,train,val}, from cs231n.stanford.edu",
        image_size=64,
        batch_size=32,
    ),
    "imagenet": DataEntry(
        description="1.3 million photographs cropped to 224 x 224, 1,000 classes",
        load=load_imagenet,
        files="ROOT/{train,val}/CLASS/*.JPEG, from image-net.org",
        image_size=None,
        batch_size=1024,
    ),
    "folder:PATH": DataEntry(
        description="your own images, one folder per class",
        load=load_folder,
        files="PATH/{train,test}/CLASS/*, or PATH/CLASS/*",
        image_size=None,
    ),
}


def load_data(
    name: str,
    *,
    seed: int = 0,
    root: str | Path | None = None,
    batch_size: int | None = None,
    val_fraction: float = 0.1,
    subset: int | None = None,
    augment: bool = True,
    image_size: int | None = None,
    workers: int = 2,
    download: bool = False,
    verify: bool = True,
) -> Dataset:
    """Load a data set from files on disk.

    Args:
        name: A name of `DATASETS`, or folder:PATH for your own images.
        seed: Decides which training images are kept and which are cut for validation, both
            balanced by class. Where there is no official test set, it decides the test images too.
            So use one seed for data that is trained on, pruned on and tested together. It does not
            decide the order of the batches, see `Dataset`.
        root: The folder of the files, by default ./data.
        batch_size: By default the paper's: 32 for tiny_imagenet, 1024 for imagenet, 64 otherwise.
        val_fraction: The part of the training images that is cut for validation.
        subset: Keep this many training images, before validation is cut from them.
        augment: Whether to crop and flip training images at random.
        image_size: For imagenet and folder:PATH.
        workers: Processes that decode images on disk. Augmented batches can only be repeated with
            the same number of workers.
        download: Fetch missing files of cifar10, cifar100 and fashion_mnist.
        verify: Whether to refuse files that differ from the official ones.

    Raises:
        ValueError: An argument is impossible, or a file is missing or damaged.
        ModuleNotFoundError: The data needs the extra `data`.

    Example:
        >>> data = load_data("digits", subset=200)
        >>> x, y = next(iter(data.train))
        >>> tuple(x.shape), data.num_classes, len(data.train)
        ((64, 1, 8, 8), 10, 3)
    """
    entry = data_entry(name)
    batch_size = entry.batch_size if batch_size is None else batch_size
    _check_range("batch_size", batch_size, 1)
    _check_range("workers", workers, 0)
    _check_image_size(name, image_size, entry)
    if not 0 <= val_fraction < 1:
        raise ValueError(f"`val_fraction` must be in [0, 1), got {val_fraction}.")

    source = entry.load(Request(_root(name, root), seed, image_size, workers, download, verify))
    labels, num_classes = source.train.labels, source.num_classes
    train, val = split_train(
        labels, num_classes, subset=subset, val_fraction=val_fraction, seed=seed
    )
    if len(train) % batch_size == 1 and len(train) > 1:
        train = train[:-1]  # BatchNorm cannot train on a last batch of one image
    test = torch.arange(len(source.test.labels))
    fixed = {"batch_size": batch_size, "shuffle": False, "augment": False}
    return Dataset(
        name=name,
        num_classes=num_classes,
        in_channels=source.in_channels,
        image_size=source.image_size,
        train=source.train.batches(train, batch_size=batch_size, shuffle=True, augment=augment),
        val=None if val is None else source.train.batches(val, **fixed),
        test=source.test.batches(test, **fixed),
        options={
            "name": name,
            "seed": seed,
            "root": None if root is None else str(root),
            "batch_size": batch_size,
            "val_fraction": val_fraction,
            "subset": subset,
            "augment": augment,
            "image_size": image_size,
            "workers": workers,
            "verify": verify,
        },
    )


def data_entry(name: str) -> DataEntry:
    """The entry of `DATASETS` for `name`; that of a folder contains its path."""
    key = "folder:PATH" if name.startswith(FOLDER) else name
    if key not in DATASETS:
        closest = difflib.get_close_matches(name, DATASETS, n=1, cutoff=0.0)[0]
        raise ValueError(f"Unknown data {name!r}. Data: {', '.join(DATASETS)}. Closest: {closest}.")
    return DATASETS[key]


def _root(name: str, root: str | Path | None) -> Path:
    if not name.startswith(FOLDER):
        return Path("data" if root is None else root)
    if root is not None:
        raise ValueError(f"{name!r} has its path in the name, so `root` must be None, got {root}.")
    return Path(name.removeprefix(FOLDER))


def _check_range(argument: str, value: int, least: int) -> None:
    if value < least:
        raise ValueError(f"`{argument}` must be at least {least}, got {value}.")


def _check_image_size(name: str, image_size: int | None, entry: DataEntry) -> None:
    if image_size is None:
        return
    _check_range("image_size", image_size, 1)
    if entry.image_size not in (None, image_size):
        raise ValueError(
            f"`image_size` of {name} is always {entry.image_size}, got {image_size}. Leave it out; "
            "imagenet and folder:PATH can be resized."
        )
