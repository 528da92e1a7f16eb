"""BiP: pruning as bi-level optimization.

Zhang, Yao, Ram, Zhao, Chen, Hong, Wang, Liu. Advancing Model Pruning via Bi-level Optimization.
NeurIPS 2022. The mask is the upper problem, retraining the lower:

    min over m in S of l(m * theta*(m)),   theta*(m) = argmin l(m * theta) + gamma/2 ||theta||^2
    theta-step:  theta <- theta - lr * (m * g + weight_decay * theta)            on one batch
    m-step:      m~ <- m~ - score_lr * (theta - (1/gamma) * m * g) * g           on another
                 m <- top k of m~

`PaperBiP` has the paper's settings. `BiP` has those that did best here (docs/results.md): both
levels step by one gradient without the implicit term, theta by Nesterov's momentum and only where
it is kept, the sparsity is raised gradually, and the mask is that of |theta| + m~, where m~ starts
at 0: a learned correction to magnitudes that follow theta as it moves. On kept weights, with the
learning rates in a fixed proportion, the direct term adds up to

    m~ ~ score_lr / lr * (theta_t^2 - theta_0^2) / 2  + what weight decay took from it

so that a weight that training has made large counts for more than one that always was; on pruned
weights it is what the loss would gain by their return. Of pruned filters, channels and groups the
scores stand still: the norm behind a filter that gives only zeros makes its gradient 1 / sqrt(eps)
times as large, and whatever else is noise in many weights adds up in their L2 norm. Their masks are
fixed when the target is reached, for a unit that comes in late is not trained any more.

Differences from the authors' released code, which departs from their paper:

1. Scores start as a copy of |theta|. There they share theta's storage, so each level moves both.
2. The implicit term multiplies m * g by g. There it squares the score's gradient and has 1e-4 in
   place of 1/gamma.
3. Two forward and backward passes an iteration in place of four and three, and one selection.
4. The paper's learning rates, each with its own cosine. There the mask's own rate is never read.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, ClassVar, Literal, Self, get_args

import torch

from biprune.core.checks import check_choice, check_part, check_positive, check_whole
from biprune.core.structure import Structure
from biprune.methods.base import Outcome, Start, Target, TrainingMethod, mask_record, retrain_
from biprune.methods.bilevel import BiLevelOptimizer
from biprune.methods.level_batches import BatchScheme, level_batches
from biprune.methods.level_settings import (
    ImplicitMask,
    LevelSettings,
    ScoreInit,
    ScoreOptimizer,
)
from biprune.training.batches import Batch
from biprune.training.loop import Backward, Record, Setup, fit
from biprune.training.schedule import (
    LRSchedule,
    Moment,
    Shape,
    draws_mask,
    end_of_ramp,
    gradual_sparsity,
)
from biprune.training.sgd import set_lr
from biprune.training.train import Recipe

SparsitySchedule = Literal["direct", "cubic", "linear"]


@dataclass(frozen=True)
class BiP(TrainingMethod):
    """Bi-level pruning of mask and weights at once; see `paper` for the published settings.

    An epoch is len(data) iterations, each of `lower_steps` batches for theta and one for the mask.
    `batches` says which: "different" draws all from one stream; "reverse" gives the upper level
    the epoch's batches in reverse order (and holds them in memory); "same" reuses the lower one.
    With `passes` 1 the mask has no batch of its own: the gradient of the last theta-step moves both
    levels at once, for half the cost.
    `sparsity_schedule` "cubic" goes from dense to the target over the first `ramp` of the run, fast
    at first, "linear" in equal steps; "direct" prunes at once. With `follow_weights` the mask is
    chosen by |theta| + scores, which start at 0, otherwise by scores that start as `score_init`
    says.
    `couple_gamma` decays theta by gamma, as the formula of the theta-step says, in place of
    `weight_decay`; `freeze_pruned` leaves pruned weights alone: they neither decay nor drift by the
    momentum they had. With `retrain_epochs` the found mask is retrained at `retrain_lr`, from BiP's
    own weights or from those of `rewind_epoch` of the dense run (the paper's rewinding study).
    The scores have a `score_momentum` of their own (None: `momentum`); those of pruned weights are
    learned with `score_pruned`, but for rows without any kept weight: with `score_dead_rows` these
    too, which a norm behind them makes explode (then `paper` is Algorithm A1 to the letter). Masks
    are drawn anew every `mask_every` iterations and at the end
    of the `ramp`, after which with `settle` they are fixed. None for either is as the structure
    asks for: single weights are scored when pruned and do not settle, units of many weights are
    not and do.
    """

    name: ClassVar[str] = "bip"
    summary: ClassVar[str] = "learn mask and weights together by bi-level optimization"
    citation: ClassVar[str] = "Zhang et al., NeurIPS 2022"
    starts_from: ClassVar[Literal["dense", "init"]] = "dense"
    retrains: ClassVar[bool] = False

    settings_version: ClassVar[int] = 5  # dead rows

    epochs: int = 100
    schedule: Shape = "cosine"
    nesterov: bool = True
    score_lr: float = 0.3
    score_schedule: Shape = "cosine"
    score_momentum: float | None = None
    score_optimizer: ScoreOptimizer = "sgd"
    score_pruned: bool | None = None
    score_dead_rows: bool = False
    mask_every: int = 1
    settle: bool | None = None
    gamma: float = 1.0
    lower_steps: int = 1
    passes: int = 1
    batches: BatchScheme = "different"
    implicit_gradient: bool = False
    implicit_mask: ImplicitMask = "binary"
    score_init: ScoreInit = "magnitude"
    follow_weights: bool = True
    clamp_scores: bool = False
    couple_gamma: bool = False
    freeze_pruned: bool = True
    sparsity_schedule: SparsitySchedule = "cubic"
    ramp: float = 0.6
    retrain_epochs: int = 0
    retrain_lr: float = 0.1
    rewind_epoch: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.levels()
        LRSchedule(self.score_schedule)
        check_whole("mask_every", self.mask_every, at_least=1)
        if self.gamma != type(self).gamma and not (self.implicit_gradient or self.couple_gamma):
            raise ValueError(
                f"`gamma` {self.gamma:g} would change nothing: it is of the implicit gradient, so "
                "give implicit_gradient=True (the method bip-paper has it) or couple_gamma=True."
            )
        check_whole("lower_steps", self.lower_steps, at_least=1)
        check_choice("batches", self.batches, get_args(BatchScheme))
        if self.passes not in (1, 2):
            raise ValueError(f"`passes` must be 1 or 2, got {self.passes!r}.")
        if self.passes == 1 and self.batches != "different":
            raise ValueError(
                f"`batches` {self.batches!r} needs `passes` 2: with one pass the upper level has "
                "no batch of its own."
            )
        check_choice("sparsity_schedule", self.sparsity_schedule, get_args(SparsitySchedule))
        check_part("ramp", self.ramp)
        check_whole("retrain_epochs", self.retrain_epochs, at_least=0)
        check_positive("retrain_lr", self.retrain_lr)
        if self.rewind_epoch is not None and self.retrain_epochs == 0:
            raise ValueError("`rewind_epoch` needs `retrain_epochs` of at least 1.")

    @classmethod
    def paper(cls, **settings: Any) -> PaperBiP:
        """The method `bip-paper`: BiP as published, but for `settings`.

        >>> BiP.paper(gamma=0.5).passes
        2
        """
        return PaperBiP(**settings)

    def scaled(self, epochs: int) -> Self:
        """The same run over other epochs; warm-up and retraining keep their share."""
        share = self.retrain_epochs * epochs / self.epochs
        retrain = max(1, round(share)) if self.retrain_epochs else 0
        return replace(super().scaled(epochs), retrain_epochs=retrain)

    def data_passes(self, sparsity: float) -> float:
        """`lower_steps` passes for theta and the mask's own, whatever the sparsity."""
        del sparsity
        return self.epochs * (self.lower_steps + self.passes - 1) + self.retrain_epochs

    def fitted(self, structure: Structure) -> Self:
        """With the settings that are left to the structure."""
        single = structure.has_single_weights
        scored = single if self.score_pruned is None else self.score_pruned
        settle = not single if self.settle is None else self.settle
        return replace(self, score_pruned=scored, settle=settle)

    def levels(self) -> LevelSettings:
        """The settings of the optimizer."""
        return LevelSettings(**{f.name: getattr(self, f.name) for f in fields(LevelSettings)})

    def run(self, start: Start, setup: Setup, target: Target) -> Outcome:
        """Learn the mask, and retrain it if asked to."""
        if self.rewind_epoch is not None:
            start.check_rewind(self.rewind_epoch)
        algorithm = BiPAlgorithm(self, start, setup, target)
        run = fit(start.model, algorithm, setup, epochs=self.epochs, stage="bip")
        outcome = Outcome(start.model, algorithm.optimizer.masks, run.history, run.cost)
        return self._retrain(outcome, start, setup) if self.retrain_epochs else outcome

    def _retrain(self, pruned: Outcome, start: Start, setup: Setup) -> Outcome:
        note = "retrained from BiP's own weights"
        if self.rewind_epoch is not None:
            note = start.rewind_(self.rewind_epoch)
        recipe = Recipe(
            self.retrain_epochs,
            self.retrain_lr,
            self.momentum,
            self.weight_decay,
            nesterov=self.nesterov,
        )
        again = retrain_(start.model, pruned.masks, recipe, setup, note)
        history = [*pruned.history, *again.history]
        return replace(again, history=history, cost=pruned.cost + again.cost)


@dataclass(frozen=True)
class PaperBiP(BiP):
    """BiP as published: two passes an iteration, straight to the target, scores of their own."""

    name: ClassVar[str] = "bip-paper"
    summary: ClassVar[str] = "the same with the settings of the paper"
    settings_version: ClassVar[int] = 2  # dead rows

    lr: float = 0.01
    nesterov: bool = False
    score_lr: float = 0.1
    score_pruned: bool | None = True
    settle: bool | None = False
    passes: int = 2
    implicit_gradient: bool = True
    follow_weights: bool = False
    freeze_pruned: bool = False
    sparsity_schedule: SparsitySchedule = "direct"


class BiPAlgorithm:
    """One BiP iteration at a time, for `fit`."""

    def __init__(self, method: BiP, start: Start, setup: Setup, target: Target) -> None:
        method = method.fitted(target.structure)
        self._method = method
        self._target = target
        begin = replace(target, sparsity=self._sparsity(0.0))
        levels = asdict(method.levels())
        self.optimizer = BiLevelOptimizer(start.model, begin, seed=setup.seed, **levels)
        self._lower_lr = method.recipe().lr_schedule()
        self._upper_lr = replace(self._lower_lr, shape=method.score_schedule)
        self._last_masks = self.optimizer.masks
        self._implicit_ratio = 0.0

    @property
    def settings(self) -> Mapping[str, Any]:
        """What a checkpoint must share to be resumed."""
        return {**self._method.settings, **self._target.settings}

    def groups(self, batches: Iterable[Batch], steps: int) -> Iterator[Sequence[Batch]]:
        """`lower_steps` batches, and one for the upper level if it has its own, `steps` times."""
        method = self._method
        return level_batches(batches, steps, method.lower_steps, method.passes, method.batches)

    def step(self, backward: Backward, group: Sequence[Batch], now: Moment) -> float:
        """The theta-steps, then the m-step or both at once; the mean loss of their passes."""
        optimizer, method = self.optimizer, self._method
        set_lr(optimizer.lower, method.lr * self._lower_lr.factor(now.done))
        set_lr(optimizer.upper, method.score_lr * self._upper_lr.factor(now.done))
        losses = []
        for batch in group[:-1]:
            losses.append(backward(batch))
            optimizer.lower_step()
        losses.append(backward(group[-1]))
        loss = torch.stack(losses).mean().item()
        if not math.isfinite(loss):
            return loss  # before NaN scores could be ranked
        if now.ends_epoch:
            self._implicit_ratio = optimizer.implicit_ratio()
        # The mask is drawn at the end of the step, and at the target where the ramp ends.
        end, settles = end_of_ramp(method.ramp, now.total), bool(method.settle)
        optimizer.sparsity = self._sparsity(now.finished(end))
        optimizer.redraws = draws_mask(
            now.number, every=method.mask_every, ramp_end=end, settles=settles
        )
        optimizer.step() if method.passes == 1 else optimizer.upper_step()
        return loss

    def record(self) -> Record:
        """Learning rates, and how the mask moved in this epoch."""
        masks, before = self.optimizer.masks, self._last_masks
        self._last_masks = masks
        return {
            "lr": self.optimizer.lower.param_groups[0]["lr"],
            "score_lr": self.optimizer.upper.param_groups[0]["lr"],
            **mask_record(masks, before),
            "implicit_ratio": self._implicit_ratio,
        }

    def state_dict(self) -> dict[str, Any]:
        """The optimizer's own; an epoch needs no more."""
        return self.optimizer.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state_dict`."""
        self.optimizer.load_state_dict(state)
        self._last_masks = self.optimizer.masks

    def _sparsity(self, done: float) -> float:
        target, method = self._target.sparsity, self._method
        if method.sparsity_schedule == "direct":
            return target
        power = 3 if method.sparsity_schedule == "cubic" else 1
        return gradual_sparsity(target, done, method.ramp, power=power)
