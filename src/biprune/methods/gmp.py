"""GMP: gradual magnitude pruning, the strongest cheap rival.

Zhu, Gupta. To prune, or not to prune: exploring the efficacy of pruning for model compression.
ICLR Workshop 2018 (arXiv 2017).

    sparsity(t) = target * (1 - (1 - t / ramp)^3) over the first `ramp` of one retraining
    every few steps: m <- top k of |theta|;  after the ramp m is fixed

Pruned weights get no gradient: they keep what they had, but for decay and the momentum left over,
and come back if the others shrink below it.
The BiP paper cites this method and does not run it; the settings are those of its retraining but
for the schedule, which is cosine: the masks settle in the middle of the run, where a step would be.
Filters and channels are ours, ranked by L2 norm, the same fraction of each layer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from biprune.core.checks import check_part, check_whole
from biprune.core.masks import Masks
from biprune.methods.base import (
    Outcome,
    PruningAlgorithm,
    Start,
    Target,
    TrainingMethod,
    magnitudes,
)
from biprune.training.loop import Record, Setup, fit
from biprune.training.schedule import Moment, Shape, draws_mask, end_of_ramp, gradual_sparsity
from biprune.training.sgd import MaskedSGD, set_lr


@dataclass(frozen=True)
class GMP(TrainingMethod):
    """Raise the sparsity along a cubic curve while the weights train on.

    Masks are drawn anew every `mask_every` steps until the end of the `ramp`, a part of the run.
    `freeze_pruned` is BiP's: pruned weights neither decay nor drift by the momentum they had.
    """

    name: ClassVar[str] = "gmp"
    summary: ClassVar[str] = "gradual magnitude along a cubic curve, in one retraining"
    citation: ClassVar[str] = "Zhu and Gupta, ICLR Workshop 2018"
    starts_from: ClassVar[Literal["dense", "init"]] = "dense"
    retrains: ClassVar[bool] = False

    schedule: Shape = "cosine"
    ramp: float = 0.6
    mask_every: int = 10
    freeze_pruned: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_part("ramp", self.ramp)
        check_whole("mask_every", self.mask_every, at_least=1)

    def run(self, start: Start, setup: Setup, target: Target) -> Outcome:
        """One retraining under a tightening mask."""
        algorithm = GMPAlgorithm(self, start, target)
        run = fit(start.model, algorithm, setup, epochs=self.epochs, stage="gmp")
        return Outcome(start.model, algorithm.masks, run.history, run.cost)


class GMPAlgorithm(PruningAlgorithm):
    """SGD under a mask that is redrawn from magnitudes, for `fit`."""

    def __init__(self, method: GMP, start: Start, target: Target) -> None:
        super().__init__(method, target)
        self._method = method
        self._target = target
        prunable = target.weights(start.model)
        everything = target.select(magnitudes(prunable), sparsity=0.0)
        self.weights = MaskedSGD(
            start.model,
            prunable,
            everything,
            lr=method.lr,
            momentum=method.momentum,
            weight_decay=method.weight_decay,
            nesterov=method.nesterov,
            freeze_pruned=method.freeze_pruned,
        )
        self._schedule = method.recipe().lr_schedule()

    @property
    def masks(self) -> Masks:
        """Those that the model shows now."""
        return self.weights.masked.masks

    def move(self, now: Moment) -> None:
        """One SGD step, and a new mask where one is due."""
        set_lr(self.weights.optimizer, self._method.lr * self._schedule.factor(now.done))
        self.weights.step()
        end, every = end_of_ramp(self._method.ramp, now.total), self._method.mask_every
        if draws_mask(now.number, every=every, ramp_end=end, settles=True):
            self._redraw(self._sparsity(now.finished(end)))

    def record(self) -> Record:
        """The learning rate, and how the mask moved in this epoch."""
        return {"lr": self.weights.optimizer.param_groups[0]["lr"], **super().record()}

    def state_dict(self) -> dict[str, Any]:
        """theta, masks and momentum."""
        return self.weights.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state_dict`."""
        self.weights.load_state_dict(state)

    def _sparsity(self, done: float) -> float:
        return gradual_sparsity(self._target.sparsity, done, self._method.ramp)

    def _redraw(self, sparsity: float) -> None:
        scores = {name: theta.abs() for name, theta in self.weights.theta.items()}
        self.weights.masked.set_masks(self._target.select(scores, sparsity))
