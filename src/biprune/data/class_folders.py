"""Image files sorted into one folder per class."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

SUFFIXES = {".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"}


def class_names(folder: Path) -> list[str]:
    """The sub-folders of `folder`, sorted; their positions are the labels."""
    names = sorted(
        child.name for child in folder.iterdir() if child.is_dir() and child.name[0] != "."
    )
    if not names:
        raise ValueError(f"{folder} has no class folders. Give each class a folder of images.")
    return names


def list_images(folder: Path) -> list[str]:
    """The paths of the images in `folder`, sorted by name."""
    paths = sorted(str(file) for file in folder.iterdir() if file.suffix.lower() in SUFFIXES)
    if not paths:
        raise ValueError(
            f"{folder} has no images. Add some ({', '.join(sorted(SUFFIXES))}) or remove it."
        )
    return paths


def read_class_folders(folder: Path, classes: Sequence[str]) -> tuple[tuple[str, ...], Tensor]:
    """The paths of all images under `folder`, class by class, and their labels.

    `folder` may lack some of the `classes`, but has no others.
    """
    if not folder.is_dir():
        raise ValueError(f"{folder} is missing. Put a folder of images for each class there.")
    names = class_names(folder)
    if unknown := sorted(set(names) - set(classes)):
        raise ValueError(
            f"{folder} has the classes {', '.join(unknown)}, which the training images lack. "
            "Both need the same class folders."
        )
    paths: list[str] = []
    labels: list[int] = []
    for name in names:
        found = list_images(folder / name)
        paths += found
        labels += [classes.index(name)] * len(found)
    return tuple(paths), torch.tensor(labels)
