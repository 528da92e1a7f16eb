"""What a list of runs costs, before any of them is started."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any, NamedTuple

import torch

from biprune.experiments.costs import Estimate
from biprune.experiments.record import TRAIN, RunSpec, covered_by
from biprune.models import create_model
from biprune.structured.macs import total_macs


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
    """The cost of these runs from an empty store; IMP's curve is one run to its deepest point."""
    runs = without_covered(specs)
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


def without_covered(specs: Iterable[RunSpec]) -> list[RunSpec]:
    """The distinct specs that no other leaves on its way."""
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
    """What runs from one dense model have in common; cheaper than to build its spec for each."""
    fields = {"model", "data", "seed", "model_options", "data_options", "dense"}
    return spec.model_dump_json(include=fields)
