"""Rules that learn scores while an optimizer of the user's trains the weights.

One step of `bip-plus`, of T, with theta as the optimizer's step has left it:

    scores <- scores - kappa * r * theta * g / (T * a)
    m      <- exactly k of |theta| / rms(theta) + scores

r is the learning rate over its peak; a is the running mean of |theta * g| over all prunable
weights, one number. Scores are thus changes of the loss in units of what one weight changes: layers
compare, and a loss a thousand times as large gives the same masks. rms is over all prunable weights
too. Rows without a kept weight stand still (`Rows`), and so does everything in a step whose
gradients are not finite, which an optimizer skips. Of coupled groups the scores are of units.

On other devices than the CPU a step reads one number back.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor
from torch.linalg import vector_norm

from biprune.core.layout import side_by_side
from biprune.core.masked import where_kept
from biprune.methods.attached import GMPRule, Rule, Values
from biprune.methods.bip import upper_gradient
from biprune.training.step_hooks import Stepped

MEMORY = 0.99  # of the running mean, when it has seen enough
SPARSE_GRADIENT = (
    "The gradient of {name!r} is sparse and cannot be pruned by. Build the embedding with "
    "sparse=False, or leave it out with `exclude`."
)


class MovementRule(Rule):
    """Movement pruning: scores -= r * theta * g, which alone choose the mask.

    Sanh, Wolf, Rush. Movement Pruning: Adaptive Sparsity by Fine-Tuning. NeurIPS 2020. The hard
    kind; in one ranking of all weights where theirs ranks each matrix.
    """

    name = "movement"

    def _prepare(self) -> None:
        like = self._structure.scored(self.theta)
        zeros = {name: torch.zeros_like(t, dtype=self._dtype) for name, t in like.items()}
        self.scores = side_by_side(zeros)

    def _tensors(self) -> dict[str, Values]:
        return {**super()._tensors(), "scores": self.scores}

    def _ranked(self, work: Values) -> Values:
        del work
        return self.scores

    def _move_scores(self, stepped: Mapping[str, Stepped], work: Values) -> bool:
        gradients = self._gradients(stepped, work)
        sizes = [vector_norm(gradient, 1) for gradient in gradients.values()]
        size = float(torch.stack(sizes).sum()) if sizes else 0.0
        if not math.isfinite(size):
            return False
        self._step_scores(gradients, self._rates(stepped), size)
        return True

    def _step_scores(self, gradients: Values, rates: Mapping[str, float], size: float) -> None:
        """Move the scores by theta * g; `size` is the sum of |theta * g|."""
        del size
        for name, gradient in gradients.items():
            self.scores[name].add_(gradient, alpha=-rates[name])

    def _gradients(self, stepped: Mapping[str, Stepped], work: Values) -> Values:
        """theta * g, or of groups its sum over what a unit's gate multiplies."""
        for name, product in work.items():
            if (gradient := self._gradient(name)) is None:
                product.zero_()
            else:
                self._product(name, gradient, stepped[name].scale, out=product)
        self._silence(work)
        return groups.add_up_gates(work) if (groups := self._structure.coupled) else work

    def _product(self, name: str, gradient: Tensor, scale: float, out: Tensor) -> None:
        """d/dm of one tensor, of a gradient that is still `scale` times as large."""
        torch.mul(self.theta[name].to(self._dtype), gradient, out=out)
        if scale != 1:
            out.div_(scale)

    def _silence(self, products: Values) -> None:
        """Set to 0 what must not move the scores."""
        if self._rows is not None:
            self._rows.silence_dead_(products, self.masks)

    def _gradient(self, name: str) -> Tensor | None:
        gradient = self.weights[name].grad
        if gradient is not None and gradient.is_sparse:
            raise ValueError(SPARSE_GRADIENT.format(name=name))
        return gradient

    def _rates(self, stepped: Mapping[str, Stepped]) -> dict[str, float]:
        """r by the name of a score; of a group that of the first tensor."""
        if coupled := self._structure.coupled:
            return {g.name: stepped[g.slices[0].tensor].rate for g in coupled.groups}
        return {name: each.rate for name, each in stepped.items()}


