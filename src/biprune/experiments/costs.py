"""What each preset costs, as data: known without building a run or importing torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Literal, NamedTuple

Scale = Literal["paper", "laptop", "smoke"]

FILE = Path(__file__).with_name("costs.json")
DURATIONS = {"year": 31_557_600, "day": 86_400, "hour": 3_600, "minute": 60}


class Speed(NamedTuple):
    """Of training: forward multiply-accumulates a second, and images of a network of no size."""

    macs: float
    images: float = inf


# Where the scale is at home. paper: ResNet-18 on a V100, by Table A2 (160 epochs of 50,000 images
# in 69 minutes); laptop: ResNet-20 of 32 x 32 images on two cores, 400 a second; smoke: the digits
# on one core, most of it the overhead of short runs.
SPEEDS: dict[Scale, Speed] = {
    "paper": Speed(macs=1.3e12, images=10_000),
    "laptop": Speed(macs=1.8e10, images=6_000),
    "smoke": Speed(macs=0.9e10, images=3_000),
}


@dataclass(frozen=True)
class Estimate:
    """Runs and the dense runs they start from; what all of them pass over.

    Passes are over the data, forward and backward; `images`, and `macs`, the multiply-accumulates
    of their forward, are those of all passes. The few that scoring at initialization takes are not
    counted, nor is evaluation.
    """

    runs: int
    dense_runs: int
    passes: int
    images: int
    macs: int

    def time(self, speed: Speed) -> str:
        """A rough duration on a machine of that speed.

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
    """A preset in the list: where it stands in the paper, what it shows, its cost at each scale."""

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
