"""Which indices of which tensors belong together: labels, carried through the graph.

Operations that move data are run on the planes of labels themselves. Those that compute tie what
they bring together, by the rules in `rules/`; an operation that is not known freezes what it
reads. Nothing here knows a layer by its class, or attention by its name. This is what rules work
with; `walk` leads through the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx

from biprune.core.groups import Role
from biprune.structured.atoms import Atoms, Carried, Plane, distinct, spread, varies
from biprune.structured.calls import Attention
from biprune.structured.trace import Traced

Planes = tuple[Plane, ...]
Rule = Callable[..., Planes | list[Planes]]
Key = tuple[str, int]  # a tensor of the model and a dimension of it

AS_A_WHOLE = "it can only go as a whole"
TWO_KINDS = "two kinds of units meet in one dimension"
NOT_KNOWN = "which is not known"
SHARED_HEAD = "several queries share it"
SHARED_TABLE = "it is a table that several layers share"


class Product(NamedTuple):
    """A product of two activations: its multiply-adds, and labels of what it grows with."""

    macs: int
    lines: list[Tensor]


class Labels:
    """The labels of a traced model.

    `carried` has what the results of nodes carry; `owned` the atoms along dimensions of the model's
    tensors; `roles` what units do there; `products` products of activations; `tables` which nodes
    read which tables that others read as well; `normed` labels of what runs through norms over all
    of it. `node` is where the walk is. With `attention` "heads" whole heads are units, with
    "queries" those of queries alone, with "width" index d of all heads is one. `streams` lets units
    run through norms over all of them.
    """

    def __init__(self, traced: Traced, attention: Attention, streams: bool) -> None:
        self.traced, self.atoms = traced, Atoms()
        self.attention, self.streams = attention, streams
        self.carried: dict[fx.Node, Any] = {}
        self.owned: dict[Key, Tensor] = {}
        self.roles: dict[Key, Role] = {}
        self.products: dict[fx.Node, Product] = {}
        self.tables: set[tuple[fx.Node, fx.Node]] = set()
        self.normed: list[Tensor] = []
        self.node: Any = None

    def tensors(self, node: fx.Node) -> Iterator[Carried]:
        """What the results of a node carry, of those that are tensors."""
        known = self.carried.get(node)
        yield from (k for k in (known if isinstance(known, list) else [known]) if k is not None)

    def copy(self, table: Carried, key: tuple[fx.Node, fx.Node]) -> Carried:
        """A shared table as one of its readers sees it: with atoms of that reader's own."""
        planes = []
        for place, plane in enumerate(table.planes):
            settled = self.atoms.settled(plane.labels)
            self.atoms.freeze(settled, SHARED_TABLE)
            roots, index = distinct(settled).unique(return_inverse=True)
            own = self.atoms.of((*key, place), len(roots))
            planes.append(Plane(own[index].expand(settled.shape), zero=False))
        return Carried(table.shape, table.dtype, tuple(planes), table.constant)

    def copies(self, dim: int, shape: Sequence[int]) -> Plane:
        """Atoms of their own along a dimension of copies: how many there are is free."""
        line = self.atoms.of((self.node, "copies", dim), shape[dim])
        return Plane(spread(line, dim, shape), zero=False)

    def without_copies(self, planes: Planes) -> Planes:
        """Planes of a tensor in which copies of heads may lie beside what they are copies of.

        With `attention` "queries" each goes alone, and what it is a copy of stays.
        """
        found = list(planes)
        if self.attention != "queries":
            return planes
        for plane in filter(self._are_copies, planes):
            dims = varies(self.atoms.settled(plane.labels))
            others = [p for p in found if p is not plane and self._crosses(p, dims)]
            if not others or len(dims) != 1:
                continue
            (dim,) = dims
            alone = self.copies(dim, plane.labels.shape)
            for lost in [plane, *others]:
                if not torch.equal(lost.labels, alone.labels):
                    self.atoms.freeze(lost.labels, SHARED_HEAD)
            found = [p for p in found if p is not plane and all(p is not o for o in others)]
            found.append(alone)
        return tuple(found)

    def _are_copies(self, plane: Plane) -> bool:
        keys: Any = self.atoms.keys_of(plane.labels)
        return all(len(key) == 3 and key[1] == "copies" for key in keys)

    def _crosses(self, plane: Plane, dims: Sequence[int]) -> bool:
        return any(dim in dims for dim in varies(self.atoms.settled(plane.labels)))

    def is_copied(self, reader: fx.Node, table: fx.Node) -> bool:
        """Whether a node reads a table that others share, and so a selection of its own."""
        return (reader, table) in self.tables

    def settled(self, carried: Carried) -> list[Plane]:
        """Planes by what stands for their atoms; those of one atom alone are frozen and dropped."""
        found = []
        for plane in carried.planes:
            labels = self.atoms.settled(plane.labels)
            if varies(labels):
                found.append(Plane(labels, plane.zero))
            else:
                self.atoms.freeze(labels, AS_A_WHOLE)
        return found

    def one_dim(self, labels: Tensor) -> Tensor:
        """Settled labels tied so that they vary along one dimension only.

        This is all there is to heads: of (head, index) the first is kept where whole heads are
        units, and the last where an index of all heads is one.
        """
        dims = varies(labels)
        while len(dims) > 1:
            keep = dims[-1] if self.attention == "width" else dims[0]
            labels = self.atoms.collapse(labels, [d for d in dims if d != keep])
            dims = varies(labels)
        return labels

    def lines(self, carried: Carried) -> dict[int, Plane]:
        """For each dimension that has one, the plane that varies along it alone."""
        found: dict[int, Plane] = {}
        for plane in self.settled(carried):
            labels = self.one_dim(plane.labels)
            dims = varies(labels)
            if not dims:
                self.atoms.freeze(labels, AS_A_WHOLE)
            elif dims[0] in found:
                found[dims[0]] = self.one_kind(Plane(labels, plane.zero), found[dims[0]])
            else:
                found[dims[0]] = Plane(labels, plane.zero)
        return found

    def one_kind(self, one: Plane, other: Plane) -> Plane:
        """Of two kinds of units that meet in a dimension the one that goes; the other is frozen.

        They were two dimensions: heads, and what the width of all of them has in common.
        """
        fewer, more = sorted((one, other), key=lambda plane: _changes(plane.labels))
        kept, lost = (more, fewer) if self.attention == "width" else (fewer, more)
        self.atoms.freeze(lost.labels, TWO_KINDS)
        return kept

    def freeze(self, tensors: Iterable[Carried], reason: str) -> None:
        """Nothing that these tensors carry can go."""
        for tensor in tensors:
            for plane in tensor.planes:
                self.atoms.freeze(plane.labels, reason)

    def mark(self, weight: Carried, dim: int, role: Role) -> None:
        """Say what units do along a dimension of a weight; a writer that also reads is a writer."""
        if not weight.constant:
            return
        for plane in weight.planes:
            if dim in varies(self.atoms.settled(plane.labels)) or _single(weight, plane, dim):
                for key in self.owned.keys() & self.atoms.keys_of(plane.labels):
                    if self.roles.get(key) != "filter":
                        self.roles[key] = role

    def keep_longest(self, labels: Tensor) -> None:
        """Tie labels so that they vary along their longest dimension only."""
        labels = self.atoms.settled(labels)
        dims = varies(labels)
        if len(dims) > 1:
            longest = max(dims, key=lambda dim: labels.shape[dim])
            self.atoms.collapse(labels, [dim for dim in dims if dim != longest])


def _changes(labels: Tensor) -> int:
    """How often settled labels change along what they vary in: heads rarely, their width always."""
    part = distinct(labels).flatten()
    return int((part[1:] != part[:-1]).sum())


def _single(weight: Carried, plane: Plane, dim: int) -> bool:
    """Whether a plane lost its variation along a dimension because all of it was tied."""
    return weight.shape[dim] > 1 and distinct(plane.labels).shape[dim] > 1
