"""Hydra: learn which of the trained weights to keep, then fine-tune them.

Sehwag, Wang, Mittal, Jana. HYDRA: Pruning Adversarially Robust Neural Networks. NeurIPS 2020. As in
the BiP paper, there is no adversary.

    m = top k of |s|;   ds = sign(s) * theta * g  for every weight, pruned or not;   theta is frozen

The BiP paper ranks all layers together and starts from s = theta. As published, each layer is
ranked alone (`scope="layer"`) and s starts as theta * sqrt(6 / fan_in) / max|theta|. The
initialization follows the scope, since scaled scores are not comparable between layers. While the
scores learn, norms stay trainable, except those that coupled groups prune; biases do not.

Where this differs from the BiP authors' version:

1. The scores are a copy of the weights. Theirs share storage, so the "frozen" weights move too.
2. Scores of rows without any kept weight do not move, because a norm behind such a row makes its
   gradient explode. `score_dead_rows=True` learns them. The original Hydra learns them as well.

As in their version, scores of filters and channels are pooled by the L2 norm of |s|.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from biprune.core.checks import check_rate
from biprune.core.layout import side_by_side
from biprune.core.masked import Masked
from biprune.core.masks import Masks
from biprune.core.parameters import norm_parameters
from biprune.methods.base import (
    Outcome,
    Start,
    Target,
    TrainingMethod,
    mask_record,
    retrain_,
)
from biprune.training.batches import Batch, device_of
from biprune.training.loop import Algorithm, Backward, fit
from biprune.training.optimizers import make_sgd, set_rates
from biprune.training.schedule import Moment, Shape
from biprune.training.setup import Record, Setup


@dataclass(frozen=True)
class Hydra(TrainingMethod):
    """Learn scores under frozen weights for half the epochs, then fine-tune for the other half.

    Args:
        epochs: The epochs of both halves together.
        score_lr: The learning rate of the scores.
        score_dead_rows: Whether to learn the scores of rows without any kept weight.
    """

    name: ClassVar[str] = "hydra"
    summary: ClassVar[str] = "learn scores under frozen weights, then fine-tune"
    citation: ClassVar[str] = "Sehwag et al., NeurIPS 2020"
    settings_version: ClassVar[int] = 2  # dead rows

    epochs: int = 200
    schedule: Shape = "cosine"
    score_lr: float = 0.1
    score_dead_rows: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_rate("score_lr", self.score_lr)
        if self.epochs < 2:
            raise ValueError(
                "`epochs` must be at least 2 for Hydra, one for the scores and one for the "
                f"weights, got {self.epochs}."
            )

    def run(self, start: Start, setup: Setup, target: Target) -> Outcome:
        """Learn the mask, then fine-tune under it from the trained weights."""
        algorithm = HydraAlgorithm(self, start, target)
        run = fit(start.model, algorithm, setup, epochs=self.epochs // 2, stage="hydra")
        recipe = self.recipe(self.epochs - self.epochs // 2)
        note = "kept the trained weights"
        return retrain_(start.model, algorithm.masks, recipe, setup, note, after=run)


class HydraAlgorithm(Algorithm):
    """Trains the scores and the norms by SGD."""

    def __init__(self, method: Hydra, start: Start, target: Target) -> None:
        self._settings = {**method.settings, **target.settings}
        weights = target.weights(start.model)
        scale = scaled_to_bound if target.structure.scope == "layer" else Tensor.clone
        scores = {name: scale(weight.detach()) for name, weight in weights.items()}
        self.scores = side_by_side(scores)
        self._target = target
        self.masked = Masked(weights, self._select())
        self._rows = target.scored_rows(start.model, dead=method.score_dead_rows)
        masked = {id(weight) for weight in weights.values()}  # groups mask some norms too
        norms = [p for p in norm_parameters(start.model) if id(p) not in masked]
        self._optimizer = make_sgd(
            [*self.scores.values(), *norms],
            device_of(start.model),
            lr=method.score_lr,
            momentum=method.momentum,
            weight_decay=method.weight_decay,
            nesterov=method.nesterov,
        )
        self._schedule = method.recipe().lr_schedule()

    @property
    def masks(self) -> Masks:
        """The current masks of the model."""
        return self.masked.masks

    @property
    def settings(self) -> Mapping[str, Any]:
        """What a checkpoint must agree on to be resumed."""
        return self._settings

    def step(self, backward: Backward, group: Sequence[Batch], now: Moment) -> float:
        """Run one pass, step the scores and the norms, and select the new mask."""
        if now.step == 0:
            self._masks_before = self.masks
        loss = backward(group[0]).item()
        if math.isfinite(loss):  # scores of NaN cannot be ranked
            set_rates(self._optimizer, self._schedule.factor(now.done))
            self._move()
        return loss

    @torch.no_grad()
    def _move(self) -> None:
        gradients = self.masked.gradients()
        if self._rows is not None:
            self._rows.silence_dead_(gradients, self.masked.masks)
        for name, gradient in gradients.items():
            direct = gradient.mul_(self.masked.theta[name])
            self.scores[name].grad = direct.mul_(self.scores[name].sign())
        self._optimizer.step()
        for score in self.scores.values():
            score.grad = None
        self.masked.set_masks(self._select())

    def record(self) -> Record:
        """Return the learning rate and how the mask moved in this epoch."""
        moved = mask_record(self.masks, self._masks_before)
        return {"score_lr": self._optimizer.param_groups[0]["lr"], **moved}

    def state_dict(self) -> dict[str, Any]:
        """Return scores, masks and the optimizer's state; theta does not move."""
        return {
            "scores": self.scores,
            "masks": dict(self.masked.masks),
            "optimizer": self._optimizer.state_dict(),
        }

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a `state_dict`."""
        for name, score in self.scores.items():
            score.copy_(state["scores"][name])
        self._optimizer.load_state_dict(state["optimizer"])
        masks = Masks(state["masks"], self._target.structure)
        self.masked.set_masks(masks.to(next(iter(self.scores.values())).device))

    def _select(self) -> Masks:
        scores: dict[str, Tensor] = {name: score.abs() for name, score in self.scores.items()}
        return self._target.select(scores)


def scaled_to_bound(weight: Tensor) -> Tensor:
    """Return a copy scaled to a largest magnitude of sqrt(6 / fan_in), as Hydra starts a layer.

    This is the bound of Kaiming's uniform initialization.
    """
    largest = weight.abs().max().clamp(min=torch.finfo(weight.dtype).tiny)
    return weight * (math.sqrt(6.0 / weight[0].numel()) / largest)
