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

Where the authors' released code departs from their paper, we follow the paper:

1. Scores start as a copy of |theta|. There they share theta's storage, so each level moves both.
2. The implicit term multiplies m * g by g. There it squares the score's gradient and has 1e-4 in
   place of 1/gamma.
3. An iteration takes two forward and backward passes and one selection. There it takes four
   forward and three backward passes, and four sorts.
4. Each level has the paper's learning rate. There the mask's own is never read.

Where we depart from the paper: rows of a layer without any kept weight get no score gradient,
because a norm behind them makes it explode. `score_dead_rows` gives Algorithm A1 to the letter.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self, get_args

import torch
from torch import Tensor, nn

from biprune.core.checks import check_choice, check_positive, check_rate, check_whole
from biprune.core.masked import masked_in
from biprune.methods.attached import Rule, Values
from biprune.methods.base import Outcome, Start, Target, retrain_
from biprune.methods.learned import LearnedRule
from biprune.methods.moving import MovingMask
from biprune.training.batches import Batch, BatchScheme, level_batches
from biprune.training.optimizers import make_sgd
from biprune.training.recipes import Recipe
from biprune.training.schedule import Shape
from biprune.training.setup import Record, Setup

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


class BiPRule(LearnedRule):
    """Algorithm A1, step by step: N times the theta-step, then the m-step, and again.

    Each step has a batch of its own and begins with its gradient g at z.
    """

    method: BiP

    def __init__(self, model: nn.Module, target: Target, method: BiP, steps: int) -> None:
        if target.structure.spans_tensors:  # whose scores are of many weights each
            check_choice("form", method.form, ("binary", "coupled"))
        super().__init__(model, target, method, steps)

    @property
    def moves(self) -> Literal["z", "theta", "nothing"]:
        """The theta-step (A3) is the optimizer's, at theta, by m * g; the m-step is ours alone."""
        return "nothing" if super().moves == "nothing" else "theta"

    def _make_scores(self) -> None:
        super()._make_scores()
        for name, magnitude in self._magnitudes(self._work()).items():
            self.scores[name].copy_(magnitude)
        # A group for each tensor, whose rate may be its own.
        groups = [{"params": [score]} for score in self.scores.values()]
        device = next(iter(self.scores.values())).device
        method = self.method
        self._upper = make_sgd(groups, device, lr=method.score_lr, momentum=method.score_momentum)
        self._implicit_ratio = 0.0

    def _tensors(self) -> dict[str, Values]:
        if not self.method.score_momentum:
            return super()._tensors()
        momentum = {name: self._upper.momentum_of(score) for name, score in self.scores.items()}
        return {**super()._tensors(), "momentum": momentum}

    def _product(self, name: str, gradient: Tensor, scale: float, out: Tensor) -> None:
        """dl/dm by Proposition 1, in the m-step."""
        theta, g = self.theta[name].to(self._dtype), gradient.to(self._dtype)
        g = g if scale == 1 else g / scale
        if not self.method.implicit_gradient:
            torch.mul(theta, g, out=out)
            return
        m = self._implicit_mask(name)
        masked = masked_in(self.weights[name].data, m, g) if m.dtype == torch.bool else None
        upper_gradient(theta, g, m, self.method.gamma, masked=masked, out=out)

    def _implicit_mask(self, name: str) -> Tensor:
        relaxed = self.method.form in ("relaxed", "clamped")
        return self.scores[name] if relaxed else self.masks[name]

    def _step_scores(self, gradients: Values, rates: Mapping[str, float], size: float) -> None:
        """The m-step (A4); the engine then selects m by the scores (A5)."""
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

    def measure(self) -> None:
        """||(1/gamma) m g g|| / ||theta g|| at the gradients that move the scores."""
        if not self.method.implicit_gradient:
            return
        implicit, direct = [], []
        for name, g in self._living_gradients(self.theta).items():
            implicit.append((self._implicit_mask(name) * g * g).norm())
            direct.append((self.theta[name] * g).norm())
        size = torch.stack(direct).norm() if direct else 0.0
        ratio = torch.stack(implicit).norm() / self.method.gamma / size if size > 0 else 0.0
        self._implicit_ratio = float(ratio)

    def record(self) -> Record:
        """The rate of the scores, and how much of their gradient was implicit."""
        rate = self._upper.param_groups[0]["lr"]
        return {"score_lr": rate, "implicit_ratio": self._implicit_ratio}


@dataclass(frozen=True)
class BiP(MovingMask):
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
    settings_version: ClassVar[int] = 6  # up to 5 the name was that of bip-plus
    rule: ClassVar[type[Rule]] = BiPRule
    rule_settings: ClassVar[tuple[str, ...]] = (
        *("score_lr", "score_momentum", "gamma", "lower_steps", "implicit_gradient", "form"),
        "score_dead_rows",
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

    @property
    def steps_per_iteration(self) -> int:
        """N for theta, and one for the mask."""
        return self.lower_steps + 1

    @property
    def learns_dead_rows(self) -> bool:
        """`score_dead_rows`."""
        return self.score_dead_rows

    @property
    def theta_decay(self) -> float | None:
        """The decay of theta where it is not `weight_decay`."""
        return self.gamma if self.form == "coupled" else None

    def groups(self, batches: Iterable[Batch], steps: int) -> Iterator[Sequence[Batch]]:
        """`lower_steps` batches for theta and one for the mask, `steps` times."""
        return level_batches(batches, steps, self.lower_steps, self.batches)

    def data_passes(self, sparsity: float) -> float:
        """Those of the theta-steps and of the m-step, and of retraining."""
        return super().data_passes(sparsity) + self.retrain_epochs

    def run(self, start: Start, setup: Setup, target: Target) -> Outcome:
        """Learn the mask, and retrain it if asked to."""
        if self.rewind_epoch is not None:
            start.check_rewind(self.rewind_epoch)
        learned = super().run(start, setup, target)
        if not self.retrain_epochs:
            return learned
        note = "retrained from BiP's own weights"
        if self.rewind_epoch is not None:
            note = start.rewind_(self.rewind_epoch)
        decay, momentum = self.weight_decay, self.momentum
        recipe = Recipe(self.retrain_epochs, 0.1, momentum, decay, nesterov=self.nesterov)
        return retrain_(start.model, learned.masks, recipe, setup, note, after=learned)
