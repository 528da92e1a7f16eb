"""What the rules work with: the labels of a traced model, and the table of rules.

A label is an atom that an element of a tensor belongs to. Rules carry labels through the graph:
operations that move data are run on the labels themselves, and operations that compute tie what
they bring together. An operation that no rule knows freezes what it reads. Nothing here knows a
layer by its class, or attention by its name. `walk` leads through the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, fx

from biprune.core.groups import Role
from biprune.structured.atoms import Atoms, Carried, Plane, along, distinct, spread, varies
from biprune.structured.calls import Attention
from biprune.structured.trace import Traced

Planes = tuple[Plane, ...]
Rule = Callable[..., Planes | list[Planes]]
AnyRule = TypeVar("AnyRule", bound=Rule)
Key = tuple[str, int]  # a tensor of the model and a dimension of it

RULES: dict[str, Rule] = {}  # by the name of the aten operation
MOVING: set[str] = set()  # operations that move data and compute nothing

CONVOLUTIONS = ("convolution", *(f"{n}{d}d" for n in ("conv", "conv_transpose") for d in (1, 2, 3)))

AS_A_WHOLE = "it can only go as a whole"
FIXED = "what it is combined with has a fixed size"
TWO_KINDS = "two kinds of units meet in one dimension"
NOT_KNOWN = "which is not known"
SHARED_HEAD = "several queries share it"
SHARED_TABLE = "it is a table that several layers share"


def rule(*names: str, moves: bool = False) -> Callable[[AnyRule], AnyRule]:
    """Register a rule for operations.

    A rule is called with the labels and with the arguments of the node. It returns the planes of
    the result, or a list of them where there are several results.

    Args:
        *names: The names of the operations in aten.
        moves: Whether they move data and compute nothing.
    """

    def register(function: AnyRule) -> AnyRule:
        RULES.update(dict.fromkeys(names, function))
        MOVING.update(names if moves else ())
        return function

    return register


class Product(NamedTuple):
    """A product of two activations: its multiply-adds, and labels of what it grows with."""

    macs: int
    lines: list[Tensor]


class Labels:
    """The labels of a traced model.

    Attributes:
        carried: What the result of each node carries; a list where there are several results.
        owned: The atoms along each dimension of the model's tensors.
        roles: What units do along these dimensions.
        products: The products of two activations.
        tables: Pairs of a node and a table that it reads and that other layers read as well.
        normed: Labels that run through a norm over all of them.
        node: Where the walk is.
        attention: What a unit of attention is; see `find_groups`.
        streams: Whether units may run through norms over all of them.
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

    @property
    def given(self) -> Any:
        """What the node at hand gives on the example: the type of a tensor, or a list of types."""
        return self.traced.results[self.node]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the tensor that the node at hand gives."""
        return self.given.shape

    def first(self, planes: Planes) -> Planes | list[Planes]:
        """These planes for the first result of the node at hand, and none for its others."""
        several = isinstance(self.given, list)
        return [planes, *[()] * (len(self.given) - 1)] if several else planes

    def tensors(self, node: fx.Node) -> Iterator[Carried]:
        """What those results of a node carry that are tensors."""
        known = self.carried.get(node)
        yield from (k for k in (known if isinstance(known, list) else [known]) if k is not None)

    def copy(self, table: Carried, key: tuple[fx.Node, fx.Node]) -> Carried:
        """A shared table as one of its readers sees it, with atoms of that reader's own."""
        planes = []
        for place, plane in enumerate(table.planes):
            settled = self.atoms.settled(plane.labels)
            self.atoms.freeze(settled, SHARED_TABLE)
            roots, index = distinct(settled).unique(return_inverse=True)
            own = self.atoms.of((*key, place), len(roots))
            planes.append(Plane(own[index].expand(settled.shape), zero=False))
        return Carried(table.shape, table.dtype, tuple(planes), table.constant)

    def copies(self, dim: int, shape: Sequence[int]) -> Plane:
        """New atoms along a dimension that holds copies: how many copies there are is free."""
        line = self.atoms.of((self.node, "copies", dim), shape[dim])
        return Plane(spread(line, dim, shape), zero=False)

    def without_copies(self, planes: Planes) -> Planes:
        """The planes of a tensor in which copies of heads may lie beside their originals.

        With `attention` "queries" each copy goes alone, and its original stays.
        """
        if self.attention != "queries":
            return planes
        found = list(planes)
        for plane in filter(self._are_copies, planes):
            dims = varies(self.atoms.settled(plane.labels))
            others = [p for p in found if p is not plane and self._crosses(p, dims)]
            if not others or len(dims) != 1:
                continue
            alone = self.copies(dims[0], plane.labels.shape)
            lost = [plane, *others]
            for each in lost:
                if not torch.equal(each.labels, alone.labels):
                    self.atoms.freeze(each.labels, SHARED_HEAD)
            found = [*(p for p in found if all(p is not each for each in lost)), alone]
        return tuple(found)

    def _are_copies(self, plane: Plane) -> bool:
        keys: Any = self.atoms.keys_of(plane.labels)
        return all(len(key) == 3 and key[1] == "copies" for key in keys)

    def _crosses(self, plane: Plane, dims: Sequence[int]) -> bool:
        return any(dim in dims for dim in varies(self.atoms.settled(plane.labels)))

    def settled(self, planes: Iterable[Plane]) -> list[Plane]:
        """Planes by the atoms that stand for theirs; planes of one atom are frozen and dropped."""
        found = []
        for plane in planes:
            labels = self.atoms.settled(plane.labels)
            if varies(labels):
                found.append(Plane(labels, plane.zero))
            else:
                self.atoms.freeze(labels, AS_A_WHOLE)
        return found

    def one_dim(self, labels: Tensor) -> Tensor:
        """Settled labels, tied so that they vary along one dimension only.

        This is all there is to heads: of (head, index) the first is kept where whole heads are
        units, and the last where an index of all heads is a unit.
        """
        while len(dims := varies(labels)) > 1:
            keep = dims[-1] if self.attention == "width" else dims[0]
            labels = self.atoms.collapse(labels, [d for d in dims if d != keep])
        return labels

    def lines(self, carried: Carried) -> dict[int, Plane]:
        """For each dimension that has one, the plane that varies along it alone."""
        found: dict[int, Plane] = {}
        for plane in self.settled(carried.planes):
            line = Plane(self.one_dim(plane.labels), plane.zero)
            dims = varies(line.labels)
            if not dims:
                self.atoms.freeze(line.labels, AS_A_WHOLE)
            else:
                other = found.get(dims[0])
                found[dims[0]] = line if other is None else self.one_kind(line, other)
        return found

    def meet(self, *lines: Tensor | None) -> bool:
        """Tie what lies side by side in one dimension; whether that could be done.

        One that is None has a fixed size there, which fixes the others.
        """
        known = [line for line in lines if line is not None]
        for line in known:
            if len(known) < len(lines):
                self.atoms.freeze(line, FIXED)
            else:
                self.atoms.tie(known[0], line)
        return 0 < len(known) == len(lines)

    def one_kind(self, one: Plane, other: Plane) -> Plane:
        """Of two kinds of units that meet in a dimension the one that goes; the other is frozen.

        They were two dimensions: heads, and what the width of all of them has in common.
        """
        fewer, more = sorted((one, other), key=lambda plane: _changes(plane.labels))
        kept, lost = (more, fewer) if self.attention == "width" else (fewer, more)
        self.atoms.freeze(lost.labels, TWO_KINDS)
        return kept

    def without(
        self, x: Carried, dims: Sequence[int], reason: str, *, zero: bool = True
    ) -> list[Plane]:
        """The settled planes of `x` that do not vary along `dims`; the others are frozen.

        Units that vary along other dimensions as well are tied along `dims`. Without `zero` no
        plane of the result is known to be zero.
        """
        kept = []
        for plane in self.settled(x.planes):
            labels = plane.labels
            inside = [dim for dim in varies(labels) if dim in dims]
            if inside and len(inside) < len(varies(labels)):
                labels = self.atoms.collapse(labels, inside)
            if any(dim in dims for dim in varies(labels)) or not varies(labels):
                self.atoms.freeze(labels, reason)
            else:
                kept.append(Plane(labels, plane.zero and zero))
        return kept

    def freeze(self, tensors: Iterable[Carried], reason: str) -> None:
        """Nothing that these tensors carry can go."""
        for tensor in tensors:
            for plane in tensor.planes:
                self.atoms.freeze(plane.labels, reason)

    def mark(self, weight: Carried, dim: int, role: Role) -> None:
        """Say what units do along a dimension of a weight; "filter" outweighs "input"."""
        if not weight.constant:
            return
        for plane in weight.planes:
            if dim in varies(self.atoms.settled(plane.labels)) or _single(weight, plane, dim):
                for key in self.owned.keys() & self.atoms.keys_of(plane.labels):
                    if self.roles.get(key) != "filter":
                        self.roles[key] = role


def line_of(lines: dict[int, Plane], dim: int) -> Tensor | None:
    """The labels along a dimension, if there are any."""
    return along(lines[dim].labels, dim) if dim in lines else None


def _changes(labels: Tensor) -> int:
    """How often settled labels change along what they vary in: heads rarely, their width always."""
    part = distinct(labels).flatten()
    return int((part[1:] != part[:-1]).sum())


def _single(weight: Carried, plane: Plane, dim: int) -> bool:
    """Whether a plane does not vary along a dimension only because all of it was tied."""
    return weight.shape[dim] > 1 and distinct(plane.labels).shape[dim] > 1
