"""Tiny-ImageNet and ImageNet: written out in full, and beyond any laptop at the paper's scale."""

from __future__ import annotations

from biprune.experiments.presets.base import COMPARED, Preset, expand, sized
from biprune.experiments.presets.scales import Pair

TINY = Pair("resnet18", "tiny_imagenet")
IMAGENET_18 = Pair("resnet18", "imagenet", {"stem": "imagenet"})
IMAGENET_50 = Pair("resnet50", "imagenet", {"stem": "imagenet"})
STRONGEST = ("bip", "bip-plus", "imp", "gmp")  # on ImageNet the paper draws IMP and no other

LARGE_CURVES = [
    Preset(
        name="trajectory-tiny-imagenet-resnet18",
        summary="accuracy against sparsity of resnet18 on tiny_imagenet",
        source="Figure 4",
        specs=sized(lambda size: expand(size, [TINY], COMPARED)),
    ),
    Preset(
        name="trajectory-imagenet-resnet50",
        summary="BiP against IMP, accuracy against sparsity of resnet50 on imagenet",
        source="Figure 4",
        specs=sized(lambda size: expand(size, [IMAGENET_50], STRONGEST)),
    ),
    Preset(
        name="trajectory-imagenet-resnet18",
        summary="BiP against IMP, accuracy against sparsity of resnet18 on imagenet",
        source="Figure A7",
        specs=sized(lambda size: expand(size, [IMAGENET_18], STRONGEST)),
    ),
]

LARGE = [
    LARGE_CURVES[-1],
    Preset(
        name="tickets-large",
        summary="the sparsest winning ticket of each method on Tiny-ImageNet and ImageNet",
        source="Table A4",
        specs=sized(lambda size: expand(size, [TINY, IMAGENET_18, IMAGENET_50], COMPARED)),
    ),
]
