"""ProsPr: prune at initialization by the effect of the mask after a few training steps.

Alizadeh, Tailor, Zintgraf, van Amersfoort, Farquhar, Lane, Gal. Prospect Pruning: Finding Trainable
Weights at Initialization using Meta-Gradients. ICLR 2022.

    theta_0' = c * theta_0;  theta_1 ... theta_M by SGD on all parameters;  score = |dl(theta_M)/dc|

The derivative is taken at c = 1, back through the M updates. `first_order` uses only the last
gradient: |theta_0 * dl/dtheta_M|. Without inner steps both are SNIP.

Where this differs from the authors' code:

1. Momentum is differentiated from the first inner step on; theirs detaches the first buffer.
2. The settings are those of their README (3 steps, rate 0.5, momentum 0.9, a new batch each step).
   Their command line uses others (rate 0.1, no momentum, one batch for all).
3. Filters and channels are ours: one gate per unit, on the norm's weight and bias for a filter in
   front of a BatchNorm (see `gates`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.func import functional_call

from biprune.core.checks import check_rate, check_whole
from biprune.core.structure import Structure
from biprune.methods.at_init import AtInit, Scoring
from biprune.methods.base import Target
from biprune.methods.gates import Gates, gate_scores
from biprune.training.batches import Batch


@dataclass(frozen=True)
class ProsPr(AtInit):
    """Meta-gradients through a few steps of SGD.

    Args:
        inner_steps: The steps of SGD. Unless `first_order`, memory grows with their number, since
            every step's graph is kept.
        inner_lr: Their learning rate.
        inner_momentum: Their momentum.
        samples: The least number of samples per step.
        first_order: Whether to use only the last gradient.
    """

    name: ClassVar[str] = "prospr"
    summary: ClassVar[str] = "sensitivity after a few steps of training"
    citation: ClassVar[str] = "Alizadeh et al., ICLR 2022"

    inner_steps: int = 3
    inner_lr: float = 0.5
    inner_momentum: float = 0.9
    samples: int = 128
    first_order: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("inner_steps", self.inner_steps, at_least=0)
        check_whole("samples", self.samples, at_least=1)
        check_rate("inner_lr", self.inner_lr)
        check_rate("inner_momentum", self.inner_momentum)

    def unit_scores(self, scoring: Scoring, target: Target) -> Mapping[str, Tensor]:
        """Return |dl(theta_M)/dc| for each unit's gate c."""
        stream = scoring.stream()
        draws = [scoring.batches(self.samples, stream) for _ in range(self.inner_steps + 1)]
        gates = scoring.gates(target.structure, draws[0][0])
        loss_of = LossOf(scoring)
        like = next(iter(scoring.weights.values()))
        counts = target.structure.num_units(scoring.weights)
        units = {name: like.new_ones(count, requires_grad=True) for name, count in counts.items()}
        final = self._train(loss_of, loss_of.gated(gates, units, target.structure), draws[:-1])
        loss = loss_of(draws[-1], final)
        if not self.first_order:
            found = scoring.gradients(loss, list(units.values()), num_batches=len(draws[-1]))
            return {name: gradient.abs() for name, gradient in zip(units, found, strict=True)}
        at_end = scoring.gradients(loss, list(final.values()), num_batches=len(draws[-1]))
        gradients = {loss_of.own[name]: g for name, g in zip(final, at_end, strict=True)}
        scores = gate_scores(gates, gradients, target.structure)
        return {name: score.abs() for name, score in scores.items()}

    def _train(
        self, loss_of: LossOf, parameters: dict[str, Tensor], draws: list[list[Batch]]
    ) -> dict[str, Tensor]:
        """Take SGD steps from `parameters`; unless `first_order`, keep their graph."""
        velocity = {name: torch.zeros_like(p) for name, p in parameters.items()}
        for batches in draws:
            gradients = loss_of.scoring.gradients(
                loss_of(batches, parameters),
                list(parameters.values()),
                num_batches=len(batches),
                create_graph=not self.first_order,
            )
            named = dict(zip(parameters, gradients, strict=True))
            velocity = {n: self.inner_momentum * velocity[n] + g for n, g in named.items()}
            parameters = {n: p - self.inner_lr * velocity[n] for n, p in parameters.items()}
            if self.first_order:
                parameters = {n: p.detach().requires_grad_() for n, p in parameters.items()}
        return parameters


class LossOf:
    """The loss of a network as a function of its trainable parameters, by name."""

    def __init__(self, scoring: Scoring) -> None:
        self.scoring = scoring
        self._module = _Loss(scoring)
        named = self._module.named_parameters()
        self.own = {name: p for name, p in named if p.requires_grad}

    def __call__(self, batches: list[Batch], parameters: Mapping[str, Tensor]) -> Tensor:
        """Return the mean loss of `batches`."""
        calls = [functional_call(self._module, dict(parameters), (batch,)) for batch in batches]
        return torch.stack(calls).mean()

    def gated(
        self, gates: Gates, units: Mapping[str, Tensor], structure: Structure
    ) -> dict[str, Tensor]:
        """Return c * theta_0: each gated parameter times its unit's gate."""
        names = {id(p): name for name, p in self.own.items()}
        parameters: dict[str, Tensor] = dict(self.own)
        for unit, held in gates.items():
            for gate in held:
                name = names[id(gate.parameter)]
                parameters[name] = gate.spread(units[unit], structure) * parameters[name]
        return parameters


class _Loss(nn.Module):
    """A module whose forward is the loss, so that the user's `loss` gets the network itself."""

    def __init__(self, scoring: Scoring) -> None:
        super().__init__()
        self.model = scoring.model
        self._loss = scoring.loss

    def forward(self, batch: Batch) -> Tensor:
        """Run one counted forward pass."""
        return self._loss(batch)
