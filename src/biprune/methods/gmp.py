"""GMP: gradual magnitude pruning, the strongest cheap rival.

Zhu, Gupta. To prune, or not to prune: exploring the efficacy of pruning for model compression.
ICLR Workshop 2018 (arXiv 2017).

    sparsity(t) = target * (1 - (1 - t / ramp)^3) over the first `ramp` of one retraining
    every few steps: m <- top k of |theta|;  after the ramp m is fixed

Pruned weights get no gradient. Apart from decay and remaining momentum they keep their value, and
they return if others shrink below it.

The BiP paper cites this method but does not run it. We use the paper's retraining settings with a
cosine schedule: a step schedule would drop the rate just when the masks settle.
Pruning filters and channels is ours: by L2 norm, the same fraction of each layer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from biprune.methods.attached import Move, Rule, Values
from biprune.methods.moving import GradualMethod
from biprune.training.schedule import Shape


class GMPRule(Rule):
    """Ranks by |theta|."""

    settles: ClassVar[bool] = True

    def _ranked(self, work: Values) -> Values:
        return self._magnitudes(work)


@dataclass(frozen=True)
class GMP(GradualMethod):
    """Raise the sparsity along a cubic curve while the weights train on.

    Args:
        ramp: The fraction of the run over which the sparsity rises.
        initial_sparsity: The sparsity at the start.
        mask_every: Steps between masks; one is always drawn when the ramp ends.
        freeze_pruned: Whether pruned weights keep their value, without decay and momentum.
    """

    name: ClassVar[str] = "gmp"
    summary: ClassVar[str] = "gradual magnitude along a cubic curve, in one retraining"
    citation: ClassVar[str] = "Zhu and Gupta, ICLR Workshop 2018"
    rule: ClassVar[type[Rule]] = GMPRule
    rule_settings: ClassVar[tuple[str, ...]] = (*GradualMethod.rule_settings, "freeze_pruned")

    schedule: Shape = "cosine"
    mask_every: int = 10
    freeze_pruned: bool = False

    @property
    def iteration(self) -> tuple[Move, ...]:
        """theta by m * g; or z, which leaves pruned weights as they are."""
        return ("z",) if self.freeze_pruned else ("theta",)
