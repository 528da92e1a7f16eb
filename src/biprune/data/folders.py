"""Data sets of image files: ImageNet, Tiny-ImageNet, and your own images as folder:PATH.

Reading image files needs Pillow, which is imported when it is used.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from biprune.data.batches import DiskImages, Transform
from biprune.data.dataset import Request, Source, needs_extra, stratified_cut

if TYPE_CHECKING:
    from PIL.Image import Image


Pixels = NDArray[np.uint8]  # [size, size, 3]


def decoder(crop: "Callable[..., Pixels]", **options: int) -> Callable[[str], Pixels]:
    """A function from the path of an image to its pixels, cut by `crop(image, **options)`.

    Raises:
        ModuleNotFoundError: Pillow is not installed. It is better to say so here than in a worker.
    """
    with needs_extra():
        import PIL  # noqa: F401
    return partial(_decode, crop=partial(crop, **options))


def _decode(path: str, *, crop: "Callable[[Image], Pixels]") -> Pixels:
    return crop(open_rgb(path))


def open_rgb(path: str) -> "Image":
    """The decoded image, converted to RGB whatever its mode."""
    with needs_extra():
        from PIL import Image
    try:
        with Image.open(path) as image:
            return image.convert("RGB")
    # A codec may raise anything on a broken file: OSError, SyntaxError, struct.error, ...
    except Exception as error:
        raise ValueError(
            f"Cannot read the image {path} ({error}). Replace or remove it."
        ) from error


def centre_crop(image: "Image", *, size: int, shorter_side: int) -> Pixels:
    """Resize the shorter side to `shorter_side`, then cut a square of `size` from the centre."""
    from PIL.Image import Resampling

    scale = shorter_side / min(image.size)
    width, height = (max(size, round(side * scale)) for side in image.size)
    if (width, height) != image.size:
        image = image.resize((width, height), Resampling.BILINEAR)
    left, top = (width - size) // 2, (height - size) // 2
    return np.asarray(image.crop((left, top, left + size, top + size)))


def random_resized_crop(image: "Image", *, size: int) -> Pixels:
    """Resize a random part of the image, a `random_box`, to a square of `size`."""
    from PIL.Image import Resampling

    box = random_box(*image.size)
    return np.asarray(image.resize((size, size), Resampling.BILINEAR, box=box))


def random_box(width: int, height: int) -> tuple[int, int, int, int]:
    """A box (left, top, right, bottom) of 8 % to 100 % of the area and 3:4 to 4:3 in shape.

    This is the usual recipe for ImageNet (Szegedy et al. 2015): the area is uniform, the shape
    log-uniform and the place uniform. If ten draws do not fit, the box is the central square.
    Draws come from torch's global RNG, which `DataLoader` seeds in each worker.
    """
    for _ in range(10):
        area, shape, x, y = torch.rand(4).tolist()
        area = (0.08 + 0.92 * area) * width * height
        aspect = (4 / 3) ** (2 * shape - 1)
        box_width = round(math.sqrt(area * aspect))
        box_height = round(math.sqrt(area / aspect))
        if 0 < box_width <= width and 0 < box_height <= height:
            left = int(x * (width - box_width + 1))
            top = int(y * (height - box_height + 1))
            return left, top, left + box_width, top + box_height
    side = min(width, height)
    left, top = (width - side) // 2, (height - side) // 2
    return left, top, left + side, top + side


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
    """Paths and labels of the images under `folder`, which may lack some of the classes."""
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
    """Paths and labels of the images in `folders`, sorted by name within each."""
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
