"""Timing that a slow minute of the machine cannot bend: candidates take turns."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence


def interleaved(
    candidates: Mapping[str, Callable[[], object]],
    rounds: int,
    *,
    warm_up: int = 1,
    lead_in: float = 0.0,
) -> dict[str, list[float]]:
    """Seconds of each candidate in each of the `rounds`, after some to warm up.

    Every candidate runs once a round, so that a slow minute of the machine hits them all, and each
    round starts with another. Most run behind the same one all the same, and pay for what it left
    in the caches: calls for `lead_in` seconds, right before the one that is timed, take that away.
    """
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    names = list(candidates)
    for number in range(-warm_up, rounds):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            run = candidates[name]
            ready = time.perf_counter() + lead_in
            while time.perf_counter() < ready:
                run()
            started = time.perf_counter()
            run()
            if number >= 0:
                seconds[name].append(time.perf_counter() - started)
    return seconds


def medians(seconds: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """The median of each candidate."""
    return {name: statistics.median(values) for name, values in seconds.items()}


def ratio(seconds: Mapping[str, Sequence[float]], name: str, base: str) -> float:
    """Median over the rounds of the ratio within a round, which a slow minute cannot move."""
    pairs = zip(seconds[name], seconds[base], strict=True)
    return statistics.median(own / other for own, other in pairs)
