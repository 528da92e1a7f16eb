"""Accuracies over seeds, their paired differences, and whether a ticket wins.

A ticket is compared with the dense network seed by seed. With d the difference of the two
accuracies, over the n seeds that both have, it wins

    by mean    if mean(d) >= 0, which is the paper's rule;
    by bound   if mean(d) - t * std(d) / sqrt(n) >= 0, where t is the 95 % quantile of Student's
               distribution with n - 1 degrees of freedom.

The second rule asks that the one-sided 95 % lower confidence bound of the mean difference is not
below 0. It needs at least two seeds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean, stdev

CONFIDENCE = 0.95
ROUNDING = 1e-9  # equal counts of right answers must not lose by the last bit of a mean


@dataclass(frozen=True)
class Sample:
    """Accuracies in percent, by seed; there is at least one."""

    by_seed: Mapping[int, float]

    @property
    def n(self) -> int:
        """The number of seeds."""
        return len(self.by_seed)

    @property
    def values(self) -> list[float]:
        """The accuracies in the order of their seeds."""
        return [self.by_seed[seed] for seed in sorted(self.by_seed)]

    @property
    def mean(self) -> float:
        """The arithmetic mean."""
        return fmean(self.by_seed.values())

    @property
    def std(self) -> float | None:
        """The sample standard deviation (divisor n - 1); None for a single seed."""
        return stdev(self.by_seed.values()) if self.n > 1 else None


@dataclass(frozen=True)
class Difference:
    """The mean difference over `n` shared seeds and its standard error, None for one seed."""

    mean: float
    error: float | None
    n: int


@dataclass(frozen=True)
class Verdict:
    """Whether a ticket wins by each rule; None where that cannot be known.

    `mean` is the mean difference from dense and `bound` its lower confidence bound, both in
    percentage points.
    """

    by_mean: bool | None = None
    by_bound: bool | None = None
    mean: float | None = None
    bound: float | None = None


def difference(sample: Sample, other: Sample) -> Difference | None:
    """The mean of `sample` minus `other`, paired by seed; None if they share no seed.

    >>> paired = difference(Sample({0: 90.0, 1: 92.0}), Sample({0: 89.0, 1: 90.0, 2: 50.0}))
    >>> paired.mean, paired.error, paired.n  # of +1 and +2
    (1.5, 0.5, 2)
    """
    seeds = sample.by_seed.keys() & other.by_seed.keys()
    if not seeds:
        return None
    each = [sample.by_seed[seed] - other.by_seed[seed] for seed in seeds]
    error = stdev(each) / math.sqrt(len(each)) if len(each) > 1 else None
    return Difference(fmean(each), error, len(each))


def judge(sample: Sample, dense: Sample | None) -> Verdict:
    """Compare a ticket's accuracies with the dense ones, paired by seed."""
    paired = None if dense is None else difference(sample, dense)
    if paired is None:
        return Verdict()
    bound = lower_bound(paired)
    return Verdict(
        by_mean=paired.mean >= -ROUNDING,
        by_bound=None if bound is None else bound >= -ROUNDING,
        mean=paired.mean,
        bound=bound,
    )


def lower_bound(paired: Difference) -> float | None:
    """The one-sided 95 % lower confidence bound of the mean; None for a single seed.

    >>> round(lower_bound(Difference(0.2, 0.1 / math.sqrt(3), 3)), 4)  # 0.2 - 2.92 * 0.1 / sqrt(3)
    0.0314
    """
    if paired.error is None:
        return None
    return paired.mean - t_quantile(CONFIDENCE, paired.n - 1) * paired.error


def t_quantile(probability: float, degrees: int) -> float:
    """A quantile of Student's distribution: a variable stays below it with `probability` >= 0.5.

    For whole degrees of freedom the distribution is a finite sum in the angle whose tangent is
    t / sqrt(degrees) (Abramowitz and Stegun, 26.7.3 and 26.7.4). Bisecting that angle inverts it.

    >>> round(t_quantile(0.95, 2), 4)
    2.92
    """
    low, high = 0.0, math.pi / 2
    while low < (angle := (low + high) / 2) < high:
        if 0.5 + _central_probability(angle, degrees) / 2 < probability:
            low = angle
        else:
            high = angle
    return math.sqrt(degrees) * math.tan(low)


def _central_probability(angle: float, degrees: int) -> float:
    """The probability that |t| stays below sqrt(degrees) * tan(angle)."""
    is_odd = degrees % 2
    cosine = math.cos(angle)
    term, total = cosine if is_odd else 1.0, 0.0
    for k in range(2 + is_odd, degrees + 1, 2):
        total += term
        term *= (k - 1) / k * cosine**2
    total *= math.sin(angle)
    return 2 / math.pi * (angle + total) if is_odd else total
