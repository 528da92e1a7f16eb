"""Three sizes of the same studies: the paper's own, nights on a laptop, a minute of smoke test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from biprune.experiments.costs import Scale
from biprune.methods import BiP

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

    `models` and `data` stand in for the paper's, `model_options` go with them. `passes` over the
    data are what each method gets, and IMP in each round; None is its own length. `unit_sparsities`
    are for filters and channels. `values` is how many values of a setting a study tries, its
    default first; None is all.
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
        """The nearest on the ladder, so that runs are shared; the paper's are taken as they are."""
        if self.passes is None:
            return list(sparsities)
        ladder = self.ladder(structure)
        return sorted({min(ladder, key=lambda s: abs(s - wanted)) for wanted in sparsities})

    def bip(self, **settings: Any) -> BiP:
        """BiP as published over epochs of two passes each, whatever the settings make them cost."""
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
