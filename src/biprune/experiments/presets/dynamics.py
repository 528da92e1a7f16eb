"""How BiP's accuracy and mask move along a run, and what longer runs and other batches bring."""

from __future__ import annotations

from collections.abc import Iterable

from biprune.experiments.presets.base import (
    RESNET18,
    RESNET18_C100,
    RESNET20,
    Preset,
    Size,
    expand,
    part,
    sized,
)
from biprune.experiments.presets.comparisons import TINY
from biprune.experiments.record import RunSpec
from biprune.methods import BiP

SCHEMES = ("different", "same", "reverse")
LENGTHS = (100, 50, 200, 300, 400, 500)
# The accuracy of every epoch is on a validation split: test data is read once, at the end.
WITH_VALIDATION = {"val_fraction": 0.1}


def _watched(size: Size, methods: Iterable[BiP]) -> list[RunSpec]:
    return expand(size, [RESNET18], list(methods), at=[0.8], data_options=WITH_VALIDATION)


def _lengths(size: Size) -> list[RunSpec]:
    default = size.bip()
    lengths = [part(epochs, of=100, length=default.epochs) for epochs in size.some(LENGTHS)]
    methods = [size.bip(epochs=epochs) for epochs in lengths]
    return expand(size, [RESNET18, RESNET18_C100, TINY], methods, at=[0.8658, 0.945, 0.9775])


def _schemes(size: Size) -> list[RunSpec]:
    methods = [size.bip(batches=scheme) for scheme in SCHEMES]
    return expand(size, [RESNET18, RESNET20], [*methods, "imp", "gmp"])


DYNAMICS = [
    Preset(
        name="convergence",
        summary="accuracy along a run of BiP at 80 %",
        source="Figure A12",
        specs=sized(lambda size: _watched(size, [size.bip()])),
    ),
    Preset(
        name="mask-iou",
        summary="IoU of the masks of adjacent epochs, at several sparsities",
        source="Figure A13",
        specs=sized(lambda size: expand(size, [RESNET18], ["bip"], at=[0.2, 0.59, 0.832, 0.956])),
    ),
    Preset(
        name="steps-dynamics",
        summary="accuracy along a run of BiP with N = 1, 3, 5 theta-steps",
        source="Figure A14",
        specs=sized(lambda size: _watched(size, [size.bip(lower_steps=n) for n in (1, 3, 5)])),
    ),
    Preset(
        name="epochs",
        summary="BiP over 50 to 500 epochs at extreme sparsity",
        source="Figure A15",
        specs=sized(_lengths),
    ),
    Preset(
        name="batch-schemes",
        summary="different, same and reversed batches for the two levels, against IMP",
        source="Figure A16",
        specs=sized(_schemes),
    ),
    Preset(
        name="batch-dynamics",
        summary="accuracy along a run of BiP under the three batch schemes",
        source="Figure A17",
        specs=sized(lambda size: _watched(size, [size.bip(batches=s) for s in SCHEMES])),
    ),
]
