"""Tiny-ImageNet: 200 classes of 64 x 64 images, in the layout of its official archive."""

from functools import partial
from pathlib import Path

import torch

from biprune.data.augmentation import Transform
from biprune.data.base import Request, Source
from biprune.data.class_folders import list_images
from biprune.data.decoding import centre_crop
from biprune.data.stream import DiskImages

FOLDER = "tiny-imagenet-200"
TRANSFORM = Transform((0.4802, 0.4481, 0.3975), (0.2770, 0.2691, 0.2821), pad=8, flips=True)


def load_tiny_imagenet(request: Request) -> Source:
    """The official validation images are our test set, since its own test has no labels.

    Training: crop of 64 with padding 8, and horizontal flip.
    """
    folder = request.root / FOLDER
    classes = _read_text(folder / "wnids.txt").split()
    decode = partial(centre_crop, size=64, shorter_side=64)

    def images(paths: list[str], labels: list[int]) -> DiskImages:
        return DiskImages(
            tuple(paths), torch.tensor(labels), decode, decode, TRANSFORM, request.workers
        )

    train = images(*_train_files(folder / "train", classes))
    test = images(*_val_files(folder / "val", classes))
    return Source(train, test, len(classes), 3, 64)


def _train_files(folder: Path, classes: list[str]) -> tuple[list[str], list[int]]:
    paths: list[str] = []
    labels: list[int] = []
    for label, name in enumerate(classes):
        images = folder / name / "images"
        if not images.is_dir():
            raise ValueError(f"{images} is missing. Extract all of {FOLDER}.zip again.")
        found = list_images(images)
        paths += found
        labels += [label] * len(found)
    return paths, labels


def _val_files(folder: Path, classes: list[str]) -> tuple[list[str], list[int]]:
    """Each line of the annotations is a file name, its class and a box, separated by tabs."""
    index = {name: label for label, name in enumerate(classes)}
    annotations = folder / "val_annotations.txt"
    paths: list[str] = []
    labels: list[int] = []
    for line in _read_text(annotations).splitlines():
        name, _, rest = line.partition("\t")
        wnid = rest.partition("\t")[0]
        if wnid not in index:
            raise ValueError(
                f"{annotations} gives {name!r} the class {wnid!r}, which wnids.txt lacks. "
                f"Extract all of {FOLDER}.zip again."
            )
        paths.append(str(folder / "images" / name))
        labels.append(index[wnid])
    return paths, labels


def _read_text(path: Path) -> str:
    if not path.is_file():
        raise ValueError(
            f"{path} is missing. Extract {FOLDER}.zip from http://cs231n.stanford.edu/ so that it "
            "is there; `download=True` does not cover it."
        )
    text = path.read_text()
    if not text.strip():
        raise ValueError(f"{path} is empty. Extract all of {FOLDER}.zip again.")
    return text
