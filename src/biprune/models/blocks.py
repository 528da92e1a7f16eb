"""Residual blocks and their shortcuts (He et al., "Deep Residual Learning", CVPR 2016)."""

from collections import OrderedDict
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

Shortcut = Literal["A", "B"]


def conv(in_channels: int, out_channels: int, kernel_size: int, stride: int = 1) -> nn.Conv2d:
    """Return a convolution without bias whose output has ceil(size / stride) rows and columns."""
    return nn.Conv2d(
        in_channels, out_channels, kernel_size, stride, padding=kernel_size // 2, bias=False
    )


class PaddedShortcut(nn.Module):
    """Option A: every `stride`-th pixel, with zero channels added on both sides.

    It has no parameters. Of an odd number of new channels the extra one comes last.
    """

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.before = (out_channels - in_channels) // 2
        self.after = out_channels - in_channels - self.before

    def forward(self, x: Tensor) -> Tensor:
        """Return the subsampled, padded input."""
        if torch.compiler.is_compiling():
            # torch 2.13 compiles the gradient of the pool to code that writes past its memory.
            x = x[:, :, :: self.stride, :: self.stride]
        else:
            # A pool of single pixels: the gradient of a slice would lie as NCHW whatever its input,
            # and every kernel before the block would have to bring two layouts together.
            x = functional.avg_pool2d(x, 1, self.stride)
        return functional.pad(x, (0, 0, 0, 0, self.before, self.after))


def make_shortcut(kind: Shortcut, in_channels: int, out_channels: int, stride: int) -> nn.Module:
    """Return the identity where shapes agree, else option A or B (1x1 convolution and norm)."""
    if stride == 1 and in_channels == out_channels:
        return nn.Identity()
    if kind == "A":
        return PaddedShortcut(in_channels, out_channels, stride)
    return nn.Sequential(
        OrderedDict(
            conv=conv(in_channels, out_channels, 1, stride),
            norm=nn.BatchNorm2d(out_channels),
        )
    )


class BasicBlock(nn.Module):
    """Two 3x3 convolutions beside a shortcut."""

    expansion = 1

    def __init__(self, in_channels: int, channels: int, stride: int, shortcut: Shortcut) -> None:
        super().__init__()
        self.conv1 = conv(in_channels, channels, 3, stride)
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv2 = conv(channels, channels, 3)
        self.norm2 = nn.BatchNorm2d(channels)
        self.shortcut = make_shortcut(shortcut, in_channels, channels, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Return relu(residual + shortcut)."""
        residual = functional.relu(self.norm1(self.conv1(x)))
        residual = self.norm2(self.conv2(residual))
        return functional.relu(residual + self.shortcut(x))


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions beside a shortcut; the output has 4 * `channels`.

    The stride is on the 3x3 convolution, as in torchvision; the paper has it on the first 1x1.
    """

    expansion = 4

    def __init__(self, in_channels: int, channels: int, stride: int, shortcut: Shortcut) -> None:
        super().__init__()
        out_channels = self.expansion * channels
        self.conv1 = conv(in_channels, channels, 1)
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv2 = conv(channels, channels, 3, stride)
        self.norm2 = nn.BatchNorm2d(channels)
        self.conv3 = conv(channels, out_channels, 1)
        self.norm3 = nn.BatchNorm2d(out_channels)
        self.shortcut = make_shortcut(shortcut, in_channels, out_channels, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Return relu(residual + shortcut)."""
        residual = functional.relu(self.norm1(self.conv1(x)))
        residual = functional.relu(self.norm2(self.conv2(residual)))
        residual = self.norm3(self.conv3(residual))
        return functional.relu(residual + self.shortcut(x))
