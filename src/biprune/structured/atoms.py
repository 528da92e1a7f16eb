"""Atoms, the indices that units are made of, and planes of them over tensors.

An atom is one index along one dimension of one tensor of the model. Atoms that can only go together
are tied, by union-find. Those that cannot go are frozen, with the reason. A tensor in the graph
carries planes, each of which says for every element which atom it belongs to. An element is gone
if one of its planes says so.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor


class Plane(NamedTuple):
    """The atom of every element of a tensor.

    `labels` has the tensor's shape, and stride 0 along dimensions that it does not vary in. With
    `zero`, elements of masked units are exactly 0.
    """

    labels: Tensor
    zero: bool


@dataclass(frozen=True)
class Carried:
    """What a tensor in the graph carries; `constant` if it depends on no input of the model."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    planes: tuple[Plane, ...] = ()
    constant: bool = False


class Atoms:
    """Sets of atoms, merged as ties are found; the smallest atom stands for its set."""

    def __init__(self) -> None:
        self._parent = torch.arange(0)
        self._made: dict[Hashable, tuple[int, int]] = {}
        self._frozen: list[tuple[Tensor, str]] = []
        self.num_ties = 0

    def of(self, key: Hashable, count: int) -> Tensor:
        """The `count` atoms that go by `key`, made when they are first asked for."""
        if key not in self._made:
            start = len(self._parent)
            self._made[key] = start, count
            self._parent = torch.cat([self._parent, torch.arange(start, start + count)])
        start, count = self._made[key]
        return torch.arange(start, start + count)

    def keys_of(self, labels: Tensor) -> set[Hashable]:
        """The keys of the first and the last of these atoms."""
        stored = distinct(labels).reshape(-1)
        starts, keys = [start for start, _ in self._made.values()], list(self._made)
        return {keys[bisect_right(starts, int(stored[place])) - 1] for place in (0, -1)}

    def find(self, labels: Tensor) -> Tensor:
        """The atom that stands for each one's set."""
        roots = self._parent[labels]
        while not torch.equal(above := self._parent[roots], roots):
            roots = above
        self._parent[labels] = roots
        return roots

    def tie(self, one: Tensor, other: Tensor) -> None:
        """Merge the sets of atoms, element by element."""
        one, other = torch.broadcast_tensors(one, other)
        one, other = one.reshape(-1), other.reshape(-1)
        while True:
            a, b = self.find(one), self.find(other)
            low, high = torch.minimum(a, b), torch.maximum(a, b)
            apart = low != high
            if not bool(apart.any()):
                return
            self.num_ties += 1
            self._parent.scatter_reduce_(0, high[apart], low[apart], "amin")

    def freeze(self, labels: Tensor, reason: str) -> None:
        """Say that these atoms cannot go."""
        self._frozen.append((distinct(labels).reshape(-1).clone(), reason))

    def thaw(self) -> None:
        """Forget what was frozen: the walk that follows finds it again."""
        self._frozen.clear()

    def roots(self) -> Tensor:
        """For every atom the one that stands for its set."""
        return self.find(torch.arange(len(self._parent)))

    def reasons(self) -> dict[int, str]:
        """Why sets are frozen, by the atoms that stand for them: the first reason found."""
        found: dict[int, str] = {}
        for labels, reason in self._frozen:
            for root in self.find(labels).unique().tolist():
                found.setdefault(root, reason)
        return found

    def settled(self, labels: Tensor) -> Tensor:
        """The atoms that stand for labels, with stride 0 where they do not vary."""
        return squeezed(self.find(distinct(labels))).expand(labels.shape)

    def collapse(self, labels: Tensor, dims: Sequence[int]) -> Tensor:
        """Tie what differs along these dimensions; the settled labels."""
        part = distinct(labels)
        for dim in dims:
            self.tie(part, part.narrow(dim, 0, 1))
        return self.settled(labels)


def squeezed(labels: Tensor) -> Tensor:
    """Labels with one index along each dimension in which they do not vary."""
    for dim, size in enumerate(labels.shape):
        if size > 1 and bool((labels == labels.narrow(dim, 0, 1)).all()):
            labels = labels.narrow(dim, 0, 1)
    return labels


def distinct(labels: Tensor) -> Tensor:
    """The part of a plane that is stored: one index along dimensions of stride 0."""
    for dim, (size, stride) in enumerate(zip(labels.shape, labels.stride(), strict=True)):
        if stride == 0 and size > 1:
            labels = labels.narrow(dim, 0, 1)
    return labels


def varies(labels: Tensor) -> tuple[int, ...]:
    """The dimensions along which settled labels differ."""
    pairs = enumerate(zip(labels.shape, labels.stride(), strict=True))
    return tuple(dim for dim, (size, stride) in pairs if size > 1 and stride != 0)


def along(labels: Tensor, dim: int) -> Tensor:
    """The labels along the one dimension that they vary in."""
    index = [0] * labels.ndim
    return labels[(*index[:dim], slice(None), *index[dim + 1 :])]


def spread(line: Tensor, dim: int, shape: Sequence[int]) -> Tensor:
    """A vector of labels along `dim` as a plane over `shape`."""
    view = [1] * len(shape)
    view[dim] = len(line)
    return line.view(view).expand(*shape)


def over(planes: Iterable[Plane], shape: Sequence[int]) -> tuple[Plane, ...]:
    """Planes over another shape, which differs only in sizes that they do not vary in.

    Raises:
        ValueError: They do vary there.
    """
    found = []
    for plane in planes:
        part = distinct(plane.labels)
        if list(part.shape) != [1 if p == 1 else s for p, s in zip(part.shape, shape, strict=True)]:
            raise ValueError("labels vary along a dimension that changes")
        found.append(Plane(part.expand(*shape), plane.zero))
    return tuple(found)


def dims_of(dims: int | Sequence[int] | None, ndim: int) -> tuple[int, ...]:
    """Dimensions counted from the front; none given means all."""
    if dims is None or (not isinstance(dims, int) and not len(dims)):
        return tuple(range(ndim))
    every = (dims,) if isinstance(dims, int) else dims
    return tuple(dim % ndim for dim in every)
