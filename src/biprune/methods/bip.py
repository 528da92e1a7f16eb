"""BiP: pruning as bi-level optimization, on one page.

Zhang, Yao, Ram, Zhao, Chen, Hong, Wang, Liu. Advancing Model Pruning via Bi-level Optimization.
NeurIPS 2022. Numbers in brackets are those of the paper's equations; * is elementwise.

The upper level optimizes the mask m, the lower level the weights theta. S holds the binary masks
with k ones, and the network computes with z = m * theta:

    min over m in S of l(m * theta*(m)),                                                      (1)
    theta*(m) = argmin over theta of l(m * theta) + (gamma / 2) ||theta||^2

With g = dl/dz, the gradient has a direct part and, through theta*(m), an implicit one:

    dl/dm = theta * g + (d theta* / dm) (m * g)                                         (2, 7, 8)
    d theta* / dm = -(1/gamma) diag(g)                   if the loss has no curvature         (5)
    dl/dm = (theta - (1/gamma) * m * g) * g              Proposition 1                        (6)

So one backward pass at z gives all that either level needs. Algorithm A1 repeats these steps, each
with its own batch; the scores m~ stand for m:

    theta <- theta - lr * (m * g + weight_decay * theta)                     theta-step      (A3)
    m~    <- m~ - score_lr * (theta - (1/gamma) * m * g) * g                 m-step          (A4)
    m     <- the k units of the highest scores                                               (A5)

Where the authors' released code departs from their paper, we follow the paper:

1. Scores start as a copy of |theta|. Theirs share theta's storage, so each level moves both.
2. The implicit term multiplies m * g by g. Theirs squares the score's gradient and uses 1e-4 for
   1/gamma.
3. An iteration takes two forward and backward passes and one selection. Theirs takes four forward
   and three backward passes, and four sorts.
4. Each level has the paper's learning rate. Their code never reads the mask's learning rate.

Where we depart from the paper: rows of a layer without any kept weight get no score gradient, since
a norm behind them makes it explode. `score_dead_rows=True` gives Algorithm A1 to the letter.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self, get_args

import torch
from torch import Tensor

from biprune.core.checks import check_choice, check_positive, check_rate, check_whole
from biprune.core.masked import masked_in
from biprune.methods.attached import Move, Rule, Values
from biprune.methods.base import Outcome, Start, Target, retrain_
from biprune.methods.learned import LearnedRule
from biprune.methods.moving import MovingMask
from biprune.training.batches import Batch, BatchScheme, level_batches
from biprune.training.optimizers import make_sgd
from biprune.training.schedule import Shape
from biprune.training.setup import Record, Setup

Form = Literal["binary", "relaxed", "clamped", "coupled"]


def upper_gradient(
    theta: Tensor,
    g: Tensor,
    m: Tensor,
    gamma: float,
    *,
    scratch: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Return dl/dm = (theta - (1/gamma) * m * g) * g, Proposition 1.

    Args:
        theta: The weights, including pruned ones.
        g: dl/dz at z = m * theta, after any all-reduce and without a loss scale.
        m: A boolean mask, or the scores for the relaxed m-step.
        gamma: The regularizer of the lower level; infinity leaves only the direct part.
        scratch: Memory for m * g, such as that of z; its content is overwritten.
        out: Memory for the result; it may be that of `g` if `m` is boolean.
    """
    binary = m.dtype == torch.bool
    masked = masked_in(scratch, m, g) if binary else m * g
    # For a binary m, m * g * g is (m * g)^2, so `out` may overwrite g.
    other = masked if binary else g
    return torch.mul(theta, g, out=out).addcmul_(masked, other, value=-1 / gamma)


class BiPRule(LearnedRule):
    """Algorithm A1 around an optimizer; `BiP.iteration` gives the order of its steps."""

    method: BiP

    def _make_scores(self) -> None:
        if self._structure.spans_tensors:  # one score for many weights
            check_choice("form", self.method.form, ("binary", "coupled"))
        super()._make_scores()
        for name, magnitude in self._magnitudes(self._work()).items():
            self.scores[name].copy_(magnitude)
        # One group per tensor, since each may have its own rate.
        groups = [{"params": [score]} for score in self.scores.values()]
        lr, momentum = self.method.score_lr, self.method.score_momentum
        self._upper = make_sgd(groups, groups[0]["params"][0].device, lr=lr, momentum=momentum)
        self._implicit_ratio = 0.0

    def mask_gradient(self, name: str, gradient: Tensor, scale: float, out: Tensor) -> None:
        """Write dl/dm of one tensor to `out`, by Proposition 1 (6)."""
        theta, g = self.theta[name].to(self._dtype), gradient.to(self._dtype)
        g = g if scale == 1 else g / scale
        gamma = self.method.gamma if self.method.implicit_gradient else math.inf
        z = self.weights[name].data  # free to use: it is rewritten after the step
        upper_gradient(theta, g, self._implicit_mask(name), gamma, scratch=z, out=out)

    def m_step(self, gradients: Values, rates: Mapping[str, float], size: float) -> None:
        """Step the scores by SGD on dl/dm (A4); the mask is selected next (A5)."""
        del size
        groups = self._upper.param_groups
        for group, (name, score) in zip(groups, self.scores.items(), strict=True):
            group["lr"] = self.method.score_lr * rates[name]
            score.grad = gradients.get(name)
        self._upper.step()
        for score in self.scores.values():
            score.grad = None
            if self.method.form == "clamped":
                score.clamp_(0.0, 1.0)

    def _implicit_mask(self, name: str) -> Tensor:
        relaxed = self.method.form in ("relaxed", "clamped")
        return self.scores[name] if relaxed else self.masks[name]

    def _tensors(self) -> dict[str, Values]:
        if not self.method.score_momentum:
            return super()._tensors()
        momentum = {name: self._upper.momentum_of(score) for name, score in self.scores.items()}
        return {**super()._tensors(), "momentum": momentum}

    def measure(self) -> None:
        """Measure ||(1/gamma) m g g|| / ||theta g|| at the gradients that move the scores."""
        if not self.method.implicit_gradient:
            return
        gradients = self._living_gradients(self.theta).items()
        implicit = sum(float((self._implicit_mask(n) * g * g).square().sum()) for n, g in gradients)
        direct = sum(float((self.theta[n] * g).square().sum()) for n, g in gradients)
        self._implicit_ratio = math.sqrt(implicit / direct) / self.method.gamma if direct else 0.0

    def record(self) -> Record:
        """Return the scores' learning rate, and how large their implicit gradient was."""
        rate = self._upper.param_groups[0]["lr"]
        return {"score_lr": rate, "implicit_ratio": self._implicit_ratio}


