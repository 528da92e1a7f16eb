"""Does BiP win? Every method at equal cost, what else could explain it, and the paper's claims."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
from biprune.methods import GMP, IMP, SNIP, BiP, BiPPlus, Magnitude
from biprune.methods.base import TrainingMethod
from biprune.methods.bip_plus import AS_PUBLISHED

CLAIM_SEEDS = range(5)  # of comparisons that carry a claim
STUDY_SEEDS = range(100, 102)  # settings are not judged by the runs that chose them
MORE_STUDY_SEEDS = range(100, 110)
HIGH = (0.8, 0.9, 0.95, 0.98)
CLAIMED = (0.9, 0.95, 0.98)  # where BiP is said to be ahead, with more seeds
STRONG = ("bip-plus", "bip", "gmp", "hydra", "imp", "omp", "magnitude")
CLOSEST = ("bip-plus", "gmp")  # the strongest at equal cost, and each with the other's momentum
SWAPPED = (BiPPlus(nesterov=False, freeze_pruned=False), GMP(nesterov=True))
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
# Each a change to the settings of bip-plus. Those chosen are first, as in all studies: none at all.
CHANGES: tuple[dict[str, Any], ...] = (
    {},
    {"passes": 2},
    {"sparsity_schedule": "direct"},
    {"sparsity_schedule": "linear"},
    {"ramp": 0.3},
    {"ramp": 0.9},
    {"follow_weights": False},
    {"follow_weights": False, "score_init": "hydra"},
    {"follow_weights": False, "score_init": "random"},
    {"score_lr": 0.1},
    {"score_lr": 0.03},
    {"score_lr": 1.0},
    {"score_lr": 3.0},
    {"score_lr": 0.0},
    {"score_schedule": "constant"},
    {"score_momentum": 0.0, "score_lr": 3.0},
    {"score_optimizer": "adam", "score_lr": 1e-4},
    {"score_optimizer": "adam", "score_lr": 1e-3},
    {"score_pruned": False},
    {"settle": True},
    {"mask_every": 10},
    {"mask_every": 50},
    {"nesterov": False},
    {"freeze_pruned": False},
    {"lr": 0.01},
    {"lr": 0.03},
    {"lr": 0.3},
    {"schedule": "step"},
    {"implicit_gradient": True, "gamma": 0.1},
    {"implicit_gradient": True},
    {"implicit_gradient": True, "gamma": 10.0},
    {"implicit_gradient": True, "gamma": 100.0},
    {"implicit_gradient": True, "gamma": 1e4},
    {"weight_decay": 0.0},
    {"weight_decay": 1e-4},
    {"weight_decay": 1e-3},
)
# Of filters and channels: what only they do, taken back.
UNIT_CHANGES: tuple[dict[str, Any], ...] = (
    {},
    {"score_pruned": True},
    {"settle": False},
    {"score_pruned": True, "settle": False},
)


def seeded(size: Size, seeds: Sequence[int]) -> Size:
    """With other seeds; a smoke test has its one."""
    return replace(size, seeds=tuple(seeds) if len(size.seeds) > 1 else size.seeds)


def _methods(size: Size) -> list[RunSpec]:
    length = size.passes or BiP.epochs
    single = BiPPlus(**{**AS_PUBLISHED, "passes": 1, "lr": 0.1, "epochs": length})
    more = seeded(size, CLAIM_SEEDS)
    swapped = [_of_length(size, method) for method in SWAPPED]
    return distinct(
        [
            *expand(size, [RESNET20], STRONG, at=HIGH),
            *expand(size, [RESNET20], [single], at=[0.95]),
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
            *expand(size, [RESNET20], [_of_length(size, BiPPlus(score_lr=0.0))], at=(0.95, 0.98)),
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


def _settings(size: Size) -> list[RunSpec]:
    """On the scale's data with half its passes, for there is much to try, and on the digits.

    Filters and channels too, where the data is not digits alone.
    """
    size = seeded(size, STUDY_SEEDS)
    half = None if size.passes is None else size.passes // 2
    specs = _of_weights(size, half)
    if size.data not in (None, "digits"):
        digits = {"data": "digits", "data_options": {}, "model_options": {"width": 8}}
        more = seeded(replace(size, **digits), MORE_STUDY_SEEDS)  # a run takes seconds
        specs += _of_weights(more, size.passes)
        for structure in ("filter", "channel"):
            methods = _changed(size.some(UNIT_CHANGES), half)
            specs += expand(size, [RESNET20], methods, at=UNITS, structure=structure)
    return specs


def _of_weights(size: Size, passes: int | None) -> list[RunSpec]:
    methods = _changed(size.some(CHANGES), passes)
    shorter, longer = (BiPPlus().scaled(methods[0].epochs * n // 2) for n in (1, 4))
    return expand(size, [RESNET20], [*methods, shorter, longer], at=[0.95])


def _changed(changes: Iterable[dict[str, Any]], passes: int | None) -> list[BiPPlus]:
    methods = [replace(BiPPlus(), **change) for change in changes]
    if passes is None:
        return methods
    return [method.scaled(max(1, passes // method.passes)) for method in methods]


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


_ALL = [
    Preset(
        name="methods",
        summary="every method at equal passes, IMP at its own",
        source="ours",
        specs=sized(_methods),
    ),
    Preset(
        name="controls",
        summary="BiP's rivals with its schedule and momentum or its length, and training alone",
        source="ours",
        specs=sized(_controls),
    ),
    Preset(
        name="claims",
        summary="what the paper says of BiP's settings, of retraining, filters and channels",
        source="ours",
        specs=sized(_claims),
    ),
    Preset(
        name="full-size",
        summary="ResNet-20 on all images of CIFAR-10, pruned once",
        source="ours",
        specs=sized(_full_size),
    ),
    Preset(
        name="settings",
        summary="what each of BiP's defaults is worth, on seeds of its own",
        source="ours",
        specs=sized(_settings),
    ),
]

STUDIES = {preset.name: preset for preset in _ALL}
