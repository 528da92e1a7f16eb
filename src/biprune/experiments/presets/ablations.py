"""BiP's settings, longer runs and other batches: what they do to its accuracy and its mask.

Where the paper's text does not give the values of a setting, they are ours. Its own is first.
"""

from __future__ import annotations

from collections.abc import Iterable

from biprune.experiments.presets.base import (
    RESNET18,
    RESNET18_C100,
    RESNET20,
    RESNET20_C100,
    Preset,
    Size,
    compared,
    distinct,
    expand,
    part,
    sized,
)
from biprune.experiments.presets.comparisons import TINY
from biprune.experiments.record import RunSpec
from biprune.methods import BiP

WIDE = (0.2, 0.738, 0.956)  # three sparsities "of a wide range"; which, the text does not say
GAMMAS = (1.0, 0.5, 0.1, 5.0, 10.0)
BATCH_SIZES = (None, 32, 128, 256, 512)  # None is the data's own, 64
RETRAINING = 160
REWOUND = (0, 8, 4, 16, 40, 80)
SCHEMES = ("different", "same", "reverse")
LENGTHS = (100, 50, 200, 300, 400, 500)
# The accuracy of every epoch is on a validation split: test data is read once, at the end.
WITH_VALIDATION = {"val_fraction": 0.1}


def _setting(
    name: str, source: str, summary: str, setting: str, values: tuple[object, ...]
) -> Preset:
    """One setting of BiP on ResNet-20, CIFAR-10."""

    def specs(size: Size) -> list[RunSpec]:
        methods = [size.bip(**{setting: value}) for value in size.some(values)]
        return expand(size, [RESNET20], methods, at=WIDE)

    return Preset(f"ablation-{name}", summary, source, sized(specs))


def _batch_sizes(size: Size) -> list[RunSpec]:
    return distinct(
        spec
        for number in size.some(BATCH_SIZES)
        for spec in expand(size, [RESNET20], ["bip"], at=WIDE, data_options={"batch_size": number})
    )


def _rewinding(size: Size) -> list[RunSpec]:
    """BiP as it is ("N/A" in the figure), then retrained from epochs of the dense run."""
    length = size.dense.get("epochs", RETRAINING)
    chosen = size.some(REWOUND)
    epochs = {part(epoch, of=RETRAINING, length=length) if epoch else 0 for epoch in chosen}
    retrained = [
        size.bip(retrain_epochs=size.passes or RETRAINING, rewind_epoch=epoch)
        for epoch in sorted(epochs)
    ]
    # Two states are kept anyway: the first, and the one that IMP and OMP go back to.
    dense = {"rewind_epochs": sorted(epochs)} if len(epochs) > 2 else {}
    pairs = [RESNET20, RESNET18, RESNET20_C100]
    return expand(size, pairs, [size.bip(), *retrained], at=[0.738, 0.893], dense=dense)


def _watched(size: Size, methods: Iterable[BiP]) -> list[RunSpec]:
    """Runs whose accuracy is drawn epoch by epoch."""
    return expand(size, [RESNET18], list(methods), at=[0.8], data_options=WITH_VALIDATION)


def _lengths(size: Size) -> list[RunSpec]:
    default = size.bip()
    lengths = [part(epochs, of=100, length=default.epochs) for epochs in size.some(LENGTHS)]
    methods = [size.bip(epochs=epochs) for epochs in lengths]
    return expand(size, [RESNET18, RESNET18_C100, TINY], methods, at=[0.8658, 0.945, 0.9775])


def _schemes(size: Size) -> list[RunSpec]:
    methods = [size.bip(batches=scheme) for scheme in SCHEMES]
    return expand(size, [RESNET18, RESNET20], [*methods, "imp", "gmp"])


ABLATIONS = [
    _setting("steps", "Figure A8 (a)", "the number N of theta-steps", "lower_steps", (1, 3, 5, 2)),
    _setting(
        "gamma", "Figure A8 (b)", "the regulariser gamma", "gamma", (1.0, 0.5, 0.1, 5.0, 10.0)
    ),
    _setting(
        "implicit",
        "Figure A8 (c)",
        "the implicit gradient, with and without",
        "implicit_gradient",
        (True, False),
    ),
    _setting(
        "lr",
        "Figure A9 (a)",
        "the learning rate alpha of theta",
        "lr",
        (0.01, 0.008, 0.001, 0.05, 0.1),
    ),
    Preset("ablation-batch-size", "the batch size", "Figure A9 (b)", sized(_batch_sizes)),
    Preset(
        "rewinding",
        "BiP without retraining, and retrained from epochs of the dense run",
        "Figure 7",
        sized(_rewinding),
    ),
    Preset(
        "convergence",
        "accuracy along a run of BiP at 80 %",
        "Figure A12",
        sized(lambda size: _watched(size, [size.bip()])),
    ),
    compared(
        "mask-iou",
        "Figure A13",
        "IoU of the masks of adjacent epochs, at several sparsities",
        [RESNET18],
        ["bip"],
        at=[0.2, 0.59, 0.832, 0.956],
    ),
    Preset(
        "steps-dynamics",
        "accuracy along a run of BiP with N = 1, 3, 5 theta-steps",
        "Figure A14",
        sized(lambda size: _watched(size, [size.bip(lower_steps=n) for n in (1, 3, 5)])),
    ),
    Preset(
        "epochs", "BiP over 50 to 500 epochs at extreme sparsity", "Figure A15", sized(_lengths)
    ),
    Preset(
        "batch-schemes",
        "different, same and reversed batches for the two levels, against IMP",
        "Figure A16",
        sized(_schemes),
    ),
    Preset(
        "batch-dynamics",
        "accuracy along a run of BiP under the three batch schemes",
        "Figure A17",
        sized(lambda size: _watched(size, [size.bip(batches=s) for s in SCHEMES])),
    ),
]
