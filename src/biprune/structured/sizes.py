"""Moving operations that say sizes, for the sizes that are left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from biprune.structured.runs import Kept, Step

aten = torch.ops.aten
_SPLITS = ("split", "chunk", "split_with_sizes", "tensor_split", "unsafe_split", "unsafe_chunk")


def resized(own: Step, before: Sequence[int], kept: Kept, after: Any) -> Step:
    """A step on what is left of a tensor of shape `before`, which should give `after`.

    Raises:
        ValueError: The sizes cannot be said.
    """
    if own.name in ("view", "reshape", "_unsafe_view", "view_copy"):
        return _with(own, aten.reshape.default, _sizes(own.rest[0], own, after))
    if own.name in ("expand", "broadcast_to"):
        return _with(own, own.target, _sizes(own.rest[0], own, after))
    if own.name in ("view_as", "reshape_as"):
        return _with(own, aten.reshape.default, _sizes(None, own, after))
    if own.name == "unflatten":
        return _unflatten(own, before, after)
    if own.name in ("slice", "narrow"):
        return _slice(own, before, kept)
    dim = _dim(own, before)
    if own.name == "select" and dim in kept:
        place = int((kept[dim] < own.rest[1] % before[dim]).sum())
        return _with(own, own.target, dim, place)
    if own.name in _SPLITS and dim in kept:
        pairs = zip(after, own.shape, strict=True)
        counts = [len(each[dim]) if dim in each else shape[dim] for each, shape in pairs]
        return _with(own, aten.split_with_sizes.default, counts, dim)
    return own


def _with(own: Step, target: Any, *rest: Any) -> Step:
    return replace(own, target=target, rest=rest, kwargs={})


def _dim(own: Step, before: Sequence[int]) -> int:
    place = {"select": 0, "unbind": 0}.get(own.name, 1)
    given = own.rest[place] if len(own.rest) > place else own.kwargs.get("dim", 0)
    return given % len(before) if isinstance(given, int) else 0


def _sizes(given: Any, own: Step, kept: Kept) -> list[Any]:
    """Sizes as arguments: numbers where the graph has numbers, and one to be found at the call."""
    found = []
    for dim, size in enumerate(own.shape):
        said = -1 if given is None or len(given) != len(own.shape) else given[dim]
        if own.static[dim]:
            found.append(len(kept[dim]) if dim in kept else size)
        else:
            found.append(-1 if dim in kept else said)
    if own.name != "expand" and found.count(-1) > 1:
        raise ValueError("two sizes that depend on the input change")
    return found


def _unflatten(own: Step, before: Sequence[int], kept: Kept) -> Step:
    dim, sizes = own.rest
    dim %= len(before)
    said = [len(kept[d]) if d in kept else size for d, size in enumerate(sizes, start=dim)]
    return _with(own, own.target, dim, said)


def _slice(own: Step, before: Sequence[int], kept: Kept) -> Step:
    dim, start, end, step = [*own.rest, *[0, None, None, 1][len(own.rest) :]]
    dim %= len(before)
    if dim not in kept:
        return own
    if own.name == "narrow":
        chosen = range(start % before[dim], start % before[dim] + end)
    else:
        chosen = range(before[dim])[slice(start, end, step)]
    places = _places(kept[dim], chosen, before[dim])
    if chosen.step == 1:
        first = int((kept[dim] < chosen.start).sum())
        return _with(own, aten.slice.Tensor, dim, first, first + len(places))
    return _with(own, aten.index_select.default, dim, places)


def _places(kept: Tensor, chosen: Sequence[int], size: int) -> Tensor:
    """Where the chosen indices that are left lie among all that are left."""
    place = torch.full((size,), -1)
    place[kept] = torch.arange(len(kept))
    places = place[torch.tensor(list(chosen), dtype=torch.long)]
    return places[places >= 0]
