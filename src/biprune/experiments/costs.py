"""What runs cost: counted before any of them is started, and on file for the list of presets.

The list is read without building a run or importing torch.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from biprune.experiments.record import RunSpec

Scale = Literal["paper", "laptop", "smoke"]

FILE = Path(__file__).with_name("costs.json")
DURATIONS = {"year": 31_557_600, "day": 86_400, "hour": 3_600, "minute": 60}


class Speed(NamedTuple):
    """How fast a machine trains: forward multiply-accumulates a second, and images at most."""

    macs: float
    images: float = inf


# Of the machine that a scale is for. paper: ResNet-18 on a V100, by Table A2 (160 epochs of 50,000
# images in 69 minutes); laptop: ResNet-20 of 32 x 32 images on two cores, 400 a second; smoke: the
# digits on one core, most of it the overhead of short runs.
SPEEDS: dict[Scale, Speed] = {
    "paper": Speed(macs=1.3e12, images=10_000),
    "laptop": Speed(macs=1.8e10, images=6_000),
    "smoke": Speed(macs=0.9e10, images=3_000),
}


@dataclass(frozen=True)
class Estimate:
    """How many runs there are, the dense ones they start from, and the work of all of them.

    `passes` are forward and backward passes over the data, `images` those they show, and `macs`
    the multiply-accumulates of their forward halves. Evaluation is not counted, nor the few batches
    that scoring at initialization takes.
    """

    runs: int
    dense_runs: int
    passes: int
    images: int
    macs: int

    def time(self, speed: Speed) -> str:
        """A rough duration on a machine of that speed, in words.

        >>> Estimate(1, 1, passes=40, images=400_000, macs=10**12).time(Speed(macs=1e10))
        'about 100 seconds'
        """
        seconds = self.macs / speed.macs + self.images / speed.images
        for unit, length in DURATIONS.items():
            if seconds >= 2 * length:
                return f"about {round(seconds / length)} {unit}s"
        return f"about {round(seconds)} seconds" if seconds >= 1.5 else "about a second"


@dataclass(frozen=True)
class Listed:
    """A preset in the list: its place in the paper, what it shows and its cost at each scale."""

    source: str
    summary: str
    cost: Mapping[Scale, Estimate]


def listed() -> dict[str, Listed]:
    """Every preset by name, as `benchmarks/preset_costs.py` counted it.

    >>> listed()["snapshot"].cost["paper"].time(SPEEDS["paper"])
    'about 2 days'
    """
    return {
        name: Listed(
            entry["source"],
            entry["summary"],
            {scale: Estimate(**entry["cost"][scale]) for scale in SPEEDS},
        )
        for name, entry in json.loads(FILE.read_text(encoding="utf-8")).items()
    }


class DataSize(NamedTuple):
    """What a data set asks of a network: its training images and their shape."""

    images: int
    channels: int
    side: int
    classes: int


DATA_SIZES = {
    "digits": DataSize(1_438, 1, 8, 10),
    "cifar10": DataSize(50_000, 3, 32, 10),
    "cifar100": DataSize(50_000, 3, 32, 100),
    "fashion_mnist": DataSize(60_000, 1, 28, 10),
    "tiny_imagenet": DataSize(100_000, 3, 64, 200),
    "imagenet": DataSize(1_281_167, 3, 224, 1_000),
}


def estimate(specs: Iterable[RunSpec]) -> Estimate:
    """The cost of runs that begin with an empty store.

    Args:
        specs: The runs. Those that another passes on its way, as IMP does, cost nothing more.

    Returns:
        What they come to, the dense runs that they start from included.

    Raises:
        ValueError: The size of a data set is not known beforehand.
    """
    from biprune.experiments.record import TRAIN

    runs = _without_covered(specs)
    starts = {_start(spec): spec for spec in runs}
    pruning = [spec for spec in runs if spec.method != TRAIN]
    costs = [(start, int(spec.resolved["dense"]["epochs"])) for start, spec in starts.items()]
    costs += [(_start(s), round(s.build_method().data_passes(s.sparsity))) for s in pruning]
    images = {start: training_images(spec) for start, spec in starts.items()}
    macs = {start: images[start] * macs_of_an_image(spec) for start, spec in starts.items()}
    return Estimate(
        runs=len(pruning),
        dense_runs=len(starts),
        passes=sum(passes for _, passes in costs),
        images=sum(passes * images[start] for start, passes in costs),
        macs=sum(passes * macs[start] for start, passes in costs),
    )


def _without_covered(specs: Iterable[RunSpec]) -> list[RunSpec]:
    """The distinct specs that no other run reaches on its way."""
    from biprune.experiments.record import covered_by

    kept: list[RunSpec] = []
    seen: set[str] = set()
    for spec in sorted(specs, key=lambda spec: -spec.sparsity):
        if spec.key not in seen:
            kept.append(spec)
            seen |= {spec.key, *(passed.key for passed in covered_by(spec))}
    return kept


def training_images(spec: RunSpec) -> int:
    """Images of one pass: the subset, less what is cut for validation."""
    options = spec.resolved["data_options"]
    images = options["subset"] or _size(spec.data).images
    return images - round(options["val_fraction"] * images)


def macs_of_an_image(spec: RunSpec) -> int:
    """Multiply-accumulates of the dense network's forward for one image."""
    return _macs(spec.model, _size(spec.data), tuple(sorted(spec.model_options.items())))


@cache
def _macs(model: str, size: DataSize, options: tuple[tuple[str, Any], ...]) -> int:
    import torch

    from biprune.models import create_model
    from biprune.structured.macs import total_macs

    sizes = {"num_classes": size.classes, "in_channels": size.channels}
    with torch.device("meta"):  # shapes alone: nothing is computed
        network = create_model(model, **{**sizes, **dict(options)})
        return total_macs(network, torch.empty(1, size.channels, size.side, size.side))


def _size(data: str) -> DataSize:
    if data not in DATA_SIZES:
        known = ", ".join(DATA_SIZES)
        raise ValueError(f"The size of {data!r} is not known beforehand. Known: {known}.")
    return DATA_SIZES[data]


def _start(spec: RunSpec) -> str:
    """What runs from one dense model have in common; quicker than building `dense_spec`."""
    from biprune.experiments.record import OF_DENSE

    return spec.model_dump_json(include=OF_DENSE)
