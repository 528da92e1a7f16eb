"""From an image file to RGB pixels of one size."""

import math
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

# Gives uint8 pixels [size, size, 3].
Decoder = Callable[[Image.Image], NDArray[np.uint8]]


def centre_crop(image: Image.Image, *, size: int, shorter_side: int) -> NDArray[np.uint8]:
    """Resize the shorter side to `shorter_side`, then cut a square of `size` from the centre."""
    scale = shorter_side / min(image.size)
    width, height = (max(size, round(side * scale)) for side in image.size)
    if (width, height) != image.size:
        image = image.resize((width, height), Image.Resampling.BILINEAR)
    left, top = (width - size) // 2, (height - size) // 2
    return np.asarray(image.crop((left, top, left + size, top + size)))


def random_resized_crop(image: Image.Image, *, size: int) -> NDArray[np.uint8]:
    """Resize a random part of the image, a `random_box`, to a square of `size`."""
    box = random_box(*image.size)
    return np.asarray(image.resize((size, size), Image.Resampling.BILINEAR, box=box))


def random_box(width: int, height: int) -> tuple[int, int, int, int]:
    """A box (left, top, right, bottom) of 8 % to 100 % of the area and 3:4 to 4:3 in shape.

    The recipe of ImageNet training (Szegedy et al. 2015): area uniform, shape log-uniform, place
    uniform. Ten draws that do not fit give the central square. Draws from torch's global RNG,
    which `DataLoader` seeds in each worker.
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


def open_rgb(path: str) -> Image.Image:
    """The decoded image, converted to RGB whatever its mode."""
    try:
        with Image.open(path) as image:
            return image.convert("RGB")
    # A codec raises what it likes on a broken file: OSError, SyntaxError, struct.error, ...
    except Exception as error:
        raise ValueError(
            f"Cannot read the image {path} ({error}). Replace or remove it."
        ) from error
