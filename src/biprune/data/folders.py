"""Data sets of image files: ImageNet, Tiny-ImageNet, and your own images as folder:PATH."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from biprune.data.base import Request, Source
from biprune.data.batches import DiskImages, Transform
from biprune.data.decoding import centre_crop, decoder, open_rgb, random_resized_crop
from biprune.data.splits import stratified_cut

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
TINY = "tiny-imagenet-200"
TINY_TRANSFORM = Transform((0.4802, 0.4481, 0.3975), (0.2770, 0.2691, 0.2821), pad=8, flips=True)
SUFFIXES = {".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"}
TEST_FRACTION = 0.2


def load_imagenet(request: Request) -> Source:
    """ImageNet (ILSVRC 2012): train/<class>/*.JPEG, and val/<class>/*.JPEG as the test set.

    Training takes a random resized crop of 224 and a horizontal flip. Testing resizes the shorter
    side to 256 and crops the central 224. Another `image_size` scales both.
    """
    folder = request.root / "train"
    if not folder.is_dir():
        raise ValueError(
            f"{folder} is missing. Put the ILSVRC 2012 training images at {folder}/<class>/*.JPEG "
            f"and the validation images at {request.root / 'val'}/<class>/*.JPEG; "
            "`download=True` does not fetch them."
        )
    size = request.image_size or 224
    classes = _class_names(folder)

    def images(split: str) -> DiskImages:
        paths, labels = _read_classes(request.root / split, classes)
        return DiskImages(
            paths,
            labels,
            decode=decoder(centre_crop, size=size, shorter_side=round(size * 256 / 224)),
            decode_augmented=decoder(random_resized_crop, size=size),
            transform=Transform(IMAGENET_MEAN, IMAGENET_STD, pad=0, flips=True),
            workers=request.workers,
        )

    return Source(images("train"), images("val"), len(classes), 3, size)


def load_tiny_imagenet(request: Request) -> Source:
    """Tiny-ImageNet: 200 classes of 64 x 64, in the layout of its official archive.

    The official validation images are the test set, because the official test set has no labels.
    Training takes a crop of 64 with padding 8, and a horizontal flip.
    """
    folder = request.root / TINY
    classes = _read_tiny(folder / "wnids.txt").split()
    decode = decoder(centre_crop, size=64, shorter_side=64)

    def images(paths: tuple[str, ...], labels: Tensor) -> DiskImages:
        return DiskImages(paths, labels, decode, decode, TINY_TRANSFORM, request.workers)

    train = images(*_tiny_train(folder / "train", classes))
    test = images(*_tiny_val(folder / "val", classes))
    return Source(train, test, len(classes), 3, 64)


def load_folder(request: Request) -> Source:
    """Your own images: PATH/train/<class>/* with PATH/test or else PATH/val, or PATH/<class>/*.

    Without a train folder, `seed` cuts 20 % of the images for testing. Images of any mode become
    RGB. `image_size` defaults to the shorter side of the first image. Every image is resized by its
    shorter side, then cropped at the centre. Training takes a crop with padding of an eighth of the
    size, and a horizontal flip. Normalisation is that of ImageNet.
    """
    root = request.root
    if not root.is_dir():
        raise ValueError(f"{root} is not a folder. In folder:PATH, give the path to your images.")
    has_train = (root / "train").is_dir()
    folder = root / "train" if has_train else root
    classes = _class_names(folder)
    paths, labels = _read_classes(folder, classes)
    size = request.image_size or min(open_rgb(paths[0]).size)
    decode = decoder(centre_crop, size=size, shorter_side=size)
    transform = Transform(IMAGENET_MEAN, IMAGENET_STD, pad=size // 8, flips=True)

    def images(paths: tuple[str, ...], labels: Tensor) -> DiskImages:
        return DiskImages(paths, labels, decode, decode, transform, request.workers)

    if has_train:
        train = images(paths, labels)
        test = images(*_read_classes(_test_folder(root), classes))
    else:
        stay, cut = stratified_cut(labels, TEST_FRACTION, seed=request.seed)
        if len(cut) == 0:
            raise ValueError(
                f"{root} has {len(labels)} images, too few to cut 20 % of them for testing. "
                "Add images, or a train and a test folder."
            )
        train = images(tuple(paths[i] for i in stay.tolist()), labels[stay])
        test = images(tuple(paths[i] for i in cut.tolist()), labels[cut])
    return Source(train, test, len(classes), 3, size)


def _test_folder(root: Path) -> Path:
    for name in ("test", "val"):
        if (root / name).is_dir():
            return root / name
    raise ValueError(
        f"{root} has a train folder, but neither test nor val. Add {root / 'test'}/<class>/*, or "
        f"put the classes directly into {root} to have 20 % of the images cut for testing."
    )


def _class_names(folder: Path) -> list[str]:
    """The sub-folders of `folder`, sorted; their positions are the labels."""
    names = sorted(
        child.name for child in folder.iterdir() if child.is_dir() and child.name[0] != "."
    )
    if not names:
        raise ValueError(f"{folder} has no class folders. Give each class a folder of images.")
    return names


def _read_classes(folder: Path, classes: Sequence[str]) -> tuple[tuple[str, ...], Tensor]:
    """The paths and labels of the images under `folder`, which may lack some of the classes."""
    if not folder.is_dir():
        raise ValueError(f"{folder} is missing. Put a folder of images for each class there.")
    names = _class_names(folder)
    if unknown := sorted(set(names) - set(classes)):
        raise ValueError(
            f"{folder} has the classes {', '.join(unknown)}, which the training images lack. "
            "Both need the same class folders."
        )
    return _labelled({classes.index(name): folder / name for name in names})


def _labelled(folders: dict[int, Path]) -> tuple[tuple[str, ...], Tensor]:
    """The paths, sorted by name within a folder, and labels of the images in `folders`."""
    paths: list[str] = []
    labels: list[int] = []
    for label, folder in folders.items():
        found = sorted(str(file) for file in folder.iterdir() if file.suffix.lower() in SUFFIXES)
        if not found:
            raise ValueError(
                f"{folder} has no images. Add some ({', '.join(sorted(SUFFIXES))}) or remove it."
            )
        paths += found
        labels += [label] * len(found)
    return tuple(paths), torch.tensor(labels)


def _tiny_train(folder: Path, classes: Sequence[str]) -> tuple[tuple[str, ...], Tensor]:
    folders = {label: folder / name / "images" for label, name in enumerate(classes)}
    for images in folders.values():
        if not images.is_dir():
            raise ValueError(f"{images} is missing. Extract all of {TINY}.zip again.")
    return _labelled(folders)


def _tiny_val(folder: Path, classes: Sequence[str]) -> tuple[tuple[str, ...], Tensor]:
    """Each line of the annotations is a file name, its class and a box, separated by tabs."""
    index = {name: label for label, name in enumerate(classes)}
    annotations = folder / "val_annotations.txt"
    paths: list[str] = []
    labels: list[int] = []
    for line in _read_tiny(annotations).splitlines():
        name, _, rest = line.partition("\t")
        wnid = rest.partition("\t")[0]
        if wnid not in index:
            raise ValueError(
                f"{annotations} gives {name!r} the class {wnid!r}, which wnids.txt lacks. "
                f"Extract all of {TINY}.zip again."
            )
        paths.append(str(folder / "images" / name))
        labels.append(index[wnid])
    return tuple(paths), torch.tensor(labels)


def _read_tiny(path: Path) -> str:
    if not path.is_file():
        raise ValueError(
            f"{path} is missing. Extract {TINY}.zip from http://cs231n.stanford.edu/ to put it "
            "there; `download=True` does not fetch it."
        )
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not a text file. Extract all of {TINY}.zip again.") from None
    if not text.strip():
        raise ValueError(f"{path} is empty. Extract all of {TINY}.zip again.")
    return text
