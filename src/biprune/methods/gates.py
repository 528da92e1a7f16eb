"""Sensitivity of the loss to switching a unit off, also for units in front of a norm.

Let a gate c = 1 multiply the output of every unit. The derivative of the loss with respect to the
gate is the sum of theta * dl/dtheta over the parameters that the output is linear in. For a single
weight this is the weight itself. For a filter without a norm behind it, these are its weights and
bias. For a filter in front of a BatchNorm, they are the norm's weight and bias: the norm undoes the
scale of the filter, so the sum over the filter's own weights is always zero.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd

from biprune.core.groups import Slice
from biprune.core.parameters import unwrap
from biprune.core.structure import Structure
from biprune.training.batches import evaluation_mode


class Gate(NamedTuple):
    """A parameter that the gates of some units multiply.

    `part` says which slice belongs to which unit; None means the slices of the structure.
    """

    parameter: nn.Parameter
    part: Slice | None = None

    def add_up(self, products: Tensor, structure: Structure) -> Tensor:
        """Sum products, shaped like the parameter, over each unit."""
        if self.part is None:
            return structure.add_up({"": products})[""]
        return self.part.of(products).sum(dim=1)

    def spread(self, units: Tensor, structure: Structure) -> Tensor:
        """Give each entry of the parameter its unit's value; broadcasts to the shape."""
        shape = self.parameter.shape
        if self.part is None:
            return structure.expand_one(units, shape)
        return self.part.spread(units, shape)


Gates = dict[str, list[Gate]]


def gated_parameters(
    model: nn.Module,
    weights: Mapping[str, nn.Parameter],
    structure: Structure,
    forward: Callable[[], object],
) -> Gates:
    """Return what the units' gates multiply, for each prunable tensor or coupled group.

    For filters, one call of `forward`, which must run `model`, finds the norms. Their parameters
    are made trainable, so `model` must be a copy.
    """
    if coupled := structure.coupled:
        groups = coupled.groups
        return {g.name: [Gate(weights[part.tensor], part) for part in g.gates] for g in groups}
    if structure.dim != 0:
        return {name: [Gate(weight)] for name, weight in weights.items()}
    owners = convolutions(model, weights)
    norms = following_norms(model, forward)
    gates: Gates = {}
    for name, conv in owners.items():
        holder = norms.get(conv, conv)
        held = [p for p in (holder.weight, holder.bias) if isinstance(p, nn.Parameter)]
        gates[name] = [Gate(p, rows(name, p)) for p in held]
        for parameter in held:
            parameter.requires_grad_()
        if not gates[name]:
            raise ValueError(
                f"The filters of {name!r} feed a norm without weight and bias, which undoes their "
                "scale, so their sensitivity is undefined. Leave the layer out with `exclude`, or "
                "prune by channel."
            )
    return gates


def rows(name: str, parameter: nn.Parameter) -> Slice:
    """Return the slice in which unit i is row i."""
    return Slice(name, 0, torch.arange(len(parameter))[:, None], "filter")


def convolutions(model: nn.Module, weights: Mapping[str, nn.Parameter]) -> dict[str, nn.Module]:
    """Return the convolution that owns each of the weights."""
    owners = {id(m.weight): m for m in unwrap(model).modules() if isinstance(m, _ConvNd)}
    return {name: owners[id(weight)] for name, weight in weights.items()}


@torch.no_grad()
def following_norms(model: nn.Module, forward: Callable[[], object]) -> dict[nn.Module, nn.Module]:
    """Map each convolution to the Batch- or InstanceNorm that reads its output, by one forward."""
    producer: dict[int, nn.Module] = {}
    outputs: list[Tensor] = []  # kept alive, so that no id is reused
    found: dict[nn.Module, nn.Module] = {}

    def after_conv(module: nn.Module, _: object, output: Tensor) -> None:
        producer[id(output)] = module
        outputs.append(output)

    def before_norm(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        if id(inputs[0]) in producer:
            found[producer[id(inputs[0])]] = module

    handles = []
    for module in model.modules():
        if isinstance(module, _ConvNd):
            handles.append(module.register_forward_hook(after_conv))
        elif isinstance(module, _NormBase):
            handles.append(module.register_forward_pre_hook(before_norm))
    try:
        with evaluation_mode(model):  # keeps running statistics as they are
            forward()
    finally:
        for handle in handles:
            handle.remove()
    return found


def gate_scores(
    gates: Gates, gradients: Mapping[nn.Parameter, Tensor], structure: Structure
) -> dict[str, Tensor]:
    """Sum theta * gradient over what each unit's gate multiplies: one value per unit."""
    return {
        name: torch.stack(
            [g.add_up(g.parameter.detach() * gradients[g.parameter], structure) for g in parts]
        ).sum(dim=0)
        for name, parts in gates.items()
    }


def gated_list(gates: Gates) -> list[nn.Parameter]:
    """List every gated parameter once."""
    return list(dict.fromkeys(gate.parameter for parts in gates.values() for gate in parts))
