"""The two steps of BiP as an optimizer over an untouched module.

With z = m * theta in the module's weights, one backward gives g = dl/dz, and (Prop. 1)

    d/dtheta = m * g                                    lower level, theta-step
    d/dm     = (theta - (1/gamma) * m * g) * g          upper level, m-step

Scores are a weight's own, but for coupled groups: there each unit has one, moved by the sum of
d/dm over what its gate multiplies (see `methods.gates`).

The term m * g * g is not linear in g, so g must be complete when a step is called: after the
all-reduce of data-parallel training, and with any loss scale removed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor, nn

from biprune.core.checks import check_choice
from biprune.core.flat import side_by_side
from biprune.core.groups import Groups
from biprune.core.masks import Masks
from biprune.core.selection import check_sparsity
from biprune.methods.base import Target
from biprune.methods.level_settings import LevelSettings
from biprune.methods.scores import initial_scores, make_score_optimizer
from biprune.training.sgd import MaskedSGD, unscale_


class BiLevelOptimizer:
    """theta, scores and mask of a model's prunable weights, each level with its own optimizer.

    After a backward call `lower_step`, `upper_step`, or `step` for both. Everything trainable that
    is not prunable (norms, biases) is trained dense at the lower level. `sparsity` may be changed
    between steps, beginning with that of `target`; the next selection is by it. While `redraws` is
    False the mask stays as it is. `seed` is that of random scores, `settings` are the fields of
    `LevelSettings`.
    """

    def __init__(self, model: nn.Module, target: Target, *, seed: int = 0, **settings: Any) -> None:
        known = [field.name for field in fields(LevelSettings)]
        if unknown := sorted(settings.keys() - known):
            raise TypeError(
                f"BiP's optimizer has no setting {', '.join(map(repr, unknown))}. Settings: "
                f"{', '.join(known)}."
            )
        how = LevelSettings(**settings)
        self.model = model
        self.settings = how
        self.sparsity = target.sparsity
        self.redraws = True
        self.seed = seed
        weights = target.weights(model)
        scores = initial_scores(weights, how.score_init, seed)
        self._groups = target.structure if isinstance(target.structure, Groups) else None
        if self._groups:
            check_choice("implicit_mask", how.implicit_mask, ("binary",))
            if how.clamp_scores:
                raise ValueError("`clamp_scores` is for masks of weights, not of coupled groups.")
            scores = self._groups.pool(scores)
        self.scores = side_by_side(scores)
        self._select = target.selector(weights if self._groups else None)
        masks = self._select(self.scores, self.sparsity)
        if how.follow_weights:  # it was |theta| that chose; from now on |theta| + scores does
            for score in self.scores.values():
                score.zero_()
        self._rows = target.scored_rows(model, dead=how.score_dead_rows)
        self._lower_level = MaskedSGD(
            model,
            weights,
            masks,
            lr=how.lr,
            momentum=how.momentum,
            weight_decay=how.weight_decay,
            theta_decay=how.gamma if how.couple_gamma else None,
            nesterov=how.nesterov,
            freeze_pruned=how.freeze_pruned,
        )
        self._masked = self._lower_level.masked
        self.lower = self._lower_level.optimizer
        self.upper = make_score_optimizer(how, self.scores.values())

    @property
    def sparsity(self) -> float:
        """What the next mask is selected by."""
        return self._sparsity

    @sparsity.setter
    def sparsity(self, value: float) -> None:
        check_sparsity(value)
        self._sparsity = value

    @property
    def theta(self) -> dict[str, Tensor]:
        """The lower level's variable by name; not what the module holds, which is m * theta."""
        return self._masked.theta

    @property
    def _kind(self) -> dict[str, bool]:
        """What a state must share to mean the same."""
        return {n: getattr(self.settings, n) for n in ("follow_weights", "freeze_pruned")}

    @property
    def masks(self) -> Masks:
        """The mask that the module's weights show now."""
        return self._masked.masks

    @torch.no_grad()
    def lower_step(self, loss_scale: float | Tensor = 1.0) -> bool:
        """theta <- theta - lr * (m * g + weight_decay * theta), and the dense rest by SGD.

        With `freeze_pruned` theta <- theta - lr * m * (g + weight_decay * theta).

        `loss_scale` is what the loss was multiplied by (AMP); with one, gradients that overflowed
        skip the step, and the answer is False.
        """
        if not unscale_(self.model.parameters(), loss_scale):
            return False
        self._lower_level.step()
        return True

    @torch.no_grad()
    def upper_step(self, loss_scale: float | Tensor = 1.0) -> bool:
        """scores <- scores - score_lr * (theta - (1/gamma) * m * g) * g, then m is selected anew.

        By the scores, or by |theta| + scores if they follow the weights.
        Running averages aside, nothing else of the model changes. The gradients of the prunable
        weights are used up. `loss_scale` as in `lower_step`.
        """
        if not unscale_(self._masked.weights.values(), loss_scale):
            return False
        with self._masked.masked_gradients() as (gradients, masked):
            self._move_mask(self._upper_gradients_(gradients, masked))
        return True

    @torch.no_grad()
    def step(self, loss_scale: float | Tensor = 1.0) -> bool:
        """Both levels by one gradient, from the theta and the mask at which it was taken.

        One pass in place of the two that a `lower_step` and an `upper_step` need. Uses up the
        gradients as `upper_step` does; `loss_scale` as in `lower_step`.
        """
        if not unscale_(self.model.parameters(), loss_scale):
            return False
        with self._masked.masked_gradients() as (gradients, masked):
            upper = self._upper_gradients_(gradients, masked)
            self._lower_level.apply(masked)
            self._move_mask(upper)
        return True

    def upper_gradient_(self, name: str, gradient: Tensor, masked: Tensor) -> Tensor:
        """g <- (theta - (1/gamma) * m * g) * g of one tensor, in place, given g and m * g.

        Without the implicit part theta * g. m * g takes the place of g if scores of pruned
        weights are not learned.
        """
        theta, how = self.theta[name], self.settings
        if not how.score_pruned:
            gradient.copy_(masked)
        if not how.implicit_gradient:
            return gradient.mul_(theta)
        if how.implicit_mask == "scores":
            factor = torch.addcmul(theta, self.scores[name], gradient, value=-1 / how.gamma)
            return gradient.mul_(factor)
        # m is binary, so that m * g * g is the square of m * g.
        return gradient.mul_(theta).addcmul_(masked, masked, value=-1 / how.gamma)

    def _upper_gradients_(
        self, gradients: dict[str, Tensor], masked: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """Empties `gradients`, as `_move_mask` does: their memory must be free when it selects."""
        if self._rows is not None:
            self._rows.silence_dead_(gradients, self.masks)
        names = list(gradients)
        return {n: self.upper_gradient_(n, gradients.pop(n), masked[n]) for n in names}

    def _move_mask(self, gradients: dict[str, Tensor]) -> None:
        if self._groups:
            gradients = self._groups.add_up_gates(gradients)
        for name in list(gradients):
            self.scores[name].grad = gradients.pop(name)
        self.upper.step()
        for weight in self._masked.weights.values():
            weight.grad = None
        for score in self.scores.values():
            score.grad = None
            if self.settings.clamp_scores:
                score.clamp_(0.0, 1.0)
        if self.redraws:
            self._masked.masks = self._select(self._ranked(), self.sparsity)

    def _ranked(self) -> dict[str, Tensor]:
        """What the mask is chosen by: the scores, or |theta| + scores if they follow the weights.

        The sum takes the memory of the gradients, which are used up, and is not kept.
        """
        if not self.settings.follow_weights:
            return self.scores
        if self._groups:
            magnitudes = {name: theta.abs() for name, theta in self.theta.items()}
            pooled = self._groups.pool(magnitudes)
            return {name: score + pooled[name] for name, score in self.scores.items()}
        ranked = side_by_side(self.theta)
        for name, score in self.scores.items():
            ranked[name].abs_().add_(score)
        return ranked

    @torch.no_grad()
    def implicit_ratio(self) -> float:
        """||(1/gamma) m g g|| / ||theta g|| at the gradients that move the scores (a host sync)."""
        if not self.settings.implicit_gradient:
            return 0.0
        implicit, direct = [], []
        gradients = self._masked.gradients()
        if self._rows is not None:
            self._rows.silence_dead_(gradients, self.masks)
        for name, gradient in gradients.items():
            implicit.append((self._masked_gradient(name, gradient) * gradient).norm())
            direct.append((self.theta[name] * gradient).norm())
        size = torch.stack(direct).norm() if direct else 0.0
        return float(torch.stack(implicit).norm() / self.settings.gamma / size) if size > 0 else 0.0

    def zero_grad(self) -> None:
        """Drop the model's gradients; those of theta and the scores live only within a step."""
        self.model.zero_grad(set_to_none=True)

    def state_dict(self) -> dict[str, Any]:
        """theta, scores, masks and both optimizers; the rest of the model has its own."""
        return {
            **self._lower_level.state_dict(),
            "scores": self.scores,
            "upper": self.upper.state_dict(),
            "sparsity": self.sparsity,
            "redraws": self.redraws,
            **self._kind,
        }

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict`; the model's weights are written from theta and masks."""
        if missing := self.state_dict().keys() - state.keys():
            lacking = ", ".join(map(repr, sorted(missing)))
            raise ValueError(f"The state is none of `state_dict`: it lacks {lacking}.")
        for name, own in self._kind.items():
            if state[name] != own:
                raise ValueError(
                    f"The state is of an optimizer with {name}={state[name]}, and means something "
                    f"else with {own}. Build the optimizer as it was."
                )
        self._lower_level.load_state_dict(state)
        for name, score in self.scores.items():
            score.copy_(state["scores"][name])
        self.upper.load_state_dict(state["upper"])
        self.sparsity = state["sparsity"]
        self.redraws = state["redraws"]

    def _masked_gradient(self, name: str, gradient: Tensor) -> Tensor:
        if self.settings.implicit_mask == "scores":
            return self.scores[name] * gradient
        return torch.where(self.masks[name], gradient, 0.0)
