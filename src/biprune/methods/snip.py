"""SNIP: prune at initialization what the loss is least sensitive to.

Lee, Ajanthan, Torr. SNIP: Single-shot Network Pruning based on Connection Sensitivity. ICLR 2019.

    score = |theta * dl/dtheta|   at initialization, on one batch; the smallest are pruned

Where this differs from the authors' code:

1. BatchNorm is in train mode while scoring, because its initial running statistics mean nothing.
2. The scored network is the one that is trained, not another draw of the same initializer.
3. Biases are not ranked. (Theirs are zero, so they score zero and are pruned first.)
4. Filters and channels are ours: |sum of theta * dl/dtheta|, the derivative with respect to the
   unit's gate. For a filter in front of a BatchNorm, it is over the norm's weight and bias (see
   `gates`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from biprune.core.checks import check_whole
from biprune.methods.at_init import AtInit, Scoring
from biprune.methods.base import Target
from biprune.methods.gates import gate_scores, gated_list


@dataclass(frozen=True)
class SNIP(AtInit):
    """Connection sensitivity at initialization.

    Args:
        samples: The least number of training samples to score on.
    """

    name: ClassVar[str] = "snip"
    summary: ClassVar[str] = "sensitivity |theta g| at initialization"
    citation: ClassVar[str] = "Lee et al., ICLR 2019"

    samples: int = 128

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("samples", self.samples, at_least=1)

    def unit_scores(self, scoring: Scoring, target: Target) -> Mapping[str, Tensor]:
        """Return |sum of theta * g| for each unit, with g summed over the batches."""
        batches = scoring.batches(self.samples)
        gates = scoring.gates(target.structure, batches[0])
        parameters = gated_list(gates)
        gradients = scoring.summed_gradients(batches, parameters)
        scores = gate_scores(gates, dict(zip(parameters, gradients, strict=True)), target.structure)
        return {name: score.abs() for name, score in scores.items()}
