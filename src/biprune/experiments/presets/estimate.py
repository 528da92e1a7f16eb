"""What a list of runs costs, before any of them is started."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from biprune.experiments.presets.scales import Scale
from biprune.experiments.spec import TRAIN, RunSpec, covered_by

TRAINING_IMAGES = {
    "digits": 1_438,
    "cifar10": 50_000,
    "cifar100": 50_000,
    "fashion_mnist": 60_000,
    "tiny_imagenet": 100_000,
    "imagenet": 1_281_167,
}

# Images trained on in a second where the scale is at home. paper: ResNet-18 on a V100, by Table A2
# (160 epochs of 50,000 images in 69 minutes); laptop: ResNet-20 of 32 x 32 images on two cores;
# smoke: the digits on one core, most of it the overhead of short runs. Larger images are slower.
IMAGES_PER_SECOND: dict[Scale, float] = {"paper": 1_900.0, "laptop": 370.0, "smoke": 3_000.0}


@dataclass(frozen=True)
class Estimate:
    """Runs and the dense runs they start from; passes over the data, and images in all of them.

    Passes are forward and backward. The few that scoring at initialization takes are not counted,
    nor is evaluation.
    """

    runs: int
    dense_runs: int
    passes: int
    images: int

    def time(self, images_per_second: float) -> str:
        """A rough duration on a machine of that speed.

        >>> Estimate(runs=1, dense_runs=1, passes=40, images=400_000).time(1_000)
        'about 7 minutes'
        """
        seconds = self.images / images_per_second
        for unit, length in (("day", 86_400), ("hour", 3_600), ("minute", 60)):
            if seconds >= 2 * length:
                return f"about {round(seconds / length)} {unit}s"
        return f"about {round(seconds)} seconds" if seconds >= 1.5 else "about a second"


def estimate(specs: Iterable[RunSpec]) -> Estimate:
    """The cost of these runs from an empty store; IMP's curve is one run to its deepest point."""
    runs = without_covered(specs)
    starts = {_start(spec): spec for spec in runs}
    pruning = [spec for spec in runs if spec.method != TRAIN]
    costs = [(start, int(spec.resolved["dense"]["epochs"])) for start, spec in starts.items()]
    costs += [(_start(s), round(s.build_method().data_passes(s.sparsity))) for s in pruning]
    images = {start: training_images(spec) for start, spec in starts.items()}
    return Estimate(
        runs=len(pruning),
        dense_runs=len(starts),
        passes=sum(passes for _, passes in costs),
        images=sum(passes * images[start] for start, passes in costs),
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
    if spec.data not in TRAINING_IMAGES:
        known = ", ".join(TRAINING_IMAGES)
        raise ValueError(f"The size of {spec.data!r} is not known beforehand. Known: {known}.")
    options = spec.resolved["data_options"]
    images = options["subset"] or TRAINING_IMAGES[spec.data]
    return images - round(options["val_fraction"] * images)


def _start(spec: RunSpec) -> str:
    """What runs from one dense model have in common; cheaper than to build its spec for each."""
    fields = {"model", "data", "seed", "model_options", "data_options", "dense"}
    return spec.model_dump_json(include=fields)
