"""From tied atoms to groups: what each unit owns, what gates it, and what people call it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, fx, nn

from biprune.core.groups import Group, Role, Slice
from biprune.core.parameters import parameter_names
from biprune.structured.labels import CONVOLUTIONS, NOT_KNOWN, Key, Labels
from biprune.structured.trace import argument, op_name

ALL_TOGETHER = "its filters can only go all together"

_NORMS = ("batch_norm", "instance_norm", "group_norm", "_native_batch_norm_legit_no_training")
_PRODUCTS = (
    *("linear", "matmul", "mm", "bmm", "addmm", "baddbmm", "einsum", "mv"),
    *CONVOLUTIONS,
)
_ENDS = (*_PRODUCTS, "layer_norm", "rms_norm", "scaled_dot_product_attention")

Roles = Mapping[Key, Role]


@dataclass(frozen=True)
class Coupling:
    """The groups whose units can be removed, and the others by name with the reason."""

    groups: tuple[Group, ...]
    left_out: dict[str, str]


class _Unit(NamedTuple):
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

    gated, titled = _gates(labels, roles), _titles(labels, shapes)
    groups, left_out = [], {}
    taken: set[str] = set()
    for same in sorted(alike.values(), key=lambda units: min(map(by_filter, units))):
        units = sorted(same, key=by_filter)
        keys = list(units[0].places)
        # A layer whose filters are in several groups names the first; the others have the place of
        # their first filter in brackets behind the name.
        name, _ = first = next(key for key in keys if roles[key] == "filter")
        if name in taken:
            name = f"{name}[{units[0].places[first][0]}]"
        taken.add(name)
        reason = units[0].reason or (ALL_TOGETHER if len(units) == 1 else None)
        if reason is not None:
            left_out[name] = reason
            continue
        gates = gated(keys)
        slices = tuple(
            Slice(
                *key,
                torch.tensor([unit.places[key] for unit in units]),
                roles[key],
                gated=key in gates,
            )
            for key in keys
        )
        groups.append(Group(name, slices, titled(slices)))
    return Coupling(tuple(groups), left_out)


def _units(labels: Labels, order: Mapping[str, int]) -> list[_Unit]:
    """Every set of tied atoms by its places in the parameters that the graph uses, in order."""
    roots, reasons = labels.atoms.roots(), labels.atoms.reasons()
    found: dict[int, dict[Key, list[int]]] = defaultdict(dict)
    for key in sorted(labels.owned, key=lambda key: (order.get(key[0], len(order)), key[1])):
        if key[0] in order:
            for place, root in enumerate(roots[labels.owned[key]].tolist()):
                found[root].setdefault(key, []).append(place)
    return [_Unit(places, reasons.get(root)) for root, places in found.items()]


# Gates: where the output of a unit is linear in a parameter of it.


def _gates(labels: Labels, roles: Roles) -> Callable[[Collection[Key]], set[Key]]:
    """Tells which slices of a unit are gated; see `Slice`."""
    made_of = _made_of(labels)
    producers: list[tuple[set[Key], set[Key], bool]] = []
    for node in labels.traced.module.graph.nodes:
        if op_name(node) in (*_PRODUCTS, "embedding"):
            own = {key for operand in node.all_input_nodes for key in made_of.get(operand, ())}
            if any(roles.get(key) == "filter" for key in own):
                producers.append((own, *_after(node, labels, made_of)))

    def gated(keys: Collection[Key]) -> set[Key]:
        found: set[Key] = set()
        mine = set(keys)
        readers = {key for key in mine if roles[key] == "input"}
        for own, norms, multiplied in producers:
            written = {key for key in own & mine if roles[key] != "input"}
            if not any(roles[key] == "filter" for key in written):
                continue
            if multiplied and readers:
                return readers
            found |= (norms & mine) or written
        return found

    return gated


def _made_of(labels: Labels) -> dict[fx.Node, set[Key]]:
    """The dimensions of parameters that constant nodes are made of."""
    found: dict[fx.Node, set[Key]] = {}
    for node in labels.traced.module.graph.nodes:
        if node.op == "get_attr":
            name = labels.traced.names.get(str(node.target))
            found[node] = {key for key in labels.owned if key[0] == name}
        elif node.all_input_nodes and all(operand in found for operand in node.all_input_nodes):
            found[node] = set().union(*(found[operand] for operand in node.all_input_nodes))
    return found


def _after(
    node: fx.Node, labels: Labels, made_of: Mapping[fx.Node, set[Key]]
) -> tuple[set[Key], bool]:
    """The norms that a result goes to, if it goes to norms only.

    And whether it is multiplied with activations on its way.
    """
    norms: set[Key] = set()
    only, multiplied = True, False
    waiting, seen = list(node.users), {node}
    while waiting:
        after = waiting.pop()
        if after in seen:
            continue
        seen.add(after)
        name = op_name(after)
        if name in _NORMS:
            norms |= {key for n in after.all_input_nodes for key in made_of.get(n, ())}
        elif after.op == "output" or (name in _ENDS and not _is_depthwise(after, labels)):
            only = False
            multiplied |= name in _ENDS and after in labels.products
        else:
            waiting += after.users
    return (norms if only else set()), multiplied


def _is_depthwise(node: fx.Node, labels: Labels) -> bool:
    """Whether a node is a convolution that loses groups, and so does not mix units."""
    if op_name(node) not in CONVOLUTIONS:
        return False
    groups = argument(node, "groups")
    channels = labels.traced.results[node.all_input_nodes[0]].shape[1]
    return isinstance(groups, int) and groups > 1 and groups >= channels // groups


# Titles: what people call a group.


def _titles(
    labels: Labels, shapes: Mapping[str, Sequence[int]]
) -> Callable[[Sequence[Slice]], str]:
    """Tells the title of a group by its slices and by what runs through it."""
    roots = labels.atoms.roots()

    def set_of(lines: Iterator[Tensor]) -> set[int]:
        return {int(root) for line in lines for root in roots[line.reshape(-1)].unique()}

    normed = set_of(iter(labels.normed))
    multiplied = set_of(line for product in labels.products.values() for line in product.lines)

    def titled(slices: Sequence[Slice]) -> str:
        filters = [part for part in slices if part.role == "filter"]
        first = filters[0]
        root = int(roots[labels.owned[first.tensor, first.dim][first.places[0, 0]]])
        size, each = first.places.shape
        if root in normed:
            return f"residual stream: {size} units"
        owners = [part.tensor.rpartition(".")[0] for part in filters]
        where = common_module(owners) or f"{owners[0]} and others"
        if root in multiplied and each > 1:
            return f"{where} {_heads(filters, labels.attention)}"
        kind = "channels" if len(shapes[first.tensor]) > 2 else "width"
        return f"{where} {kind}: {size} units"

    return titled


def _heads(filters: Sequence[Slice], attention: str) -> str:
    size = len(filters[0].places)
    in_a_row = bool((filters[0].places.diff(dim=1) == 1).all())
    if attention == "width" and not in_a_row:
        return f"width of heads: {size} units, each of all heads"
    if attention == "queries":
        return f"query heads: {size}"
    widths = [part.places.shape[1] for part in filters]
    shared = ", each with its queries" if max(widths) > min(widths) and size > 1 else ""
    return f"attention heads: {size}{shared}"


def common_module(paths: Sequence[str]) -> str:
    """The path of the innermost module that holds all of these."""
    same: list[str] = []
    for parts in zip(*(path.split(".") for path in paths), strict=False):
        if len(set(parts)) > 1:
            break
        same.append(parts[0])
    return ".".join(same)
