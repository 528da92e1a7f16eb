"""bip-plus: our form of BiP, and the default method.

Each of T steps, with g the gradient of the optimizer's step and theta the weights after it:

    scores <- scores - kappa * r * theta * g / (T * a)
    m      <- exactly k of |theta| / rms(theta) + scores, k along a cubic ramp

r is the learning rate over its peak. The scalar a is the running mean of |theta * g| over all
prunable weights, and rms runs over all of them too. The differences from `bip`:

1. One pass serves both levels, so an iteration costs half as much. With `passes=2` the scores have
   their own batch.
2. Scores start at 0 and correct the magnitudes. For a kept weight they add up how training has
   grown or shrunk it, for a pruned one how much its return would lower the loss. They are changes
   of the loss, in units of the mean change per weight. So layers are comparable, and scaling the
   loss changes no mask, whatever the optimizer.
3. There is no implicit term.
4. The sparsity rises gradually.
5. Pruned weights neither decay nor drift with their old momentum.
6. Scores of pruned filters, channels and groups do not move. A norm behind a filter of zeros makes
   its gradient 1 / sqrt(eps) times as large, and noise in its many weights adds up in its L2 norm.
   Masks of these units are fixed when the target is reached, because a unit that returned later
   would hardly be trained.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.linalg import vector_norm

from biprune.core.checks import check_rate
from biprune.core.masked import where_kept
from biprune.methods.attached import Move, Rule, Values
from biprune.methods.learned import LearnedRule
from biprune.methods.moving import GradualMethod
from biprune.training.schedule import Shape

MEMORY = 0.99  # of the running mean, after its first 100 steps


class BiPPlusRule(LearnedRule):
    """Ranks by magnitudes that scores correct."""

    method: BiPPlus
    numbers: ClassVar[tuple[str, ...]] = (*Rule.numbers, "mean")

    def _make_scores(self) -> None:
        super()._make_scores()
        self.mean = 0.0  # a

    def mask_gradient(self, name: str, gradient: Tensor, scale: float, out: Tensor) -> None:
        """Write theta * g to `out`; for filters, channels and groups, only where they are kept."""
        super().mask_gradient(name, gradient, scale, out)
        if not self._structure.has_single_weights:
            where_kept(self.masks[name], out, out=out)

    def m_step(self, gradients: Values, rates: Mapping[str, float], size: float) -> None:
        """Step the scores: scores <- scores - kappa * r * theta * g / (T * a)."""
        size /= sum(score.numel() for score in self.scores.values())
        if size == 0:  # no gradient reached a prunable weight
            return
        number = self.step // self.method.steps_per_iteration + 1
        self.mean += (size - self.mean) * (max(1 - MEMORY, 1 / number) if self.mean else 1)
        moves = self.steps / self.method.steps_per_iteration  # T
        for name, gradient in gradients.items():
            step = self.method.kappa * rates[name] / (moves * self.mean)
            self.scores[name].add_(gradient, alpha=-step)

    def _ranked(self, work: Values) -> Values:
        magnitudes = self._magnitudes(work)
        norm = vector_norm(torch.stack([vector_norm(each) for each in magnitudes.values()]))
        rms = norm / math.sqrt(sum(each.numel() for each in magnitudes.values()))
        for name, score in self.scores.items():
            torch.addcdiv(score, magnitudes[name], rms, out=magnitudes[name])
        return magnitudes


@dataclass(frozen=True)
class BiPPlus(GradualMethod):
    """Our BiP: one pass per iteration, gradual, with a mask of magnitudes that scores correct.

    Args:
        kappa: The weight of the scores beside the magnitudes; 0 means magnitudes only.
        passes: With 1, one gradient moves both levels. With 2, the mask has its own batch.
        ramp: The fraction of the run over which the sparsity rises.
        initial_sparsity: The sparsity at the start.
        mask_every: Iterations between masks.
    """

    name: ClassVar[str] = "bip-plus"
    summary: ClassVar[str] = "our BiP: one pass, gradually, scores that correct magnitudes"
    citation: ClassVar[str] = "after Zhang et al., NeurIPS 2022"
    settings_version: ClassVar[int] = 6  # scores in units of the loss
    rule: ClassVar[type[Rule]] = BiPPlusRule
    rule_settings: ClassVar[tuple[str, ...]] = ("kappa", "passes", *GradualMethod.rule_settings)

    epochs: int = 100
    schedule: Shape = "cosine"
    nesterov: bool = True
    kappa: float = 3.0
    passes: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_rate("kappa", self.kappa)
        if self.passes not in (1, 2):
            raise ValueError(f"`passes` must be 1 or 2, got {self.passes!r}.")

    @property
    def iteration(self) -> tuple[Move, ...]:
        """One step for both levels; with two passes, the second moves only the mask."""
        return ("z", "nothing")[: self.passes]
