"""Random crop, flip and normalisation of whole uint8 batches."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad as pad_edges


def crop_and_flip(pixels: Tensor, top: Tensor, left: Tensor, flipped: Tensor, pad: int) -> Tensor:
    """Pad each image with `pad` black pixels, cut its own window of the old size, mirror some.

    `pixels` is [B, C, H, W]. `top` and `left`, int64 [B], lie in [0, 2 * pad]; `pad` is the
    offset that leaves an image where it was. `flipped` is bool [B].
    """
    height, width = pixels.shape[2:]
    padded = pad_edges(pixels, (pad, pad, pad, pad))
    windows = padded.unfold(2, height, 1).unfold(3, width, 1)
    crops = windows[torch.arange(len(pixels)), :, top, left]
    return torch.where(flipped[:, None, None, None], crops.flip(3), crops)


@dataclass(frozen=True)
class Transform:
    """From uint8 pixels to what a network sees.

    `mean` and `std` are per channel, of pixels scaled to [0, 1]. Cropping comes before
    normalisation, so the padding is black.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    pad: int
    flips: bool

    def augment(self, pixels: Tensor) -> Tensor:
        """A random crop, and where the data allows it a random flip, from torch's global RNG."""
        top, left = torch.randint(2 * self.pad + 1, (2, len(pixels)))
        flipped = torch.rand(len(pixels)) < (0.5 if self.flips else 0.0)
        return crop_and_flip(pixels, top, left, flipped, self.pad)

    def normalise(self, pixels: Tensor) -> Tensor:
        """(pixels / 255 - mean) / std, in float32."""
        mean = torch.tensor(self.mean)[:, None, None]
        std = torch.tensor(self.std)[:, None, None]
        return pixels.float().sub_(255 * mean).div_(255 * std)
