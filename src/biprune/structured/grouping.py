"""From tied atoms to groups: what each unit owns, what gates it, and what people call it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, fx, nn

from biprune.core.groups import Group, Role, Slice
from biprune.core.parameters import parameter_names
from biprune.structured.labels import NOT_KNOWN, Key, Labels
from biprune.structured.trace import op_name


class Titles:
    """Names groups by what runs through them: norms over all of them, products of activations."""

    def __init__(self, labels: Labels) -> None:
        self._labels, self._roots = labels, labels.atoms.roots()
        self._normed = self._set_of(labels.normed)
        lines = [line for product in labels.products.values() for line in product.lines]
        self._multiplied = self._set_of(lines)

    def _set_of(self, lines: Sequence[Tensor]) -> set[int]:
        return {int(root) for line in lines for root in self._roots[line.reshape(-1)].unique()}

    def of(self, slices: Sequence[Slice]) -> str:
        """The title of a group that lies in these slices."""
        filters = [part for part in slices if part.role == "filter"]
        first = filters[0]
        root = int(self._roots[self._labels.owned[first.tensor, first.dim][first.places[0, 0]]])
        size, each = first.places.shape
        owners = [part.tensor.rpartition(".")[0] for part in filters]
        where = _common(owners) or f"{owners[0]} and others"
        if root in self._normed:
            return f"residual stream: {size} units"
        if root in self._multiplied and each > 1:
            return f"{where} {self._heads(filters)}"
        kind = "channels" if len(self._shape(first.tensor)) > 2 else "width"
        return f"{where} {kind}: {size} units"

    def _heads(self, filters: Sequence[Slice]) -> str:
        size = len(filters[0].places)
        in_a_row = bool((filters[0].places.diff(dim=1) == 1).all())
        if self._labels.attention == "width" and not in_a_row:
            return f"width of heads: {size} units, each of all heads"
        queries = max(part.places.shape[1] for part in filters)
        fewest = min(part.places.shape[1] for part in filters)
        if self._labels.attention == "queries":
            return f"query heads: {size}"
        shared = ", each with its queries" if queries > fewest and size > 1 else ""
        return f"attention heads: {size}{shared}"

    def _shape(self, tensor: str) -> tuple[int, ...]:
        traced = self._labels.traced
        nodes = traced.module.graph.find_nodes(op="get_attr")
        reads = [node for node in nodes if traced.names.get(str(node.target)) == tensor]
        return traced.results[reads[0]].shape


def _common(paths: Sequence[str]) -> str:
    """The module that holds all of these."""
    split = [path.split(".") for path in paths]
    same = []
    for parts in zip(*split, strict=False):
        if len(set(parts)) > 1:
            break
        same.append(parts[0])
    return ".".join(same)


_NORMS = ("batch_norm", "instance_norm", "group_norm", "_native_batch_norm_legit_no_training")
_PRODUCTS = (
    *("linear", "matmul", "mm", "bmm", "addmm", "baddbmm", "einsum", "mv"),
    *("conv1d", "conv2d", "conv3d", "convolution"),
    *("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"),
)
_ENDS = (*_PRODUCTS, "layer_norm", "rms_norm", "scaled_dot_product_attention")


class Gates:
    """The gated parameters of each producer in a graph."""

    def __init__(self, labels: Labels, roles: Mapping[Key, Role]) -> None:
        self._labels, self._roles = labels, roles
        self._made_of = _sources(labels)
        self._producers: list[tuple[set[Key], set[Key], bool]] = []
        for node in labels.traced.module.graph.nodes:
            weights = self._weights(node)
            if any(roles.get(key) == "filter" for key in weights):
                norms, multiplied = self._after(node)
                self._producers.append((weights, norms, multiplied))

    def of(self, keys: Collection[Key]) -> set[Key]:
        """Which of a unit's slices are gated."""
        gated: set[Key] = set()
        mine = set(keys)
        readers = {key for key in mine if self._roles[key] == "input"}
        for own, norms, multiplied in self._producers:
            written = {key for key in own & mine if self._roles[key] != "input"}
            if not any(self._roles[key] == "filter" for key in written):
                continue
            if multiplied and readers:
                return readers
            gated |= (norms & mine) or written
        return gated

    def _weights(self, node: fx.Node) -> set[Key]:
        """The dimensions of parameters that a product or embedding takes as they are."""
        if op_name(node) not in (*_PRODUCTS, "embedding"):
            return set()
        return {key for operand in node.all_input_nodes for key in self._made_of.get(operand, ())}

    def _after(self, node: fx.Node) -> tuple[set[Key], bool]:
        """The norms that a result goes to, if it goes to norms only; whether it is multiplied
        with activations on its way."""
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
                norms |= {k for n in after.all_input_nodes for k in self._made_of.get(n, ())}
            elif after.op == "output" or (name in _ENDS and not self._is_depthwise(after)):
                only = False
                multiplied |= name in _ENDS and after in self._labels.products
            else:
                waiting += after.users
        return (norms if only else set()), multiplied

    def _is_depthwise(self, node: fx.Node) -> bool:
        """A grouped convolution that loses groups does not mix units."""
        if not op_name(node).startswith("conv"):
            return False
        groups = 8 if op_name(node) == "convolution" else 6
        count = node.args[groups] if len(node.args) > groups else node.kwargs.get("groups", 1)
        channels = self._labels.traced.results[node.all_input_nodes[0]].shape[1]
        return isinstance(count, int) and count > 1 and count >= channels // count


def _sources(labels: Labels) -> dict[fx.Node, set[Key]]:
    """The parameters that constant nodes are made of."""
    found: dict[fx.Node, set[Key]] = {}
    for node in labels.traced.module.graph.nodes:
        if node.op == "get_attr":
            name = labels.traced.names.get(str(node.target))
            found[node] = {key for key in labels.owned if key[0] == name}
        elif node.op == "call_function" and node.all_input_nodes:
            made_of = [found.get(operand) for operand in node.all_input_nodes]
            if None not in made_of:
                found[node] = {key for keys in made_of if keys is not None for key in keys}
    return found


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
