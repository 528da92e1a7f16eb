"""Does BiP win? Every method at equal cost, what else could explain it, and the paper's claims."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from biprune.experiments.presets.ablations import RETRAINING
from biprune.experiments.presets.base import (
    COMPARED,
    RESNET20,
    Preset,
    Size,
    distinct,
    expand,
    part,
    sized,
)
from biprune.experiments.record import RunSpec
from biprune.methods import GMP, IMP, SNIP, BiPPlus, Magnitude
from biprune.methods.base import TrainingMethod

CLAIM_SEEDS = range(5)  # of comparisons that carry a claim
HIGH = (0.8, 0.9, 0.95, 0.98)
CLAIMED = (0.9, 0.95, 0.98)  # where BiP is said to be ahead, with more seeds
STRONG = ("bip-plus", "bip", "gmp", "hydra", "imp", "omp", "magnitude")
CLOSEST = ("bip-plus", "gmp")  # the strongest at equal cost, and each with the other's momentum
SWAPPED = (BiPPlus(nesterov=False), GMP(nesterov=True))
OTHERS = ("grasp", "snip", "synflow", "prospr", "earlybird", "random")
# What the paper says of BiP's settings: of the implicit gradient, N, gamma and the batches; and
# the rate of its rivals, for the paper's is small beside a dense run that was too short.
DOUBTED: tuple[dict[str, Any], ...] = (
    {},
    {"implicit_gradient": False},
    {"lower_steps": 3},
    {"lr": 0.1},
    {"gamma": 0.5},
    {"gamma": 0.1},
    {"gamma": 10.0},
    {"batches": "same"},
    {"batches": "reverse"},
)
UNITS = (0.6,)  # of filters and of channels
WHOLE = (0.738, 0.9)  # the paper's sparsity for ResNet-20, and one beyond its winning tickets


def seeded(size: Size, seeds: Sequence[int]) -> Size:
    """With other seeds; a smoke test has its one."""
    return replace(size, seeds=tuple(seeds) if len(size.seeds) > 1 else size.seeds)


def _methods(size: Size) -> list[RunSpec]:
    more = seeded(size, CLAIM_SEEDS)
    swapped = [_of_length(size, method) for method in SWAPPED]
    return distinct(
        [
            *expand(size, [RESNET20], STRONG, at=HIGH),
            *expand(size, [RESNET20], OTHERS, at=(0.9, 0.95)),
            *_fifths_of_imp(more, BiPPlus()),
            *expand(more, [RESNET20], [*CLOSEST, "imp", *swapped], at=CLAIMED),
        ]
    )


def _of_length(size: Size, method: TrainingMethod, times: int = 1) -> TrainingMethod:
    """With so many times the passes of the size."""
    return method if size.passes is None else method.scaled(times * size.passes)


def _fifths_of_imp(size: Size, method: TrainingMethod) -> list[RunSpec]:
    """A method of one pass an epoch with a fifth of what IMP takes to each sparsity alone.

    At the paper's length it has less than that anyway.
    """
    if size.passes is None:
        return []
    imp = IMP().scaled(size.passes)
    fifths = {s: int(imp.data_passes(s)) // 5 for s in size.near(CLAIMED)}
    return [
        spec
        for sparsity, passes in fifths.items()
        for spec in expand(size, [RESNET20], [method.scaled(passes)], at=[sparsity])
    ]


def _controls(size: Size) -> list[RunSpec]:
    """BiP's rivals with its schedule, momentum, treatment of pruned weights, or length.

    And BiP whose scores are not learned: what is left is GMP with a mask that moves at each step.
    """
    gmp, like_bip = GMP(nesterov=True), {"schedule": "cosine", "nesterov": True}
    equal = [_of_length(size, m) for m in (Magnitude(**like_bip), replace(gmp, freeze_pruned=True))]
    rounds = replace(size, sparsities=tuple(size.near((0.9, 0.95))))
    more = seeded(size, CLAIM_SEEDS)
    return distinct(
        [
            *expand(replace(size, sparsities=(0.0,)), [RESNET20], [_of_length(size, gmp)]),
            *expand(size, [RESNET20], equal, at=(0.9, 0.95)),
            *expand(size, [RESNET20], [_of_length(size, BiPPlus(kappa=0.0))], at=(0.95, 0.98)),
            *expand(size, [RESNET20], [_of_length(size, SNIP(), times=2)], at=[0.95]),
            *_fifths_of_imp(more, gmp),
            *expand(rounds, [RESNET20], [_of_length(size, IMP(rewind=False, **like_bip))]),
        ]
    )


def _claims(size: Size) -> list[RunSpec]:
    """One network, at one sparsity each: enough to judge by; the figures have whole curves."""
    changed = [size.bip(**change) for change in size.some(DOUBTED)]
    early = part(8, of=RETRAINING, length=size.dense.get("epochs", RETRAINING))
    length = size.passes or RETRAINING
    rewound = [size.bip(retrain_epochs=length, rewind_epoch=e) for e in (0, early, None)]
    units = replace(size, unit_sparsities=tuple(size.near(UNITS, "filter")))
    more = seeded(units, CLAIM_SEEDS)
    return distinct(
        [
            *expand(size, [RESNET20], changed, at=[0.95]),
            *expand(size, [RESNET20], [size.bip(), *rewound], at=[0.9]),
            *expand(units, [RESNET20], COMPARED, structure="filter"),
            *expand(units, [RESNET20], COMPARED, structure="channel"),
            *expand(more, [RESNET20], CLOSEST, structure="filter"),
            *expand(more, [RESNET20], CLOSEST, structure="channel"),
        ]
    )


def _full_size(size: Size) -> list[RunSpec]:
    """The paper's network and all of its images, once; a smoke test stays as small as it is."""
    size = replace(size, seeds=size.seeds[:1])
    if size.data == RESNET20.data:
        size = replace(
            size,
            models={},
            data=None,
            data_options={"val_fraction": 0.0},
            dense={"epochs": 30, "schedule": "cosine"},  # steps need more epochs for 90 %
            sparsities=WHOLE,
        )
    return expand(size, [RESNET20], ["bip-plus"], at=WHOLE)


_ALL = (
    ("methods", "every method at equal passes, IMP at its own", _methods),
    (
        "controls",
        "BiP's rivals with its schedule and momentum or its length, and training alone",
        _controls,
    ),
    (
        "claims",
        "what the paper says of BiP's settings, of retraining, filters and channels",
        _claims,
    ),
    ("full-size", "ResNet-20 on all images of CIFAR-10, pruned once", _full_size),
)
STUDIES = {
    name: Preset(name, summary, source="ours", specs=sized(build)) for name, summary, build in _ALL
}
