"""Accuracy against sparsity, unstructured: the snapshot, the eight curves, the winning tickets."""

from __future__ import annotations

from biprune.experiments.costs import Scale
from biprune.experiments.presets.base import (
    CIFAR,
    COMPARED,
    RESNET18,
    RESNET20,
    RESNET56,
    Preset,
    distinct,
    expand,
    sized,
)
from biprune.experiments.presets.large import LARGE_CURVES
from biprune.experiments.presets.scales import Pair
from biprune.experiments.spec import RunSpec


def _curve(pair: Pair) -> Preset:
    return Preset(
        name=f"trajectory-{pair.data}-{pair.model}",
        summary=f"accuracy against sparsity of {pair.model} on {pair.data}",
        source="Figure 4",
        specs=sized(lambda size: expand(size, [pair], COMPARED)),
    )


CURVES = [*map(_curve, CIFAR), *(curve for curve in LARGE_CURVES if curve.source == "Figure 4")]


def _union(scale: Scale) -> list[RunSpec]:
    return distinct(spec for curve in CURVES for spec in curve.specs(scale))


TRAJECTORIES = [
    Preset(
        name="snapshot",
        summary="BiP, IMP and the dense model at 74 % on three ResNets",
        source="Figure 1",
        specs=sized(
            lambda size: expand(
                size,
                [RESNET20, RESNET56, RESNET18],
                ["bip", "bip-plus", "imp", "gmp"],
                at=[0.738],
            )
        ),
    ),
    *CURVES,
    Preset(
        name="trajectories",
        summary="all eight curves of accuracy against sparsity",
        source="Figure 4",
        specs=_union,
    ),
    Preset(
        name="tickets",
        summary="the sparsest winning ticket of each method on CIFAR-10 and CIFAR-100",
        source="Table 1",
        specs=sized(lambda size: expand(size, CIFAR, COMPARED)),
    ),
]
