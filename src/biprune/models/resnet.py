"""Residual networks: the thin ones of depth 6n + 2 for CIFAR, and ResNet-18 and ResNet-50.

He et al., "Deep Residual Learning for Image Recognition", CVPR 2016. Parameter counts in the
docstrings are for 3 input channels and the default options.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Literal

from torch import Tensor, nn

from biprune.models.blocks import BasicBlock, Bottleneck, Shortcut, conv

Stem = Literal["small", "imagenet"]


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
        """Return logits of shape (batch, num_classes)."""
        x = self.stages(self.stem(x))
        return self.head(self.pool(x).flatten(1))


def _make_stem(kind: Stem, in_channels: int, width: int) -> nn.Sequential:
    if kind not in ("small", "imagenet"):
        raise ValueError(f"`stem` must be 'small' or 'imagenet', got {kind!r}.")
    kernel_size, stride = (3, 1) if kind == "small" else (7, 2)
    stem = nn.Sequential(
        OrderedDict(
            conv=conv(in_channels, width, kernel_size, stride),
            norm=nn.BatchNorm2d(width),
            relu=nn.ReLU(),
        )
    )
    if kind == "imagenet":
        stem.add_module("pool", nn.MaxPool2d(3, stride=2, padding=1))
    return stem


def _cifar_resnet(
    depth: int, num_classes: int, in_channels: int, width: int, shortcut: Shortcut
) -> ResNet:
    """Return the net of three stages, Kaiming-normal (fan in) as in the BiP authors' code."""
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
        # Without numbers to draw, torch would import its compiler to do nothing.
        if isinstance(module, nn.Conv2d | nn.Linear) and not module.weight.is_meta:
            nn.init.kaiming_normal_(module.weight)
    return model


def resnet8(
    *, num_classes: int = 10, in_channels: int = 3, width: int = 16, shortcut: Shortcut = "A"
) -> ResNet:
    """Return the smallest net of the family: one block a stage, 75,290 parameters."""
    return _cifar_resnet(8, num_classes, in_channels, width, shortcut)


def resnet20(
    *, num_classes: int = 10, in_channels: int = 3, width: int = 16, shortcut: Shortcut = "A"
) -> ResNet:
    """Return ResNet-20: 269,722 parameters, 272,474 with shortcut "B"."""
    return _cifar_resnet(20, num_classes, in_channels, width, shortcut)


def resnet32(
    *, num_classes: int = 10, in_channels: int = 3, width: int = 16, shortcut: Shortcut = "A"
) -> ResNet:
    """Return ResNet-32: 464,154 parameters. GraSP's "ResNet-32" has width 32."""
    return _cifar_resnet(32, num_classes, in_channels, width, shortcut)


def resnet56(
    *, num_classes: int = 10, in_channels: int = 3, width: int = 16, shortcut: Shortcut = "A"
) -> ResNet:
    """Return ResNet-56: 853,018 parameters."""
    return _cifar_resnet(56, num_classes, in_channels, width, shortcut)


def resnet18(
    *, num_classes: int = 10, in_channels: int = 3, width: int = 64, stem: Stem = "small"
) -> ResNet:
    """Return ResNet-18: 11,173,962 parameters; 11,689,512 for ImageNet with its stem."""
    return ResNet(
        _make_stem(stem, in_channels, width),
        BasicBlock,
        [2, 2, 2, 2],
        width=width,
        num_classes=num_classes,
        shortcut="B",
    )


def resnet50(
    *, num_classes: int = 10, in_channels: int = 3, width: int = 64, stem: Stem = "small"
) -> ResNet:
    """Return ResNet-50: 23,520,842 parameters; 25,557,032 for ImageNet with its stem."""
    return ResNet(
        _make_stem(stem, in_channels, width),
        Bottleneck,
        [3, 4, 6, 3],
        width=width,
        num_classes=num_classes,
        shortcut="B",
    )
