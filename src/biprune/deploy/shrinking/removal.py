"""Which units of a pruned model may go, by its weights alone, whatever masked them.

A unit may go if nobody would miss it: every layer that reads it has zeros there, or reads exact
zeros from it for every input. The latter is so if the layers that write the unit are zero, which
makes it the same for every input, and what is read is seen to be zero: behind BatchNorm and ReLU
an empty filter gives relu(constant), which is zero for half of the constants.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from biprune.deploy.coupling.trial import zero_
from biprune.deploy.surgery.layers import loses_groups
from biprune.groups import Group, Slice
from biprune.structure import parameter_names

Seen = dict[str, Tensor]


@torch.no_grad()
def units_to_keep(
    model: nn.Module, groups: Sequence[Group], batches: Iterable[tuple[Tensor, ...]]
) -> dict[str, Tensor]:
    """For each group the units that have to stay, at least one.

    What goes may leave more behind that can go, so this repeats until nothing changes; a round
    costs a forward for each batch.
    """
    model, batches = copy.deepcopy(model), list(batches)
    keep = {group.name: torch.ones(group.size, dtype=torch.bool) for group in groups}
    while True:
        removable = _removable(model, groups, _read(model, groups, batches))
        before = {name: units.clone() for name, units in keep.items()}
        for group in groups:
            keep[group.name] &= ~removable[group.name]
            keep[group.name][0] |= not bool(keep[group.name].any())
        if all(torch.equal(keep[name], before[name]) for name in keep):
            return keep
        zero_(model, groups, keep)


def _removable(model: nn.Module, groups: Sequence[Group], seen: Seen) -> dict[str, Tensor]:
    parameters = parameter_names(model)
    passing = {id(m.weight) for m in model.modules() if isinstance(m, _ConvNd) and loses_groups(m)}

    def is_zero(part: Slice) -> Tensor:
        return part.of(parameters[part.tensor]).eq(0).all(dim=1).cpu()

    found = {}
    for group in groups:
        writers = [p for p in group.filters if id(parameters[p.tensor]) not in passing]
        constant = _all([is_zero(part) for part in writers], group.size)
        readers = [part for part in group.slices if part.role == "input"]
        unread = [
            is_zero(part) | (constant & seen[part.tensor][part.places].eq(0).all(dim=1))
            if part.tensor in seen and writers
            else is_zero(part)
            for part in readers
        ]
        gone = _all([is_zero(part) for part in group.slices], group.size)
        found[group.name] = gone | (_all(unread, group.size) if readers else gone)
    return found


def _all(facts: Sequence[Tensor], size: int) -> Tensor:
    return torch.stack([torch.ones(size, dtype=torch.bool), *facts]).all(dim=0)


def _read(model: nn.Module, groups: Sequence[Group], batches: Sequence[tuple[Tensor, ...]]) -> Seen:
    """The largest number that each input channel of the reading layers saw, by weight name."""
    names = {id(parameter): name for name, parameter in parameter_names(model).items()}
    dims = {p.tensor: p.dim for group in groups for p in group.slices if p.role == "input"}
    seen: Seen = {}

    def watch(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        weight: Tensor = layer.weight  # pyright: ignore[reportAssignmentType]
        name = names[id(weight)]
        channels = inputs[0].movedim(-(weight.ndim - 1), 0).flatten(1).abs()
        largest = channels.amax(dim=1).nan_to_num(nan=torch.inf)
        largest = largest.view(-1, weight.shape[dims[name]]).amax(dim=0).cpu()
        seen[name] = torch.maximum(seen.get(name, largest), largest)

    layers = [m for m in model.modules() if isinstance(m, _ConvNd | nn.Linear)]
    watched = [layer for layer in layers if names.get(id(layer.weight)) in dims]
    handles = [layer.register_forward_pre_hook(watch) for layer in watched]
    try:
        for batch in batches:
            model(*batch)
    finally:
        for handle in handles:
            handle.remove()
    return seen