@dataclass(frozen=True)
class BiP(MovingMask):
    """BiP as published: learn the mask and the weights together, at full sparsity from the start.

    An epoch has as many iterations as the data has batches. Both levels share one schedule.

    Args:
        lr: The learning rate of theta.
        score_lr: The learning rate of the scores.
        score_momentum: The momentum of the scores.
        gamma: The regularizer of the lower level.
        lower_steps: The theta-steps per iteration, the paper's N.
        batches: Which batches the levels see: "different", "reverse" or "same" (`level_batches`).
        implicit_gradient: Whether the upper gradient has its implicit part.
        form: The reading of the paper. "binary" has the mask in the implicit term (main text),
            "relaxed" the scores (appendix), "clamped" the scores kept in [0, 1]. "coupled" is
            "binary" with theta decayed by gamma.
        score_dead_rows: Whether to learn the scores of rows without any kept weight.
        retrain_epochs: Epochs of retraining under the learned mask.
        rewind_epoch: The epoch of the dense run to retrain from; None means BiP's own weights.
    """

    name: ClassVar[str] = "bip"
    summary: ClassVar[str] = "bi-level optimization of mask and weights, as published"
    citation: ClassVar[str] = "Zhang et al., NeurIPS 2022"
    settings_version: ClassVar[int] = 6  # up to 5, this name meant bip-plus
    rule: ClassVar[type[Rule]] = BiPRule
    rule_settings: ClassVar[tuple[str, ...]] = (
        *("score_lr", "score_momentum", "gamma", "implicit_gradient", "form"),
        *("lower_steps", "score_dead_rows"),
    )

    epochs: int = 100
    lr: float = 0.01
    schedule: Shape = "cosine"
    score_lr: float = 0.1
    score_momentum: float = 0.9
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
        check_rate("score_momentum", self.score_momentum)
        check_positive("gamma", self.gamma)
        check_whole("lower_steps", self.lower_steps, at_least=1)
        check_choice("batches", self.batches, get_args(BatchScheme))
        check_choice("form", self.form, get_args(Form))
        check_whole("retrain_epochs", self.retrain_epochs, at_least=0)
        if self.gamma != BiP.gamma and not self.implicit_gradient and self.form != "coupled":
            raise ValueError(f"`gamma` {self.gamma:g} has no effect without `implicit_gradient`.")
        if self.rewind_epoch is not None and self.retrain_epochs == 0:
            raise ValueError("`rewind_epoch` needs `retrain_epochs` of at least 1.")

    def scaled(self, epochs: int) -> Self:
        """Return the method for a run of `epochs`; retraining keeps its share."""
        share = self.retrain_epochs * epochs / self.epochs
        retrain = max(1, round(share)) if share else 0
        return replace(super().scaled(epochs), retrain_epochs=retrain)

    @property
    def iteration(self) -> tuple[Move, ...]:
        """N theta-steps by the optimizer (A3), then the m-step (A4, A5), each on its own batch."""
        return ("theta",) * self.lower_steps + ("nothing",)

    @property
    def theta_decay(self) -> float | None:
        """The decay of theta; None means `weight_decay`."""
        return self.gamma if self.form == "coupled" else None

    def groups(self, batches: Iterable[Batch], steps: int) -> Iterator[Sequence[Batch]]:
        """Yield `lower_steps` batches for theta and one for the mask, `steps` times."""
        return level_batches(batches, steps, self.lower_steps, self.batches)

    def data_passes(self, sparsity: float) -> float:
        """Return the passes of both levels and of retraining."""
        return super().data_passes(sparsity) + self.retrain_epochs

    def run(self, start: Start, setup: Setup, target: Target) -> Outcome:
        """Learn mask and weights, then retrain if `retrain_epochs` is set."""
        if self.rewind_epoch is not None:
            start.check_rewind(self.rewind_epoch)
        learned = super().run(start, setup, target)
        if not self.retrain_epochs:
            return learned
        note = "retrained from BiP's own weights"
        if self.rewind_epoch is not None:
            note = start.rewind_(self.rewind_epoch)
        recipe = self.recipe(self.retrain_epochs)
        if self.optimizer == "sgd":
            recipe = replace(recipe, lr=0.1, schedule="step", warmup_epochs=0.0)
        return retrain_(start.model, learned.masks, recipe, setup, note, after=learned)
