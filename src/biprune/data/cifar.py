"""CIFAR-10 and CIFAR-100 (Krizhevsky 2009), from the official binary or python version.

The binary version comes first where both are present: it needs no pickle. One binary record is
the label bytes and then 3072 pixels, the red, green and blue planes, each row by row.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from biprune.data.batches import MemoryImages, Transform
from biprune.data.dataset import Request, Source
from biprune.data.files import Package, check_labels, read_package
from biprune.data.safe_pickle import read_arrays

URL = "https://www.cs.toronto.edu/~kriz/"
PIXELS = 3 * 32 * 32


@dataclass(frozen=True)
class Cifar:
    """What differs between the two: files, classes, pixel statistics, where the label is."""

    packages: Sequence[Package]
    num_classes: int
    transform: Transform
    label_bytes: int
    label_key: bytes


def load_cifar10(request: Request) -> Source:
    """50,000 and 10,000 images of 10 classes; crop of 32 with padding 4, and horizontal flip."""
    return _load(CIFAR10, request)


def load_cifar100(request: Request) -> Source:
    """The 100 fine labels; sizes and augmentation as CIFAR-10."""
    return _load(CIFAR100, request)


def _load(cifar: Cifar, request: Request) -> Source:
    contents = read_package(cifar.packages, URL, request)
    paths = sorted(contents)
    train = _images(cifar, {path: contents[path] for path in paths if path.stem[:4] != "test"})
    test = _images(cifar, {path: contents[path] for path in paths if path.stem[:4] == "test"})
    return Source(train, test, cifar.num_classes, 3, 32)


def _images(cifar: Cifar, contents: dict[Path, bytes]) -> MemoryImages:
    pixels, labels = [], []
    for path, content in contents.items():
        if path.suffix == ".bin":
            parsed = _parse_binary(content, cifar.label_bytes, path)
        else:
            parsed = _parse_python(content, cifar.label_key, path)
        pixels.append(parsed[0])
        labels.append(check_labels(parsed[1], cifar.num_classes, source=path))
    images = torch.from_numpy(np.concatenate(pixels)).view(-1, 3, 32, 32)
    return MemoryImages(images, torch.cat(labels), cifar.transform)


def _parse_binary(
    content: bytes, label_bytes: int, path: Path
) -> tuple[NDArray[np.uint8], ArrayLike]:
    record = label_bytes + PIXELS
    if len(content) % record:
        raise ValueError(
            f"{path} is truncated: {len(content)} bytes are not whole records of {record}. "
            "Fetch it again."
        )
    records = np.frombuffer(content, np.uint8).reshape(-1, record)
    # CIFAR-100 has two label bytes, coarse and then fine.
    return records[:, label_bytes:], records[:, label_bytes - 1]


def _parse_python(
    content: bytes, label_key: bytes, path: Path
) -> tuple[NDArray[np.uint8], ArrayLike]:
    arrays = read_arrays(content, source=path)
    pixels, labels = arrays.get(b"data"), arrays.get(label_key)
    if (
        not isinstance(pixels, np.ndarray)
        or not isinstance(labels, list)
        or not all(isinstance(label, int) for label in labels)
        or pixels.shape != (len(labels), PIXELS)
    ):
        raise ValueError(
            f"{path} must hold b'data', N rows of {PIXELS} bytes, and a list {label_key!r} of N "
            "labels. Fetch it again."
        )
    return pixels, labels


CIFAR10 = Cifar(
    packages=(
        Package(
            archive="cifar-10-binary.tar.gz",
            md5="c32a1d4ab5d03f1284b67883e8d87530",
            folder="cifar-10-batches-bin",
            files={
                "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
                "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
                "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
                "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
                "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
                "test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d",
            },
        ),
        Package(
            archive="cifar-10-python.tar.gz",
            md5="c58f30108f718f92721af3b95e74349a",
            folder="cifar-10-batches-py",
            files={
                "data_batch_1": "c99cafc152244af753f735de768cd75f",
                "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
                "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
                "data_batch_4": "634d18415352ddfa80567beed471001a",
                "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
                "test_batch": "40351d587109b95175f43aff81a1287e",
            },
        ),
    ),
    num_classes=10,
    transform=Transform((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616), pad=4, flips=True),
    label_bytes=1,
    label_key=b"labels",
)

CIFAR100 = Cifar(
    packages=(
        Package(
            archive="cifar-100-binary.tar.gz",
            md5="03b5dce01913d631647c71ecec9e9cb8",
            folder="cifar-100-binary",
            files={"train.bin": None, "test.bin": None},
        ),
        Package(
            archive="cifar-100-python.tar.gz",
            md5="eb9058c3a382ffc7106e4002c42a8d85",
            folder="cifar-100-python",
            files={
                "train": "16019d7e3df5f24257cddd939b257f8d",
                "test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
            },
        ),
    ),
    num_classes=100,
    transform=Transform((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762), pad=4, flips=True),
    label_bytes=2,
    label_key=b"fine_labels",
)
