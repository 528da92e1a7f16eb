"""One-shot magnitude pruning, with three ways to retrain.

Weights are ranked once by |theta| after dense training, and pruned to the target.

- OMP goes back to the weights of early training and trains them again (Frankle and Carbin, ICLR
  2019; settings of Ma et al., NeurIPS 2021, as given in the BiP paper).
- Magnitude keeps the trained weights and restarts the schedule. This is learning-rate rewinding
  (Renda, Frankle, Carbin, ICLR 2020), the stronger of the two.
- FineTune keeps the trained weights and trains on at a small rate (Han et al., NeurIPS 2015). With
  `scope="layer"` it is the baseline of Hydra.

Of filters and channels, the same fraction of each layer is pruned, by the L2 norm of their weights.
The public code of Ma et al. rewinds to initialization, leaves the first convolution and the
classifier dense, and decays by 1e-4; we follow the table of the BiP paper.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from biprune.methods.base import Outcome, Start, Target, TrainingMethod, magnitudes, retrain_
from biprune.training.schedule import Shape
from biprune.training.setup import Setup


@dataclass(frozen=True)
class OMP(TrainingMethod):
    """Prune the smallest trained weights at once, rewind and retrain.

    Args:
        rewind_epoch: The epoch of the dense run to rewind to. 0 means the initial weights, None
            5 % of the run.
    """

    name: ClassVar[str] = "omp"
    summary: ClassVar[str] = "one-shot magnitude, rewound and retrained"
    citation: ClassVar[str] = "Frankle and Carbin, ICLR 2019"

    rewind_epoch: int | None = None

    def run(self, start: Start, setup: Setup, target: Target) -> Outcome:
        """Select by trained magnitude, rewind and retrain."""
        masks = target.select(magnitudes(target.weights(start.model)))
        note = start.rewind_(self.rewind_epoch)
        return retrain_(start.model, masks, self.recipe(), setup, note)


@dataclass(frozen=True)
class Magnitude(TrainingMethod):
    """Prune the smallest trained weights at once and restart the learning-rate schedule."""

    name: ClassVar[str] = "magnitude"
    summary: ClassVar[str] = "one-shot magnitude, learning rate rewound"
    citation: ClassVar[str] = "Renda et al., ICLR 2020"

    def run(self, start: Start, setup: Setup, target: Target) -> Outcome:
        """Select by trained magnitude, retrain from the trained weights."""
        masks = target.select(magnitudes(target.weights(start.model)))
        return retrain_(start.model, masks, self.recipe(), setup, "kept the trained weights")


@dataclass(frozen=True)
class FineTune(Magnitude):
    """Prune the smallest trained weights at once and train on at a small learning rate."""

    name: ClassVar[str] = "finetune"
    summary: ClassVar[str] = "one-shot magnitude, fine-tuned"
    citation: ClassVar[str] = "Han et al., NeurIPS 2015"

    epochs: int = 100
    lr: float = 0.01
    schedule: Shape = "cosine"
