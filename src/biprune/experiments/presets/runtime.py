"""What the methods cost: the same runs as the curve of ResNet-18 on CIFAR-10, by their time."""

from __future__ import annotations

from biprune.experiments.presets.base import COMPARED, RESNET18, Preset, expand, sized

RUNTIME = [
    Preset(
        name="time",
        summary="time against sparsity: IMP's grows, that of the others does not",
        source="Figure 5",
        specs=sized(lambda size: expand(size, [RESNET18], COMPARED)),
    ),
    Preset(
        name="runtime",
        summary="time and passes of each method at four sparsities",
        source="Table A2",
        specs=sized(lambda size: expand(size, [RESNET18], COMPARED, at=[0.2, 0.59, 0.832, 0.956])),
    ),
]
