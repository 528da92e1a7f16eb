"""Movement pruning: keep the weights that training moves away from zero.

Sanh, Wolf, Rush. Movement Pruning: Adaptive Sparsity by Fine-Tuning. NeurIPS 2020. This is its
hard variant.

    scores <- scores - r * theta * g        from 0; r is the learning rate over its peak
    m      <- the k units with the highest scores, k along a cubic ramp

Where this differs from the authors' code:

1. All weights are ranked together; theirs ranks each matrix by itself.
2. The mask moves at every step.
3. A pruned weight keeps the value it had when it was pruned.
4. Scores of rows without any kept weight do not move.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from biprune.methods.attached import Rule, Values
from biprune.methods.learned import LearnedRule
from biprune.methods.moving import GradualMethod
from biprune.training.schedule import Shape


class MovementRule(LearnedRule):
    """Ranks by the accumulated theta * g alone."""

    def m_step(self, gradients: Values, rates: Mapping[str, float], size: float) -> None:
        """Step the scores: scores <- scores - r * theta * g."""
        del size
        for name, gradient in gradients.items():
            self.scores[name].add_(gradient, alpha=-rates[name])


@dataclass(frozen=True)
class Movement(GradualMethod):
    """Learn from theta * g alone which weights to keep, gradually, while they train.

    Args:
        ramp: The fraction of the run over which the sparsity rises.
        initial_sparsity: The sparsity at the start.
        mask_every: Iterations between masks.
    """

    name: ClassVar[str] = "movement"
    summary: ClassVar[str] = "gradual, by how training moves the weights"
    citation: ClassVar[str] = "Sanh et al., NeurIPS 2020"
    rule: ClassVar[type[Rule]] = MovementRule

    schedule: Shape = "cosine"
