"""GraSP: prune at initialization the weights that hinder the flow of gradients.

Wang, Zhang, Grosse. Picking Winning Tickets Before Training by Preserving Gradient Flow. ICLR 2020.

    score = theta * (H g),   g and H of the loss with logits / temperature; the smallest are pruned

Removing weight q changes ||g||^2 by about -2 theta_q (H g)_q, so removing a weight with a low score
lets more gradient through. The score keeps its sign; ranking by |score| is another method.

Where this differs from the authors' code:

1. Every chunk of the class-balanced samples mixes all classes; their halves differ in classes.
2. Filters and channels are ours: theta * (H g) is summed over the unit, a first-order estimate. For
   a filter in front of a BatchNorm, g, H and the sum are over the norm's weight and bias, because
   the sum over the filter itself is zero (see `gates`).

As in their code, the scored copy redraws its linear layers from Xavier's normal distribution,
because small initial logits give no signal, and its BatchNorms are in train mode. Dropout should be
off or small, since the two passes draw different masks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from biprune.core.checks import check_positive, check_whole
from biprune.methods.at_init import AtInit, Scoring, class_balanced
from biprune.methods.base import Target
from biprune.methods.gates import gate_scores, gated_list
from biprune.training.batches import Batch


@dataclass(frozen=True)
class GraSP(AtInit):
    """Gradient signal preservation.

    Args:
        samples_per_class: Samples of each class to score on. If batches are not (inputs, labels),
            the first batch is used as it is.
        temperature: Divides the model's output, which must be a tensor unless this is 1.
        reinit_linear: Whether the scored copy redraws its linear layers.
    """

    name: ClassVar[str] = "grasp"
    summary: ClassVar[str] = "gradient flow at initialization"
    citation: ClassVar[str] = "Wang et al., ICLR 2020"
    settings_version: ClassVar[int] = 2  # equal chunks

    samples_per_class: int = 10
    temperature: float = 200.0
    reinit_linear: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("samples_per_class", self.samples_per_class, at_least=1)
        check_positive("temperature", self.temperature)

    def unit_scores(self, scoring: Scoring, target: Target) -> Mapping[str, Tensor]:
        """Sum theta * (H g) over each unit's gated parameters."""
        chunks = class_balanced(scoring, self.samples_per_class)
        if self.reinit_linear:
            for module in scoring.model.modules():
                if isinstance(module, nn.Linear):
                    nn.init.xavier_normal_(module.weight)
        gates = scoring.gates(target.structure, chunks[0])
        parameters = gated_list(gates)
        products = self.hessian_gradient(scoring, chunks, parameters)
        return gate_scores(gates, dict(zip(parameters, products, strict=True)), target.structure)

    def hessian_gradient(
        self, scoring: Scoring, chunks: list[Batch], parameters: list[nn.Parameter]
    ) -> list[Tensor]:
        """Return H g, summed over the chunks; each takes two forward and three backward passes."""
        handle = scoring.model.register_forward_hook(self._cool)
        try:
            gradient = scoring.summed_gradients(chunks, parameters)
            total = [torch.zeros_like(p) for p in parameters]
            for chunk in chunks:
                again = scoring.gradients(scoring.loss(chunk), parameters, create_graph=True)
                pairs = zip(gradient, again, strict=True)
                inner = torch.stack([(g * a).sum() for g, a in pairs]).sum()
                products = scoring.gradients(inner, parameters)
                total = [t + product for t, product in zip(total, products, strict=True)]
        finally:
            handle.remove()
        return total

    def _cool(self, model: nn.Module, inputs: object, output: object) -> object:
        if self.temperature == 1.0:
            return output
        if not isinstance(output, Tensor):
            raise ValueError(
                "GraSP's `temperature` divides logits, but the model returns "
                f"{type(output).__name__}. Pass temperature=1."
            )
        return output / self.temperature
