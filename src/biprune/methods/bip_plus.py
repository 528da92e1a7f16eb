"""bip-plus: our form of BiP, and the default method.

One step of T, with theta as the optimizer's step has left it and g the gradient it was taken by:

    scores <- scores - kappa * r * theta * g / (T * a)
    m      <- exactly k of |theta| / rms(theta) + scores, k along a cubic ramp

r is the learning rate over its peak; a is the running mean of |theta * g| over all prunable
weights, one number. rms is over all prunable weights too.

1. One pass serves both levels, so that an iteration costs half of what it does in `bip`. With
   `passes` 2 the scores have a batch of their own.
2. Scores start at 0 and correct the magnitudes of weights as theta moves: on kept weights they
   count what training has made of them, on pruned ones what the loss would gain by their return.
   They are changes of the loss in units of what one weight changes, so that layers compare, and a
   loss a thousand times as large gives the same masks under any optimizer.
3. There is no implicit term.
4. The sparsity is raised gradually.
5. Pruned weights stand still: they neither decay nor drift by the momentum they had.
6. Scores of pruned filters, channels and groups stand still. The norm behind a filter of zeros
   makes its gradient 1 / sqrt(eps) times as large, and noise in many weights adds up in their L2
   norm. Masks of these units are fixed when the target is reached: a unit that comes in late would
   not be trained for long.
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

MEMORY = 0.99  # of the running mean, when it has seen enough


class BiPPlusRule(LearnedRule):
    """A mask of magnitudes that scores correct."""

    method: BiPPlus
    numbers: ClassVar[tuple[str, ...]] = (*Rule.numbers, "mean")

    def _make_scores(self) -> None:
        super()._make_scores()
        self.mean = 0.0  # a

    def mask_gradient(self, name: str, gradient: Tensor, scale: float, out: Tensor) -> None:
        """theta * g; of filters, channels and groups where they are kept alone."""
        super().mask_gradient(name, gradient, scale, out)
        if not self._structure.has_single_weights:
            where_kept(self.masks[name], out, out=out)

    def m_step(self, gradients: Values, rates: Mapping[str, float], size: float) -> None:
        """scores <- scores - kappa * r * theta * g / (T * a)."""
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
    """Our BiP, by one pass an iteration to a mask of magnitudes that scores correct.

    Args:
        kappa: How much the scores weigh beside the magnitudes; 0 leaves magnitudes alone.
        passes: 1: one gradient moves both levels. 2: the mask has a batch of its own.
        ramp: The part of the run over which the sparsity rises.
        initial_sparsity: Where it begins.
        mask_every: Iterations from one mask to the next.
    """

    name: ClassVar[str] = "bip-plus"
    summary: ClassVar[str] = "our BiP: one pass, gradually, scores that correct magnitudes"
    citation: ClassVar[str] = "after Zhang et al., NeurIPS 2022"
    settings_version: ClassVar[int] = 6  # scores in units of the loss, in one engine with `attach`
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
        """One step for both levels; with two passes the second is the mask's alone."""
        return ("z", "nothing")[: self.passes]
