"""Rivals beyond the main four: pruning at initialization, EarlyBird, ProsPr, a cheaper IMP."""

from __future__ import annotations

from biprune.experiments.presets.base import CIFAR, COMPARED, RESNET20, Preset, expand, sized
from biprune.experiments.presets.scales import Size, part
from biprune.experiments.spec import RunSpec
from biprune.methods import IMP

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
