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
    compared,
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
AT_INIT = ("grasp", "snip", "synflow")
MORE = ("earlybird", "prospr")
MAIN = (RESNET18, RESNET20, RESNET18_C100, RESNET20_C100)  # Figure A10 adds VGG-16 and ResNet-56
ROUND = 160  # epochs of IMP's retraining in each round
SHORTER = (160, 20, 40, 80)


def _curve(
    pair: Pair,
    methods: tuple[str, ...] = COMPARED,
    source: str = "Figure 4",
    title: str = "accuracy against sparsity",
) -> Preset:
    name = f"trajectory-{pair.data}-{pair.model}".replace("_", "-")
    return compared(name, source, f"{title} of {pair.model} on {pair.data}", [pair], methods)


_BESIDE_IMP = "BiP against IMP, accuracy against sparsity"
CURVES = [*map(_curve, (*CIFAR, TINY)), _curve(IMAGENET_50, STRONGEST, title=_BESIDE_IMP)]


def _all_curves(scale: Scale) -> list[RunSpec]:
    return distinct(spec for curve in CURVES for spec in curve.specs(scale))


def _cheaper_imp(size: Size) -> list[RunSpec]:
    lengths = [part(epochs, of=ROUND, length=size.passes or ROUND) for epochs in size.some(SHORTER)]
    rounds = [IMP().scaled(epochs) for epochs in lengths]
    return expand(size, [RESNET20], ["omp", "gmp", *rounds])


COMPARISONS = [
    compared(
        "snapshot",
        "Figure 1",
        "BiP, IMP and the dense model at 74 % on three ResNets",
        [RESNET20, RESNET56, RESNET18],
        STRONGEST,
        at=[0.738],
    ),
    *CURVES,
    Preset(
        "trajectories", "all eight curves of accuracy against sparsity", "Figure 4", _all_curves
    ),
    compared(
        "tickets",
        "Table 1",
        "the sparsest winning ticket of each method on CIFAR-10 and CIFAR-100",
        CIFAR,
    ),
    _curve(IMAGENET_18, STRONGEST, "Figure A7", _BESIDE_IMP),
    compared(
        "tickets-large",
        "Table A4",
        "the sparsest winning ticket of each method on Tiny-ImageNet and ImageNet",
        [TINY, IMAGENET_18, IMAGENET_50],
    ),
    compared(
        "time",
        "Figure 5",
        "time against sparsity: IMP's grows, that of the others does not",
        [RESNET18],
    ),
    compared(
        "runtime",
        "Table A2",
        "time and passes of each method at four sparsities",
        [RESNET18],
        at=[0.2, 0.59, 0.832, 0.956],
    ),
    compared(
        "filter",
        "Figures 6 and A10",
        "accuracy against the fraction of filters removed",
        CIFAR,
        structure="filter",
    ),
    compared(
        "channel",
        "Figure A11",
        "accuracy against the fraction of input channels removed",
        CIFAR,
        structure="channel",
    ),
    compared(
        "more-baselines-filter",
        "Figure A6",
        "the filter curves with ProsPr, and EarlyBird, which was published for filters",
        MAIN,
        [*COMPARED, *MORE],
        structure="filter",
    ),
    compared(
        "one-shot",
        "Figure 2",
        "one-shot methods against IMP: accuracy, and the time it takes",
        [RESNET20],
        ["imp", "omp", *AT_INIT, "gmp"],
    ),
    Preset(
        "imp-epochs", "IMP with fewer epochs a round, against OMP", "Figure A2", sized(_cheaper_imp)
    ),
    compared(
        "at-init",
        "Figure A4",
        "BiP against pruning at initialization: SNIP, SynFlow, GraSP",
        [RESNET20],
        ["bip", "bip-plus", *AT_INIT, "gmp"],
    ),
    compared(
        "more-baselines",
        "Figure A5",
        "the unstructured curves with EarlyBird and ProsPr",
        CIFAR,
        [*COMPARED, *MORE],
    ),
]
