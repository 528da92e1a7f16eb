"""Holes in words: what is missing, where, and why."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from biprune.report.comparison import Hole
from biprune.report.formatting import listed, percent_of


@dataclass(frozen=True)
class HoleLine:
    """All holes of one method with one error."""

    label: str
    where: str
    error: str

    def __str__(self) -> str:
        return f"{self.label} at {self.where}: {self.error}"


def hole_lines(holes: Iterable[Hole]) -> list[HoleLine]:
    """A line for each method and error, in the order of the holes.

    >>> print(*hole_lines([Hole("imp", 0.9, 0, "no record"), Hole("imp", 0.9, 1, "no record")]))
    imp at 90 % (seeds 0 and 1): no record
    """
    seeds: defaultdict[tuple[str, str], defaultdict[float, list[int]]]
    seeds = defaultdict(lambda: defaultdict(list))
    for hole in holes:
        seeds[hole.label, hole.error][hole.sparsity].append(hole.seed)
    return [
        HoleLine(label, listed([_place(*place) for place in places.items()]), error)
        for (label, error), places in seeds.items()
    ]


def _place(sparsity: float, seeds: list[int]) -> str:
    noun = "seed" if len(seeds) == 1 else "seeds"
    return f"{percent_of(sparsity)} ({noun} {listed([str(seed) for seed in seeds])})"
