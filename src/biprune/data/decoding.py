"""From an image file to RGB pixels of one size. Needs Pillow, which is imported when it is used."""

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from biprune.data.base import needs_extra

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
