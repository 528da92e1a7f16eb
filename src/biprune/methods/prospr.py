"""ProsPr: prune at initialization by how the mask tells after the first steps of training.

Alizadeh, Tailor, Zintgraf, van Amersfoort, Farquhar, Lane, Gal. Prospect Pruning: Finding Trainable
Weights at Initialization using Meta-Gradients. ICLR 2022.

    theta_0' = c * theta_0;  theta_1 ... theta_M by SGD on all parameters;  score = |dl(theta_M)/dc|

at c = 1, back through the M updates. `first_order` stops at the last gradient:
|theta_0 * dl/dtheta_M|. With no inner step either is SNIP.

Where this differs from the authors' code:

1. Momentum is differentiated from the first inner step on; there the first buffer is detached.
2. The settings are those of its README (3 steps, rate 0.5, momentum 0.9, a new batch each step),
   which its command line replaces by others (rate 0.1, no momentum, one batch for all).
3. Filters and channels are ours: a gate a unit, over the norm's weight and bias for a filter before
   a BatchNorm (see `gates`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.func import functional_call

from biprune.batches import Batch
from biprune.checks import check_whole
from biprune.methods.at_init import AtInit, Scoring
from biprune.methods.base import Target
from biprune.methods.gates import Gates, gate_scores
from biprune.structure import Structure, parameter_names


@dataclass(frozen=True)
class ProsPr(AtInit):
    """Meta-gradients through `inner_steps` of SGD, each on at least `samples` samples.

    The memory of the full meta-gradient grows with `inner_steps`, as every step's graph is kept.
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

    def unit_scores(self, scoring: Scoring, target: Target) -> Mapping[str, Tensor]:
        """|dl(theta_M)/dc| of each unit's gate c."""
        stream = scoring.stream()
        draws = [scoring.batches(self.samples, stream) for _ in range(self.inner_steps + 1)]
        gates = scoring.gates(target.structure, draws[0][0])
        gated = Gated(scoring, gates, target.structure)
        final = self._train(scoring, gated.parameters(), draws[:-1])
        loss = _mean_loss(scoring, draws[-1], final)
        if not self.first_order:
            units = scoring.gradients(loss, list(gated.gates.values()))
            return {name: unit.abs() for name, unit in zip(gates, units, strict=True)}
        at_end = scoring.gradients(loss, list(final.values()))
        named = parameter_names(scoring.model)
        gradients = {named[name]: g for name, g in zip(final, at_end, strict=True)}
        scores = gate_scores(gates, gradients, target.structure)
        return {name: score.abs() for name, score in scores.items()}

    def _train(
        self, scoring: Scoring, parameters: dict[str, Tensor], draws: list[list[Batch]]
    ) -> dict[str, Tensor]:
        """SGD steps from `parameters`, as a graph unless `first_order`."""
        velocity = {name: torch.zeros_like(p) for name, p in parameters.items()}
        for batches in draws:
            loss = _mean_loss(scoring, batches, parameters)
            values = list(parameters.values())
            gradients = scoring.gradients(loss, values, create_graph=not self.first_order)
            for (name, value), gradient in zip(parameters.items(), gradients, strict=True):
                velocity[name] = self.inner_momentum * velocity[name] + gradient
                moved = value - self.inner_lr * velocity[name]
                parameters = parameters | {name: moved}
            if self.first_order:
                parameters = {n: p.detach().requires_grad_() for n, p in parameters.items()}
        return parameters


class Gated:
    """The trainable parameters of a model, each unit multiplied by its gate."""

    def __init__(self, scoring: Scoring, gates: Gates, structure: Structure) -> None:
        self._named = {n: p for n, p in parameter_names(scoring.model).items() if p.requires_grad}
        self._structure = structure
        names = {id(p): name for name, p in self._named.items()}
        self._behind = {unit: [names[id(p)] for p in gates[unit]] for unit in gates}
        self.gates = {
            unit: torch.ones(structure.num_units(weight), dtype=weight.dtype, device=weight.device)
            for unit, weight in scoring.weights.items()
        }
        for gate in self.gates.values():
            gate.requires_grad_()

    def parameters(self) -> dict[str, Tensor]:
        """c * theta_0 by name."""
        gated: dict[str, Tensor] = dict(self._named)
        for unit, names in self._behind.items():
            for name in names:
                gated[name] = self._spread(self.gates[unit], self._named[name])
        return gated

    def _spread(self, gate: Tensor, parameter: Tensor) -> Tensor:
        per_filter = self._structure.dim is not None and parameter.ndim == 1
        spread = gate if per_filter else self._structure.expand(gate, parameter.shape)
        return spread * parameter


class WithParameters(nn.Module):
    """A model run with other parameters than its own."""

    def __init__(self, model: nn.Module, parameters: Mapping[str, Tensor]) -> None:
        super().__init__()
        self._call = lambda args, options: functional_call(model, dict(parameters), args, options)

    def forward(self, *inputs: object, **options: object) -> object:
        """The model's own forward."""
        return self._call(inputs, options)


def _mean_loss(scoring: Scoring, batches: list[Batch], parameters: Mapping[str, Tensor]) -> Tensor:
    model = WithParameters(scoring.model, parameters)
    return torch.stack([scoring.loss(batch, model) for batch in batches]).mean()