class BiPPlusRule(MovementRule):
    """Our BiP: one gradient for both levels, and a mask of magnitudes that scores correct.

    Scores of pruned filters, channels and groups stand still, as in `methods.bip_plus`.
    """

    name = "bip-plus"
    defaults: ClassVar[dict[str, float]] = {**Rule.defaults, "kappa": 3.0}
    numbers: ClassVar[tuple[str, ...]] = (*Rule.numbers, "mean")

    def _prepare(self) -> None:
        super()._prepare()
        self.mean = 0.0  # a

    def _silence(self, products: Values) -> None:
        super()._silence(products)
        if not self._structure.has_single_weights:
            for name, product in products.items():
                where_kept(self.masks[name], product, out=product)

    def _step_scores(self, gradients: Values, rates: Mapping[str, float], size: float) -> None:
        size /= sum(score.numel() for score in self.scores.values())
        if size == 0:  # no gradient reached a prunable weight
            return
        self.mean += (size - self.mean) * (max(1 - MEMORY, 1 / (self.step + 1)) if self.mean else 1)
        for name, gradient in gradients.items():
            step = self.settings["kappa"] * rates[name] / (self.steps * self.mean)
            self.scores[name].add_(gradient, alpha=-step)

    def _ranked(self, work: Values) -> Values:
        magnitudes = self._magnitudes(work)
        norm = vector_norm(torch.stack([vector_norm(each) for each in magnitudes.values()]))
        rms = norm / math.sqrt(sum(each.numel() for each in magnitudes.values()))
        for name, score in self.scores.items():
            torch.addcdiv(score, magnitudes[name], rms, out=magnitudes[name])
        return magnitudes


class BiPRule(MovementRule):
    """BiP as published: steps alternate between the levels, each with a batch of its own.

    Odd steps move theta, as the optimizer likes; what is pruned decays by the rate and the weight
    decay of its group. Even ones move the scores, by momentum, and leave theta alone:

        scores <- scores - score_lr * r * (theta - (1/gamma) * m * g) * g

    They start as |theta|, and they alone choose the mask, at the full sparsity from the start.
    """

    name = "bip"
    defaults: ClassVar[dict[str, float]] = {"score_lr": 0.1, "score_momentum": 0.9, "gamma": 1.0}

    @property
    def sparsity(self) -> float:
        """The target from the start."""
        return self.target.sparsity

    @property
    def withholds_gradients(self) -> bool:
        """Whether the step to come is of the upper level."""
        return self.step % 2 == 1 and self.step < self.steps

    def _prepare(self) -> None:
        super()._prepare()
        self.momentum = side_by_side(self.scores)
        for name, magnitude in self._magnitudes(self._work()).items():
            self.scores[name].copy_(magnitude)

    def _tensors(self) -> dict[str, Values]:
        return {**super()._tensors(), "momentum": self.momentum}

    def _draws(self) -> bool:
        return self.step % 2 == 0

    def _move_scores(self, stepped: Mapping[str, Stepped], work: Values) -> bool:
        if self.withholds_gradients:
            return super()._move_scores(stepped, work)
        for name, theta in self.theta.items():
            decayed = theta * (1 - stepped[name].decay)
            torch.where(self.masks[name], theta, decayed, out=theta)
        return True

    def _product(self, name: str, gradient: Tensor, scale: float, out: Tensor) -> None:
        gradient = gradient.to(self._dtype)
        gradient = gradient if scale == 1 else gradient / scale
        theta, gamma = self.theta[name].to(self._dtype), self.settings["gamma"]
        upper_gradient(theta, gradient, self.masks[name], gamma, out=out)

    def _step_scores(self, gradients: Values, rates: Mapping[str, float], size: float) -> None:
        del size
        for name, gradient in gradients.items():
            momentum = self.momentum[name].mul_(self.settings["score_momentum"]).add_(gradient)
            self.scores[name].add_(momentum, alpha=-self.settings["score_lr"] * rates[name])


_ALL = (BiPPlusRule, BiPRule, GMPRule, MovementRule)
RULES: dict[str, type[Rule]] = {rule.name: rule for rule in _ALL}
