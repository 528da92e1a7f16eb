"""The table of rules: one small function for each class of operation, by aten name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from biprune.structured.atoms import Carried, Plane, distinct, varies
from biprune.structured.labels import Labels, Planes, Rule

RULES: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register a rule for these operations; it is called with the labels and what the node is
    called with, and returns the planes of the result, or a list of them for several results."""

    def register(function: Rule) -> Rule:
        for name in names:
            RULES[name] = function
        return function

    return register


def dims_of(dims: int | Sequence[int] | None, ndim: int) -> tuple[int, ...]:
    """Dimensions as they count from the front; none given are all."""
    if dims is None or (not isinstance(dims, int) and not len(dims)):
        return tuple(range(ndim))
    every = (dims,) if isinstance(dims, int) else dims
    return tuple(dim % ndim for dim in every)


def operator(name: str) -> Any:
    """The operation itself, whichever overload its arguments want."""
    return getattr(torch.ops.aten, name)


def without(
    on: Labels, x: Carried, dims: Sequence[int], reason: str, *, zero: bool | None = None
) -> list[Plane]:
    """The settled planes of `x` that do not vary along `dims`; the others are frozen.

    Units that vary along other dimensions too are tied to those. `zero` replaces the bit.
    """
    kept = []
    for plane in on.settled(x):
        labels = plane.labels
        inside = [dim for dim in varies(labels) if dim in dims]
        if inside and len(inside) < len(varies(labels)):
            labels = on.atoms.collapse(labels, inside)
        if any(dim in dims for dim in varies(labels)) or not varies(labels):
            on.atoms.freeze(labels, reason)
        else:
            kept.append(Plane(labels, plane.zero if zero is None else plane.zero and zero))
    return kept


def stretched(labels: Tensor, shape: Sequence[int]) -> Tensor:
    """A plane over another shape of as many dimensions, whose other sizes it does not vary in."""
    part = distinct(labels)
    sizes = [1 if p == 1 else s for p, s in zip(part.shape, shape, strict=True)]
    if list(part.shape) != sizes:
        raise ValueError("labels vary along a dimension that changes")
    return part.expand(*shape)


def shape_of(on: Labels) -> tuple[int, ...]:
    """The shape of what the node at hand gives."""
    return on.traced.results[on.node].shape


def over(planes: Sequence[Plane], shape: Sequence[int]) -> Planes:
    """Planes moved to another shape; see `stretched`."""
    return tuple(Plane(stretched(plane.labels, shape), plane.zero) for plane in planes)
