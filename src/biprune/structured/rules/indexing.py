"""Operations that pick and put by number: what lies along the numbered dimensions stays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from biprune.structured.atoms import Carried, Plane
from biprune.structured.labels import Labels, Planes, rule
from biprune.structured.rules.moving import by_dims, tied_across
from biprune.structured.rules.pointwise import pointwise
from biprune.structured.trace import PICKED, op_name

BY_INDEX = "it is picked from by index"


@rule("where", "nonzero", "argwhere", "nonzero_numpy")
def where(on: Labels, x: Carried, *args: Any, **kwargs: Any) -> Planes | list[Planes]:
    """A choice between two tensors, or the places of what is not zero."""
    if args:
        return pointwise(on, x, *args, **kwargs)
    on.freeze([x], "its places are counted")
    return on.first(())


@rule("index", "_unsafe_index")
def indexed(on: Labels, x: Carried, index: list[Carried | None]) -> Planes:
    """Picked by numbers: what lies along the indexed dimensions stays, the rest moves."""
    first: list[Tensor | None] = []
    for each in index:
        first += [None] if each is None else _numbers(on, each, on.shape[len(first)])
    dims = [dim for dim, each in enumerate(first) if each is not None]
    kept = on.without(x, dims, BY_INDEX)
    return tuple(Plane(torch.ops.aten.index(p.labels, first), p.zero) for p in kept)


def _numbers(on: Labels, index: Carried, count: int) -> list[Tensor]:
    """An index as numbers for each dimension that it goes along, all of them 0."""
    on.freeze([index], BY_INDEX)
    if index.dtype not in (torch.bool, torch.uint8):
        return [torch.zeros(index.shape, dtype=torch.long)]
    return [torch.zeros(count, dtype=torch.long)] * len(index.shape)


@rule("index_select")
def selected(on: Labels, x: Carried, dim: int, index: Carried) -> Planes:
    """The same along one dimension."""
    on.freeze([index], BY_INDEX)
    dim %= len(x.shape)
    kept = on.without(x, [dim], BY_INDEX)
    return tuple(Plane(p.labels.narrow(dim, 0, 1).expand(on.shape), p.zero) for p in kept)


@rule("gather", "take_along_dim")
def gathered(on: Labels, x: Carried, *args: Any, **kwargs: Any) -> Planes:
    """The same with an index for each place along the other dimensions, where both are tied."""
    index, dim = args if op_name(on.node) == "take_along_dim" else args[1::-1]
    return _along_others(on, [x, index], dim)


@rule("scatter", "scatter_add")
def scattered_by_index(
    on: Labels, x: Carried, dim: int, index: Carried, source: Any, **kwargs: Any
) -> Planes:
    """Put in places by an index for each place along the other dimensions."""
    planes = _along_others(on, [x, index, source], dim)
    return tuple(Plane(plane.labels, zero=False) for plane in planes)


@rule("index_add", "index_copy")
def added(on: Labels, x: Carried, dim: int, index: Carried, source: Carried, **_: Any) -> Planes:
    """Put in places by number along one dimension."""
    on.freeze([index], BY_INDEX)
    return _along_others(on, [x, source], dim)


def _along_others(on: Labels, parts: Sequence[Any], dim: int) -> Planes:
    """The planes that do not vary along a dimension, tied across those parts that are tensors."""
    tensors = [part for part in parts if isinstance(part, Carried)]
    dim %= len(tensors[0].shape)
    if len({part.shape[:dim] + part.shape[dim + 1 :] for part in tensors}) > 1:
        raise ValueError("this is a part of it only")
    return tied_across(on, [by_dims(on, on.without(p, [dim], BY_INDEX)) for p in tensors])


@rule("index_put", "_unsafe_index_put")
def put(on: Labels, x: Carried, index: list[Carried | None], values: Carried, *args: Any) -> Planes:
    """Written where numbers or a mask say, along the first dimensions."""
    first = [number for each in index if each for number in _numbers(on, each, PICKED)]
    if None in index[: len(first)]:
        raise ValueError("not along the first dimensions")
    rest = len(x.shape) - len(first)
    lead = len(values.shape) - rest  # dimensions that are picked
    if lead < 0:
        raise ValueError("the same for all of it")
    shape = (*[1] * len(first), *values.shape[lead:])
    planes = tuple(
        Plane(plane.labels[(0,) * lead].reshape(shape), plane.zero)
        for plane in on.without(values, range(lead), BY_INDEX)
    )
    known = by_dims(on, on.without(x, range(len(first)), BY_INDEX))
    return tied_across(on, [known, by_dims(on, on.settled(planes))])
