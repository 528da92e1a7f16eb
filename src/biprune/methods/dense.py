"""No pruning: the control row of every table, run by the same code as the other methods."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from biprune.methods.base import Method, Outcome, Start, Target, magnitudes
from biprune.training.loop import Cost
from biprune.training.setup import Setup


@dataclass(frozen=True)
class Dense(Method):
    """Keep every weight; the only possible sparsity is 0."""

    name: ClassVar[str] = "dense"
    summary: ClassVar[str] = "no pruning, the control"
    citation: ClassVar[str] = ""
    starts_from: ClassVar[Literal["dense", "init"]] = "dense"
    retrains: ClassVar[bool] = False
    prunes: ClassVar[bool] = False

    def run(self, start: Start, setup: Setup, target: Target) -> Outcome:
        """Return masks that keep everything."""
        if target.sparsity != 0:
            raise ValueError(
                f"The method 'dense' prunes nothing: `sparsity` must be 0, got {target.sparsity:g}."
            )
        masks = target.select(magnitudes(target.weights(start.model)))
        return Outcome(start.model, masks, [], Cost())
