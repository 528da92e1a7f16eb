"""Whether a ticket wins: the paper's rule, and one that asks for evidence.

    by mean:   mean(d) >= 0,                          d = accuracy - dense accuracy of each seed,
    by bound:  mean(d) - t * std(d) / sqrt(n) >= 0,   t the 95 % quantile of Student's
               distribution with n - 1 degrees of freedom

over the n seeds that both have. The second is the one-sided 95 % lower confidence bound of the
paired difference, which needs two seeds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean, stdev

from scipy.stats import t as student

CONFIDENCE = 0.95
_ROUNDING = 1e-9  # equal counts of right answers must not lose by the last bit of a mean


@dataclass(frozen=True)
class Sample:
    """Accuracies in percent, one a seed, at least one."""

    by_seed: Mapping[int, float]

    @property
    def n(self) -> int:
        """The number of seeds."""
        return len(self.by_seed)

    @property
    def values(self) -> list[float]:
        """In the order of the seeds."""
        return [self.by_seed[seed] for seed in sorted(self.by_seed)]

    @property
    def mean(self) -> float:
        """The arithmetic mean."""
        return fmean(self.by_seed.values())

    @property
    def std(self) -> float | None:
        """Of the sample, with n - 1; None for a single value."""
        return stdev(self.by_seed.values()) if self.n > 1 else None


@dataclass(frozen=True)
class Difference:
    """The mean over the seeds that two samples share, and its standard error; None for one."""

    mean: float
    error: float | None
    n: int


def difference(sample: Sample, other: Sample) -> Difference | None:
    """`sample` minus `other`, paired by seed; None if they share none.

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


@dataclass(frozen=True)
class Verdict:
    """Whether a ticket wins by each rule; None where that cannot be known.

    `mean` is the difference to dense and `bound` its lower confidence bound, in percentage points.
    """

    by_mean: bool | None = None
    by_bound: bool | None = None
    mean: float | None = None
    bound: float | None = None


def judge(sample: Sample, dense: Sample | None) -> Verdict:
    """The verdict on a ticket's accuracies, paired with the dense ones by seed."""
    paired = None if dense is None else difference(sample, dense)
    if paired is None:
        return Verdict()
    bound = lower_bound(paired)
    return Verdict(
        by_mean=paired.mean >= -_ROUNDING,
        by_bound=None if bound is None else bound >= -_ROUNDING,
        mean=paired.mean,
        bound=bound,
    )


def lower_bound(paired: Difference) -> float | None:
    """One-sided lower confidence bound of the mean; None for fewer than two seeds.

    >>> round(lower_bound(Difference(0.2, 0.1 / math.sqrt(3), 3)), 4)  # 0.2 - 2.92 * 0.1 / sqrt(3)
    0.0314
    """
    if paired.error is None:
        return None
    return paired.mean - float(student.ppf(CONFIDENCE, paired.n - 1)) * paired.error
