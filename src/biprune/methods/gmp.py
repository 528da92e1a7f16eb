"""GMP: gradual magnitude pruning, the strongest cheap rival.

Zhu, Gupta. To prune, or not to prune: exploring the efficacy of pruning for model compression.
ICLR Workshop 2018 (arXiv 2017).

    sparsity(t) = target * (1 - (1 - t / ramp)^3) over the first `ramp` of one retraining
    every few steps: m <- top k of |theta|;  after the ramp m is fixed

Pruned weights get no gradient: they keep what they had, but for decay and the momentum left over,
and come back if the others shrink below it.
The BiP paper cites this method and does not run it; the settings are those of its retraining but
for the schedule, which is cosine: the masks settle in the middle of the run, where a step would be.
Filters and channels are ours, ranked by L2 norm, the same fraction of each layer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from biprune.methods.attached import Move, Rule, Values
from biprune.methods.moving import GradualMethod
from biprune.training.schedule import Shape


class GMPRule(Rule):
    """The mask is that of |theta|."""

    settles: ClassVar[bool] = True

    def _ranked(self, work: Values) -> Values:
        return self._magnitudes(work)


@dataclass(frozen=True)
class GMP(GradualMethod):
    """Raise the sparsity along a cubic curve while the weights train on.

    Args:
        ramp: The part of the run over which the sparsity rises.
        initial_sparsity: Where it begins.
        mask_every: Steps from one mask to the next; one is drawn at the end of the ramp, too.
        freeze_pruned: Whether pruned weights stay as they are, without decay and momentum.
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
        """theta, by m * g; or z, so that pruned weights stand still."""
        return ("z",) if self.freeze_pruned else ("theta",)
