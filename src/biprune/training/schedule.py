"""How learning rates move over a run: by the position alone, so a resumed run needs no state."""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

from biprune.core.checks import check_choice

Shape = Literal["cosine", "step", "constant"]


class Moment(NamedTuple):
    """The position of a step in a run; `epoch` and `step` (within the epoch) count from 0."""

    epoch: int
    step: int
    epochs: int
    steps: int

    @property
    def done(self) -> float:
        """The fraction of the run that is finished when the step begins, in [0, 1)."""
        return (self.epoch + self.step / self.steps) / self.epochs

    @property
    def ends_epoch(self) -> bool:
        """Whether this is the last step of its epoch."""
        return self.step + 1 == self.steps


@dataclass(frozen=True)
class LRSchedule:
    """The factor on a learning rate over a run.

    Args:
        shape: "cosine", "step" or "constant".
        milestones: For "step": the fractions of the run at which the factor changes.
        decay: For "step": what the factor is multiplied by at each milestone.
        warmup: The fraction of the run over which the factor is raised linearly from 0.
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
        """Return the factor after a fraction `done` of the run."""
        warm = min(1.0, done / self.warmup) if self.warmup else 1.0
        if self.shape == "cosine":
            return warm * 0.5 * (1 + math.cos(math.pi * done))
        if self.shape == "step":
            return warm * self.decay ** bisect_right(sorted(self.milestones), done)
        return warm
