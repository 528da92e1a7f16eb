"""From tied channels to groups: what each unit owns in the parameters, and units of one kind."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd

from biprune.deploy.coupling.tracing import Channel, Traced
from biprune.deploy.surgery.layers import Entry, entries, filter_dim, tied
from biprune.groups import Group, Role, Slice

Key = tuple[str, int]  # a parameter and a dimension of it


class Place(NamedTuple):
    """An index along a dimension of a named parameter."""

    tensor: str
    dim: int
    position: int


@dataclass
class _Unit:
    """A set of tied channels: its places by parameter and dimension, and what speaks against it."""

    places: dict[Key, list[int]] = field(default_factory=lambda: defaultdict(list))
    objection: str | None = None


def coupled(traced: Traced, names: Mapping[int, str]) -> tuple[list[Group], dict[str, str]]:
    """Groups of units that lie in the same parameters, and those left out with the reason.

    `names` are those of the parameters by id, in model order.
    """
    roles, objections = _tie_parameters(traced, names)
    order = {name: place for place, name in enumerate(names.values())}
    alike: dict[object, list[_Unit]] = defaultdict(list)
    for members in traced.components.sets():
        unit = _unit(members, traced, objections)
        keys = sorted(unit.places, key=lambda key: (order[key[0]], key[1]))
        if any(roles[key] == "filter" for key in keys):
            unit.places = {key: sorted(unit.places[key]) for key in keys}
            pattern = (unit.objection, *((key, len(unit.places[key])) for key in keys))
            alike[pattern].append(unit)

    def by_filter(unit: _Unit) -> tuple[int, list[int]]:
        """The first filter that writes a unit, as it comes in the model."""
        first = next(key for key in unit.places if roles[key] == "filter")
        return order[first[0]], unit.places[first]

    producers = _producers(traced, names)
    groups, left_out = [], {}
    taken: set[str] = set()
    for units in sorted(alike.values(), key=lambda units: min(map(by_filter, units))):
        group = _group(units, roles, producers, taken)
        objection = units[0].objection
        if objection is None and len(units) == 1:
            objection = "its filters can only go all together"
        if objection is None:
            groups.append(group)
        else:
            left_out[group.name] = objection
    return groups, left_out


def _tie_parameters(
    traced: Traced, names: Mapping[int, str]
) -> tuple[dict[Key, Role], dict[Channel, str]]:
    """Tie each channel with what it owns; the roles found, and what speaks against a channel."""
    components = traced.components
    for node, layer in traced.layers.items():
        for channels in tied(layer) if isinstance(layer, nn.Module) else ():
            first, *others = [Channel(node, *channel) for channel in channels]
            for other in others:
                components.tie(first, other)
    roles: dict[Key, Role] = {}
    objections: dict[Channel, str] = {}
    for channel in components.items():
        layer = traced.layers[channel.node]
        if isinstance(layer, _NormBase) and layer.weight is None:
            objections[channel] = "it runs through a norm without weights"
        for entry in _owned(layer, channel, traced.dims[channel.node]):
            tensor = layer if isinstance(layer, nn.Parameter) else getattr(layer, entry.attribute)
            if tensor is None:
                continue
            if id(tensor) not in names:
                objections[channel] = "a weight of it is parametrized"
            elif entry.place >= tensor.shape[entry.dim]:
                objections[channel] = (
                    f"{names[id(tensor)]!r} has fewer channels than the rest of it"
                )
            else:
                name = names[id(tensor)]
                roles[name, entry.dim] = entry.role
                components.tie(channel, Place(name, entry.dim, entry.place))
    return roles, objections


def _owned(layer: nn.Module | nn.Parameter, channel: Channel, dim: int) -> list[Entry]:
    if isinstance(layer, nn.Parameter):
        return [Entry("", dim % layer.ndim, channel.position, "other")]
    return entries(layer, channel.side, channel.position)


def _unit(
    members: list[Channel | Place], traced: Traced, objections: Mapping[Channel, str]
) -> _Unit:
    unit = _Unit()
    for member in members:
        if isinstance(member, Place):
            unit.places[member.tensor, member.dim].append(member.position)
        elif member in objections:
            unit.objection = objections[member]
        elif member.node in traced.outputs and (
            member.side == "out" or not isinstance(traced.layers[member.node], _ConvNd | nn.Linear)
        ):
            unit.objection = "it is the model's output"
    return unit


class Producer(NamedTuple):
    """A layer that writes units: its own tensors, and those of the norms that follow it."""

    own: list[Key]
    norms: list[Key]


def _producers(traced: Traced, names: Mapping[int, str]) -> list[Producer]:
    def known(tensors: list[tuple[Tensor | None, int]]) -> list[Key]:
        return [(names[id(tensor)], dim) for tensor, dim in tensors if id(tensor) in names]

    producers = []
    for node, layer in traced.layers.items():
        if isinstance(layer, _ConvNd | nn.Linear):
            own = known([(layer.weight, filter_dim(layer)), (layer.bias, 0)])
            after = [tensor for norm in traced.norms[node] for tensor in norm.parameters()]
            producers.append(Producer(own, known([(tensor, 0) for tensor in after])))
    return producers


def gated_keys(producers: Iterable[Producer], keys: Collection[Key]) -> set[Key]:
    """Where a unit's output is linear, for each of its producers: in the norms that follow, else in
    the producer. A norm of other channels than the unit's, behind a mean over all, is none."""
    gated: set[Key] = set()
    for own, norms in producers:
        if any(key in keys for key in own):
            gated |= set(norms).intersection(keys) or set(own)
    return gated


def _group(
    units: list[_Unit],
    roles: Mapping[Key, Role],
    producers: Iterable[Producer],
    taken: set[str],
) -> Group:
    """One group of units with the same pattern, in the order of their first filters.

    A layer whose filters are in several groups names the first; the others have the place of their
    first filter in brackets behind the name.
    """
    keys = list(units[0].places)
    first = next(key for key in keys if roles[key] == "filter")
    units = sorted(units, key=lambda unit: unit.places[first])
    name = first[0] if first[0] not in taken else f"{first[0]}[{units[0].places[first][0]}]"
    taken.add(name)
    gated = gated_keys(producers, keys)
    slices = [
        Slice(
            tensor,
            dim,
            torch.tensor([unit.places[tensor, dim] for unit in units]),
            roles[tensor, dim],
            gated=(tensor, dim) in gated,
        )
        for tensor, dim in keys
    ]
    return Group(name, tuple(slices))
