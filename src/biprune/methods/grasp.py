"""GraSP: prune at initialization what lowers the flow of gradients.

Wang, Zhang, Grosse. Picking Winning Tickets Before Training by Preserving Gradient Flow. ICLR 2020.

    score = theta * (H g),   g and H of the loss with logits / temperature; the smallest go.

Removing weight q changes ||g||^2 by about -2 theta_q (H g)_q, so a low score is one whose removal
lets more gradient through. The score keeps its sign: rankings by |score| are another method.

Where this differs from the authors' code:

1. Samples are drawn class-balanced and mixed over the chunks; there each half holds other classes.
2. Filters and channels are ours: the sum of theta * (H g) over the unit, which is first order in
   its removal; for a filter before a BatchNorm over the norm's weight and bias, as over the filter
   itself the first-order change of the loss is zero (see `gates`).

As there, the scored copy has its linear layers drawn anew from Xavier's normal, because small
initial logits give no signal, and BatchNorm is in train mode.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from biprune.batches import Batch
from biprune.methods.at_init import AtInit, Scoring
from biprune.methods.base import Target
from biprune.methods.gates import gate_scores, gated_list
from biprune.methods.samples import class_balanced


@dataclass(frozen=True)
class GraSP(AtInit):
    """Gradient signal preservation, on `samples_per_class` of each class.

    Batches that are not (inputs, labels) cannot be balanced and are used as they come.
    `temperature` divides the model's output, which must then be a tensor.
    """

    name: ClassVar[str] = "grasp"
    summary: ClassVar[str] = "gradient flow at initialization"
    citation: ClassVar[str] = "Wang et al., ICLR 2020"

    samples_per_class: int = 10
    temperature: float = 200.0
    reinit_linear: bool = True

    def unit_scores(self, scoring: Scoring, target: Target) -> Mapping[str, Tensor]:
        """The sum of theta * (H g) over each unit's gated parameters."""
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
        """H g with g and H summed over the chunks; three backward passes and two forward each."""
        cooled = Cooled(scoring.model, self.temperature)
        gradient = scoring.summed_gradients(chunks, parameters, cooled)
        total = [torch.zeros_like(p) for p in parameters]
        for chunk in chunks:
            again = scoring.gradients(scoring.loss(chunk, cooled), parameters, create_graph=True)
            inner = torch.stack([(g * a).sum() for g, a in zip(gradient, again, strict=True)]).sum()
            for sum_, product in zip(total, scoring.gradients(inner, parameters), strict=True):
                sum_ += product
        return total


class Cooled(nn.Module):
    """A model whose logits are divided by a temperature."""

    def __init__(self, model: nn.Module, temperature: float) -> None:
        super().__init__()
        self.model = model
        self.temperature = temperature

    def forward(self, *inputs: object, **options: object) -> object:
        """The model's own forward, cooled."""
        output = self.model(*inputs, **options)
        if self.temperature == 1.0:
            return output
        if not isinstance(output, Tensor):
            raise ValueError(
                "GraSP's `temperature` divides logits, but the model returns "
                f"{type(output).__name__}. Pass temperature=1."
            )
        return output / self.temperature
