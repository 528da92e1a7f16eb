"""How learning rates and the sparsity target move over a run, and where in it a step is.

All are functions of that, most of the finished fraction, `done` in [0, 1): they carry no state, so
a resumed run needs none.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

from biprune.core.checks import check_choice

Shape = Literal["cosine", "step", "constant"]


class Moment(NamedTuple):
    """A step of a run, by its place among the `steps` of an epoch and of the epoch; from 0."""

    epoch: int
    step: int
    epochs: int
    steps: int

    @property
    def done(self) -> float:
        """The fraction of the run that is finished when the step begins."""
        return (self.epoch + self.step / self.steps) / self.epochs

    @property
    def ends_epoch(self) -> bool:
        """Whether it is the epoch's last."""
        return self.step + 1 == self.steps


@dataclass(frozen=True)
class LRSchedule:
    """Factor on a learning rate: a shape, under a linear warm-up over the first part of the run.

    "step" multiplies by `decay` at each of the `milestones`, which are fractions of the run.
    """

    shape: Shape = "cosine"
    milestones: tuple[float, ...] = (0.5, 0.75)
    decay: float = 0.1
    warmup: float = 0.0

    def __post_init__(self) -> None:
        check_choice("schedule", self.shape, get_args(Shape))
        if not all(0 <= milestone <= 1 for milestone in self.milestones):
            raise ValueError(
                f"`milestones` are fractions of the run in [0, 1], got {self.milestones}."
            )

    def factor(self, done: float) -> float:
        """The factor after a fraction `done` of the run."""
        warm = min(1.0, done / self.warmup) if self.warmup else 1.0
        if self.shape == "cosine":
            return warm * 0.5 * (1 + math.cos(math.pi * done))
        if self.shape == "step":
            return warm * self.decay ** bisect_right(sorted(self.milestones), done)
        return warm


def gradual_sparsity(target: float, done: float, ramp: float, *, power: int = 3) -> float:
    """From 0 to `target` over the first `ramp` of the run, then fixed (Zhu and Gupta 2017).

    s(t) = target * (1 - (1 - t / ramp)^power): cubic, it is fast while weights are plenty and slow
    at the end.
    """
    remaining = max(0.0, 1.0 - done / ramp)
    return target * (1.0 - remaining**power)


def end_of_ramp(ramp: float, steps: int) -> int:
    """The step, from 1, at which the ramp of a run is over."""
    return max(1, round(ramp * steps))


def draws_mask(number: int, *, every: int, ramp_end: int, settles: bool) -> bool:
    """Whether a mask is drawn at the end of step `number`, from 1: always at the ramp's end."""
    over = settles and number > ramp_end
    return number == ramp_end or (number % every == 0 and not over)
