"""Sensitivity of the loss to switching a unit off, and what that means behind a norm.

Put a gate c = 1 on every unit and let it multiply the unit's output. The derivative by the gate is
the sum of theta * dl/dtheta over the parameters that the output is linear in. For a single weight
these are the weight itself. For a filter that feeds a BatchNorm they are the norm's weight and
bias: the norm undoes the scale of the filter, so over the filter's own weights the sum is zero
whatever the data (scale invariance). For a filter without a norm they are its weights and bias.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd

from biprune.evaluation import evaluation_mode
from biprune.structure import Structure, unwrap

Gates = dict[str, list[nn.Parameter]]


def gated_parameters(
    model: nn.Module,
    weights: Mapping[str, nn.Parameter],
    structure: Structure,
    forward: Callable[[], object],
) -> Gates:
    """For each prunable tensor the parameters that its units' gates multiply.

    For filters one call of `forward`, which must run `model`, finds the norms; their parameters
    are made trainable, so `model` must be a copy.
    """
    if structure.name != "filter":
        return {name: [weight] for name, weight in weights.items()}
    owners = convolutions(model, weights)
    norms = following_norms(model, forward)
    gates: Gates = {}
    for name, conv in owners.items():
        holder = norms.get(conv, conv)
        gates[name] = [p for p in (holder.weight, holder.bias) if isinstance(p, nn.Parameter)]
        for parameter in gates[name]:
            parameter.requires_grad_()
        if not gates[name]:
            raise ValueError(
                f"The filters of {name!r} feed a norm without weight and bias, which undoes their "
                "scale, so their sensitivity is not defined. Leave the layer out with `exclude`, "
                "or prune by channel."
            )
    return gates


def convolutions(model: nn.Module, weights: Mapping[str, nn.Parameter]) -> dict[str, nn.Module]:
    """The convolution that owns each of the weights."""
    owners = {id(m.weight): m for m in unwrap(model).modules() if isinstance(m, _ConvNd)}
    return {name: owners[id(weight)] for name, weight in weights.items()}


@torch.no_grad()
def following_norms(model: nn.Module, forward: Callable[[], object]) -> dict[nn.Module, nn.Module]:
    """Convolution to the BatchNorm or InstanceNorm whose input is its output, by one forward."""
    producer: dict[int, nn.Module] = {}
    outputs: list[Tensor] = []  # kept alive, so that no id is used twice
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
        with evaluation_mode(model):  # so that running statistics stay as they are
            forward()
    finally:
        for handle in handles:
            handle.remove()
    return found


def gate_scores(
    gates: Gates, gradients: Mapping[nn.Parameter, Tensor], structure: Structure
) -> dict[str, Tensor]:
    """Sum of theta * gradient over each unit's gated parameters; flat, one value a unit."""
    return {
        name: torch.stack(
            [sum_over_units(p.detach() * gradients[p], structure) for p in parameters]
        ).sum(dim=0)
        for name, parameters in gates.items()
    }


def gated_list(gates: Gates) -> list[nn.Parameter]:
    """Every gated parameter once."""
    return list(dict.fromkeys(p for parameters in gates.values() for p in parameters))


def sum_over_units(products: Tensor, structure: Structure) -> Tensor:
    """Add up a product shaped like a weight, or like a norm or bias, over each unit; flat."""
    if structure.dim is None:
        return products.flatten()
    if products.ndim == 1:  # a norm's or a bias's: one entry a filter
        return products
    return products.movedim(structure.dim, 0).flatten(1).sum(dim=1)
