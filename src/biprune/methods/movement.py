"""Movement pruning: keep the weights that training moves away from zero.

Sanh, Wolf, Rush. Movement Pruning: Adaptive Sparsity by Fine-Tuning. NeurIPS 2020; the hard kind.

    scores <- scores - r * theta * g        from 0, r the learning rate over its peak
    m      <- the k units of the highest scores, k along a cubic ramp

Where this differs from the authors' code: all weights are ranked together, where theirs ranks each
matrix alone; masks follow every step; pruned weights keep the value they had when they were pruned;
rows without a kept weight stand still.
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
    """Scores are sums of theta * g, and they alone choose the mask."""

    def m_step(self, gradients: Values, rates: Mapping[str, float], size: float) -> None:
        """scores <- scores - r * theta * g."""
        del size
        for name, gradient in gradients.items():
            self.scores[name].add_(gradient, alpha=-rates[name])


@dataclass(frozen=True)
class Movement(GradualMethod):
    """Learn by theta * g alone which weights to keep, gradually, while they train."""

    name: ClassVar[str] = "movement"
    summary: ClassVar[str] = "gradual, by how training moves the weights"
    citation: ClassVar[str] = "Sanh et al., NeurIPS 2020"
    rule: ClassVar[type[Rule]] = MovementRule

    schedule: Shape = "cosine"
