"""Random pruning: what any method must beat.

Scores are uniform draws, cut globally or in each layer as the structure says; the pruned network
is trained from its initial weights with the settings of the other methods that prune at
initialization (200 epochs, a tenth of the learning rate at 50 % and 75 %).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from biprune.batches import device_of
from biprune.loop import Setup
from biprune.methods.base import Method, Outcome, Start, Target, retrain_, seeded_generator
from biprune.training import Recipe


@dataclass(frozen=True)
class Random(Method):
    """Remove units at random, then train what is left from the initial weights."""

    name: ClassVar[str] = "random"
    summary: ClassVar[str] = "random units, trained from initialization"
    citation: ClassVar[str] = ""
    starts_from: ClassVar[Literal["dense", "init"]] = "init"
    retrains: ClassVar[bool] = True

    epochs: int = 200
    lr: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 5e-4

    def run(self, start: Start, setup: Setup, target: Target) -> Outcome:
        """Draw, select, train."""
        note = start.rewind_(0)
        weights = target.weights(start.model)
        generator = seeded_generator(setup.seed, device_of(start.model))
        scores = {
            name: torch.rand(weight.shape, generator=generator, device=weight.device)
            for name, weight in weights.items()
        }
        recipe = Recipe(self.epochs, self.lr, self.momentum, self.weight_decay)
        return retrain_(start.model, target.select(scores), recipe, setup, note)
