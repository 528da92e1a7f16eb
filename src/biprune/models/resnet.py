"""Residual networks: the thin ones of depth 6n + 2 for CIFAR, and ResNet-18 and ResNet-50.

He et al., "Deep Residual Learning for Image Recognition", CVPR 2016.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

Shortcut = Literal["A", "B"]
Stem = Literal["small", "imagenet"]


def _conv(in_channels: int, out_channels: int, kernel_size: int, stride: int = 1) -> nn.Conv2d:
    """A convolution without bias, whose output has ceil(size / stride) rows and columns."""
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
        """The subsampled, padded input."""
        if torch.compiler.is_compiling():
            # torch 2.13 compiles the gradient of the pool to code that writes past its memory.
            x = x[:, :, :: self.stride, :: self.stride]
        else:
            # A pool of single pixels: the gradient of a slice would lie as NCHW whatever its input,
            # and every kernel before the block would have to bring two layouts together.
            x = functional.avg_pool2d(x, 1, self.stride)
        return functional.pad(x, (0, 0, 0, 0, self.before, self.after))


def _make_shortcut(kind: Shortcut, in_channels: int, out_channels: int, stride: int) -> nn.Module:
    """The identity where shapes agree, else option A, or B: a 1x1 convolution and a norm."""
    if stride == 1 and in_channels == out_channels:
        return nn.Identity()
    if kind == "A":
        return PaddedShortcut(in_channels, out_channels, stride)
    return nn.Sequential(
        OrderedDict(
            conv=_conv(in_channels, out_channels, 1, stride),
            norm=nn.BatchNorm2d(out_channels),
        )
    )


class BasicBlock(nn.Module):
    """Two 3x3 convolutions beside a shortcut."""

    expansion = 1

    def __init__(self, in_channels: int, channels: int, stride: int, shortcut: Shortcut) -> None:
        super().__init__()
        self.conv1 = _conv(in_channels, channels, 3, stride)
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv2 = _conv(channels, channels, 3)
        self.norm2 = nn.BatchNorm2d(channels)
        self.shortcut = _make_shortcut(shortcut, in_channels, channels, stride)

    def forward(self, x: Tensor) -> Tensor:
        """relu(residual + shortcut)."""
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
        self.conv1 = _conv(in_channels, channels, 1)
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv2 = _conv(channels, channels, 3, stride)
        self.norm2 = nn.BatchNorm2d(channels)
        self.conv3 = _conv(channels, out_channels, 1)
        self.norm3 = nn.BatchNorm2d(out_channels)
        self.shortcut = _make_shortcut(shortcut, in_channels, out_channels, stride)

    def forward(self, x: Tensor) -> Tensor:
        """relu(residual + shortcut)."""
        residual = functional.relu(self.norm1(self.conv1(x)))
        residual = functional.relu(self.norm2(self.conv2(residual)))
        residual = self.norm3(self.conv3(residual))
        return functional.relu(residual + self.shortcut(x))


class ResNet(nn.Module):
    """A stem, stages that each double the channels and halve the map, average pool, linear head.

    `num_blocks` has one entry for each stage; the first stage keeps the size of the map.
    """

    def __init__(
        self,
        stem: nn.Module,
        block: type[BasicBlock] | type[Bottleneck],
        num_blocks: Sequence[int],
        *,
        width: int,
        num_classes: int,
        shortcut: Shortcut,
    ) -> None:
        super().__init__()
        self.stem = stem
        self.stages = nn.Sequential()
        in_channels = width

        for stage_index, depth in enumerate(num_blocks):
            channels = width * 2**stage_index
            stage = nn.Sequential()
            for block_index in range(depth):
                stride = 2 if stage_index > 0 and block_index == 0 else 1
                stage.append(block(in_channels, channels, stride, shortcut))
                in_channels = block.expansion * channels
            self.stages.append(stage)

        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(in_channels, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of shape (batch, num_classes)."""
        x = self.stages(self.stem(x))
        return self.head(self.pool(x).flatten(1))


def _make_stem(kind: Stem, in_channels: int, width: int) -> nn.Sequential:
    if kind not in ("small", "imagenet"):
        raise ValueError(f"`stem` must be 'small' or 'imagenet', got {kind!r}.")
    kernel_size, stride = (3, 1) if kind == "small" else (7, 2)
    stem = nn.Sequential(
        OrderedDict(
            conv=_conv(in_channels, width, kernel_size, stride),
            norm=nn.BatchNorm2d(width),
            relu=nn.ReLU(),
        )
    )
    if kind == "imagenet":
        stem.add_module("pool", nn.MaxPool2d(3, stride=2, padding=1))
    return stem


def cifar_resnet(
    depth: int,
    /,
    *,
    num_classes: int = 10,
    in_channels: int = 3,
    width: int = 16,
    shortcut: Shortcut = "A",
) -> ResNet:
    """A net of three stages, Kaiming-normal (fan in) as in the BiP authors' code.

    With 3 input channels and 10 classes depth 20 has 269,722 parameters (272,474 with shortcut
    "B"), depth 32 has 464,154 and depth 56 has 853,018. GraSP's "ResNet-32" has width 32.
    """
    if shortcut not in ("A", "B"):
        raise ValueError(f"`shortcut` must be 'A' or 'B', got {shortcut!r}.")
    model = ResNet(
        _make_stem("small", in_channels, width),
        BasicBlock,
        [(depth - 2) // 6] * 3,
        width=width,
        num_classes=num_classes,
        shortcut=shortcut,
    )
    for module in model.modules():
        # On meta torch would import its compiler to draw nothing.
        if isinstance(module, nn.Conv2d | nn.Linear) and not module.weight.is_meta:
            nn.init.kaiming_normal_(module.weight)
    return model


def imagenet_resnet(
    block: type[BasicBlock] | type[Bottleneck],
    num_blocks: Sequence[int],
    /,
    *,
    num_classes: int = 10,
    in_channels: int = 3,
    width: int = 64,
    stem: Stem = "small",
) -> ResNet:
    """A net of four stages, with a stem for small images or that of ImageNet."""
    return ResNet(
        _make_stem(stem, in_channels, width),
        block,
        num_blocks,
        width=width,
        num_classes=num_classes,
        shortcut="B",
    )
