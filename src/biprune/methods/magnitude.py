"""OMP: one-shot magnitude pruning.

Frankle and Carbin, The Lottery Ticket Hypothesis, ICLR 2019; settings of Ma et al., NeurIPS 2021,
as the BiP paper has them. The score of a weight is |theta| after dense training; one cut to the
target; the kept weights go back to where they were early in the dense run (epoch 8 of 160) and are
trained again with a new optimizer and the whole schedule.

The public code of Ma et al. rewinds to initialization, leaves the first convolution and the
classifier dense, and decays by 1e-4; we follow the paper's table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from biprune.loop import Setup
from biprune.methods.base import Method, Outcome, Start, Target, magnitudes, retrain_
from biprune.training import Recipe


@dataclass(frozen=True)
class OMP(Method):
    """Prune the smallest trained weights at once, rewind, retrain.

    `rewind_epoch` None is 5 % of the dense run. Filters and channels are ranked by the L2 norm of
    their weights, the same fraction of every layer.
    """

    name: ClassVar[str] = "omp"
    summary: ClassVar[str] = "one-shot magnitude, rewound and retrained"
    citation: ClassVar[str] = "Frankle and Carbin, ICLR 2019; Ma et al., NeurIPS 2021"
    starts_from: ClassVar[Literal["dense", "init"]] = "dense"
    retrains: ClassVar[bool] = True

    epochs: int = 160
    lr: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 5e-4
    rewind_epoch: int | None = None

    def run(self, start: Start, setup: Setup, target: Target) -> Outcome:
        """Select by trained magnitude, rewind, retrain."""
        masks = target.select(magnitudes(target.weights(start.model)))
        note = start.rewind_(self.rewind_epoch)
        recipe = Recipe(self.epochs, self.lr, self.momentum, self.weight_decay)
        return retrain_(start.model, masks, recipe, setup, note)
