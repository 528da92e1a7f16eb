"""What BiP's settings do. Values that the paper's text does not give are ours; its own is first."""

from __future__ import annotations

from biprune.experiments.presets.base import (
    RESNET18,
    RESNET20,
    RESNET20_C100,
    Preset,
    Size,
    distinct,
    expand,
    part,
    sized,
)
from biprune.experiments.record import RunSpec

WIDE = (0.2, 0.738, 0.956)  # three sparsities "of a wide range"; which, the text does not say
STEPS = (1, 3, 5, 2)
GAMMAS = (1.0, 0.5, 0.1, 5.0, 10.0)
RATES = (0.01, 0.008, 0.001, 0.05, 0.1)
BATCH_SIZES = (None, 32, 128, 256, 512)  # None is the data's own, 64
RETRAINING = 160
REWOUND = (0, 8, 4, 16, 40, 80)


def _setting(
    short: str, setting: str, values: tuple[object, ...], summary: str, source: str
) -> Preset:
    """One setting of BiP on ResNet-20, CIFAR-10."""
    return Preset(
        name=f"ablation-{short}",
        summary=summary,
        source=source,
        specs=sized(
            lambda size: expand(
                size,
                [RESNET20],
                [size.bip(**{setting: value}) for value in size.some(values)],
                at=WIDE,
            )
        ),
    )


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


ABLATIONS = [
    _setting("steps", "lower_steps", STEPS, "the number N of theta-steps", "Figure A8 (a)"),
    _setting("gamma", "gamma", GAMMAS, "the regulariser gamma", "Figure A8 (b)"),
    _setting(
        "implicit",
        "implicit_gradient",
        (True, False),
        "the implicit gradient, with and without",
        "Figure A8 (c)",
    ),
    _setting("lr", "lr", RATES, "the learning rate alpha of theta", "Figure A9 (a)"),
    Preset(
        name="ablation-batch-size",
        summary="the batch size",
        source="Figure A9 (b)",
        specs=sized(_batch_sizes),
    ),
    Preset(
        name="rewinding",
        summary="BiP without retraining, and retrained from epochs of the dense run",
        source="Figure 7",
        specs=sized(_rewinding),
    ),
]
