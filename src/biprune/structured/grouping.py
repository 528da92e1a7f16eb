"""From tied atoms to groups: what each unit owns in the parameters, and units of one kind."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import nn

from biprune.core.groups import Group, Role, Slice
from biprune.core.parameters import parameter_names
from biprune.structured.gates import Gates
from biprune.structured.labels import NOT_KNOWN, Key, Labels
from biprune.structured.titles import Titles

ALL_TOGETHER = "its filters can only go all together"


@dataclass(frozen=True)
class Coupling:
    """The groups whose units can be removed, and the others by name with the reason."""

    groups: tuple[Group, ...]
    left_out: dict[str, str]


@dataclass
class _Unit:
    places: dict[Key, list[int]]
    reason: str | None


def coupling(model: nn.Module, labels: Labels) -> Coupling:
    """Groups of units that lie in the same parameters, and those left out with the reason."""
    shapes = {name: parameter.shape for name, parameter in parameter_names(model).items()}
    order = {name: place for place, name in enumerate(shapes)}
    roles: dict[Key, Role] = {key: labels.roles.get(key, "other") for key in labels.owned}
    known = {name for name, _ in labels.roles}
    alike: dict[object, list[_Unit]] = defaultdict(list)
    for unit in _units(labels, order):
        if unit.reason is not None and unit.reason.endswith(NOT_KNOWN):
            # Nobody knows what such a weight does: its rows are said to stay.
            rows = [key for key in unit.places if key[1] == 0 and key[0] not in known]
            roles.update((key, "filter") for key in rows if len(shapes[key[0]]) > 1)
        if any(roles[key] == "filter" for key in unit.places):
            pattern = (unit.reason, *((key, len(p)) for key, p in unit.places.items()))
            alike[pattern].append(unit)

    def by_filter(unit: _Unit) -> tuple[int, list[int]]:
        """The first filter that writes a unit, as it comes in the model."""
        first = next(key for key in unit.places if roles[key] == "filter")
        return order[first[0]], unit.places[first]

    gates, titles = Gates(labels, roles), Titles(labels)
    groups, left_out = [], {}
    taken: set[str] = set()
    for units in sorted(alike.values(), key=lambda units: min(map(by_filter, units))):
        group = _group(units, roles, gates, titles, taken)
        reason = units[0].reason or (ALL_TOGETHER if len(units) == 1 else None)
        if reason is None:
            groups.append(group)
        else:
            left_out[group.name] = reason
    return Coupling(tuple(groups), left_out)


def _units(labels: Labels, order: Mapping[str, int]) -> Iterable[_Unit]:
    """Every set of tied atoms by its places in the parameters that the graph uses, in order."""
    roots, reasons = labels.atoms.roots(), labels.atoms.reasons()
    found: dict[int, dict[Key, list[int]]] = defaultdict(dict)
    for key in sorted(labels.owned, key=lambda key: (order.get(key[0], len(order)), key[1])):
        if key[0] in order:
            for place, root in enumerate(roots[labels.owned[key]].tolist()):
                found[root].setdefault(key, []).append(place)
    return [_Unit(places, reasons.get(root)) for root, places in found.items()]


def _group(
    units: list[_Unit],
    roles: Mapping[Key, Role],
    gates: Gates,
    titles: Titles,
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
    gated = gates.of(keys)
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
    return Group(name, tuple(slices), titles.of(slices))
