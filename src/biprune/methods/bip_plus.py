"""bip-plus: BiP with the changes that did best here (docs/results.md), and the default method.

    theta <- theta - lr * m * (g + weight_decay * theta)     by Nesterov's momentum
    m~    <- m~ - score_lr * theta * g                       by the same g
    m     <- the k units of the highest |theta| + m~         k along a cubic ramp

1. One pass serves both levels, so that an iteration costs half of what it does in `bip`.
2. Scores start at 0 and correct the magnitudes of weights as theta moves. On kept weights, with
   the learning rates in a fixed proportion, they add up to

       m~ ~ score_lr / lr * (theta_t^2 - theta_0^2) / 2  + what weight decay took from it

   so that a weight that training has made large counts for more than one that always was. On
   pruned weights they are what the loss would gain by their return.
3. There is no implicit term.
4. The sparsity is raised gradually.
5. Pruned weights stand still: they neither decay nor drift by the momentum they had.
6. Scores of pruned filters, channels and groups stand still. The norm behind a filter of zeros
   makes its gradient 1 / sqrt(eps) times as large, and noise in many weights adds up in their L2
   norm. Masks of these units are fixed when the target is reached: a unit that comes in late would
   not be trained for long.

Each change is a setting; with `AS_PUBLISHED` all are taken back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self, get_args

import torch
from torch import Tensor, nn

from biprune.core.checks import check_choice, check_part, check_rate, check_whole
from biprune.core.layout import side_by_side
from biprune.core.structure import Structure
from biprune.methods.base import Target, magnitudes
from biprune.methods.bip import BiP, BiPAlgorithm, BiPLevels
from biprune.methods.hydra import fan_in_bound, scaled_to_bound
from biprune.methods.levels import rotated
from biprune.training.batches import Batch
from biprune.training.loop import Setup
from biprune.training.schedule import (
    LRSchedule,
    Moment,
    Shape,
    draws_mask,
    end_of_ramp,
    gradual_sparsity,
)
from biprune.training.seeding import drawing_generator
from biprune.training.sgd import make_sgd, unscale_

ScoreInit = Literal["magnitude", "hydra", "random"]
ScoreOptimizer = Literal["sgd", "adam"]
SparsitySchedule = Literal["direct", "cubic", "linear"]

# With these `bip-plus` computes what `bip` does, so that one change can be tried alone.
AS_PUBLISHED: Mapping[str, Any] = {
    "lr": 0.01,
    "nesterov": False,
    "score_lr": 0.1,
    "implicit_gradient": True,
    "passes": 2,
    "follow_weights": False,
    "freeze_pruned": False,
    "score_pruned": True,
    "settle": False,
    "sparsity_schedule": "direct",
}


class BiPPlusLevels(BiPLevels):
    """The steps of BiP with our changes, and both as one."""

    method: BiPPlus

    def __init__(self, model: nn.Module, target: Target, method: BiPPlus, *, seed: int = 0) -> None:
        method = method.fitted(target.structure)
        scores = initial_scores(target.weights(model), method.score_init, seed)
        frozen = method.freeze_pruned
        super().__init__(model, target, method, scores=scores, seed=seed, freeze_pruned=frozen)
        held = self.scores.values()
        if method.follow_weights:  # |theta| chose the first mask; now |theta| + scores does
            for score in held:
                score.zero_()
        if method.score_optimizer == "adam":
            self.upper = torch.optim.Adam(held, lr=method.score_lr)
        elif method.score_momentum is not None:
            device, momentum = next(iter(held)).device, method.score_momentum
            self.upper = make_sgd(held, device, lr=method.score_lr, momentum=momentum)

    @torch.no_grad()
    def step(self, loss_scale: float | Tensor = 1.0) -> bool:
        """Both levels by one gradient, from the theta and the mask at which it was taken.

        One pass in place of the two that a `lower_step` and an `upper_step` need. The gradients of
        the prunable weights are used up. `loss_scale` is as in `lower_step`.
        """
        if not unscale_(self.model.parameters(), loss_scale):
            return False
        with self._masked.masked_gradients() as (gradients, masked):
            upper = self._upper_gradients(gradients, masked)
            self._lower_level.apply(masked)
            self._move_scores(upper)
            self._select_masks()
        return True

    @property
    def _kind(self) -> dict[str, Any]:
        return {n: getattr(self.method, n) for n in ("follow_weights", "freeze_pruned")}

    def _upper_gradient(self, name: str, g: Tensor, masked: Tensor) -> Tensor:
        if not self.method.score_pruned:
            g.copy_(masked)
        return super()._upper_gradient(name, g, masked)

    def _ranked(self) -> dict[str, Tensor]:
        """The scores, or |theta| + scores in memory of its own, which is not kept."""
        if not self.method.follow_weights:
            return self.scores
        if groups := self._structure.coupled:
            pooled = groups.pool({name: theta.abs() for name, theta in self.theta.items()})
            return {name: score + pooled[name] for name, score in self.scores.items()}
        ranked = side_by_side(self.theta)
        for name, score in self.scores.items():
            ranked[name].abs_().add_(score)
        return ranked


class BiPPlusAlgorithm(BiPAlgorithm):
    """Algorithm A1 with our changes."""

    levels: BiPPlusLevels

    def __init__(self, method: BiPPlus, model: nn.Module, setup: Setup, target: Target) -> None:
        self._plus = method.fitted(target.structure)
        super().__init__(self._plus, model, setup, target)
        self._upper_rate = replace(self._lower_rate, shape=method.score_schedule)

    def groups(self, batches: Iterable[Batch], steps: int) -> Iterator[Sequence[Batch]]:
        """As in BiP; with one pass the mask has no batch of its own."""
        if self._plus.passes == 2:
            return super().groups(batches, steps)
        return rotated(batches, steps, self._plus.lower_steps)

    def move(self, now: Moment) -> None:
        """The m-step, alone or with the last theta-step; the mask as it is due."""
        self._note_ratio(now)
        method = self._plus
        # The mask is drawn at the end of the step, and at the target where the ramp ends.
        end = end_of_ramp(method.ramp, now.total)
        self.levels.sparsity = self._sparsity(now.finished(end))
        self.levels.redraws = draws_mask(
            now.number, every=method.mask_every, ramp_end=end, settles=bool(method.settle)
        )
        self.levels.step() if method.passes == 1 else self.levels.upper_step()

    def _sparsity(self, done: float) -> float:
        target, method = self._target.sparsity, self._plus
        if method.sparsity_schedule == "direct":
            return target
        power = 3 if method.sparsity_schedule == "cubic" else 1
        return gradual_sparsity(target, done, method.ramp, power=power)


@dataclass(frozen=True)
class BiPPlus(BiP):
    """Our BiP, by one pass an iteration to a mask of magnitudes that scores correct.

    Args:
        passes: 1: the gradient of the last theta-step moves both levels. 2: the mask has a batch of
            its own.
        sparsity_schedule: "cubic" goes from dense to the target over the first `ramp` of the run,
            fast at first; "linear" in equal steps; "direct" prunes at once.
        ramp: See `sparsity_schedule`.
        follow_weights: Whether the mask is chosen by |theta| + scores, which start at 0, or by
            scores alone, which start as `score_init` says.
        score_init: "magnitude": |theta|. "hydra": that, scaled in each layer. "random": uniform.
        score_schedule: Of `score_lr`.
        score_momentum: None is `momentum`.
        score_optimizer: "sgd" or "adam".
        score_pruned: Whether scores of pruned weights are learned. None: those of single weights.
        mask_every: Iterations from one mask to the next; one is drawn at the end of the ramp, too.
        settle: Whether masks are fixed after the ramp. None: those of units of many weights.
        freeze_pruned: Whether pruned weights stay as they are, without decay and momentum.
    """

    name: ClassVar[str] = "bip-plus"
    summary: ClassVar[str] = "our BiP: one pass, gradually, scores that correct magnitudes"
    citation: ClassVar[str] = "after Zhang et al., NeurIPS 2022"
    settings_version: ClassVar[int] = 5  # the same as when it was called bip
    algorithm: ClassVar[type[BiPPlusAlgorithm]] = BiPPlusAlgorithm
    levels: ClassVar[type[BiPPlusLevels]] = BiPPlusLevels

    lr: float = 0.1
    nesterov: bool = True
    score_lr: float = 0.3
    implicit_gradient: bool = False
    passes: int = 1
    sparsity_schedule: SparsitySchedule = "cubic"
    ramp: float = 0.6
    follow_weights: bool = True
    score_init: ScoreInit = "magnitude"
    score_schedule: Shape = "cosine"
    score_momentum: float | None = None
    score_optimizer: ScoreOptimizer = "sgd"
    score_pruned: bool | None = None
    mask_every: int = 1
    settle: bool | None = None
    freeze_pruned: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.form != "binary":
            raise ValueError(f"`form` {self.form!r} is of the published method: use 'bip' for it.")
        if self.passes not in (1, 2):
            raise ValueError(f"`passes` must be 1 or 2, got {self.passes!r}.")
        if self.passes == 1 and self.batches != "different":
            raise ValueError(
                f"`batches` {self.batches!r} needs `passes` 2: with one pass the upper level has "
                "no batch of its own."
            )
        check_choice("sparsity_schedule", self.sparsity_schedule, get_args(SparsitySchedule))
        check_part("ramp", self.ramp)
        check_choice("score_init", self.score_init, get_args(ScoreInit))
        if self.follow_weights and self.score_init != "magnitude":
            raise ValueError(
                f"`score_init` {self.score_init!r} needs follow_weights=False: scores that follow "
                "the weights start at 0."
            )
        LRSchedule(self.score_schedule)
        if self.score_momentum is not None:
            check_rate("score_momentum", self.score_momentum)
        check_choice("score_optimizer", self.score_optimizer, get_args(ScoreOptimizer))
        check_whole("mask_every", self.mask_every, at_least=1)

    def data_passes(self, sparsity: float) -> float:
        """Those of BiP, less one an epoch where one pass serves both levels."""
        return super().data_passes(sparsity) - self.epochs * (2 - self.passes)

    def fitted(self, structure: Structure) -> Self:
        """With the settings that are left to the structure."""
        single = structure.has_single_weights
        scored = single if self.score_pruned is None else self.score_pruned
        settle = not single if self.settle is None else self.settle
        return replace(self, score_pruned=scored, settle=settle)


@torch.no_grad()
def initial_scores(
    weights: Mapping[str, nn.Parameter], init: ScoreInit, seed: int
) -> dict[str, Tensor]:
    """Scores that share no storage with the weights.

    "magnitude": |theta|. "hydra": |theta| scaled in each layer to a maximum of sqrt(6 / fan_in)
    (Sehwag et al. 2020). "random": uniform in [0, sqrt(6 / fan_in)).
    """
    scores = magnitudes(weights)
    if init == "hydra":
        return {name: scaled_to_bound(score) for name, score in scores.items()}
    if init == "random":
        generator = drawing_generator(seed, next(iter(scores.values())).device)
        return {n: s.uniform_(0, fan_in_bound(s), generator=generator) for n, s in scores.items()}
    return scores
