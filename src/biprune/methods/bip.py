"""BiP: pruning as bi-level optimization, on one page.

Zhang, Yao, Ram, Zhao, Chen, Hong, Wang, Liu. Advancing Model Pruning via Bi-level Optimization.
NeurIPS 2022. Numbers in brackets are those of the paper's equations; * is elementwise.

The mask m is the variable of the upper level, the weights theta that of the lower one. S holds the
binary masks with k ones, and z = m * theta is what the network computes with:

    min over m in S of l(m * theta*(m)),                                                      (1)
    theta*(m) = argmin over theta of l(m * theta) + (gamma / 2) ||theta||^2

With g = dl/dz, the gradient has a direct part and, through theta*(m), an implicit one:

    dl/dm = theta * g + (d theta* / dm) (m * g)                                         (2, 7, 8)
    d theta* / dm = -(1/gamma) diag(g)                   if the loss has no curvature         (5)
    dl/dm = (theta - (1/gamma) * m * g) * g              Proposition 1                        (6)

One backward pass at z thus gives all that either level needs. Algorithm A1 repeats these steps,
each with a batch of its own, where m~ are the scores that stand for m:

    theta <- theta - lr * (m * g + weight_decay * theta)                     theta-step      (A3)
    m~    <- m~ - score_lr * (theta - (1/gamma) * m * g) * g                 m-step          (A4)
    m     <- the k units of the highest scores                                               (A5)

What departs from the authors' released code, which departs from their paper:

1. Scores start as a copy of |theta|. There they share theta's storage, so each level moves both.
2. The implicit term multiplies m * g by g. There it squares the score's gradient and has 1e-4 in
   place of 1/gamma.
3. An iteration takes two forward and backward passes and one selection. There it takes four
   forward and three backward passes, and four sorts.
4. Each level has the paper's learning rate. There the mask's own is never read.

What departs from the paper: rows of a layer without any kept weight get no score gradient, because
a norm behind them makes it explode. With `score_dead_rows` this is Algorithm A1 to the letter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self, get_args

import torch
from torch import Tensor, nn

from biprune.core.checks import check_choice, check_positive, check_rate, check_whole
from biprune.methods.base import Outcome, Start, Target, TrainingMethod, retrain_
from biprune.methods.levels import BatchScheme, Levels, LevelsAlgorithm
from biprune.training.batches import Batch
from biprune.training.loop import Backward, Setup, fit
from biprune.training.schedule import Moment, Shape
from biprune.training.sgd import unscale_
from biprune.training.train import Recipe

Form = Literal["binary", "relaxed", "clamped", "coupled"]


def upper_gradient(
    theta: Tensor,
    g: Tensor,
    m: Tensor,
    gamma: float,
    *,
    masked: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """dl/dm = (theta - (1/gamma) * m * g) * g, Proposition 1.

    Args:
        theta: The weights, pruned ones included.
        g: dl/dz at z = m * theta, complete: after any all-reduce, and without a loss scale.
        m: A boolean mask, or the scores of the relaxed m-step.
        gamma: The regularizer of the lower level.
        masked: m * g, if it is at hand already.
        out: Memory for the result, which may be that of `g` if `m` is boolean.
    """
    binary = m.dtype == torch.bool
    if masked is None:
        masked = torch.where(m, g, 0.0) if binary else m * g
    # A binary m is its own square: m * g * g is (m * g)^2, which needs g no more.
    other = masked if binary else g
    return torch.mul(theta, g, out=out).addcmul_(masked, other, value=-1 / gamma)


class BiPLevels(Levels):
    """The two steps of BiP; call each after a backward at the weights as they are."""

    def __init__(self, model: nn.Module, target: Target, method: BiP, **options: Any) -> None:
        if target.structure.spans_tensors:  # whose scores are of many weights each
            check_choice("form", method.form, ("binary", "coupled"))
        decay = method.gamma if method.form == "coupled" else None
        super().__init__(model, target, method, theta_decay=decay, **options)

    @torch.no_grad()
    def lower_step(self, loss_scale: float | Tensor = 1.0) -> bool:
        """The theta-step: theta <- theta - lr * (m * g + weight_decay * theta), and the dense rest.

        `loss_scale` is what the loss was multiplied by (AMP); with one, gradients that overflowed
        skip the step, and the answer is False.
        """
        if not unscale_(self.model.parameters(), loss_scale):
            return False
        self._lower_level.step()
        return True

    @torch.no_grad()
    def upper_step(self, loss_scale: float | Tensor = 1.0) -> bool:
        """The m-step: scores <- scores - score_lr * dl/dm, then m is selected by the scores.

        Nothing else of the model changes, running averages aside. The gradients of the prunable
        weights are used up. `loss_scale` is as in `lower_step`.
        """
        if not unscale_(self._masked.weights.values(), loss_scale):
            return False
        with self._masked.masked_gradients() as (gradients, masked):
            self._move_scores(self._upper_gradients(gradients, masked))
            if self.method.form == "clamped":
                for score in self.scores.values():
                    score.clamp_(0.0, 1.0)
            self._select_masks()
        return True

    def _upper_gradient(self, name: str, g: Tensor, masked: Tensor) -> Tensor:
        theta, m = self.theta[name], self._implicit_mask(name)
        if not self.method.implicit_gradient:
            return g.mul_(theta)
        at_hand = {"masked": masked, "out": g} if m.dtype == torch.bool else {}
        return upper_gradient(theta, g, m, self.method.gamma, **at_hand)

    def _implicit_mask(self, name: str) -> Tensor:
        relaxed = self.method.form in ("relaxed", "clamped")
        return self.scores[name] if relaxed else self.masks[name]


class BiPAlgorithm(LevelsAlgorithm):
    """Algorithm A1; an iteration is `passes` and, if the loss is finite, `move`."""

    def passes(self, backward: Backward, group: Sequence[Batch], now: Moment) -> Tensor:
        """A theta-step on each batch but the last, and the pass of the m-step on that."""
        self._set_rates(now)
        losses = []
        for batch in group[:-1]:
            losses.append(backward(batch))
            self.levels.lower_step()
        losses.append(backward(group[-1]))
        return torch.stack(losses).mean()

    def move(self, now: Moment) -> None:
        """The m-step."""
        self._note_ratio(now)
        self.levels.upper_step()


@dataclass(frozen=True)
class BiP(TrainingMethod):
    """BiP as published: the mask and the weights are learned at once, at the full sparsity.

    An epoch has an iteration for each batch of the data. Both levels step by SGD with momentum, on
    one schedule.

    Args:
        lr: theta's learning rate; the scores' is `score_lr`.
        gamma: The regularizer of the lower level.
        lower_steps: N, the theta-steps of an iteration.
        batches: Which the levels see (`level_batches`): "different", "reverse" or "same".
        implicit_gradient: False leaves the direct part alone.
        form: How the paper is read. In the implicit term "binary" has the mask m, as the main text;
            "relaxed" the scores, as the appendix; "clamped" too, and keeps them in [0, 1].
            "coupled" is "binary" with theta decayed by gamma, as printed, not `weight_decay`.
        score_dead_rows: True learns the scores of rows without any kept weight, too.
        retrain_epochs: Then the mask is retrained for so long, as the paper's baselines are.
        rewind_epoch: Of the dense run, whose weights are retrained. None: BiP's own are.
    """

    name: ClassVar[str] = "bip"
    summary: ClassVar[str] = "bi-level optimization of mask and weights, as published"
    citation: ClassVar[str] = "Zhang et al., NeurIPS 2022"
    starts_from: ClassVar[Literal["dense", "init"]] = "dense"
    retrains: ClassVar[bool] = False
    settings_version: ClassVar[int] = 6  # up to 5 the name was that of bip-plus
    algorithm: ClassVar[type[BiPAlgorithm]] = BiPAlgorithm
    levels: ClassVar[type[BiPLevels]] = BiPLevels

    epochs: int = 100
    lr: float = 0.01
    schedule: Shape = "cosine"
    score_lr: float = 0.1
    gamma: float = 1.0
    lower_steps: int = 1
    batches: BatchScheme = "different"
    implicit_gradient: bool = True
    form: Form = "binary"
    score_dead_rows: bool = False
    retrain_epochs: int = 0
    rewind_epoch: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_rate("score_lr", self.score_lr)
        check_positive("gamma", self.gamma)
        check_whole("lower_steps", self.lower_steps, at_least=1)
        check_choice("batches", self.batches, get_args(BatchScheme))
        check_choice("form", self.form, get_args(Form))
        check_whole("retrain_epochs", self.retrain_epochs, at_least=0)
        if self.gamma != BiP.gamma and not self.implicit_gradient and self.form != "coupled":
            raise ValueError(
                f"`gamma` {self.gamma:g} would change nothing: it is of the implicit gradient, so "
                "pass implicit_gradient=True as well."
            )
        if self.rewind_epoch is not None and self.retrain_epochs == 0:
            raise ValueError("`rewind_epoch` needs `retrain_epochs` of at least 1.")

    def scaled(self, epochs: int) -> Self:
        """The same run over other epochs; retraining keeps its share."""
        share = self.retrain_epochs * epochs / self.epochs
        retrain = max(1, round(share)) if self.retrain_epochs else 0
        return replace(super().scaled(epochs), retrain_epochs=retrain)

    def data_passes(self, sparsity: float) -> float:
        """Those of the theta-steps and of the m-step, whatever the sparsity."""
        del sparsity
        return self.epochs * (self.lower_steps + 1) + self.retrain_epochs

    def run(self, start: Start, setup: Setup, target: Target) -> Outcome:
        """Learn the mask, and retrain it if asked to."""
        if self.rewind_epoch is not None:
            start.check_rewind(self.rewind_epoch)
        algorithm = self.algorithm(self, start.model, setup, target)
        run = fit(start.model, algorithm, setup, epochs=self.epochs, stage="bip")
        if not self.retrain_epochs:
            return Outcome(start.model, algorithm.masks, run.history, run.cost)
        note = "retrained from BiP's own weights"
        if self.rewind_epoch is not None:
            note = start.rewind_(self.rewind_epoch)
        decay, momentum = self.weight_decay, self.momentum
        recipe = Recipe(self.retrain_epochs, 0.1, momentum, decay, nesterov=self.nesterov)
        return retrain_(start.model, algorithm.masks, recipe, setup, note, after=run)
