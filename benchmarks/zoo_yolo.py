"""A detector in the manner of YOLO, written here: the packages that have one are under the AGPL."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate, max_pool2d


def conv(inputs: int, outputs: int, kernel: int = 1, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False),
        nn.BatchNorm2d(outputs),
        nn.SiLU(),
    )


class Split(nn.Module):
    """Half of the channels pass residual blocks; all that comes out on the way is joined."""

    def __init__(self, inputs: int, outputs: int, blocks: int, shortcut: bool = True) -> None:
        super().__init__()
        half, self.shortcut = outputs // 2, shortcut
        self.start = conv(inputs, outputs)
        self.blocks = nn.ModuleList(
            nn.Sequential(conv(half, half, 3), conv(half, half, 3)) for _ in range(blocks)
        )
        self.join = conv((2 + blocks) * half, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """The parts, joined."""
        parts = [*self.start(x).chunk(2, 1)]
        for block in self.blocks:
            parts.append(parts[-1] + block(parts[-1]) if self.shortcut else block(parts[-1]))
        return self.join(torch.cat(parts, 1))


class Pyramid(nn.Module):
    """Max pools of growing reach, side by side."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.start, self.join = conv(width, width // 2), conv(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """The pools, joined."""
        parts = [self.start(x)]
        for _ in range(3):
            parts.append(max_pool2d(parts[-1], 5, 1, 2))
        return self.join(torch.cat(parts, 1))


class Yolo(nn.Module):
    """Backbone, two ways through a pyramid, and at three scales a head for boxes and classes.

    Boxes come as distributions over `BINS` distances to each side, of which the mean is taken.
    """

    BINS = 16

    def __init__(self, classes: int, width: int = 16) -> None:
        super().__init__()
        w = width
        self.stem = nn.Sequential(conv(3, w, 3, 2), conv(w, 2 * w, 3, 2), Split(2 * w, 2 * w, 1))
        self.down3 = nn.Sequential(conv(2 * w, 4 * w, 3, 2), Split(4 * w, 4 * w, 2))
        self.down4 = nn.Sequential(conv(4 * w, 8 * w, 3, 2), Split(8 * w, 8 * w, 2))
        self.down5 = nn.Sequential(
            conv(8 * w, 16 * w, 3, 2), Split(16 * w, 16 * w, 1), Pyramid(16 * w)
        )
        self.up4, self.up3 = Split(24 * w, 8 * w, 1, False), Split(12 * w, 4 * w, 1, False)
        self.reduce3, self.reduce4 = conv(4 * w, 4 * w, 3, 2), conv(8 * w, 8 * w, 3, 2)
        self.again4, self.again5 = Split(12 * w, 8 * w, 1, False), Split(24 * w, 16 * w, 1, False)
        widths = (4 * w, 8 * w, 16 * w)
        self.boxes = nn.ModuleList(
            nn.Sequential(conv(n, 4 * w, 3), conv(4 * w, 4 * w, 3), nn.Conv2d(4 * w, 64, 1))
            for n in widths
        )
        self.classes = nn.ModuleList(
            nn.Sequential(conv(n, 4 * w, 3), conv(4 * w, 4 * w, 3), nn.Conv2d(4 * w, classes, 1))
            for n in widths
        )
        self.distances = nn.Buffer(torch.arange(self.BINS, dtype=torch.float32))

    def forward(self, x: Tensor) -> Tensor:
        """Distances to four sides and scores of classes, for every place of three scales."""
        three = self.down3(self.stem(x))
        four = self.down4(three)
        five = self.down5(four)
        four = self.up4(torch.cat([interpolate(five, scale_factor=2.0), four], 1))
        three = self.up3(torch.cat([interpolate(four, scale_factor=2.0), three], 1))
        four = self.again4(torch.cat([self.reduce3(three), four], 1))
        five = self.again5(torch.cat([self.reduce4(four), five], 1))
        found = []
        for scale, boxes, classes in zip(
            (three, four, five), self.boxes, self.classes, strict=True
        ):
            sides = boxes(scale).flatten(2).unflatten(1, (4, self.BINS)).softmax(2)
            distances = (sides * self.distances[:, None]).sum(2)
            found.append(torch.cat([distances, classes(scale).flatten(2).sigmoid()], 1))
        return torch.cat(found, 2)
