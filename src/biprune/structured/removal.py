"""Which units of a pruned model may go, by its weights and what of it is constant for any input.

A unit may go if nobody would miss it: every layer that reads it has zeros there, or reads exact
zeros from it whatever the input is. Behind BatchNorm and ReLU an empty filter gives
relu(constant), which is zero for half of the constants; `dependence` tells constants from numbers
that happen to be zero.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Sequence

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from biprune.core.groups import Group, Slice
from biprune.core.parameters import parameter_names
from biprune.structured.dependence import Dependence
from biprune.structured.removing import zero_
from biprune.training.seeding import forked_rng

Read = dict[str, Tensor]


@torch.no_grad()
def units_to_keep(
    model: nn.Module,
    groups: Sequence[Group],
    inputs: tuple[Tensor, ...] | None,
    read_elsewhere: Collection[str] = (),
) -> dict[str, Tensor]:
    """For each group the units that have to stay, at least one.

    Without `inputs` only units go that all layers read with zeros, and of the groups named in
    `read_elsewhere` those that are zeros throughout. What goes may leave more behind
    that can go, so this repeats until nothing changes; a round costs a forward of `inputs`.
    """
    model = copy.deepcopy(model)
    keep = {group.name: torch.ones(group.size, dtype=torch.bool) for group in groups}
    while True:
        read = {} if inputs is None else _read(model, groups, inputs)
        removable = _removable(model, groups, read, read_elsewhere)
        before = {name: units.clone() for name, units in keep.items()}
        for group in groups:
            keep[group.name] &= ~removable[group.name]
            keep[group.name][0] |= not bool(keep[group.name].any())
        if all(torch.equal(keep[name], before[name]) for name in keep):
            return keep
        zero_(model, groups, keep)


def _removable(
    model: nn.Module, groups: Sequence[Group], read: Read, read_elsewhere: Collection[str]
) -> dict[str, Tensor]:
    parameters = parameter_names(model)

    def is_zero(part: Slice) -> Tensor:
        return part.of(parameters[part.tensor]).eq(0).all(dim=1).cpu()

    def reads_zero(part: Slice) -> Tensor:
        if part.tensor not in read:
            return is_zero(part)
        return is_zero(part) | read[part.tensor][part.places].eq(0).all(dim=1)

    found = {}
    for group in groups:
        readers = [part for part in group.slices if part.role == "input"]
        gone = _all([is_zero(part) for part in group.slices], group.size)
        if readers and group.name not in read_elsewhere:
            gone |= _all([reads_zero(part) for part in readers], group.size)
        found[group.name] = gone
    return found


def _all(facts: Sequence[Tensor], size: int) -> Tensor:
    return torch.stack([torch.ones(size, dtype=torch.bool), *facts]).all(dim=0)


def _read(model: nn.Module, groups: Sequence[Group], inputs: tuple[Tensor, ...]) -> Read:
    """What each input channel of the reading layers holds whatever the input is, by weight name.

    The largest magnitude; NaN where it depends on the input. Empty if that cannot be told.
    """
    names = {id(parameter): name for name, parameter in parameter_names(model).items()}
    dims = {p.tensor: p.dim for group in groups for p in group.slices if p.role == "input"}
    read: Read = {}

    def watch(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        weight: Tensor = layer.weight  # pyright: ignore[reportAssignmentType]
        name = names[id(weight)]
        channels = inputs[0].movedim(-(weight.ndim - 1), 0).flatten(1).abs()
        largest = channels.amax(dim=1).view(-1, weight.shape[dims[name]]).amax(dim=0).cpu()
        read[name] = torch.maximum(read.get(name, largest), largest)

    layers = [m for m in model.modules() if isinstance(m, _ConvNd | nn.Linear)]
    watched = [layer for layer in layers if names.get(id(layer.weight)) in dims]
    handles = [layer.register_forward_pre_hook(watch) for layer in watched]
    try:
        with forked_rng(()), Dependence(inputs) as dependence:
            model(*dependence.inputs)
    except Exception:  # the forward goes by numbers, or refuses NaN
        return {}
    finally:
        for handle in handles:
            handle.remove()
    return read
