"""SynFlow: prune at initialization without data, conserving synaptic flow.

Tanaka, Kunin, Yamins, Ganguli. Pruning neural networks without any data by iteratively conserving
synaptic flow. NeurIPS 2020.

    R = 1^T f_|theta|(1),   score = |theta| * dR/d|theta|,   in 100 rounds, kept(t) = kept^(t/100)

f_|theta| is the network with the absolute values of its state dict, fed an image of ones. BatchNorm
is in eval mode, where it is a fixed linear map; in train mode, a batch of one would break the
conservation. R grows exponentially with depth (about 5e71 for ResNet-56), so the copy is in
float64. The released code is in float32.

Filters and channels are ours: scores are summed over the unit, as conservation suggests.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from biprune.core.checks import check_whole
from biprune.methods.at_init import AtInit, Scoring
from biprune.methods.base import Target
from biprune.training.batches import Batch, logits_of
from biprune.training.checkpoint import only_tensors


@dataclass(frozen=True)
class SynFlow(AtInit):
    """Iterative synaptic flow; it needs only the shape of an input, no data.

    Args:
        rounds: The rounds of scoring and pruning.
    """

    name: ClassVar[str] = "synflow"
    summary: ClassVar[str] = "synaptic flow at initialization, without data"
    citation: ClassVar[str] = "Tanaka et al., NeurIPS 2020"

    rounds: int = 100

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("rounds", self.rounds, at_least=1)

    def unit_scores(self, scoring: Scoring, target: Target) -> Mapping[str, Tensor]:
        """Return the scores of the last round; units pruned in earlier rounds get -inf."""
        model = scoring.model.double().eval()
        make_positive_(model)
        ones = _ones_like_one_input(scoring.batches(1)[0])
        scores = synaptic_flow(scoring, ones, target)
        for round_ in range(1, self.rounds):
            kept = (1 - target.sparsity) ** (round_ / self.rounds)
            masks = target.select_units(scoring.weights, scores, 1 - kept)
            masks.apply_(model)
            scores = synaptic_flow(scoring, ones, target)
            for name, kept_units in target.structure.kept_units(masks).items():
                scores[name][~kept_units] = -torch.inf  # pruned stays pruned
        return scores


def synaptic_flow(scoring: Scoring, ones: Tensor, target: Target) -> dict[str, Tensor]:
    """Sum |theta * dR/dtheta| over each unit, by one forward and one backward pass."""
    scoring.forward_passes += 1
    output = logits_of(scoring.model(ones))
    weights = list(scoring.weights.values())
    gradients = scoring.gradients(output.sum(), weights)
    products = [(w.detach() * g).abs() for w, g in zip(weights, gradients, strict=True)]
    return target.structure.add_up(dict(zip(scoring.weights, products, strict=True)))


@torch.no_grad()
def make_positive_(model: nn.Module) -> None:
    """Replace the state by its absolute values, except tensors such as masks of -inf."""
    for tensor in only_tensors(model.state_dict()).values():
        if tensor.is_floating_point() and tensor.isfinite().all():
            tensor.abs_()


def _ones_like_one_input(batch: Batch) -> Tensor:
    inputs = batch[0] if isinstance(batch, (tuple, list)) else batch
    kind = inputs.dtype if isinstance(inputs, Tensor) else type(inputs).__name__
    if not (isinstance(inputs, Tensor) and inputs.is_floating_point()):
        raise ValueError(
            "SynFlow feeds the model one input of ones, so it needs batches whose first element is "
            f"a floating-point tensor, got {kind}. Use another method for this model."
        )
    return torch.ones_like(inputs[:1], dtype=torch.float64)
