"""Filters and channels."""

from __future__ import annotations

from biprune.experiments.presets.base import (
    CIFAR,
    COMPARED,
    RESNET18,
    RESNET18_C100,
    RESNET20,
    RESNET20_C100,
    Preset,
    expand,
    sized,
)

# Figure 6 has four panels of CIFAR-10 and CIFAR-100; Figure A10 adds VGG-16 and ResNet-56.
MAIN = (RESNET18, RESNET20, RESNET18_C100, RESNET20_C100)

STRUCTURED = [
    Preset(
        name="filter",
        summary="accuracy against the fraction of filters removed",
        source="Figures 6 and A10",
        specs=sized(lambda size: expand(size, CIFAR, COMPARED, structure="filter")),
    ),
    Preset(
        name="channel",
        summary="accuracy against the fraction of input channels removed",
        source="Figure A11",
        specs=sized(lambda size: expand(size, CIFAR, COMPARED, structure="channel")),
    ),
    Preset(
        name="more-baselines-filter",
        summary="the filter curves with ProsPr, and EarlyBird, which was published for filters",
        source="Figure A6",
        specs=sized(
            lambda size: expand(size, MAIN, [*COMPARED, "prospr", "earlybird"], structure="filter")
        ),
    ),
]
