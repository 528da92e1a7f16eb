"""Methods beside methods: accuracy against sparsity, winning tickets, units, rivals, time."""

from __future__ import annotations

from biprune.experiments.costs import Scale
from biprune.experiments.presets.base import (
    CIFAR,
    COMPARED,
    RESNET18,
    RESNET18_C100,
    RESNET20,
    RESNET20_C100,
    RESNET56,
    Pair,
    Preset,
    Size,
    distinct,
    expand,
    part,
    sized,
)
from biprune.experiments.record import RunSpec
from biprune.methods import IMP

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


ROUND = 160  # epochs of IMP's retraining in each round
SHORTER = (160, 20, 40, 80)


def _cheaper_imp(size: Size) -> list[RunSpec]:
    lengths = [part(epochs, of=ROUND, length=size.passes or ROUND) for epochs in size.some(SHORTER)]
    rounds = [IMP().scaled(epochs) for epochs in lengths]
    return expand(size, [RESNET20], ["omp", "gmp", *rounds])


BASELINES = [
    Preset(
        name="one-shot",
        summary="one-shot methods against IMP: accuracy, and the time it takes",
        source="Figure 2",
        specs=sized(
            lambda size: expand(size, [RESNET20], ["imp", "omp", "grasp", "snip", "synflow", "gmp"])
        ),
    ),
    Preset(
        name="imp-epochs",
        summary="IMP with fewer epochs a round, against OMP",
        source="Figure A2",
        specs=sized(_cheaper_imp),
    ),
    Preset(
        name="at-init",
        summary="BiP against pruning at initialization: SNIP, SynFlow, GraSP",
        source="Figure A4",
        specs=sized(
            lambda size: expand(
                size, [RESNET20], ["bip", "bip-plus", "grasp", "snip", "synflow", "gmp"]
            )
        ),
    ),
    Preset(
        name="more-baselines",
        summary="the unstructured curves with EarlyBird and ProsPr",
        source="Figure A5",
        specs=sized(lambda size: expand(size, CIFAR, [*COMPARED, "earlybird", "prospr"])),
    ),
]


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
