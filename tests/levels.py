"""BiP as published in a loop of a test's own: SGD, and a step of whichever level it asks for."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from biprune.core.masks import Masks
from biprune.core.parameters import Patterns
from biprune.core.structure import Scope, Structure, get_structure
from biprune.methods.base import Target
from biprune.methods.bip import BiP, BiPRule
from biprune.training.step_hooks import StepHooks


class Levels:
    """Each call is a step by the gradients of a backward; the learning rates stay as they are."""

    def __init__(
        self,
        model: nn.Module,
        sparsity: float,
        structure: str | Structure = "weight",
        *,
        scope: Scope | None = None,
        include: Patterns = None,
        lr: float = 0.01,
        momentum: float = 0.9,
        weight_decay: float = 5e-4,
        **settings: Any,
    ) -> None:
        found = get_structure(structure, scope) if isinstance(structure, str) else structure
        self.model = model
        method = BiP(**{"score_momentum": momentum, **settings})
        decay = weight_decay if method.theta_decay is None else method.theta_decay
        with torch.no_grad():
            self.rule = BiPRule(model, Target(sparsity, found, include), method, steps=10**9)
        self.optimizer = torch.optim.SGD(
            model.parameters(), lr, momentum=momentum, weight_decay=decay, foreach=False
        )
        StepHooks(self.optimizer, self.rule.weights).register(self.rule)

    @property
    def theta(self) -> dict[str, Tensor]:
        return self.rule.theta

    @property
    def scores(self) -> dict[str, Tensor]:
        return self.rule.scores

    @property
    def masks(self) -> Masks:
        return self.rule.masks

    @masks.setter
    def masks(self, masks: Masks) -> None:
        self.rule.masks = masks
        self.rule.restore()
        with torch.no_grad():
            self.rule._write(self.rule.weights)

    def lower_step(self) -> None:
        self.rule.step = 0
        self.optimizer.step()

    def upper_step(self) -> None:
        self.rule.step = self.rule.method.lower_steps
        self.optimizer.step()

    def implicit_ratio(self) -> float:
        self.rule.measure()
        return self.rule.record()["implicit_ratio"]
