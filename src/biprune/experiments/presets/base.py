"""What every preset is made of: three scales, the networks that several share, and the grid."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from biprune.experiments.costs import Scale
from biprune.experiments.record import RunSpec
from biprune.experiments.sweep import grid
from biprune.methods import BiP, Method

T = TypeVar("T")

# What the figures and tables print for kept = 0.8^n, n = 1 ... 14.
# fmt: off
LADDER = (
    0.2, 0.36, 0.488, 0.59, 0.672, 0.738, 0.79, 0.832, 0.866, 0.893, 0.914, 0.931, 0.945, 0.956
)
# fmt: on
# For filters and channels the authors' code lists equal steps.
UNIT_LADDER = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
SMALLER = {
    "resnet20": "resnet8",
    "resnet56": "resnet20",
    "resnet18": "resnet20",
    "resnet50": "resnet20",
    "vgg16": "resnet20",
}


@dataclass(frozen=True)
class Pair:
    """A network and the data it is trained on."""

    model: str
    data: str
    model_options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Size:
    """What a scale makes of the paper's settings; the defaults leave them as they are.

    Args:
        models: What stands in for each of the paper's networks, with these `model_options`.
        data: What stands in for the paper's data.
        passes: Over the data, for each method, and for each round of IMP. None: its own length.
        unit_sparsities: Those of filters and channels.
        values: How many values of a setting a study tries, the default first. None: all.
    """

    models: Mapping[str, str] = field(default_factory=dict)
    model_options: Mapping[str, Any] = field(default_factory=dict)
    data: str | None = None
    data_options: Mapping[str, Any] = field(default_factory=dict)
    dense: Mapping[str, Any] = field(default_factory=dict)
    passes: int | None = None
    sparsities: tuple[float, ...] = LADDER
    unit_sparsities: tuple[float, ...] = UNIT_LADDER
    seeds: tuple[int, ...] = (0, 1, 2)
    values: int | None = None

    def fit(self, pair: Pair) -> Pair:
        """What stands in for a pair of the paper."""
        if self.data is None:
            return pair
        return Pair(self.models[pair.model], self.data, self.model_options)

    def ladder(self, structure: str) -> tuple[float, ...]:
        """The sparsities of a curve."""
        return self.sparsities if structure == "weight" else self.unit_sparsities

    def near(self, sparsities: Sequence[float], structure: str = "weight") -> list[float]:
        """The nearest sparsities on the ladder, so that runs are shared.

        At the paper's scale they are taken as they are.
        """
        if self.passes is None:
            return list(sparsities)
        ladder = self.ladder(structure)
        return sorted({min(ladder, key=lambda s: abs(s - wanted)) for wanted in sparsities})

    def bip(self, **settings: Any) -> BiP:
        """BiP as published, its epochs counted as two passes each whatever the settings cost."""
        published = BiP()
        if self.passes is not None:
            published = published.scaled(max(1, self.passes // 2))
        return replace(published, **settings)

    def some(self, values: Sequence[T]) -> Sequence[T]:
        """As many of a study's values as are tried."""
        return values[: self.values]


def part(number: int, *, of: int, length: int) -> int:
    """`number` out of `of` epochs of the paper, as the same part of a run of `length`."""
    return max(1, round(number / of * length))


SIZES: dict[Scale, Size] = {
    # All training images, as in the paper: there is nothing to choose by a validation split.
    "paper": Size(data_options={"val_fraction": 0.0}),
    "laptop": Size(
        models=SMALLER,
        data="cifar10",
        data_options={"subset": 10_000, "val_fraction": 0.0},
        dense={"epochs": 20},
        passes=20,
        sparsities=(0.8, 0.9, 0.95, 0.98),
        unit_sparsities=(0.2, 0.4, 0.6, 0.8),
    ),
    "smoke": Size(
        models=dict.fromkeys(SMALLER, "resnet8"),
        model_options={"width": 4},
        data="digits",
        data_options={"subset": 300},
        dense={"epochs": 2},
        passes=4,
        sparsities=(0.5, 0.9),
        unit_sparsities=(0.25, 0.5),
        seeds=(0,),
        values=2,
    ),
}


# BiP as published, ours, and the paper's four main baselines. The paper cites GMP but does not run
# it. It costs no more than the others and is the one to beat, so every comparison has it.
COMPARED = ("bip", "bip-plus", "imp", "omp", "grasp", "hydra", "gmp")

RESNET18 = Pair("resnet18", "cifar10")
RESNET20 = Pair("resnet20", "cifar10")
RESNET56 = Pair("resnet56", "cifar10")
VGG16 = Pair("vgg16", "cifar10")
RESNET18_C100 = Pair("resnet18", "cifar100")
RESNET20_C100 = Pair("resnet20", "cifar100")
CIFAR = (RESNET18, RESNET20, RESNET56, VGG16, RESNET18_C100, RESNET20_C100)


@dataclass(frozen=True)
class Preset:
    """A figure or table of the paper as runs."""

    name: str
    summary: str
    source: str
    specs: Callable[[Scale], list[RunSpec]]


def sized(build: Callable[[Size], list[RunSpec]]) -> Callable[[Scale], list[RunSpec]]:
    """The same function, called with the name of a scale instead of a `Size`."""
    return lambda scale: build(SIZES[scale])


def compared(
    name: str,
    source: str,
    summary: str,
    pairs: Iterable[Pair],
    methods: Sequence[str | Method] = COMPARED,
    *,
    at: Sequence[float] | None = None,
    structure: str = "weight",
) -> Preset:
    """A preset that is one grid: `methods` on `pairs`, over the whole ladder or `at` some of it."""
    grid_of = lambda size: expand(size, pairs, methods, at=at, structure=structure)  # noqa: E731
    return Preset(name, summary, source, sized(grid_of))


def expand(
    size: Size,
    pairs: Iterable[Pair],
    methods: Sequence[str | Method],
    *,
    at: Sequence[float] | None = None,
    structure: str = "weight",
    data_options: Mapping[str, Any] | None = None,
    dense: Mapping[str, Any] | None = None,
) -> list[RunSpec]:
    """Methods x sparsities x seeds on what stands in for each pair.

    A method given by name gets the passes of the size; an object keeps its own length. `at` picks
    sparsities of the curve. IMP still stops at all those below, so that its runs are shared.
    """
    ladder = size.ladder(structure)
    wanted = ladder if at is None else size.near(at, structure)
    named = [method for method in methods if isinstance(method, str)]
    built = [method for method in methods if not isinstance(method, str)]
    specs = [
        spec
        for pair in map(size.fit, pairs)
        for group, passes in ((named, size.passes), (built, None))
        for spec in grid(
            group,
            model=pair.model,
            data=pair.data,
            sparsities=sorted({*ladder, *wanted}),
            seeds=size.seeds,
            structures=(structure,),
            passes=passes,
            dense={**size.dense, **(dense or {})},
            model_options=pair.model_options,
            data_options={**size.data_options, **(data_options or {})},
        )
        if spec.sparsity in wanted
    ]
    return distinct(specs)


def distinct(specs: Iterable[RunSpec]) -> list[RunSpec]:
    """Each run once: at a small scale one network stands in for several."""
    return list({spec.key: spec for spec in specs}.values())
