"""Operations that pick and put by number: what lies along the numbered dimensions stays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from biprune.structured.atoms import Carried, Plane
from biprune.structured.labels import Labels, Planes
from biprune.structured.rules.moving import by_dims, tied_across
from biprune.structured.rules.pointwise import pointwise
from biprune.structured.rules.table import operator, rule, shape_of, without
from biprune.structured.trace import PICKED, op_name

BY_INDEX = "it is picked from by index"


@rule("where", "nonzero", "argwhere", "nonzero_numpy")
def where(on: Labels, x: Carried, *args: Any, **kwargs: Any) -> Planes | list[Planes]:
    """A choice between two, or the places of what is not zero."""
    if args:
        return pointwise(on, x, *args, **kwargs)
    on.freeze([x], "its places are counted")
    given = on.traced.results[on.node]
    return [()] * len(given) if isinstance(given, list) else ()


@rule("index", "_unsafe_index")
def indexed(on: Labels, x: Carried, index: list[Carried | None]) -> Planes:
    """Picked by numbers: what lies along the indexed dimensions stays, the rest moves."""
    first: list[Tensor | None] = []
    for each in index:
        first += [None] if each is None else _numbers(on, each, shape_of(on)[len(first)])
    dims = [dim for dim, each in enumerate(first) if each is not None]
    kept = without(on, x, dims, BY_INDEX)
    return tuple(Plane(operator("index")(p.labels, first), p.zero) for p in kept)


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
    kept = without(on, x, [dim], BY_INDEX)
    return tuple(Plane(p.labels.narrow(dim, 0, 1).expand(shape_of(on)), p.zero) for p in kept)


@rule("gather", "take_along_dim")
def gathered(on: Labels, x: Carried, *args: Any, **kwargs: Any) -> Planes:
    """The same with an index for each place along other dimensions, along which both are tied."""
    index, dim = args if op_name(on.node) == "take_along_dim" else args[1::-1]
    dim %= len(x.shape)
    if any(a != b for d, (a, b) in enumerate(zip(x.shape, index.shape, strict=True)) if d != dim):
        raise ValueError("gathers from a part of it")
    return _along_others(on, [x, index], dim, BY_INDEX)


@rule("index_add", "index_copy")
def added(on: Labels, x: Carried, dim: int, index: Carried, source: Carried, **_: Any) -> Planes:
    """Put in places by number: along other dimensions both are tied."""
    on.freeze([index], BY_INDEX)
    return _along_others(on, [x, source], dim % len(x.shape), BY_INDEX)


@rule("scatter", "scatter_add")
def scattered_by_index(
    on: Labels, x: Carried, dim: int, index: Carried, source: Any, **kwargs: Any
) -> Planes:
    """The same with an index for each place."""
    parts = [x, index, *([source] if isinstance(source, Carried) else [])]
    dim %= len(x.shape)
    if any(p.shape[:dim] + p.shape[dim + 1 :] != x.shape[:dim] + x.shape[dim + 1 :] for p in parts):
        raise ValueError("goes to a part of it")
    planes = _along_others(on, parts, dim, BY_INDEX)
    return tuple(Plane(p.labels, False) for p in planes)


@rule("index_put", "_unsafe_index_put")
def put(on: Labels, x: Carried, index: list[Carried | None], values: Carried, *args: Any) -> Planes:
    """Written where numbers or a mask say, along the first dimensions."""
    first = [number for each in index if each for number in _numbers(on, each, PICKED)]
    if None in index[: len(first)]:
        raise ValueError("not along the first dimensions")
    indexed = range(len(first))
    rest = len(x.shape) - len(first)
    lead = len(values.shape) - rest  # dimensions that are picked
    if lead < 0:
        raise ValueError("the same for all of it")
    known = without(on, values, range(lead), BY_INDEX)
    part = Carried(
        (*[1] * len(first), *values.shape[lead:]),
        values.dtype,
        tuple(
            Plane(p.labels[(0,) * lead].reshape(*[1] * len(first), *values.shape[lead:]), p.zero)
            for p in known
        ),
    )
    planes = [*without(on, x, indexed, BY_INDEX)]
    return tuple(tied_across(on, [by_dims(on, planes), by_dims(on, on.settled(part))]))


def _along_others(on: Labels, parts: Sequence[Carried], dim: int, reason: str) -> Planes:
    """Planes along other dimensions than one, tied across parts."""
    return tuple(tied_across(on, [by_dims(on, without(on, p, [dim], reason)) for p in parts]))
